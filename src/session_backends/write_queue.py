"""One writer per storage: callers wait, and their cancellation does not reach a write that has started.

There is no task that a dying event loop could cancel between a write and its bookkeeping: a batch is prepared and
settled by callbacks on the loop, and its I/O runs there or in a thread that lives as long as there is work.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

from agent_harness.errors import SessionClosed, StorageError

from .staging import Mutation, Staged, View

CLOSE_TIMEOUT_S = 10.0
"""How long `close` waits for the disk; a write that hangs longer releases the claim when it ends."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draft(Generic[T]):
    """A checked mutation; `commit` puts it into live state and announces it, once it is durable."""

    mutation: Mutation
    commit: Callable[[], T]


Job: TypeAlias = Callable[[Staged], Draft[T]]
"""Builds the draft when its turn comes, from the state as the writes before it will have left it."""


@dataclass(frozen=True, slots=True)
class Landed:
    """How many mutations of a batch are durable, and why the rest are not."""

    count: int
    fault: StorageError | None = None


class Journal(Protocol):
    """Where a storage's mutations become durable."""

    @property
    def blocking(self) -> bool:
        """Whether `persist` may take long enough to need a thread."""
        ...

    def prelude(self, staged: Staged) -> Sequence[Draft[object]]:
        """What has to be written before the first write of this opening; asked with each batch."""
        ...

    def persist(self, mutations: Sequence[Mutation]) -> Landed:
        """Write in order. Never raises: a failure is a fault, its outcome unknown."""
        ...

    def release(self) -> None:
        """Give up the claim and all descriptors. Called once, after the last write."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: Job[object]
    future: asyncio.Future[object]

    @property
    def withdrawn(self) -> bool:
        return self.future.done() or self.future.get_loop().is_closed()


class WriteQueue:
    """Serializes one storage's writes; what queues up meanwhile becomes one batch (group commit)."""

    def __init__(self, view: View, journal: Journal) -> None:
        self._view = view
        self._journal = journal
        self._waiting: deque[_Waiting] = deque()
        self._batch: list[tuple[Draft[object], asyncio.Future[object] | None]] | None = None
        self._landed: deque[Landed] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled_on: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._released = False
        self._closers: list[asyncio.Future[None]] = []
        self.fault: StorageError | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing more is taken."""
        return self._closing

    async def submit(self, job: Job[T]) -> T:
        """Run `job` in turn and wait until its mutation is durable and announced.

        Raises:
            SessionClosed, StorageError: this queue takes no more writes.
            InvalidWrite: what `job` raised; nothing was written.
        """
        loop = self._enter()
        if self._closing:
            raise SessionClosed("the session is closed")
        if self.fault is not None:
            raise self.fault
        future: asyncio.Future[object] = loop.create_future()
        self._waiting.append(_Waiting(cast("Job[object]", job), future))
        self._schedule(loop)
        return cast("T", await future)

    async def close(self) -> None:
        """Let accepted writes finish, then release the claim. Idempotent; cancelling it only stops the waiting."""
        loop = self._enter()
        self._closing = True
        self._schedule(loop)
        self._release_when_idle()
        if not self._released:
            closer: asyncio.Future[None] = loop.create_future()
            self._closers.append(closer)
            await asyncio.wait([closer], timeout=CLOSE_TIMEOUT_S)

    def _enter(self) -> asyncio.AbstractEventLoop:
        # A storage may outlive a loop: what landed after the old one stopped is settled on the new one.
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._settle()
        return loop

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._batch is None and self._waiting and self._scheduled_on is not loop:
            self._scheduled_on = loop
            loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled_on = None
        if self._batch is not None:
            return
        staged = Staged(self._view)
        batch: list[tuple[Draft[object], asyncio.Future[object] | None]] = [
            (draft, None) for draft in self._journal.prelude(staged)
        ]
        accepted = False
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.withdrawn:
                continue
            try:
                draft = waiting.job(staged)
            except Exception as error:
                waiting.future.set_exception(error)
                continue
            batch.append((draft, waiting.future))
            accepted = True
        if not accepted:
            self._release_when_idle()
            return
        self._batch = batch
        mutations = [draft.mutation for draft, _ in batch]
        if not self._journal.blocking:
            self._landed.append(self._written(mutations))
            self._settle()
            return
        try:
            threading.Thread(target=self._persist, args=(mutations,), name="session-writer", daemon=True).start()
        except RuntimeError as error:
            self._landed.append(Landed(0, StorageError(f"no thread for the write: {error}")))
            self._settle()

    def _written(self, mutations: Sequence[Mutation]) -> Landed:
        try:
            return self._journal.persist(mutations)
        except Exception as error:  # a defect, or no memory: whoever waits must hear of it
            fault = StorageError(f"the write failed and its outcome is unknown: {type(error).__name__}: {error}")
            fault.__cause__ = error
            return Landed(0, fault)

    def _persist(self, mutations: Sequence[Mutation]) -> None:
        self._landed.append(self._written(mutations))
        # Read after the append: whoever enters later sees the landed batch, whoever entered before is called.
        loop = self._loop
        assert loop is not None
        try:
            loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            pass  # the loop is closed; the next one that enters settles

    def _settle(self) -> None:
        if not self._landed:
            return
        landed = self._landed.popleft()
        batch, self._batch = self._batch or [], None
        if landed.fault is not None:
            self.fault = self.fault or landed.fault
        for position, (draft, future) in enumerate(batch):
            if position >= landed.count:
                _resolve(future, error=landed.fault)
                continue
            try:
                value = draft.commit()
            except Exception as error:  # a listener's defect; the write stands
                _resolve(future, error=error)
            else:
                _resolve(future, value)
        if self.fault is not None:
            while self._waiting:
                _resolve(self._waiting.popleft().future, error=self.fault)
        if self._loop is not None and not self._loop.is_closed():
            self._schedule(self._loop)
        self._release_when_idle()

    def _release_when_idle(self) -> None:
        if not self._closing or self._batch is not None or self._waiting:
            return
        if not self._released:
            self._released = True
            self._journal.release()
        while self._closers:
            closer = self._closers.pop()
            if not closer.done() and not closer.get_loop().is_closed():
                closer.set_result(None)


def _resolve(future: asyncio.Future[object] | None, value: object = None, *, error: Exception | None = None) -> None:
    if future is None or future.done() or future.get_loop().is_closed():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
