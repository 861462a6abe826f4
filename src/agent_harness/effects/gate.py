"""The gate of `drive="manual"`: every effect parks before it runs and a driver releases it (harness-v2 §15).

A released action runs in the task that called it, so an effect it performs itself (a hook inside a request) is
recognised as nested by its task and parks in front of everything else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from ..events.catalog import HarnessEvent
from ..hooks.catalog import (
    AfterTool,
    BeforeCompaction,
    BeforeNavigation,
    BeforeRequest,
    BeforeRunEnd,
    BeforeTool,
    CompactionDecision,
    HookName,
    NavigationDecision,
    ToolDecision,
    ToolResultPatch,
)
from ..providers.base import Model, StreamOptions
from ..telemetry.context import TelemetryContext
from ..types.actions import (
    ActionInfo,
    AppendEntryAction,
    AppendRecordAction,
    ApplyPendingWriteAction,
    CancelDeferredAction,
    CommitFollowUpAction,
    ConsumeQueueItemAction,
    ExecuteToolAction,
    FetchDeferredAction,
    FinishOperationAction,
    HookAction,
    MoveLaneAction,
    SetFactAction,
    SleepAction,
    StreamAssistantAction,
    TryFinishRunAction,
)
from ..types.entries import Entry, ProvisionedEntry
from ..types.messages import AssistantMessage, DeferredHandle
from ..types.records import LaneRecord, OperationError, Outcome, RecordBody
from ..types.tools import ExecutedToolCall, PreparedToolCall
from .base import AssistantRequest, Effects, FactWrite, Reads

T = TypeVar("T")


class _Parked:
    """One call that waits at the gate, and later its settlement."""

    def __init__(self, info: ActionInfo) -> None:
        self.info = info
        self.task = asyncio.current_task()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.settled = False


class Gate:
    """The queue of parked calls of one lane, and the driver's side of it."""

    def __init__(self) -> None:
        self._parked: list[_Parked] = []
        self._running: list[_Parked] = []
        self._changed = asyncio.Event()
        self._closed: BaseException | None = None
        self._driving = False
        self.working: Callable[[], bool] = lambda: False  # set by the lane: admission or procedure in flight

    # The procedure's side --------------------------------------------------

    async def pass_through(self, info: ActionInfo, run: Callable[[], Awaitable[T]]) -> T:
        """Park, then run once released.

        Raises:
            HarnessClosed, HarnessFault: the harness ended while the call was parked.
        """
        if self._closed is not None:
            raise self._closed
        parked = _Parked(info)
        nested = any(running.task is parked.task for running in self._running)
        self._parked.insert(0 if nested else self._place(info), parked)
        self.poke()
        try:
            await parked.opened
        except asyncio.CancelledError:
            if parked in self._parked:
                self._parked.remove(parked)
            self.poke()
            raise
        try:
            return await run()
        finally:
            parked.settled = True
            self._running.remove(parked)
            self.poke()

    def _place(self, info: ActionInfo) -> int:
        """Behind what is parked; but what follows a call that settled comes before tools that still run (A-4)."""
        if not isinstance(info, ExecuteToolAction):
            for place, parked in enumerate(self._parked):
                if isinstance(parked.info, ExecuteToolAction):
                    return place
        return len(self._parked)

    def poke(self) -> None:
        """Something a driver waits for may have happened."""
        self._changed.set()

    def close(self, reason: BaseException) -> None:
        """Reject every parked call and every later one."""
        self._closed = reason
        for parked in self._parked:
            if not parked.opened.done():
                parked.opened.set_exception(reason)
                parked.opened.exception()  # retrieved here too: its task may be cancelled before it looks
        self._parked.clear()
        self.poke()

    # The driver's side -----------------------------------------------------

    async def peek(self) -> ActionInfo | None:
        """The next parked action; None once no operation is in flight. No side effect."""
        while True:
            if self._parked:
                return self._parked[0].info
            if self._closed is not None or not self.working():
                return None
            await self._next_change()

    async def execute(self, tool_call_id: str | None = None) -> ActionInfo | None:
        """Release exactly one parked action and return the next one.

        Waits until the released call settles, the operation settles, or the call parks a nested action. With
        `tool_call_id`, releases that parked `execute_tool` instead of the first action (A-4).
        """
        if self._driving:
            raise RuntimeError("two drivers release actions at once")
        self._driving = True
        try:
            if await self.peek() is None:
                return None
            parked = self._select(tool_call_id)
            self._parked.remove(parked)
            self._running.append(parked)
            parked.opened.set_result(None)
            while not parked.settled and self.working():
                if self._parked and self._parked[0].task is parked.task:
                    break
                await self._next_change()
            return await self.peek()
        finally:
            self._driving = False

    def _select(self, tool_call_id: str | None) -> _Parked:
        if tool_call_id is None:
            return self._parked[0]
        for parked in self._parked:
            if isinstance(parked.info, ExecuteToolAction) and parked.info.tool_call_id == tool_call_id:
                return parked
        raise LookupError(f"no parked execute_tool with call id {tool_call_id!r}")

    @property
    def parked(self) -> tuple[ActionInfo, ...]:
        """All parked actions, the next one first."""
        return tuple(parked.info for parked in self._parked)

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class GatedEffects:
    """`Effects` behind a gate: one wrapper per method, nothing else."""

    def __init__(self, inner: Effects, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def reads(self) -> Reads:
        """See `Effects`."""
        return self._inner.reads

    async def append_entry(self, entry: ProvisionedEntry, parent: TelemetryContext) -> Entry:
        """See `Effects`."""
        info = AppendEntryAction(entry_type=entry.body.type, entry_id=entry.id)
        return await self._gate.pass_through(info, lambda: self._inner.append_entry(entry, parent))

    async def append_record(self, body: RecordBody, parent: TelemetryContext) -> LaneRecord:
        """See `Effects`."""
        info = AppendRecordAction(record_type=body.type)
        return await self._gate.pass_through(info, lambda: self._inner.append_record(body, parent))

    async def move_lane(self, to: str | None, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._gate.pass_through(MoveLaneAction(to=to), lambda: self._inner.move_lane(to, parent))

    async def set_fact(self, fact: FactWrite, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._gate.pass_through(SetFactAction(fact=fact.fact), lambda: self._inner.set_fact(fact, parent))

    async def try_finish_run(
        self,
        run_id: str,
        outcome: Literal["completed", "failed"],
        parent: TelemetryContext,
        error: OperationError | None = None,
    ) -> Literal["finished", "continue"]:
        """See `Effects`."""
        return await self._gate.pass_through(
            TryFinishRunAction(outcome=outcome), lambda: self._inner.try_finish_run(run_id, outcome, parent, error)
        )

    async def finish_operation(
        self,
        run_id: str,
        outcome: Outcome,
        parent: TelemetryContext,
        error: OperationError | None = None,
        event: HarnessEvent | None = None,
    ) -> Literal["finished", "continue"]:
        """See `Effects`."""
        return await self._gate.pass_through(
            FinishOperationAction(outcome=outcome),
            lambda: self._inner.finish_operation(run_id, outcome, parent, error, event),
        )

    async def commit_run_end_follow_up(
        self, run_id: str, item: ProvisionedEntry, parent: TelemetryContext
    ) -> Literal["committed", "dropped"]:
        """See `Effects`."""
        return await self._gate.pass_through(
            CommitFollowUpAction(), lambda: self._inner.commit_run_end_follow_up(run_id, item, parent)
        )

    async def consume_queue_item(
        self, run_id: str, queue: Literal["steer", "followUp"], entry_id: str, parent: TelemetryContext
    ) -> Literal["consumed", "skipped"]:
        """See `Effects`."""
        return await self._gate.pass_through(
            ConsumeQueueItemAction(queue=queue, entry_id=entry_id),
            lambda: self._inner.consume_queue_item(run_id, queue, entry_id, parent),
        )

    async def apply_pending_write(
        self, run_id: str, entry_id: str, parent: TelemetryContext
    ) -> Literal["applied", "skipped"]:
        """See `Effects`."""
        return await self._gate.pass_through(
            ApplyPendingWriteAction(entry_id=entry_id),
            lambda: self._inner.apply_pending_write(run_id, entry_id, parent),
        )

    async def stream_assistant(self, request: AssistantRequest, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        return await self._gate.pass_through(
            StreamAssistantAction(step=request.step, attempt=request.attempt),
            lambda: self._inner.stream_assistant(request, parent),
        )

    async def execute_tool(
        self, prepared: PreparedToolCall, turn_id: str | None, parent: TelemetryContext
    ) -> ExecutedToolCall:
        """See `Effects`."""
        call = prepared.tool_call
        return await self._gate.pass_through(
            ExecuteToolAction(tool_call_id=call.id, tool_name=call.name),
            lambda: self._inner.execute_tool(prepared, turn_id, parent),
        )

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        return await self._gate.pass_through(
            FetchDeferredAction(provider=handle.provider, id=handle.id),
            lambda: self._inner.fetch_deferred(model, handle, parent),
        )

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._gate.pass_through(
            CancelDeferredAction(provider=handle.provider, id=handle.id),
            lambda: self._inner.cancel_deferred(model, handle, parent),
        )

    async def before_request(self, event: BeforeRequest, parent: TelemetryContext) -> StreamOptions:
        """See `Effects`."""
        return await self._hook("before_request", lambda: self._inner.before_request(event, parent))

    async def before_tool(self, event: BeforeTool, parent: TelemetryContext) -> ToolDecision:
        """See `Effects`."""
        return await self._hook("before_tool", lambda: self._inner.before_tool(event, parent))

    async def after_tool(self, event: AfterTool, parent: TelemetryContext) -> ToolResultPatch:
        """See `Effects`."""
        return await self._hook("after_tool", lambda: self._inner.after_tool(event, parent))

    async def before_run_end(self, event: BeforeRunEnd, parent: TelemetryContext) -> tuple[str, ...]:
        """See `Effects`."""
        return await self._hook("before_run_end", lambda: self._inner.before_run_end(event, parent))

    async def before_compaction(self, event: BeforeCompaction, parent: TelemetryContext) -> CompactionDecision:
        """See `Effects`."""
        return await self._hook("before_compaction", lambda: self._inner.before_compaction(event, parent))

    async def before_navigation(self, event: BeforeNavigation, parent: TelemetryContext) -> NavigationDecision:
        """See `Effects`."""
        return await self._hook("before_navigation", lambda: self._inner.before_navigation(event, parent))

    async def before_resume(self, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._hook("before_resume", lambda: self._inner.before_resume(parent))

    async def sleep(self, delay_ms: int, parent: TelemetryContext) -> Literal["elapsed", "aborted"]:
        """See `Effects`."""
        return await self._gate.pass_through(
            SleepAction(delay_ms=delay_ms), lambda: self._inner.sleep(delay_ms, parent)
        )

    async def _hook(self, name: HookName, run: Callable[[], Awaitable[T]]) -> T:
        if not self._inner.reads.has_hook(name):
            return await run()
        return await self._gate.pass_through(HookAction(name=name), run)
