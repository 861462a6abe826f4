"""The demo task, fix a file and run its check, done by `agent-harness run` through every adapter against llmock."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_support import call, cli, json_lines, one_error

from agent_harness.cli.models import choose_model

SOURCE = "def add(a, b):\n    return a - b\n"
CHECK = "from calc import add\n\nassert add(2, 2) == 4\nprint('checks pass')\n"
TASK = "The check of calc.py fails. Fix it."
START_S = 30.0


class Llmock:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_llmock{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.loads(response.read())

    def play(self, *behaviors: dict[str, Any]) -> None:
        self.ask("POST", "/reset")
        self.ask("POST", "/scenario", {"behaviors": list(behaviors)})


@pytest.fixture(scope="module")
def server() -> Iterator[Llmock]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-c", "from llmock.cli import app; app()", "serve", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        made, deadline = Llmock(port), time.monotonic() + START_S
        while True:
            try:
                made.ask("GET", "/scenario")
                break
            except OSError:
                assert process.poll() is None, "llmock exited"
                assert time.monotonic() < deadline, "llmock did not start"
                time.sleep(0.05)  # a bounded poll of a real process
        yield made
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Way:
    """What is typed to reach an adapter, and the path its requests take."""

    api: str
    model: str
    path: str
    asked: str
    options: tuple[str, ...] = ()


WAYS = [
    Way("openai-chat", "openai/gpt-4o", "/v1", "/chat/completions"),
    Way("openai-responses", "openai/gpt-4o", "/v1", "/responses", ("--api", "openai-responses")),
    Way("anthropic-messages", "anthropic/claude-sonnet-4-5", "/anthropic", "/messages"),
    Way("google-gemini", "google/gemini-2.5-flash", "/gemini/v1beta", "streamGenerateContent"),
]


def reply(*calls: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"type": "reply", "text": text, "tool_calls": list(calls)}


@pytest.mark.parametrize("way", WAYS, ids=[way.api for way in WAYS])
def test_a_file_is_fixed_and_its_check_run(tmp_path: Path, server: Llmock, way: Way) -> None:
    work = tmp_path / "repo"
    work.mkdir()
    (work / "calc.py").write_text(SOURCE)
    (work / "check.py").write_text(CHECK)
    check = f"{sys.executable} check.py"
    server.play(
        reply(call("read", path="calc.py"), call("shell", command=check)),
        reply(call("edit", path="calc.py", edits=[{"old": "a - b", "new": "a + b"}])),
        reply(call("shell", command=check)),
        reply(text="Fixed: calc.py subtracted."),
        reply(text="You are welcome."),
    )
    given = ("-m", way.model, "--base-url", server.url + way.path, *way.options)
    done = cli("run", TASK, *given, "--json", cwd=work)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["outcome"], report["answer"]) == ("completed", "Fixed: calc.py subtracted.")
    assert (work / "calc.py").read_text() == SOURCE.replace("a - b", "a + b")
    assert report["usage"]["totalTokens"] > 0

    items = json_lines(cli("sessions", "log", report["session"], "--json", cwd=work).stdout)
    messages = [one["message"] for one in items if "message" in one]
    results = [one for one in messages if one["role"] == "toolResult"]
    assert [one["toolName"] for one in results] == ["read", "shell", "edit", "shell"]
    assert "AssertionError" in results[1]["content"][0]["text"]
    assert "checks pass" in results[3]["content"][0]["text"]
    assert {one["api"] for one in messages if one["role"] == "assistant"} == {way.api}
    paths = [one["path"] for one in server.ask("GET", "/requests")["requests"]]
    assert len(paths) == 4
    assert all(way.asked in path for path in paths)

    # The session goes on through the same adapter without being told again.
    again = cli("run", "Thanks.", "-s", report["session"], "-q", cwd=work)
    assert (again.returncode, again.stdout) == (0, "You are welcome.\n"), again.stderr
    assert way.asked in server.ask("GET", "/requests")["requests"][-1]["path"]
    assert cli("sessions", "verify", report["session"], cwd=work).returncode == 0


def test_a_conversation_shows_what_it_costs(tmp_path: Path, server: Llmock) -> None:
    server.play(*[reply(text="A long answer. " * 40)] * 2)
    given = ("-m", "openai/gpt-4o", "--base-url", f"{server.url}/v1")
    done = cli("chat", "--json", *given, cwd=tmp_path, stdin="Tell me.\n/status\n")
    assert (done.returncode, done.stderr) == (0, "")
    events = json_lines(done.stdout)
    status = [one for one in events if one["type"] == "chat_status"][-1]
    spent = [one["record"]["usage"]["cost"]["total"] for one in events if one["type"] == "usage"]
    assert status["costUsd"] == sum(spent) > 0
    again = cli("chat", "-s", events[0]["session"], cwd=tmp_path, stdin="And more.\n/status\n")
    assert again.returncode == 0, again.stderr
    shown = float(re.findall(r"tokens, ([0-9.]+) USD", again.stdout)[-1])
    told = json.loads(cli("sessions", "show", events[0]["session"], "--json", cwd=tmp_path).stdout)
    assert shown == round(told["usage"]["cost"]["total"], 4) > round(sum(spent), 4) > 0


@pytest.mark.parametrize(
    ("name", "api", "expected"),
    [
        ("openai/gpt-5", None, "openai-responses"),
        ("openai/gpt-5", "openai-chat", "openai-chat"),
        ("anthropic/claude-sonnet-4-5", None, "anthropic-messages"),
        ("google/gemini-2.5-flash", None, "google-gemini"),
    ],
)
def test_the_catalog_or_the_option_says_which_adapter_speaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, api: str | None, expected: str
) -> None:
    monkeypatch.setenv("AGENT_HARNESS_API_KEY", "k-123456")
    chosen = choose_model(name, None, tmp_path, api)
    assert chosen.model.api == chosen.models.provider(chosen.model).api == expected
    assert chosen.api == api


def test_an_unknown_api_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "--api" in one_error(cli("run", "Hi.", "-m", "openai/gpt-5", "--api", "telepathy", cwd=tmp_path))
