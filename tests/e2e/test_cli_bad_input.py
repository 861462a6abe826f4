"""Whatever is wrong: one clear line on stderr, an exit code, and nothing written."""

import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import cli, environment, one_error, tree


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "kept.txt").write_text("kept")
    (folder / "text.db").write_text("this is no database\n" * 100)
    (folder / "s.json").write_text('{"answers": [{"text": "hi"}]}')
    (folder / "bad.json").write_text('{"answers": [{"txt": 1}]}')
    other = sqlite3.connect(folder / "other.db")
    other.execute("CREATE TABLE t (a)")
    other.execute("INSERT INTO t VALUES (1)")
    other.commit()
    other.close()
    return folder


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


RUN = ["run", "Hi.", "-m", "scripted:s.json"]
NO_DATABASE = "text.db is not a session database: file is not a database"
NOT_OURS = "other.db is not a session database of agent-harness"

REFUSED: list[tuple[list[str], int, str]] = [
    (["run", "", "-m", "scripted:s.json"], 1, "the prompt is empty"),
    (["run", " \n\t ", "-m", "scripted:s.json"], 1, "the prompt is empty"),
    (["run", "a\udc9fb", "-m", "scripted:s.json"], 1, "the prompt is not valid Unicode text"),
    (["run", "Hi."], 1, "no model: pass --model PROVIDER/ID or set AGENT_HARNESS_MODEL"),
    (["run", "Hi.", "-m", "gpt"], 1, "'gpt' names no model"),
    (["run", "Hi.", "-m", "openai/"], 1, "names no model"),
    (["run", "Hi.", "-m", "open\x1b[31mai/x"], 1, "names no model"),
    (["run", "Hi.", "-m", "nobody/x"], 1, "unknown model 'nobody/x'"),
    (["run", "Hi.", "-m", "openai/gpt-5-minni"], 1, "did you mean openai/gpt-5-mini"),
    (
        ["run", "Hi.", "-m", "openai/gpt-5"],
        1,
        "no API key for openai/gpt-5: set OPENAI_API_KEY or AGENT_HARNESS_API_KEY",
    ),
    (["run", "Hi.", "-m", "scripted:missing.json"], 1, "missing.json: No such file"),
    (["run", "Hi.", "-m", "scripted:bad.json"], 1, "is no script: answers.0.txt: Extra inputs"),
    (["run", "Hi.", "-m", "scripted:kept.txt"], 1, "is no script"),
    (["run", "Hi.", "-m", "x/y", "--base-url", "ftp://a"], 1, "--base-url is no address"),
    (["run", "Hi.", "-m", "x/y", "--base-url", "http://"], 1, "--base-url is no address"),
    (["run", "Hi.", "-m", "x/y", "--base-url", "http://h:99999"], 1, "--base-url is no address"),
    (["run", "Hi.", "-m", "x/y", "--base-url", "http://u:CANARY@h/"], 1, "must hold no password"),
    (["run", "Hi.", "-m", "x/y", "--base-url", "http://127.0.0.1:PORT/v1"], 1, "cannot reach http://127.0.0.1:PORT: "),
    (
        ["run", "Hi.", "-m", "x/y", "--base-url", "http://no-such-host.invalid/v1"],
        1,
        "cannot reach http://no-such-host",
    ),
    ([*RUN, "-C", "missing"], 1, "missing is not a folder"),
    ([*RUN, "-C", "kept.txt"], 1, "kept.txt is not a folder"),
    ([*RUN, "--session", "nope"], 1, "no sessions yet: "),
    ([*RUN, "--store", "nope:x"], 1, "no session backend for 'nope:x'"),
    ([*RUN, "--store", "justtext"], 1, "no session backend for 'justtext'"),
    ([*RUN, "--store", "sqlite:"], 1, "needs the path"),
    ([*RUN, "--store", "sqlite:text.db"], 1, NO_DATABASE),
    ([*RUN, "--store", "sqlite:other.db"], 1, NOT_OURS),
    ([*RUN, "--store", "sqlite:missing/sub/x.db", "-m", "scripted:nope.json"], 1, "nope.json: No such file"),
    ([*RUN, "--store", "jsonl:kept.txt"], 1, "kept.txt is not a folder"),
    (["resume"], 1, "no sessions yet: "),
    (["resume", "x"], 1, "no sessions yet: "),
    (["sessions", "list"], 1, "no sessions yet: "),
    (["sessions", "log", "x"], 1, "no sessions yet: "),
    (["sessions", "list", "--store", "sqlite:text.db"], 1, NO_DATABASE),
    (["sessions", "list", "--store", "sqlite:other.db"], 1, NOT_OURS),
    (
        ["sessions", "show", "x", "--store", "sqlite:text.db"],
        1,
        NO_DATABASE,
    ),
    (["resume", "--store", "sqlite:other.db"], 1, NOT_OURS),
    (["sessions", "list", "--store", "jsonl:text.db"], 1, "text.db is not a folder"),
    (["sessions", "list", "--store", "sqlite:."], 1, "work is not a regular file"),
    (["sessions", "fork", "x"], 1, "no sessions yet: "),
    (["sessions", "import", "kept.txt"], 1, "kept.txt is no session file"),
    (["sessions", "import", "missing.jsonl"], 1, "no such file: missing.jsonl"),
    (["sessions", "log"], 2, "Missing argument 'SESSION'"),
    (["frobnicate"], 2, "No such command 'frobnicate'"),
    (["run", "Hi.", "--frob"], 2, "No such option"),
    (["run"], 2, "Missing argument 'PROMPT'"),
    (["run", "Hi.", "--interrupted", "maybe"], 2, "'maybe' is not one of 'ask', 'resume', 'abort'"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "said"), REFUSED, ids=[" ".join(a).encode("ascii", "replace").decode() for a, *_ in REFUSED]
)
def test_one_clear_line_and_nothing_written(work: Path, arguments: list[str], code: int, said: str) -> None:
    before, port = tree(work), str(closed_port())
    done = cli(*[one.replace("PORT", port) if one.startswith("http") else one for one in arguments], cwd=work)
    assert said.replace("127.0.0.1:PORT", f"127.0.0.1:{port}") in one_error(done)
    assert (done.returncode, done.stdout) == (code, "")
    assert "\x1b" not in done.stderr
    assert "CANARY" not in done.stderr
    assert tree(work) == before
    assert sorted(p.name for p in work.iterdir()) == ["bad.json", "kept.txt", "other.db", "s.json", "text.db"]


def test_unknown_sessions_of_a_real_store(work: Path) -> None:
    assert cli(*RUN, cwd=work).returncode == 0
    before = stored(work)
    for arguments in (["run", "Hi.", "--session", "nope"], ["resume", "nope"], ["sessions", "log", "nope"]):
        assert "no session 'nope' in " in one_error(cli(*arguments, cwd=work))
    for bad in ("../x", "a/b", "", "é"):
        assert "invalid session id" in one_error(cli("sessions", "show", bad, cwd=work))
    assert "nothing to resume in " in one_error(cli("resume", cwd=work))
    assert stored(work) == before


def stored(folder: Path) -> dict[str, bytes]:
    """Without the index that SQLite makes for readers, and its empty log."""
    files = {name: data for name, data in tree(folder).items() if not name.endswith("-shm")}
    return {name: data for name, data in files.items() if data or not name.endswith("-wal")}


def test_a_model_that_a_session_lost_is_named(work: Path) -> None:
    session = cli(*RUN, "--json", cwd=work).stdout.partition('"session":"')[2].partition('"')[0]
    (work / "s.json").unlink()
    assert "s.json: No such file" in one_error(cli("run", "Hi.", "--session", session, cwd=work))


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("blocked", name=name)
sys.meta_path.insert(0, Blocker())
from agent_harness.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("blocked", "arguments", "said"),
    [
        ({"typer", "rich"}, ["demo"], "pip install 'agent-harness[cli]'"),
        ({"typer"}, ["sessions", "list"], "pip install 'agent-harness[cli]'"),
        ({"openai"}, ["run", "Hi.", "-m", "x/y", "--base-url", "http://h"], "pip install 'agent-harness[openai]'"),
        ({"openai"}, ["run", "Hi.", "-m", "openai/gpt-5"], "pip install 'agent-harness[openai]'"),
    ],
)
def test_a_missing_extra_gives_the_pip_command(work: Path, blocked: set[str], arguments: list[str], said: str) -> None:
    before = tree(work)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=blocked), *arguments],
        cwd=work,
        env=environment(OPENAI_API_KEY="k"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said in one_error(done)
    assert done.returncode == 1
    assert tree(work) == before


def test_a_full_trace_is_shown_only_when_asked_for(work: Path) -> None:
    done = cli("resume", "x", cwd=work, env={"AGENT_HARNESS_TRACE": "1"})
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("option", ["--help", ""])
def test_help_names_every_command(work: Path, option: str) -> None:
    done = cli(*([option] if option else []), cwd=work)
    text = done.stdout + done.stderr
    for command in ("demo", "run", "chat", "resume", "doctor", "sessions"):
        assert command in text
