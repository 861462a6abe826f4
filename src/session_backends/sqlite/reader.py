"""The reader thread: a connection that cannot write, so that no query ever runs on an event loop.

A read is one function; its cursors are drained inside it, so nothing is held across an await.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from agent_harness.errors import CorruptSession, StorageError

T = TypeVar("T")


PASSING_SECONDS = 2.0
"""How long a read is tried again while another process recovers or cleans up the log."""

_PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PROTOCOL,
)


class NoTables(Exception):
    """The file is still empty: it holds no session."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Read:
    run: Callable[[sqlite3.Connection], object]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[object]"
    value: object = None
    error: BaseException | None = None

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class Reader:
    """One thread, one read-only connection, opened at the first read."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection | None], *, ended: Callable[[], None], path: Path
    ) -> None:
        self._connect = connect
        self._path = path  # for messages
        self._ended = ended
        self._queue: queue.SimpleQueue[_Read | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = False
        self._conn: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._main, name="sqlite-reader", daemon=True)
        self._thread.start()

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a read inside one read transaction.

        Raises:
            NoTables: the file is still empty.
            CorruptSession, StorageError: it cannot be read.
        """
        loop = asyncio.get_running_loop()
        job = _Read(run=run, loop=loop, future=loop.create_future())
        with self._lock:
            if self._stopping:
                raise StorageError("the database is closed")
            self._queue.put(job)
        return cast("T", await job.future)

    def stop(self) -> None:
        """Answer what is queued and close the connection. Idempotent, does not wait."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._queue.put(None)

    def _main(self) -> None:
        try:
            while (job := self._queue.get()) is not None:
                try:
                    job.value = self._run(job.run)
                except Exception as error:
                    job.error = error
                try:
                    job.loop.call_soon_threadsafe(job.deliver)
                except RuntimeError:
                    continue  # the loop is closed and nobody waits
        finally:
            if self._conn is not None:
                self._conn.close()
            self._ended()

    def _run(self, run: Callable[[sqlite3.Connection], object]) -> object:
        deadline = time.monotonic() + PASSING_SECONDS
        while True:
            try:
                return self._attempt(run)
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
                if code in _PASSING and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    raise CorruptSession(f"{self._path}: the session database is damaged: {error}") from error
                raise StorageError(f"{self._path}: the session database cannot be read: {error}") from error
            except OSError as error:
                raise StorageError(f"{self._path}: the session database cannot be read: {error}") from error

    def _attempt(self, run: Callable[[sqlite3.Connection], object]) -> object:
        if self._conn is None:
            self._conn = self._connect()
        if self._conn is None:
            raise NoTables
        self._conn.execute("BEGIN")
        try:
            return run(self._conn)
        finally:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
