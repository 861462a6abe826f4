"""Fixtures of the provider suites."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from adapters import ADAPTERS, Adapter

START_S = 30.0


@pytest.fixture(params=ADAPTERS, ids=lambda kind: kind.name if hasattr(kind, "name") else kind.__name__)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """Each adapter in turn."""
    kind: type[Adapter] = request.param
    return kind()


class Llmock:
    """A running `llmock serve`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        asked = urllib.request.Request(f"{self.url}/_llmock{path}", data=data, method=method)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.loads(answer.read())

    def script(self, *behaviors: dict[str, Any]) -> None:
        self.ask("POST", "/reset")
        if behaviors:
            self.ask("POST", "/scenario", {"behaviors": list(behaviors)})

    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/requests")["requests"]
        return found


@pytest.fixture(scope="session")
def llmock_process() -> Iterator[Llmock]:
    """`llmock serve` on a free port; stopped whatever happens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from llmock.cli import app; app()"]
    command += ["serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server, deadline = Llmock(f"http://127.0.0.1:{port}"), time.monotonic() + START_S
        while True:
            try:
                server.ask("GET", "/scenario")
                break
            except OSError:
                assert process.poll() is None, "llmock exited"
                assert time.monotonic() < deadline, "llmock did not start"
                time.sleep(0.05)  # a bounded poll of a real process
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def server(llmock_process: Llmock) -> Llmock:
    """The running llmock, with an empty script and journal."""
    llmock_process.script()
    return llmock_process
