"""A background answer of the Responses API outlives the process that asked for it (decisions 7, cases 70 and 71)."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_support import LIMIT_S, environment, wait_until

from agent_harness.session.storage import EntryItem
from agent_harness.testing import log_lines
from session_backends import open_repo

WORKER = str(Path(__file__).with_name("deferred_worker.py"))
USAGE = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
OUTPUT = [{"type": "message", "content": [{"type": "output_text", "text": "At last."}]}]


@dataclass
class Background:
    """Background responses as OpenAI keeps them. While `held`, a request is noted and not answered."""

    status: str = "queued"
    created_at: int = field(default_factory=lambda: int(time.time()))
    asked: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)  # set: answers go out
    made: int = 0

    def answer(self, method: str, path: str) -> dict[str, Any]:
        if (method, path) == ("POST", "/responses"):
            self.made += 1
        elif path.endswith("/cancel"):
            self.status = "cancelled"
        done = self.status == "completed"
        return {
            "id": f"resp_{self.made}",
            "object": "response",
            "created_at": self.created_at,
            "status": self.status,
            "model": "gpt-test-0",
            "output": OUTPUT if done else [],
            "usage": USAGE if done else None,
        }


@dataclass
class Server:
    state: Background
    url: str


@pytest.fixture
def server() -> Iterator[Server]:
    state = Background()
    state.held.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.reply("POST")

        def do_GET(self) -> None:
            self.reply("GET")

        def reply(self, method: str) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            state.asked.append(f"{method} {self.path}")
            given = state.answer(method, self.path)
            state.held.wait(LIMIT_S)
            body = json.dumps(given).encode()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                pass  # the process that asked is dead

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield Server(state, f"http://127.0.0.1:{http.server_address[1]}")
    finally:
        state.held.set()
        http.shutdown()
        http.server_close()
        thread.join()


@dataclass
class Place:
    store: str
    url: str

    def begin(self, action: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, WORKER, action, self.store, self.url],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, action: str) -> dict[str, Any]:
        """What one process came to. It is killed as soon as it has told, without closing anything."""
        process = self.begin(action)
        assert process.stdout is not None
        line = process.stdout.readline()
        told = kill(process)
        assert line, told
        result: dict[str, Any] = json.loads(line)
        return result

    def log(self) -> list[str]:
        async def read() -> list[str]:
            repo = open_repo(self.store)
            (found,) = await repo.list()
            try:
                async with await repo.open(found.id, read_only=True) as session:
                    assert await session.verify() == []
                    log = await session.get_log()
                    ids = [item.entry.id for item in log if isinstance(item, EntryItem)]
                    assert len(ids) == len(set(ids))
                    return log_lines(log, usage=True)
            finally:
                await repo.close()

        return asyncio.run(read())


def kill(process: subprocess.Popen[str]) -> str:
    """SIGKILL, and what the process had said on stderr."""
    process.kill()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGKILL, errors
    return errors


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Place:
    return Place(f"{getattr(request, 'param', 'sqlite')}:{tmp_path / 'store'}", server.url)


PARKED = ["R operation_started", "E user", "R step_attempt", "R usage", "E assistant deferred"]


@pytest.mark.parametrize("place", ["sqlite", "jsonl"], indirect=True)
def test_an_answer_is_redeemed_once_by_a_process_that_did_not_ask_for_it(place: Place, server: Server) -> None:
    assert place.run("submit")["kind"] == "suspended"
    assert place.log() == PARKED
    server.state.status = "in_progress"
    assert place.run("resume")["kind"] == "suspended"  # one fetch, nothing written
    assert place.log() == PARKED
    server.state.status = "completed"
    assert place.run("resume") == {"kind": "completed", "text": "At last.", "error": None}
    redeemed = [*PARKED, "R usage", "E assistant stop", "R operation_finished"]
    assert place.log() == redeemed
    assert place.run("resume") == {"refused": "NothingToResume"}
    assert place.log() == redeemed
    assert server.state.asked == ["POST /responses", *["GET /responses/resp_1"] * 2]


def test_a_process_killed_while_it_fetches_leaves_the_answer_for_the_next(place: Place, server: Server) -> None:
    assert place.run("submit")["kind"] == "suspended"
    server.state.status = "completed"
    server.state.held.clear()
    fetching = place.begin("resume")
    wait_until(lambda: "GET /responses/resp_1" in server.state.asked, fetching)
    kill(fetching)
    server.state.held.set()
    assert place.log() == PARKED
    assert place.run("resume")["text"] == "At last."
    assert Counter(place.log())["E assistant stop"] == 1
    assert server.state.made == 1


def test_a_process_killed_before_it_knew_the_handle_asks_again_as_the_next_attempt(
    place: Place, server: Server
) -> None:
    server.state.held.clear()
    submitting = place.begin("submit")
    wait_until(lambda: server.state.asked == ["POST /responses"], submitting)
    kill(submitting)
    server.state.held.set()
    assert place.log() == PARKED[:3]
    assert place.run("resume")["kind"] == "suspended"
    assert place.log() == [*PARKED[:3], "R step_attempt", *PARKED[3:]]
    server.state.status = "completed"
    assert place.run("resume")["text"] == "At last."
    assert server.state.asked == [*["POST /responses"] * 2, "GET /responses/resp_2"]


def test_an_expired_answer_fails_once_and_is_never_asked_for(place: Place, server: Server) -> None:
    server.state.created_at = 1_000
    assert place.run("submit")["kind"] == "suspended"
    assert place.run("resume") == {"kind": "failed", "text": "", "error": "deferred_expired"}
    ended = [*PARKED, "R usage", "E assistant error", "R operation_finished"]
    assert place.log() == ended
    for _ in range(2):
        assert place.run("resume") == {"refused": "NothingToResume"}
    assert place.log() == ended
    assert server.state.asked == ["POST /responses"]


def test_an_abort_in_another_process_cancels_the_answer_at_the_provider(place: Place, server: Server) -> None:
    assert place.run("submit")["kind"] == "suspended"
    place.run("abort")
    assert server.state.asked == ["POST /responses", "POST /responses/resp_1/cancel"]
    assert server.state.status == "cancelled"
    assert place.log() == [*PARKED, "R abort_requested", "E assistant aborted", "R operation_finished"]
    assert place.run("resume") == {"refused": "NothingToResume"}


def test_an_answer_that_was_cancelled_elsewhere_fails_the_run(place: Place, server: Server) -> None:
    assert place.run("submit")["kind"] == "suspended"
    server.state.status = "cancelled"
    told = place.run("resume")
    assert (told["kind"], told["error"]) == ("failed", "invalid_request")
    assert place.log() == [*PARKED, "R usage", "E assistant error", "R operation_finished"]
