"""One database of this process, shared by every repository and session that uses the file.

The registry below is the one piece of module state there is: exactly one connection per process writes and
checkpoints a database, whatever path leads to it (decisions section 5).
"""

import asyncio
import atexit
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agent_harness.errors import StorageError
from agent_harness.session.storage import Durability

from .files import FileKey, FilesystemType, check_filesystem, key_of, open_reader, open_writer, reserve
from .jobs import Opening
from .leases import Lease
from .reader import Reader
from .writer import Writer

T = TypeVar("T")
_log = logging.getLogger(__name__)

CLOSE_SECONDS = 4.0
"""Longest wait for the threads; they finish by themselves if it is not enough."""


class Database:
    """A counted reference to the threads of one file. Made by `acquire`, given back by `release`."""

    def __init__(self, path: Path, key: FileKey, predecessor: "Database | None") -> None:
        self.path = path
        self.key = key
        self.users = 0
        self.ended = threading.Event()
        self._predecessor = predecessor
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._closing = False
        self._reader_done = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """See `Reader.read`."""
        self.check_process()
        if self._writer is not None:
            self._writer.adopt()
        with self._lock:
            self._check_open()
            if self._reader is None:
                self._reader = Reader(self._open_reader, ended=self._reader_ended, path=self.path)
        return await self._reader.read(run)

    async def write(
        self,
        run: Callable[[sqlite3.Connection], T],
        *,
        durability: Durability,
        opening: Opening | None = None,
        on_commit: Callable[[T], None] | None = None,
    ) -> T:
        """See `Writer.write`."""
        return await self._started().write(run, durability=durability, opening=opening, on_commit=on_commit)

    def submit(self, run: Callable[[sqlite3.Connection], None], durability: Durability) -> "asyncio.Future[None]":
        """Queue a mutation without waiting for it."""
        return self._started().submit(run, durability=durability).future

    def hold(self, lease: Lease, ttl_ms: int) -> None:
        """See `Writer.hold`."""
        self._started().hold(lease, ttl_ms)

    def drop(self, lease: Lease) -> None:
        """See `Writer.drop`."""
        if self._writer is not None:
            self._writer.drop(lease)

    def is_ours(self) -> bool:
        """Whether this process opened it; False in a child of fork()."""
        return self._pid == os.getpid()

    def check_process(self) -> None:
        """Refuse a child of fork(): it has neither the threads nor the locks (T21).

        Raises:
            StorageError: nothing was written.
        """
        if not self.is_ours():
            raise StorageError("the database was opened before fork(); open it in a process started by spawn or exec")

    def begin_close(self) -> None:
        """Let the threads finish: the reader first, since the last connection to close cleans up the log."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            reader = self._reader
        if reader is not None:
            reader.stop()
        else:
            self._reader_ended()

    async def closed(self) -> None:
        """Wait, for a bounded time, until the threads have ended."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self.ended.is_set():
                return
            self._waiting.append((loop, waiter))
        await asyncio.wait([waiter], timeout=CLOSE_SECONDS)

    def _check_open(self) -> None:
        if self._closing:
            raise StorageError("the database is closed")

    def _started(self) -> Writer:
        self.check_process()
        with self._lock:
            if self._writer is None:
                self._check_open()
                self._writer = Writer(
                    self._open_writer, ended=self._writer_ended, path=self.path, check_file=self._check_file
                )
            return self._writer

    def _check_file(self) -> None:
        """Refuse to write to a file that its name no longer leads to: what is acknowledged would be lost (T5)."""
        try:
            found = key_of(self.path)
        except OSError as error:
            raise StorageError(str(error.strerror)) from error
        if found != self.key:
            raise StorageError("the file was removed or replaced by another one")

    def _open_writer(self) -> sqlite3.Connection:
        self._await_predecessor()
        conn = open_writer(self.path, "process")
        if key_of(self.path) != self.key:
            conn.close()
            raise StorageError(f"{self.path} was replaced while it was being opened")
        return conn

    def _open_reader(self) -> sqlite3.Connection | None:
        self._await_predecessor()
        return open_reader(self.path)

    def _await_predecessor(self) -> None:
        if self._predecessor is not None:
            self._predecessor.ended.wait(CLOSE_SECONDS)
            self._predecessor = None

    def _writer_ended(self) -> None:
        # A writer that could not open the file ends by itself; the next write tries again.
        with self._lock:
            self._writer = None
            done = self._reader_done
        if done:
            self._all_ended()

    def _reader_ended(self) -> None:
        with self._lock:
            self._reader_done = True
            writer = self._writer
        if writer is not None:
            writer.stop()
        else:
            self._all_ended()

    def _all_ended(self) -> None:
        with self._lock:
            self.ended.set()
            waiting, self._waiting = self._waiting, []
        for loop, waiter in waiting:
            try:
                loop.call_soon_threadsafe(_resolve, waiter)
            except RuntimeError:
                continue  # its loop is closed


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Registry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: dict[FileKey, Database] = {}
        self.announced = False

    def announce(self) -> None:
        if not self.announced:
            self.announced = True
            atexit.register(self.close_all)
            _log.info("SQLite library %s", sqlite3.sqlite_version)

    def close_all(self) -> None:
        """At exit: nothing acknowledged is lost, and nothing hangs."""
        databases = [database for database in self.open.values() if database.is_ours()]
        for database in databases:
            database.begin_close()
        for database in databases:
            database.ended.wait(CLOSE_SECONDS)

    def after_fork(self) -> None:
        # The parent's lock may have been held at the moment of the fork. Its databases stay listed: SQLite's own
        # bookkeeping of locks was copied too, so the same file must not be opened in the child at all.
        self.lock = threading.Lock()


_REGISTRY = _Registry()
os.register_at_fork(after_in_child=_REGISTRY.after_fork)


def acquire(path: Path, *, filesystem_type: FilesystemType, durability: Durability, create: bool) -> Database | None:
    """The database of `path`, counted once more; None if there is no file and `create` is False.

    Raises:
        UnsuitableFilesystem: on a network or shared file system.
        StorageError: opened before fork(), or the file cannot be reached or made.
    """
    check_filesystem(path, filesystem_type)
    with _REGISTRY.lock:
        _REGISTRY.announce()
        try:
            if create:
                reserve(path, sync=durability == "power")
            key = key_of(path)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from None
        if key is None:
            return None
        database = _REGISTRY.open.get(key)
        if database is not None:
            database.check_process()
        if database is None or database.users == 0:
            database = Database(path, key, predecessor=database)
            _REGISTRY.open[key] = database
        database.users += 1
        return database


def retain(database: Database) -> Database:
    """Count one more user of a database that is in use."""
    with _REGISTRY.lock:
        assert database.users > 0, "the database is closed"
        database.users += 1
        return database


async def release(database: Database) -> None:
    """Give a reference back; the last one closes the threads and waits for them."""
    if not database.is_ours():
        return
    with _REGISTRY.lock:
        database.users -= 1
        if database.users:
            return
    database.begin_close()
    await database.closed()
    with _REGISTRY.lock:
        if database.ended.is_set() and _REGISTRY.open.get(database.key) is database:
            del _REGISTRY.open[database.key]
