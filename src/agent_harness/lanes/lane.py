"""LaneRuntime: what a lane of a live harness is: its state, its mutation line, and what runs on it (harness-v2 §15)."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ..abort_signal import AbortSignal
from ..effects.gate import Gate
from ..errors import CorruptLog, HarnessClosed, InvalidPayload, StorageError
from ..events.catalog import HarnessEvent
from ..outcomes import OperationOutcome
from ..reducer.fold import Fact, apply
from ..types.state import LaneReductionResult, OperationState
from .context import LaneContext
from .environment import Environment
from .line import MutationLine
from .live import LiveView
from .restore import RestoredLane, newest_answer

T = TypeVar("T")
HOOK_OF: ContextVar[str | None] = ContextVar("HOOK_OF", default=None)
"""The operation whose hook is running here, whatever task the handler started: it must not wait for that operation."""


class LaneRuntime:
    """State changes only in the callbacks of `commits`, whatever happens to a caller (decisions section 5)."""

    def __init__(self, name: str, env: Environment, restored: RestoredLane) -> None:
        self.name = name
        self.env = env
        self.line = MutationLine()
        self.gate: Gate | None = None
        self.state: LaneReductionResult = restored.reduction
        self.answer = newest_answer(restored.own_entries)
        self.view = LiveView(env, lambda: self.state)
        self.context = LaneContext(env, lambda: self.state)
        self.idle = asyncio.Event()
        self._admitting = 0  # calls that may start an operation and have not been decided yet
        # What `execution` runs:
        self.signal = AbortSignal()
        self.recovery = False
        self.outcome: asyncio.Future[OperationOutcome] | None = None
        self.procedure: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[None]] = set()  # the procedure, and one before it that is still ending
        self.settle_idle()
        if env.drive == "manual":
            self.gate = Gate()
            self.gate.working = lambda: self._admitting > 0 or self.executing

    # State -----------------------------------------------------------------

    @property
    def operation(self) -> OperationState | None:
        """The open operation."""
        return self.state.lane_state.operation

    def op(self) -> OperationState:
        """The open operation, which a caller knows to exist."""
        operation = self.operation
        assert operation is not None, f"lane {self.name!r} has no open operation"
        return operation

    @property
    def executing(self) -> bool:
        """A procedure is running."""
        return self.procedure is not None

    @property
    def suspended(self) -> bool:
        """An open operation waits for resume or abort."""
        shown = self.view.operation
        return self.operation is not None and shown is not None and shown.suspended is not None

    def apply_fact(self, fact: Fact) -> None:
        """Fold a committed fact into live state; a fact that does not fold is a defect of the writer."""
        try:
            self.state = apply(self.state, fact)
        except CorruptLog as error:
            self.env.fail(error)
        self.settle_idle()

    def emit(self, event: HarnessEvent) -> None:
        """Publish. Every event of the lane goes this way, so that snapshots and watchers agree."""
        self.env.events.publish(self.view.told(event))

    def settle_idle(self) -> None:
        """Operation or procedure changed: let those go on who wait for neither."""
        if self.operation is None and self.procedure is None:
            self.idle.set()
        else:
            self.idle.clear()

    # Callers ---------------------------------------------------------------

    @contextmanager
    def admission(self) -> Generator[None]:
        """The bracket of a call that may start an operation: a driver waits until it is decided."""
        self._admitting += 1
        try:
            yield
        finally:
            self._admitting -= 1
            self.poke()

    def poke(self) -> None:
        """Something that a driver waits for may have happened."""
        if self.gate is not None:
            self.gate.poke()

    async def accept(self, job: Callable[[], Awaitable[T]]) -> T:
        """A caller's job on the line. What it raises, a refused payload and the end apart, faults the harness."""
        try:
            return await self.line.run(job)
        except (HarnessClosed, InvalidPayload):
            raise
        except Exception as error:
            raise self.env.fail(error) from error

    @contextmanager
    def in_hook(self) -> Generator[None]:
        """Mark what runs inside as a hook of the open operation, in tasks that it starts too (A-10)."""
        token = HOOK_OF.set(self.op().id)
        try:
            yield
        finally:
            HOOK_OF.reset(token)

    # The end ---------------------------------------------------------------

    async def guard(self, write: Awaitable[T]) -> T:
        """Await a session write; a failed one faults the harness, since its outcome is unknown."""
        try:
            return await write
        except StorageError as error:
            raise self.env.fail(error) from error

    async def detach(self, reason: BaseException, timeout: float, spared: asyncio.Task[object] | None) -> None:
        """Stop executing without writing anything more; a write in progress ends by itself.

        `spared` is the task that closes: a procedure cannot be waited for by itself.
        """
        self.line.close(reason)
        if self.gate is not None:
            self.gate.close(reason)
        tasks = [task for task in self.tasks if task is not spared]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        await self.line.drain(timeout)
