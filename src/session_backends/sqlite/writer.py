"""The writer thread: it owns the only connection of this process that writes and checkpoints a database.

A mutation is one function run inside one transaction, one thread hop. What queues up while a commit runs is committed
together with a savepoint per job; a job alone needs none. An error of a statement or a COMMIT leaves the outcome
unknown: the openings that it touched fault, the transaction is rolled back, and other sessions of the database go on.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from agent_harness.errors import SessionError, StorageError
from agent_harness.session.storage import Durability
from agent_harness.types.clock import SystemWallClock

from . import leases
from .files import begin, is_busy, set_synchronous
from .jobs import Delivery, Job, JobState, Opening
from .leases import Lease

T = TypeVar("T")
_log = logging.getLogger(__name__)

MAX_BATCH = 256
"""Most jobs in one commit."""

BUSY_SECONDS = 10.0
"""How long a commit waits for another process's transaction before it counts as failed."""


class _Wake:
    """Makes the thread look at its leases."""


_Item: TypeAlias = Job[object] | _Wake | None  # None: stop


class Writer:
    """One thread, one connection. Used from event loops by `write`; ended by `stop`."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        ended: Callable[[], None],
        path: Path,
        check_file: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._check_file = check_file  # raises StorageError; asked before each transaction
        self._path = path  # for messages
        self._clock = SystemWallClock()  # for liveness alone: a test's clock belongs to entries and records
        self._ended = ended
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards job states, leases and the two flags below
        self._leases: dict[Lease, float] = {}  # -> seconds between beats
        self._stopping = False
        self._refusal: BaseException | None = None  # why the file could not be opened
        self._delivery = Delivery()
        self._conn: sqlite3.Connection | None = None
        self._level: Durability | None = None
        self._beat_at = 0.0
        self._thread = threading.Thread(target=self._main, name="sqlite-writer", daemon=True)
        self._thread.start()

    # The loops' side -------------------------------------------------------

    async def write(
        self,
        run: Callable[[sqlite3.Connection], T],
        *,
        durability: Durability,
        opening: Opening | None = None,
        on_commit: Callable[[T], None] | None = None,
    ) -> T:
        """Run a mutation; returns when it is committed and `on_commit` was called.

        Cancelling withdraws the job if it has not started; else the call waits for its end and then is cancelled.

        Raises:
            StorageError: outcome unknown, the opening is faulted. Other errors: what `run` raised, nothing written.
        """
        job = self.submit(run, durability=durability, opening=opening, on_commit=on_commit)
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                value = await job.future
                break
            except asyncio.CancelledError as error:
                if self._revoke(job) or job.state is JobState.DONE:
                    raise
                cancelled = error
                if job.future.cancelled():  # with its waiter; the job goes on and tells a new one
                    job.future = job.loop.create_future()
            except BaseException:
                if cancelled is not None:
                    raise cancelled from None
                raise
        if cancelled is not None:
            raise cancelled
        return value

    def submit(
        self,
        run: Callable[[sqlite3.Connection], T],
        *,
        durability: Durability,
        opening: Opening | None = None,
        on_commit: Callable[[T], None] | None = None,
    ) -> Job[T]:
        """Queue a mutation without waiting for it."""
        self._delivery.adopt()
        loop = asyncio.get_running_loop()
        job = Job(
            run=run,
            on_commit=on_commit,
            opening=opening,
            durability=durability,
            loop=loop,
            future=cast("asyncio.Future[T]", loop.create_future()),
        )
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if self._stopping:
                raise StorageError("the database is closed")
            self._queue.put(cast("Job[object]", job))
        return job

    def adopt(self) -> None:
        """Tell the running loop what a closed loop left untold."""
        self._delivery.adopt()

    def hold(self, lease: Lease, ttl_ms: int) -> None:
        """Keep a claim's beat moving until `drop`; called on a loop."""
        interval = ttl_ms / 3000
        with self._lock:
            due = time.monotonic() + interval
            self._beat_at = min(self._beat_at, due) if self._leases else due
            self._leases[lease] = interval
        self._queue.put(_Wake())

    def drop(self, lease: Lease) -> None:
        """Stop moving the beat."""
        with self._lock:
            self._leases.pop(lease, None)

    def stop(self) -> None:
        """Finish what is queued, release the claims, close the connection. Idempotent, does not wait."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._queue.put(None)

    def _revoke(self, job: Job[T]) -> bool:
        with self._lock:
            if job.state is JobState.QUEUED:
                job.state = JobState.REVOKED
            return job.state is JobState.REVOKED

    # The thread's side -----------------------------------------------------

    def _main(self) -> None:
        try:
            self._connection()
            stop = False
            while not stop:
                batch, stop = self._next_batch()
                if batch:
                    self._commit(batch)
                self._beat()
            self._release_all()
        except BaseException as error:
            self._refuse_all(error)
        finally:
            self._disconnect()
            self._ended()

    def _connection(self) -> sqlite3.Connection:
        if self._conn is None:
            self._conn = self._connect()
            self._level = None
        return self._conn

    def _disconnect(self) -> None:
        # Closing finalizes whatever statement a failure left half-way, and rolls back.
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()

    def _next_batch(self) -> tuple[list[Job[object]], bool]:
        with self._lock:
            interval = min(self._leases.values(), default=None)
        try:
            item = self._queue.get(timeout=None if interval is None else max(0.0, self._beat_at - time.monotonic()))
        except queue.Empty:
            return [], False
        batch: list[Job[object]] = []
        while item is not None:
            if isinstance(item, Job):
                batch.append(item)
            if len(batch) == MAX_BATCH:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[Job[object]]) -> None:
        live: list[Job[object]] = []
        try:
            # Jobs stay revocable while another process holds the lock.
            conn = self._begin("power" if any(job.durability == "power" for job in batch) else "process", BUSY_SECONDS)
            live = self._start(batch)
            alone = len(live) == 1
            for job in live:
                self._run(conn, job, alone)
            # A job that is alone has the transaction for its savepoint.
            conn.execute("ROLLBACK" if alone and live[0].error is not None else "COMMIT")
        except Exception as error:
            live = live or self._start(batch)
            fault = _fault(self._path, error)
            for job in live:
                if job.error is None:
                    job.fail(fault)
            self._recover()
        self._delivery.send(live)

    def _run(self, conn: sqlite3.Connection, job: Job[object], alone: bool) -> None:
        if job.opening is not None and job.opening.fault is not None:
            job.error = job.opening.fault
            return
        if not alone:
            conn.execute("SAVEPOINT job")
        try:
            job.value = job.run(conn)
        except StorageError as error:
            job.fail(error)
        except sqlite3.Error as error:
            if not conn.in_transaction:
                raise  # disk full, I/O error: SQLite has rolled everything back
            job.fail(_fault(self._path, error))
        except Exception as error:
            job.error = error
        if alone:
            return
        if job.error is not None:
            conn.execute("ROLLBACK TO job")
        conn.execute("RELEASE job")

    def _begin(self, level: Durability, seconds: float) -> sqlite3.Connection:
        self._check_file()
        conn = self._connection()
        if level != self._level:
            set_synchronous(conn, level)
            self._level = level
        begin(conn, seconds)
        return conn

    def _recover(self) -> None:
        """After a failure: roll back, and start over with a connection that has nothing pending."""
        try:
            if self._conn is not None and self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
        except sqlite3.Error as error:
            _log.warning("rollback failed: %s", error)
        self._disconnect()

    def _start(self, batch: list[Job[object]]) -> list[Job[object]]:
        with self._lock:
            live = [job for job in batch if job.state is JobState.QUEUED]
            for job in live:
                job.state = JobState.STARTED
        return live

    def _beat(self) -> None:
        now = time.monotonic()
        with self._lock:
            held = list(self._leases)
            if not held or now < self._beat_at:
                return
            self._beat_at = now + min(self._leases.values())
        try:
            conn = self._begin("process", 0)  # a lost beat costs nothing, so it needs no sync
            lost = [lease for lease in held if not leases.beat(conn, lease, self._clock.now_ms())]
            conn.execute("COMMIT")
        except Exception as error:
            _log.info("lease beat skipped: %s", error)
            if not (isinstance(error, sqlite3.OperationalError) and is_busy(error)):
                self._recover()
            return
        for lease in lost:
            self.drop(lease)

    def _release_all(self) -> None:
        with self._lock:
            held = list(self._leases)
            self._leases.clear()
        if not held:
            return
        try:
            conn = self._begin("process", 1)
            for lease in held:
                leases.release(conn, lease)
            conn.execute("COMMIT")
        except Exception as error:
            _log.info("leases not released, they run out by themselves: %s", error)
            self._recover()

    def _refuse_all(self, error: BaseException) -> None:
        refusal = error
        if not isinstance(error, SessionError):
            refusal = StorageError(f"{self._path}: the database cannot be used: {error}")
            refusal.__cause__ = error
        with self._lock:
            self._refusal = refusal
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, Job):
                for job in self._start([item]):
                    job.error = refusal
                    self._delivery.send([job])


def _fault(path: Path, error: Exception) -> StorageError:
    fault = StorageError(f"{path}: the write failed and its outcome is unknown: {error}")
    fault.__cause__ = error
    return fault
