"""`run`, `resume` and `sessions` with a scripted model and with a real HTTP provider against llmock."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import COMMAND, call, cli, environment, json_lines, one_error, script, start, tree, wait_until

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORE = ".agent-harness/sessions.db"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


# A scripted model


def test_a_task_is_done_and_kept(tmp_path: Path, work: Path) -> None:
    (work / "a.txt").write_text("one")
    model = script(
        tmp_path / "s.json",
        {"text": "Looking.", "calls": [call("read", path="a.txt"), call("list")]},
        {"calls": [call("write", path="b/c.txt", content="two"), call("shell", command="cat a.txt b/c.txt")]},
        {"text": "Done: wrote b/c.txt.\nBye."},
    )
    done = cli("run", "Copy it.", "--model", model, cwd=work)
    assert (done.returncode, done.stdout) == (0, "Done: wrote b/c.txt.\nBye.\n")
    assert "< read: one" in done.stderr
    assert "< shell: onetwo [exit code 0]" in done.stderr
    assert (work / "b/c.txt").read_text() == "two"
    assert (work / ".agent-harness/.gitignore").read_text() == "*\n"
    assert stat.S_IMODE((work / STORE).stat().st_mode) == 0o600
    assert stat.S_IMODE((work / ".agent-harness").stat().st_mode) == 0o700
    listed = json_lines(cli("sessions", "list", "--json", cwd=work).stdout)
    assert [(one["name"], one["cwd"]) for one in listed] == [("Copy it.", str(work))]
    session = listed[0]["id"]
    assert session in done.stderr
    log = cli("sessions", "log", session, cwd=work)
    lines = log.stdout.splitlines()
    items = json_lines(cli("sessions", "log", session, "--json", cwd=work).stdout)
    assert len(lines) == len(items) == items[-1]["seq"]
    assert lines[-1].endswith("R operation_finished completed")
    assert cli("sessions", "verify", session, cwd=work).stdout == f"session {session}: no finding\n"
    shown = json.loads(cli("sessions", "show", session, "--json", cwd=work).stdout)
    assert shown["lanes"][0]["open"] is None
    details = [i["message"]["details"] for i in items if i.get("message", {}).get("toolName") == "write"]
    assert [one["changedPaths"] for one in details] == [["b/c.txt"]]


def test_run_speaks_json(tmp_path: Path, work: Path) -> None:
    done = cli("run", "Say hi.", "--model", script(tmp_path / "s.json", {"text": "hi \x1b[31m"}), "--json", cwd=work)
    report = json.loads(done.stdout)
    assert (report["outcome"], report["answer"], report["error"]) == ("completed", "hi \x1b[31m", None)
    assert report["usage"]["output"] == 5
    assert "\x1b" not in done.stdout


def test_a_session_goes_on_and_remembers_its_model(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"text": "first"}, {"text": "second"})
    session = json.loads(cli("run", "One.", "--model", model, "--json", cwd=work).stdout)["session"]
    done = cli("run", "-", "--session", session, "--quiet", cwd=work, stdin="Two.\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "second\n", "")
    failed = cli("run", "Three.", "--session", session, cwd=work)
    assert failed.returncode == 1
    assert "error: the run failed: " in failed.stderr
    assert "the script has only 2 answers" in failed.stderr


def test_a_model_that_is_asked_for_is_asked_and_stays(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", *({"text": f"s{n}"} for n in range(4)))
    other = script(tmp_path / "other.json", *({"text": f"o{n}"} for n in range(4)))
    session = json.loads(cli("run", "One.", "-m", model, "--json", "-q", cwd=work).stdout)["session"]
    done = cli("run", "Two.", "-s", session, "-m", other, "-q", cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, "o1\n", "")
    changes = [
        one["modelId"]
        for one in json_lines(cli("sessions", "log", session, "--json", cwd=work).stdout)
        if one.get("type") == "model_change"
    ]
    assert changes == ["other"]
    # Without a wish the session goes on with the model that its header can still name.
    assert cli("run", "Three.", "-s", session, "-q", cwd=work).stdout == "s2\n"


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_the_store_is_what_one_names(tmp_path: Path, work: Path, kind: str) -> None:
    model = script(tmp_path / "s.json", {"text": "ok"})
    store = f"{kind}:{tmp_path / 'elsewhere' / 'store'}"
    done = cli("run", "Go.", "--model", model, "--json", "--store", store, cwd=work)
    assert done.returncode == 0, done.stderr
    assert tree(work) == {}
    session = json.loads(done.stdout)["session"]
    assert session in cli("sessions", "list", cwd=work, env={"AGENT_HARNESS_STORE": store}).stdout


def test_stored_text_cannot_command_the_terminal(tmp_path: Path, work: Path) -> None:
    """T26: titles, clipboard, colours, 8-bit controls and direction marks are stripped; text stays."""
    nasty = "a\x1b]0;title\x07b\x1b]52;c;ZXZpbA==\x07c\x1b[2Jd\x9b31me\u202ef\x00g\rh"
    (work / "n.txt").write_text(nasty)
    model = script(tmp_path / "s.json", {"text": nasty, "calls": [call("shell", command="cat n.txt")]}, {"text": nasty})
    done = cli("run", nasty.replace("\x00", ""), "--model", model, cwd=work)
    session = json_lines(cli("sessions", "list", "--json", cwd=work).stdout)[0]["id"]
    assert done.stdout == "abcdefgh\n"
    everything = done.stdout + done.stderr
    for command in (["list"], ["log", session], ["show", session], ["log", session, "--json"]):
        everything += cli("sessions", *command, cwd=work).stdout
    assert "abcdefgh" in everything
    controls = {c for c in everything if (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e") and c not in "\n\t"}
    assert controls == set()


def test_a_session_is_forked_and_goes_on_by_itself(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"text": "first"}, {"text": "second"})
    session = json.loads(cli("run", "One.", "--model", model, "--json", "-q", cwd=work).stdout)["session"]
    before = cli("sessions", "log", session, cwd=work).stdout
    fork = cli("sessions", "fork", session, cwd=work).stdout.strip()
    done = cli("run", "Two.", "--session", fork, "--model", model, "-q", cwd=work)
    assert (done.returncode, done.stdout) == (0, "second\n"), done.stderr
    assert cli("sessions", "log", session, cwd=work).stdout == before
    items = json_lines(before_json := cli("sessions", "log", session, "--json", cwd=work).stdout)
    first = next(one["id"] for one in items if one["kind"] == "entry")
    made = json.loads(cli("sessions", "fork", session, "--at", first, "--json", cwd=work).stdout)["session"]
    assert [
        one["id"] for one in json_lines(cli("sessions", "log", made, "--json", cwd=work).stdout) if "id" in one
    ] == [first]
    assert "has no entry 'nope'" in one_error(cli("sessions", "fork", session, "--at", "nope", cwd=work))
    assert cli("sessions", "log", session, "--json", cwd=work).stdout == before_json


@pytest.mark.parametrize("name", ["v3/new-bad-interior", "v4/damaged-torn-tail"])
def test_a_session_file_is_imported_and_left_alone(work: Path, name: str) -> None:
    source = FIXTURES / f"{name}.jsonl"
    copy = work / "old.jsonl"
    copy.write_bytes(source.read_bytes())
    done = cli("sessions", "import", "old.jsonl", cwd=work)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("note: ")
    assert copy.read_bytes() == source.read_bytes()
    assert sorted(p.name for p in work.iterdir()) == [".agent-harness", "old.jsonl"]
    assert "E " in cli("sessions", "log", done.stdout.strip(), cwd=work).stdout


# Interruption


def slow(tmp_path: Path, work: Path) -> str:
    command = f"echo $$ > {work}/started; sleep 60"
    return script(tmp_path / "s.json", {"calls": [call("shell", command=command)]}, {"text": "went on"})


def started_run(tmp_path: Path, work: Path) -> tuple[subprocess.Popen[str], int]:
    process = start("run", "Work.", "--model", slow(tmp_path, work), cwd=work)
    wait_until(lambda: (work / "started").exists() and (work / "started").read_text() != "", process)
    return process, int((work / "started").read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_detaches_and_says_how_to_go_on(tmp_path: Path, work: Path, number: int, code: int) -> None:
    process, child = started_run(tmp_path, work)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert not Path(f"/proc/{child}").exists()
    last = err.splitlines()[-1]
    assert last.startswith("error: interrupted; the run is kept, `agent-harness resume ")
    session = last.split()[last.split().index("resume") + 1].strip("`")
    done = cli("resume", session, cwd=work)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    log = cli("sessions", "log", session, cwd=work).stdout
    assert "E error of shell: The call was interrupted." in log
    assert "nothing to resume" in one_error(cli("resume", session, cwd=work))


def test_an_interrupted_run_is_found_told_and_settled_as_asked(tmp_path: Path, work: Path) -> None:
    process, _ = started_run(tmp_path, work)
    process.kill()
    process.communicate()
    quick = script(tmp_path / "quick.json", {"text": "another"})
    other = cli("run", "Else.", "--model", quick, cwd=work)
    assert other.returncode == 0
    told = next(line for line in other.stderr.splitlines() if line.startswith("note: session"))
    session = told.split()[2]
    refused = one_error(cli("run", "More.", "--session", session, cwd=work))
    assert "has an interrupted run (user: Work.)" in refused
    answers = json.loads((tmp_path / "s.json").read_text())["answers"]
    script(tmp_path / "s.json", *answers, {"text": "and more"})
    done = cli("run", "More.", "--session", session, "--interrupted", "resume", cwd=work)
    assert (done.returncode, done.stdout) == (0, "and more\n")


def test_a_run_goes_on_in_its_own_folder_with_its_own_model_and_prompt(tmp_path: Path, work: Path) -> None:
    model = script(
        tmp_path / "s.json",
        {"calls": [call("shell", command="touch started; sleep 60")]},
        {"calls": [call("write", path="where.txt", content="here")]},
        {"text": "went on"},
    )
    store = f"sqlite:{tmp_path / 'store'}"
    process = start("run", "Work.", "-m", model, "--store", store, "--system", "Be brief.", cwd=work)
    wait_until((work / "started").exists, process)
    process.kill()
    process.communicate()
    other = tmp_path / "other"
    other.mkdir()
    done = cli("resume", "--store", store, cwd=other, env={"AGENT_HARNESS_MODEL": "nobody/x"})
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert (work / "where.txt").read_text() == "here"
    assert tree(other) == {}
    session = json_lines(cli("sessions", "list", "--json", "--store", store, cwd=other).stdout)[0]["id"]
    refused = cli("run", "x", "-s", session, "--store", store, cwd=other, env={"AGENT_HARNESS_MODEL": "nobody/x"})
    assert "the script has only 3 answers" in refused.stderr
    assert "unknown model 'nobody/x'" in one_error(
        cli("run", "x", "-s", session, "--store", store, "-m", "nobody/x", cwd=other)
    )
    work.rename(tmp_path / "moved")
    assert "is gone" in one_error(cli("run", "x", "-s", session, "--store", store, cwd=other))


def test_at_a_terminal_the_interrupted_run_is_offered(tmp_path: Path, work: Path) -> None:
    process, _ = started_run(tmp_path, work)
    process.kill()
    process.communicate()
    answers = json.loads((tmp_path / "s.json").read_text())["answers"]
    script(tmp_path / "s.json", *answers, {"text": "and more"})
    session = json_lines(cli("sessions", "list", "--json", cwd=work).stdout)[0]["id"]
    terminal, inside = os.openpty()
    asked = subprocess.Popen(
        [*COMMAND, "run", "More.", "-s", session],
        cwd=work,
        env=environment(),
        stdin=inside,
        stdout=inside,
        stderr=inside,
    )
    os.close(inside)
    shown = b""
    try:
        while b"[Y/n]" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"y\n")
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # the last writer is gone
                break
        assert asked.wait(timeout=30) == 0
    finally:
        asked.kill()
        asked.wait()
        os.close(terminal)
    text = shown.decode()
    assert "This session has an interrupted run (user: Work.)." in text
    assert text.count("and more") == 1  # counted while it grows, written once
    assert "8 characters" in text


def test_an_interrupted_run_can_be_given_up(tmp_path: Path, work: Path) -> None:
    process, _ = started_run(tmp_path, work)
    process.kill()
    process.communicate()
    session = json_lines(cli("sessions", "list", "--json", cwd=work).stdout)[0]["id"]
    script(tmp_path / "s.json", {"text": "-"}, {"text": "new start"})
    done = cli("run", "More.", "--session", session, "--interrupted", "abort", cwd=work)
    assert (done.returncode, done.stdout) == (0, "new start\n")
    assert "R operation_finished aborted" in cli("sessions", "log", session, cwd=work).stdout
    assert cli("sessions", "verify", session, cwd=work).returncode == 0


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_two_resumes_of_one_session_cannot_both_run(tmp_path: Path, work: Path, kind: str) -> None:
    model = script(
        tmp_path / "s.json",
        {"calls": [call("shell", command="echo x >> first; sleep 60")]},
        {"calls": [call("shell", command="echo x >> second; while [ ! -e go ]; do sleep 0.02; done")]},
        {"text": "once"},
    )
    store = f"{kind}:{tmp_path / 'store'}"
    process = start("run", "Work.", "--model", model, "--store", store, cwd=work)
    wait_until((work / "first").exists, process)
    process.kill()
    process.communicate()
    session = json_lines(cli("sessions", "list", "--json", "--store", store, cwd=work).stdout)[0]["id"]
    both = [start("resume", session, "--store", store, cwd=work) for _ in range(2)]
    wait_until(lambda: any(one.poll() is not None for one in both) and (work / "second").exists())
    (work / "go").touch()
    outputs = [one.communicate(timeout=30) for one in both]
    codes = [one.returncode for one in both]
    assert sorted(codes) == [0, 1], outputs
    winner, loser = codes.index(0), codes.index(1)
    assert outputs[winner][0] == "once\n"
    assert outputs[loser][0] == ""
    refusals = outputs[loser][1].splitlines()
    assert len(refusals) == 1, refusals
    assert refusals[0].startswith(f"error: session {session} is being written by pid {both[winner].pid} ")
    assert (work / "second").read_text() == "x\n"


# Pipes


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path, work: Path) -> None:
    calls = [call("list") for _ in range(200)]
    model = script(tmp_path / "s.json", {"calls": calls}, {"text": "ok"})
    session = json.loads(cli("run", "Go.", "--model", model, "--json", "-q", cwd=work).stdout)["session"]
    command = [*COMMAND, "sessions", "log", session, "--json"]
    with subprocess.Popen(
        command, cwd=work, env=environment(PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_run_whose_outputs_are_closed_still_ends_and_is_kept(tmp_path: Path, work: Path) -> None:
    model = script(
        tmp_path / "s.json",
        {"text": "t", "calls": [call("write", path="f", content="x")]},
        {"text": "done", "delayMs": 300},
    )
    process = start("run", "Go.", "--model", model, cwd=work)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=30) == 0
    session = json_lines(cli("sessions", "list", "--json", cwd=work).stdout)[0]["id"]
    assert cli("sessions", "log", session, cwd=work).stdout.endswith("R operation_finished completed\n")
    assert (work / "f").read_text() == "x"


# A real provider


class Server:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self._admin = f"http://127.0.0.1:{port}/_llmock"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self._admin}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def play(self, *behaviors: dict[str, Any]) -> None:
        self.ask("POST", "/reset")
        self.ask("POST", "/scenario", {"behaviors": list(behaviors)})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-c", "from llmock.cli import app; app()", "serve", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        made, deadline = Server(port), time.monotonic() + 30
        while True:
            try:
                made.ask("GET", "/scenario")
                break
            except OSError:
                assert process.poll() is None, "llmock exited"
                assert time.monotonic() < deadline, "llmock did not start"
                time.sleep(0.05)
        yield made
    finally:
        process.kill()
        process.wait()


def reply(*calls: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"type": "reply", "text": text, "tool_calls": list(calls)}


def test_a_real_task_over_http(work: Path, server: Server) -> None:
    (work / "notes.txt").write_text("alpha\nbeta\n")
    server.play(
        # The first answer is cut within its calls: they are not run, and the request is made again.
        {"type": "stream_fault", "kind": "truncate", "after_chunks": 2, "match": {"stream": True}, "times": 1},
        reply(call("list"), call("read", path="notes.txt")),
        reply(call("list"), call("read", path="notes.txt")),
        reply(call("write", path="out/upper.txt", content="ALPHA\nBETA\n")),
        reply(call("shell", command="wc -l < out/upper.txt")),
        reply(text="Wrote out/upper.txt with 2 lines."),
    )
    done = cli("run", "Upper-case notes.txt.", "-m", "mock/gpt-4o", "--base-url", server.url, "--json", cwd=work)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["answer"] == "Wrote out/upper.txt with 2 lines."
    assert (work / "out/upper.txt").read_text() == "ALPHA\nBETA\n"
    assert report["usage"]["totalTokens"] > 0
    items = json_lines(cli("sessions", "log", report["session"], "--json", cwd=work).stdout)
    results = [one["message"]["toolName"] for one in items if one.get("message", {}).get("role") == "toolResult"]
    assert results == ["list", "read", "write", "shell"]
    attempts = [one["attempt"] for one in items if one.get("type") == "step_attempt"]
    assert attempts == [1, 2, 1, 1, 1]
    assert cli("sessions", "verify", report["session"], cwd=work).returncode == 0


def test_the_key_goes_to_its_server_alone_and_into_no_file(work: Path, server: Server) -> None:
    server.play(reply(call("shell", command="env")), reply(text="ok"))
    keys = {"OPENAI_API_KEY": "CANARY-openai", "AGENT_HARNESS_API_KEY": "CANARY-given"}
    done = cli("run", "Show env.", "-m", "mock/gpt-4o", "--base-url", server.url, cwd=work, env=keys)
    assert done.returncode == 0, done.stderr
    assert "CANARY" not in done.stdout + done.stderr
    assert not any(b"CANARY" in data for data in tree(work).values())


def test_a_refusal_of_the_server_is_one_line_and_kept(work: Path, server: Server) -> None:
    server.play({"type": "fail", "status": 401, "times": None})
    done = cli("run", "Hi.", "-m", "mock/gpt-4o", "--base-url", server.url, "-q", cwd=work)
    assert "the run failed: " in one_error(done)
    session = json_lines(cli("sessions", "list", "--json", cwd=work).stdout)[0]["id"]
    assert "R operation_finished failed" in cli("sessions", "log", session, cwd=work).stdout


def test_resume_after_kill_reaches_the_same_server_again(work: Path, server: Server) -> None:
    server.play(reply(call("shell", command="touch inside; sleep 60")), reply(text="after the kill"))
    process = start("run", "Go.", "-m", "mock/gpt-4o", "--base-url", server.url, cwd=work)
    wait_until((work / "inside").exists, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = cli("resume", cwd=work)
    assert (done.returncode, done.stdout) == (0, "after the kill\n")
