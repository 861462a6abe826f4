"""Small makers and a child process for the tests of the SQLite backend."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from agent_harness.session.session import Session
from agent_harness.types.entries import CustomBody, MessageBody, ProvisionedEntry
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import TextContent, Usage, UserMessage
from agent_harness.types.records import (
    AdjustmentUsage,
    NewRecord,
    OperationFinished,
    OperationStarted,
    RecordBody,
    RunIntent,
    StepAttempt,
)
from session_backends.sqlite.database import Database
from session_backends.sqlite.storage import SqliteStorage


class TickingClock:
    """One millisecond per look."""

    def __init__(self, start: int = 1_000_000) -> None:
        self.now = start

    def now_ms(self) -> int:
        self.now += 1
        return self.now


class CountingIds:
    """id-1, id-2, ..."""

    def __init__(self, prefix: str = "id") -> None:
        self.prefix = prefix
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"{self.prefix}-{self.count}"


def message(text: str) -> UserMessage:
    return UserMessage(content=(TextContent(text=text),), timestamp=7)


def user(entry_id: str, text: str = "hello") -> ProvisionedEntry:
    return ProvisionedEntry(id=entry_id, body=MessageBody(message=message(text)))


def custom(entry_id: str, custom_type: str = "note", data: JsonValue = None) -> ProvisionedEntry:
    return ProvisionedEntry(id=entry_id, body=CustomBody(custom_type=custom_type, data=data))


def record(record_id: str, body: RecordBody, lane: str = "main") -> NewRecord:
    return NewRecord(id=record_id, lane=lane, body=body)


def started(run_id: str, lane: str = "main", source: str | None = None) -> NewRecord:
    intent = RunIntent(original_prompt=(message("go"),), initial_messages=())
    return record(run_id, OperationStarted(source_leaf_id=source, intent=intent), lane)


def finished(record_id: str, run_id: str, lane: str = "main") -> NewRecord:
    return record(record_id, OperationFinished(run_id=run_id, outcome="completed"), lane)


def attempt(record_id: str, run_id: str, number: int = 1, lane: str = "main") -> NewRecord:
    body = StepAttempt(run_id=run_id, step="assistant", attempt=number, result_entry_id=f"{record_id}-result")
    return record(record_id, body, lane)


def usage(record_id: str, tokens: int, lane: str = "main") -> NewRecord:
    return record(record_id, AdjustmentUsage(usage=Usage(input=tokens, total_tokens=tokens)), lane)


def storage_of(session: Session) -> SqliteStorage:
    storage = session._core.storage
    assert isinstance(storage, SqliteStorage)
    return storage


def database_of(session: Session) -> Database:
    return storage_of(session)._database


@contextmanager
def look(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection, as another program would have it."""
    conn = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        yield conn
    finally:
        conn.close()


PRELUDE = """
import asyncio, os, sys
from pathlib import Path
from agent_harness.errors import *
from agent_harness.session.repo import *
from session_backends.sqlite import SqliteSessionRepo
path = sys.argv[1]
def say(*words):
    print(*words, flush=True)
def hear():
    return sys.stdin.readline().strip()
"""


class Child:
    """A real process that runs a script; spoken to line by line."""

    def __init__(self, script: str, *args: object) -> None:
        source = dedent(PRELUDE) + dedent(script)
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(f"the child said nothing: {self.process.communicate(timeout=10)[1]}")
        return line

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, timeout: float = 10) -> int:
        _, errors = self.process.communicate(timeout=timeout)
        assert "Traceback" not in errors, errors
        return self.process.returncode

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
