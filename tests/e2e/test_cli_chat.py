"""`chat` at a real pseudo-terminal, and over pipes."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_support import COMMAND, call, cli, environment, json_lines, one_error, script, tree, wait_until
from terminal import Terminal

STATUS = " tokens, 0.0000 USD]"
NASTY = "a\x1b]0;title\x07b\x1b]52;c;ZXZpbA==\x07c\x1b[2Jd\x9b31me\u202ef"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def waits(work: Path) -> dict[str, Any]:
    """A call that runs until the file `go` is there."""
    return call("shell", command="touch started; while [ ! -e go ]; do sleep 0.05; done; echo went")


def items(work: Path, session: str) -> list[dict[str, Any]]:
    return json_lines(cli("sessions", "log", session, "--json", cwd=work).stdout)


def said(work: Path, session: str) -> list[str]:
    """`role: text` of every message of a session."""
    out = []
    for item in items(work, session):
        message = item.get("message", {}) if item.get("type") == "message" else {}
        if message.get("role") in ("user", "assistant"):
            content = message["content"]
            text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
            out.append(f"{message['role']}: {text}")
    return out


def sessions(work: Path) -> list[dict[str, Any]]:
    return json_lines(cli("sessions", "list", "--json", cwd=work).stdout)


# At a terminal


def test_a_conversation_with_a_steered_tool_and_a_switched_model(tmp_path: Path, work: Path) -> None:
    model = script(
        tmp_path / "s.json",
        {"text": "Hello."},
        {"text": "Working.", "calls": [waits(work)]},
        {"text": "Steered."},
    )
    other = script(tmp_path / "other.json", *({"text": f"other {n}"} for n in range(9)))
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        terminal.until("> ")
        terminal.type("Hi.\r")
        session = terminal.until("Hello.").partition("session ")[2].split()[0]
        assert "[scripted/s, context 15 of 100,000 (0%)" in terminal.until(STATUS)
        terminal.type("Work.\r")
        terminal.until('> shell {"command":"touch started')
        wait_until((work / "started").exists)
        terminal.type("Mind the gapp\x7f.\r")
        terminal.until("» Mind the gap.\r\n")
        wait_until(lambda: any(one.get("queue") == "steer" for one in items(work, session)))
        (work / "go").touch()
        shown = terminal.until(STATUS)
        assert shown.index("< shell: went [exit code 0]") < shown.index("Steered.")
        terminal.type(f"/model {other}\r")
        terminal.until("model scripted/other from the next request on")
        terminal.type("And you?\r")
        terminal.until("other 3")
        terminal.until(STATUS)
        terminal.type("\x04")
        assert terminal.end() == 0
        assert terminal.modes() == terminal.before
    told = said(work, session)
    assert told == [
        "user: Hi.",
        "assistant: Hello.",
        "user: Work.",
        "assistant: Working.",
        "user: Mind the gap.",
        "assistant: Steered.",
        "user: And you?",
        "assistant: other 3",
    ]
    assert cli("sessions", "verify", session, cwd=work).returncode == 0


def test_output_waits_while_a_line_is_typed(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"calls": [waits(work)]}, {"text": "Answer."}, {"text": "Next."})
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        terminal.until("> ")
        terminal.type("Work.\r")
        wait_until((work / "started").exists)
        terminal.type("half a li")
        terminal.until("half a li")
        session = sessions(work)[0]["id"]
        (work / "go").touch()
        wait_until(lambda: items(work, session)[-1].get("type") == "operation_finished")
        assert "Answer." not in terminal.shown
        terminal.type("ne\r")
        shown = terminal.until("Next.")
        assert shown.index("half a line\r\n") < shown.index("< shell: went") < shown.index("Answer.")
        terminal.type("\x04")
        assert terminal.end() == 0


def test_ctrl_c_stops_the_agent_and_a_second_one_leaves_at_once(tmp_path: Path, work: Path) -> None:
    # This command ignores being asked to end: the first Ctrl-C takes its time.
    stubborn = call("shell", command="trap '' TERM; touch started; while :; do sleep 0.05; done")
    model = script(tmp_path / "s.json", {"calls": [waits(work)]}, {"calls": [stubborn]}, {"text": "Bye."})
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        terminal.until("> ")
        terminal.type("Work.\r")
        wait_until((work / "started").exists)
        terminal.type("half a line\x03")
        terminal.until("stopping; Ctrl-C again leaves at once")
        terminal.until("stopped\r\n")
        terminal.until(STATUS)
        (work / "started").unlink()
        terminal.type("Again.\r")
        wait_until((work / "started").exists)
        terminal.type("\x03")
        terminal.until("stopping; Ctrl-C again leaves at once")
        terminal.type("\x03")
        terminal.until("error: interrupted; the run is kept, `agent-harness resume ")
        assert terminal.end() == 130
        assert terminal.modes() == terminal.before
    session = sessions(work)[0]["id"]
    ends = [one["outcome"] for one in items(work, session) if one.get("type") == "operation_finished"]
    assert ends == ["aborted"]
    assert "the run was aborted" in cli("resume", session, cwd=work).stderr
    assert said(work, session)[-1].startswith("assistant: ")
    assert cli("sessions", "verify", session, cwd=work).returncode == 0


def test_leaving_while_the_agent_works_keeps_the_run(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"calls": [waits(work)]}, {"text": "Went on."}, {"text": "Bye."})
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        terminal.until("> ")
        terminal.type("Work.\r")
        wait_until((work / "started").exists)
        terminal.type("/quit\r")
        terminal.until("interrupted; the run is kept, `agent-harness resume ")
        assert terminal.end() == 0
        assert terminal.modes() == terminal.before
    (work / "go").touch()
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        session = terminal.until(" has an unfinished run. Go on with it?").rpartition("Session ")[2]
        terminal.until("[Y/n] ")
        terminal.type("y\r")
        terminal.until("Went on.")
        terminal.until(STATUS)
        terminal.type("More.\r")
        terminal.until("Bye.")
        terminal.until(STATUS)
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert said(work, session)[-3:] == ["assistant: Went on.", "user: More.", "assistant: Bye."]


def test_no_leaves_the_unfinished_run_alone_and_sessions_can_be_picked(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"calls": [waits(work)]}, {"text": "Went on."})
    quick = script(tmp_path / "quick.json", {"text": "Quick."})
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        terminal.until("> ")
        terminal.type("Work.\r")
        wait_until((work / "started").exists)
        terminal.type("/quit\r")
        terminal.end()
    first = sessions(work)[0]["id"]
    with Terminal("chat", "-m", quick, cwd=work) as terminal:
        terminal.until("[Y/n] ")
        terminal.type("n\r")
        terminal.until("> ")
        terminal.type("Else.\r")
        terminal.until("Quick.")
        terminal.until(STATUS)
        terminal.type("/sessions\r")
        terminal.until(f"  2  {first}")
        terminal.type("/session 2\r")
        terminal.until("This session has an interrupted run (user: Work.). Finish it?")
        terminal.until("[Y/n] ")
        terminal.type("n\r")
        terminal.until("left as it is; /resume goes on with it, /abort gives it up")
        terminal.type("Hello?\r")
        terminal.until("/resume goes on with it, /abort gives it up")
        terminal.type("/abort\r")
        terminal.until(STATUS)
        terminal.type("\x03")
        terminal.until("Ctrl-C again or Ctrl-D leaves")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert items(work, first)[-1]["outcome"] == "aborted"
    assert len(sessions(work)) == 2


def test_stored_and_streamed_text_cannot_command_the_terminal(tmp_path: Path, work: Path) -> None:
    """T26, while it streams and when an old session is shown again."""
    model = script(tmp_path / "s.json", {"text": NASTY}, {"text": NASTY})
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        terminal.until("> ")
        terminal.type("Hi.\r")
        shown = terminal.until(STATUS)
        assert "\r\nabcdef\r\n" in shown
        terminal.type("\x04")
        terminal.end()
    with Terminal("chat", "-m", model, "--continue", cwd=work) as terminal:
        shown += terminal.until("> ")
        assert "assistant: abcdef" in shown
    for sequence in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e"):
        assert sequence not in shown


def test_a_damaged_history_stops_nothing_and_is_not_rewritten(tmp_path: Path, work: Path) -> None:
    """Case 86."""
    history = work / ".agent-harness" / "history.jsonl"
    history.parent.mkdir()
    damaged = b'"What is it?"\n"cut\n' + b"\0" * 80 + b"\n"
    history.write_bytes(damaged)
    model = script(tmp_path / "s.json", {"text": "It is."})
    with Terminal("chat", "-m", model, cwd=work) as terminal:
        terminal.until("history.jsonl: 2 damaged lines left out")
        terminal.until("> ")
        assert history.read_bytes() == damaged
        terminal.type("\x1b[A")
        terminal.until("What is it?")
        terminal.type(" Tell.\r")
        terminal.until("It is.")
        terminal.until(STATUS)
        terminal.type("\x04")
        assert terminal.end() == 0
    assert history.read_bytes() == damaged + b'"What is it? Tell."\n'


def test_a_terminal_that_goes_away_ends_the_conversation(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"text": "Hello."})
    outside, inside = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "chat", "-m", model],
        cwd=work,
        env=environment(TERM="xterm"),
        stdin=inside,
        stdout=inside,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(inside)
    try:
        shown = b""
        while b"> " not in shown:
            shown += os.read(outside, 4096)
        os.close(outside)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, b"")


# Over pipes


def test_events_are_json_and_a_line_while_it_works_is_steered(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"calls": [waits(work)]}, {"text": NASTY})
    process = subprocess.Popen(
        [*COMMAND, "chat", "--json", "-m", model],
        cwd=work,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("Work.\n")
    process.stdin.flush()
    wait_until((work / "started").exists, process)
    process.stdin.write("Mind the gap.\n/status\n/quit\n")
    process.stdin.flush()
    session = sessions(work)[0]["id"]
    wait_until(lambda: any(one.get("queue") == "steer" for one in items(work, session)), process)
    (work / "go").touch()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert out.isascii()
    events = json_lines(out)
    assert all(one["type"] for one in events)
    assert events[0] == {"type": "chat_session", "session": session, "suspended": None, "entries": []}
    kinds = [one["type"] for one in events]
    assert kinds.count("run_start") == kinds.count("run_end") == 1
    assert kinds.index("tool_start") < kinds.index("queue_update") < kinds.index("tool_end")
    assert next(one for one in events if one["type"] == "run_end")["finalMessage"]["content"][0]["text"] == NASTY
    assert (events[-1]["type"], events[-1]["contextTokens"], events[-1]["messages"]) == ("chat_status", 15, 5)


def test_lines_of_a_file_are_answered_and_a_failed_run_is_the_exit_code(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"text": "One."})
    (work / "lines").write_text("Hi.")
    for _ in range(2):
        with (work / "lines").open() as lines:
            done = subprocess.run(
                [*COMMAND, "chat", "-m", model, *(["--continue"] if sessions_exist(work) else [])],
                cwd=work,
                env=environment(),
                stdin=lines,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
    assert done.returncode == 1
    assert "! the run failed: " in done.stdout
    assert len(sessions(work)) == 1
    assert "\x1b" not in done.stdout


def sessions_exist(work: Path) -> bool:
    return (work / ".agent-harness/sessions.db").exists()


def test_nothing_said_leaves_nothing_behind(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"text": "One."})
    for stdin in ("", "\n  \n", "/help\n/status\n/frob\n/quit\n"):
        done = cli("chat", "-m", model, cwd=work, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
    assert "/model" in done.stdout
    assert "no command /frob" in done.stdout
    assert tree(work) == {}


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path, work: Path) -> None:
    """Case 85: the operation stays resumable."""
    model = script(tmp_path / "s.json", {"calls": [call("list")]}, {"text": "One.", "delayMs": 500}, {"text": "Two."})
    process = subprocess.Popen(
        [*COMMAND, "chat", "--json", "-m", model],
        cwd=work,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdin.write("Work.\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    done = cli("resume", cwd=work)
    assert (done.returncode, done.stdout) == (0, "One.\n")


@pytest.mark.parametrize("interrupted", ["resume", "abort", "ask"])
def test_over_a_pipe_an_interrupted_run_is_settled_as_asked(tmp_path: Path, work: Path, interrupted: str) -> None:
    model = script(
        tmp_path / "s.json", {"calls": [call("shell", command="touch started; sleep 60")]}, {"text": "Went on."}
    )
    process = subprocess.Popen([*COMMAND, "run", "Work.", "-m", model], cwd=work, env=environment())
    wait_until((work / "started").exists, process)
    process.kill()
    process.wait()
    session = sessions(work)[0]["id"]
    done = cli("chat", "-s", session, "--interrupted", interrupted, cwd=work)
    assert done.returncode == 0, done
    ended = [one["outcome"] for one in items(work, session) if one.get("type") == "operation_finished"]
    assert ended == {"resume": ["completed"], "abort": ["aborted"], "ask": []}[interrupted]
    assert ("Went on." in done.stdout) == (interrupted == "resume")
    assert ("/resume goes on with it, /abort gives it up" in done.stdout) == (interrupted == "ask")


def test_what_is_wrong_is_one_line(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"text": "One."})
    assert "no model: pass --model" in one_error(cli("chat", cwd=work))
    assert "no sessions yet" in one_error(cli("chat", "-s", "nope", "-m", model, cwd=work))
    assert "no sessions yet" in one_error(cli("chat", "-c", "-m", model, cwd=work))
    assert "unknown model" in one_error(cli("chat", "-m", "nobody/x", cwd=work))
    assert cli("chat", "-m", model, cwd=work, stdin="Hi.\n").returncode == 0
    assert "no session 'nope'" in one_error(cli("chat", "-s", "nope", cwd=work))
    assert "no session of " in one_error(
        cli(
            "chat",
            "-c",
            "-m",
            model,
            "-C",
            str(tmp_path),
            "--store",
            f"sqlite:{work}/.agent-harness/sessions.db",
            cwd=work,
        )
    )


def test_wrong_lines_are_told_and_the_conversation_goes_on(tmp_path: Path, work: Path) -> None:
    model = script(tmp_path / "s.json", {"text": "One."}, {"text": "Two."})
    given = "/session\n/session nope\n/resume\n/model gpt\n/model\n/abort\n/compact\nHi.\n"
    done = cli("chat", "-m", model, "--json", cwd=work, stdin=given)
    assert done.returncode == 0, done
    notes = [one["text"] for one in json_lines(done.stdout) if one["type"] == "chat_note"]
    assert [note.partition(":")[0] for note in notes] == [
        "! which session? /sessions lists them",
        "! no sessions yet",
        "! there is no session yet",
        "! 'gpt' names no model",
        "model scripted/s",
        "! there is no session yet",
        "! there is no session yet",
    ]
    assert json.loads(done.stdout.splitlines()[-1])["messages"] == 2
