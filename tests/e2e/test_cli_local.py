"""`--model local:FILE.gguf`: a conversation with a real model server and no account. The model's weights are random."""

from pathlib import Path

import pytest
from cli_support import cli, json_lines

from agent_harness.cli.output import printable
from tests.unit.providers.tiny_gguf import write_tiny_model


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A window that holds the system prompt and the tools.
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", context=8192, brief=True)


def answers(work: Path) -> list[dict[str, object]]:
    """The messages of the model in the only session."""
    (session,) = json_lines(cli("sessions", "list", "--json", cwd=work).stdout)
    log = json_lines(cli("sessions", "log", session["id"], "--json", cwd=work).stdout)
    messages = [item["message"] for item in log if item.get("type") == "message"]
    return [message for message in messages if message["role"] == "assistant"]


def text_of(message: dict[str, object]) -> str:
    content = message["content"]
    assert isinstance(content, list)
    return "".join(part["text"] for part in content if part["type"] == "text")


def test_run_prints_what_a_local_model_answers(tmp_path: Path, gguf_file: Path) -> None:
    done = cli("run", "Hi.", "-m", f"local:{gguf_file}", cwd=tmp_path)
    assert done.returncode == 0, done
    (message,) = answers(tmp_path)
    assert (message["provider"], message["model"], message["stopReason"]) == ("local", "tiny", "stop")
    # Random weights say anything, commands to a terminal too.
    assert done.stdout.rstrip("\n") == printable(text_of(message)).rstrip("\n")
    usage = message["usage"]
    assert isinstance(usage, dict)
    assert usage["output"] > 0


def test_chat_talks_with_a_local_model_over_a_pipe(tmp_path: Path, gguf_file: Path) -> None:
    done = cli("chat", "-m", f"local:{gguf_file}", "--json", cwd=tmp_path, stdin="Hi.\nAnd you?\n/status\n")
    assert done.returncode == 0, done
    first, second = answers(tmp_path)
    assert [first["stopReason"], second["stopReason"]] == ["stop", "stop"]
    events = json_lines(done.stdout)
    ended = [text_of(event["finalMessage"]) for event in events if event["type"] == "run_end"]
    assert ended == [text_of(first), text_of(second)]
    status = events[-1]
    assert (status["type"], status["model"], status["messages"]) == ("chat_status", "local/tiny", 4)
