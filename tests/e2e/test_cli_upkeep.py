"""`doctor`, `sessions repair`, `sessions show` and the checks of `sessions import`."""

import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_support import COMMAND, call, cli, environment, json_lines, one_error, script, tree, wait_until

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORE = ".agent-harness/sessions.db"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def made(tmp_path: Path, work: Path, *answers: dict[str, Any], store: str | None = None) -> str:
    """A session with these answers; its id."""
    model = script(tmp_path / "s.json", *(answers or ({"text": "One."},)))
    where = ["--store", store] if store else []
    done = cli("run", "Do it.", "-m", model, "--json", "-q", *where, cwd=work)
    session: str = json.loads(done.stdout)["session"]
    return session


# show


def test_a_session_is_shown_as_a_conversation(tmp_path: Path, work: Path) -> None:
    lines = "\n".join(f"line {n}" for n in range(40))
    session = made(
        tmp_path,
        work,
        {
            "text": "Let me\nlook.\x1b[2J",
            "calls": [call("write", path="a.txt", content=lines), call("shell", command="cat a.txt")],
        },
        {"text": "Done."},
    )
    shown = cli("sessions", "show", session, cwd=work).stdout
    parts = shown.split("\n--- ")
    heads = [part.splitlines()[0].partition("  ")[0] for part in parts[1:]]
    assert heads == ["user", "assistant scripted/s", "result of write", "result of shell", "assistant scripted/s"]
    assert "messages, " in parts[0]
    assert "lane main: idle" in parts[0]
    assert parts[2].splitlines()[1:3] == ["Let me", "look."]
    assert '> write {"path":"a.txt","content":"line 0\\nline 1' in parts[2]
    assert parts[4].splitlines()[1:3] == ["line 0", "line 1"]
    assert parts[4].rstrip().endswith("[29 more lines]")
    assert parts[5].rstrip().endswith("Done.")
    assert "\x1b" not in shown
    full = cli("sessions", "show", session, "--full", cwd=work).stdout
    assert "line 39" in full
    assert "more lines" not in full
    told = json.loads(cli("sessions", "show", session, "--json", cwd=work).stdout)
    assert [one["type"] for one in told["entries"]] == ["message"] * 5
    assert "has no lane 'other'" in one_error(cli("sessions", "show", session, "--lane", "other", cwd=work))


@pytest.mark.parametrize("name", ["v4/idle-all-kinds", "v4/navigation", "v4/run-retry", "v4/idle-empty"])
def test_every_kind_of_entry_can_be_shown(work: Path, name: str) -> None:
    (work / "one.jsonl").write_bytes((FIXTURES / f"{name}.jsonl").read_bytes())
    session = cli("sessions", "import", "one.jsonl", cwd=work).stdout.strip()
    for options in ([], ["--full"], ["--json"]):
        done = cli("sessions", "show", session, *options, cwd=work)
        assert (done.returncode, done.stderr) == (0, "")


# import


def test_a_file_that_breaks_a_rule_is_not_imported(work: Path) -> None:
    (work / "one.jsonl").write_bytes((FIXTURES / "v4/corrupt-tool-duplicate.jsonl").read_bytes())
    assert "one.jsonl breaks 1 rule(s), first item " in one_error(cli("sessions", "import", "one.jsonl", cwd=work))
    assert list(tree(work)) == ["one.jsonl"]


# repair


def test_the_good_beginning_of_a_damaged_file_is_saved(work: Path) -> None:
    source = (FIXTURES / "v4/damaged-bad-interior.jsonl").read_bytes()
    (work / "bad.jsonl").write_bytes(source)
    assert "line " in one_error(cli("sessions", "import", "bad.jsonl", cwd=work))
    done = cli("sessions", "repair", "bad.jsonl", "--output", "good.jsonl", cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    assert "left out from line " in done.stdout
    saved = (work / "good.jsonl").read_bytes()
    assert source.startswith(saved)
    assert (work / "bad.jsonl").read_bytes() == source
    assert cli("sessions", "import", "good.jsonl", cwd=work).returncode == 0
    told = json.loads(cli("sessions", "repair", "bad.jsonl", "-o", "again.jsonl", "--json", cwd=work).stdout)
    assert (told["bytesKept"], told["bytesKept"] + told["bytesLeft"]) == (len(saved), len(source))
    assert told["reason"]
    assert "good.jsonl exists" in one_error(cli("sessions", "repair", "bad.jsonl", "-o", "good.jsonl", cwd=work))


def test_a_session_of_a_folder_is_repaired_by_its_id(tmp_path: Path, work: Path) -> None:
    store = f"jsonl:{tmp_path / 'store'}"
    session = made(tmp_path, work, store=store)
    path = next((tmp_path / "store").rglob("*.jsonl"))
    with path.open("ab") as file:
        file.write(b"\0" * 100 + b"\n")
    assert "repaired into a new one" in one_error(cli("sessions", "repair", session, "--store", store, cwd=work))
    done = cli("sessions", "repair", session, "--store", store, "-o", "good.jsonl", cwd=work)
    assert done.returncode == 0, done
    assert "left out from line " in done.stdout
    assert (work / "good.jsonl").read_bytes() == path.read_bytes()[:-101]
    assert "no session 'nope'" in one_error(
        cli("sessions", "repair", "nope", "-o", "x.jsonl", "--store", store, cwd=work)
    )


def test_the_branch_cache_of_a_database_is_rebuilt(tmp_path: Path, work: Path) -> None:
    session = made(tmp_path, work, {"text": "One.", "calls": [call("list")]}, {"text": "Two."})
    before = cli("sessions", "show", session, cwd=work).stdout
    assert cli("sessions", "repair", session, cwd=work).stdout == f"session {session}: nothing to repair\n"
    conn = sqlite3.connect(work / STORE)
    conn.execute("DELETE FROM branch_entries WHERE entry_seq < (SELECT max(entry_seq) FROM branch_entries)")
    conn.commit()
    conn.close()
    assert cli("sessions", "show", session, cwd=work).stdout != before
    told = json.loads(cli("sessions", "repair", session, "--json", cwd=work).stdout)
    assert told == {"session": session, "rebuilt": True}
    assert cli("sessions", "show", session, cwd=work).stdout == before
    assert "no session 'nope'" in one_error(cli("sessions", "repair", "nope", cwd=work))
    assert "--output is for session files" in one_error(cli("sessions", "repair", session, "-o", "x.jsonl", cwd=work))


# doctor


def report(work: Path, *arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(cli("doctor", "--json", *arguments, cwd=work).stdout)
    return told


def test_a_doctor_finds_nothing_where_nothing_is_and_makes_nothing(work: Path) -> None:
    done = cli("doctor", cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"SQLite {sqlite3.sqlite_version}" in done.stdout
    assert "nothing is there yet" in done.stdout
    assert list(work.iterdir()) == []


def test_a_doctor_tells_open_permissions_with_the_remedy(tmp_path: Path, work: Path) -> None:
    made(tmp_path, work)
    assert not [one for one in report(work)["findings"] if one["severity"] == "problem"]
    (work / STORE).chmod(0o644)
    done = cli("doctor", cwd=work)
    assert done.returncode == 1
    assert "chmod 600 [not_private]" in done.stdout
    assert done.stderr.startswith("error: 1 problem(s) in ")
    assert {one["code"] for one in report(work)["findings"] if one["severity"] == "problem"} == {"not_private"}


def test_a_doctor_tells_a_claim_whose_owner_was_killed(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"calls": [call("shell", command="touch started; sleep 60")]})
    process = subprocess.Popen([*COMMAND, "run", "Work.", "-q", "-m", model], cwd=work, env=environment())
    wait_until((work / "started").exists, process)
    assert "stale_lease" not in [one["code"] for one in report(work)["findings"]]
    process.kill()
    process.wait()
    assert "stale_lease" in [one["code"] for one in report(work)["findings"]]
    assert cli("doctor", cwd=work).returncode == 0


def test_a_doctor_looks_at_folders_of_session_files(tmp_path: Path, work: Path) -> None:
    store = f"jsonl:{tmp_path / 'store'}"
    made(tmp_path, work, store=store)
    before = tree(tmp_path / "store")
    assert report(work, "--store", store)["findings"] == []
    path = next((tmp_path / "store").rglob("*.jsonl"))
    shutil.copy(path, path.with_name("copy.jsonl"))
    os.chmod(path.with_name("copy.jsonl"), 0o666)
    (path.parent / ".gone.jsonl.lock").touch()
    assert {one["code"] for one in report(work, "--store", store)["findings"]} == {"not_private", "stale_lock"}
    assert before.items() <= tree(tmp_path / "store").items()


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("memory:", "nothing is known of its insides"),
        ("sqlite:.", "is a folder, not a database file"),
        ("jsonl:text", "is not a folder"),
        ("sqlite:text", "problem(s) in "),
    ],
)
def test_a_doctor_refuses_or_tells_what_is_no_store(work: Path, store: str, said: str) -> None:
    (work / "text").write_text("this is no database\n" * 50)
    (work / "text").chmod(0o600)
    before = tree(work)
    assert said in one_error(cli("doctor", "--store", store, cwd=work))
    assert tree(work) == before


def test_every_command_speaks_json(work: Path) -> None:
    for command in (["run"], ["chat"], ["resume"], ["demo"], ["doctor"]):
        assert "--json" in cli(*command, "--help", cwd=work).stdout
    for name in ("list", "log", "show", "fork", "verify", "import", "repair"):
        assert "--json" in cli("sessions", name, "--help", cwd=work).stdout


def test_listed_json_is_one_value_per_line(tmp_path: Path, work: Path) -> None:
    made(tmp_path, work)
    made(tmp_path, work)
    assert len(json_lines(cli("sessions", "list", "--json", cwd=work).stdout)) == 2
