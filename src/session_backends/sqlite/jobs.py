"""Work that an event loop hands to a database thread, and how its results come back."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from sqlite3 import Connection
from typing import Generic, TypeVar, cast

from agent_harness.errors import StorageError
from agent_harness.session.storage import Durability

T = TypeVar("T")


class JobState(Enum):
    """How far a job is. A queued job can be revoked; a started one runs to its end."""

    QUEUED = "queued"
    STARTED = "started"
    DONE = "done"
    REVOKED = "revoked"


class Opening:
    """What one opening of a session shares with the database thread: its fault, which stops all it has queued."""

    __slots__ = ("fault",)

    def __init__(self) -> None:
        self.fault: StorageError | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Job(Generic[T]):
    """One mutation, submitted whole. `run` is called inside a transaction; `on_commit` on the submitter's loop."""

    run: Callable[[Connection], T]
    on_commit: Callable[[T], None] | None
    opening: Opening | None
    durability: Durability
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[T]"
    state: JobState = JobState.QUEUED
    value: T | None = None
    error: BaseException | None = None

    def fail(self, error: StorageError) -> None:
        """The outcome is unknown: the opening that sent this job writes nothing more."""
        self.error = error
        if self.opening is not None and self.opening.fault is None:
            self.opening.fault = error

    def deliver(self) -> None:
        """Tell the loop's side: first the state that follows the commit, then whoever still waits."""
        self.state = JobState.DONE
        if self.error is None and self.on_commit is not None:
            try:
                self.on_commit(cast("T", self.value))
            except Exception as error:
                self.error = error
        if self.future.done():
            return
        try:
            if self.error is None:
                self.future.set_result(cast("T", self.value))
            else:
                self.future.set_exception(self.error)
                self.future.exception()  # retrieved, should nobody wait any more
        except RuntimeError:
            return  # the waiter's loop is closed; the commit itself was told


class Delivery:
    """Hands finished jobs to their loops in commit order.

    A loop may be closed by then (`asyncio.run` ended): its jobs are told on the loop that uses the database next, so
    that live state never lags behind the file.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orphans: deque[Job[object]] = deque()

    def send(self, jobs: Sequence[Job[object]]) -> None:
        """Called on the database thread."""
        for loop, group in groupby(jobs, key=lambda job: job.loop):
            batch = list(group)
            try:
                loop.call_soon_threadsafe(self._tell, batch)
            except RuntimeError:
                with self._lock:
                    self._orphans.extend(batch)

    def adopt(self) -> None:
        """Tell what a closed loop left untold. Called on a running loop before it reads or writes."""
        while self._orphans:
            with self._lock:
                job = self._orphans.popleft() if self._orphans else None
            if job is not None:
                job.deliver()

    def _tell(self, jobs: Sequence[Job[object]]) -> None:
        self.adopt()
        for job in jobs:
            job.deliver()
