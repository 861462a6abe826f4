"""DirectEffects: `Effects` passed straight through to line jobs, providers, tools and hooks (harness-v2 §15)."""

import asyncio
from typing import Literal

from ..events.catalog import HarnessEvent
from ..hooks.catalog import (
    AfterTool,
    BeforeCompaction,
    BeforeNavigation,
    BeforeRequest,
    BeforeResume,
    BeforeRunEnd,
    BeforeTool,
    CompactionDecision,
    NavigationDecision,
    ToolDecision,
    ToolResultPatch,
)
from ..lanes import commits, jobs
from ..lanes.lane import LaneRuntime
from ..lanes.reads import LaneReads
from ..providers.base import (
    Model,
    StreamOptions,
)
from ..telemetry.attributes import SleepEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from ..types.entries import Entry, ProvisionedEntry
from ..types.messages import AssistantMessage, DeferredHandle
from ..types.records import LaneRecord, OperationError, Outcome, RecordBody, RunIntent
from ..types.tools import ExecutedToolCall, PreparedToolCall
from .base import AssistantRequest, FactWrite, Reads
from .direct_request import DirectRequests
from .direct_tool import execute_tool


class DirectEffects:
    """One lane's effects. What happens inside a request or a tool call is in the modules beside this one."""

    def __init__(self, lane: LaneRuntime) -> None:
        self._lane = lane
        self._env = lane.env
        self._reads = LaneReads(lane)
        self._requests = DirectRequests(lane)

    @property
    def reads(self) -> Reads:
        """See `Effects`."""
        return self._reads

    # Durable writes --------------------------------------------------------

    async def append_entry(self, entry: ProvisionedEntry, parent: TelemetryContext) -> Entry:
        """See `Effects`."""
        return await self._lane.line.run(lambda: commits.write_entry(self._lane, entry, parent))

    async def append_record(self, body: RecordBody, parent: TelemetryContext) -> LaneRecord:
        """See `Effects`."""
        return await self._lane.line.run(lambda: commits.write_record(self._lane, body, parent))

    async def move_lane(self, to: str | None, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._lane.line.run(lambda: commits.write_move(self._lane, to, parent))

    async def set_fact(self, fact: FactWrite, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._lane.line.run(
            lambda: jobs.set_label(self._lane, fact.target_id, fact.label, parent, rerun=self._lane.recovery)
        )

    async def try_finish_run(
        self,
        run_id: str,
        outcome: Literal["completed", "failed"],
        parent: TelemetryContext,
        error: OperationError | None = None,
    ) -> Literal["finished", "continue"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.try_finish_run(self._lane, run_id, outcome, error, parent))

    async def finish_operation(
        self,
        run_id: str,
        outcome: Outcome,
        parent: TelemetryContext,
        error: OperationError | None = None,
        event: HarnessEvent | None = None,
    ) -> Literal["finished", "continue"]:
        """See `Effects`."""
        return await self._lane.line.run(
            lambda: jobs.finish_operation(self._lane, run_id, outcome, error, parent, event=event)
        )

    async def commit_run_end_follow_up(
        self, run_id: str, item: ProvisionedEntry, parent: TelemetryContext
    ) -> Literal["committed", "dropped"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.commit_run_end_follow_up(self._lane, run_id, item, parent))

    async def consume_queue_item(
        self, run_id: str, queue: Literal["steer", "followUp"], entry_id: str, parent: TelemetryContext
    ) -> Literal["consumed", "skipped"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.consume_queue_item(self._lane, run_id, queue, entry_id, parent))

    async def apply_pending_write(
        self, run_id: str, entry_id: str, parent: TelemetryContext
    ) -> Literal["applied", "skipped"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.apply_pending_write(self._lane, run_id, entry_id, parent))

    # External effects ------------------------------------------------------

    async def stream_assistant(self, request: AssistantRequest, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        return await self._requests.stream_assistant(request, parent)

    async def execute_tool(
        self, prepared: PreparedToolCall, turn_id: str | None, parent: TelemetryContext
    ) -> ExecutedToolCall:
        """See `Effects`."""
        return await execute_tool(self._lane, prepared, turn_id, parent)

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        return await self._requests.fetch_deferred(model, handle, parent)

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._requests.cancel_deferred(model, handle, parent)

    # Hooks -----------------------------------------------------------------

    async def before_request(self, event: BeforeRequest, parent: TelemetryContext) -> StreamOptions:
        """See `Effects`."""
        with self._lane.in_hook():
            return await self._env.hooks.before_request(event, parent, self._lane.op().id)

    async def before_tool(self, event: BeforeTool, parent: TelemetryContext) -> ToolDecision:
        """See `Effects`."""
        return await self._env.hooks.before_tool(event, parent)

    async def after_tool(self, event: AfterTool, parent: TelemetryContext) -> ToolResultPatch:
        """See `Effects`."""
        return await self._env.hooks.after_tool(event, parent)

    async def before_run_end(self, event: BeforeRunEnd, parent: TelemetryContext) -> tuple[str, ...]:
        """See `Effects`."""
        return await self._env.hooks.before_run_end(event, parent)

    async def before_compaction(self, event: BeforeCompaction, parent: TelemetryContext) -> CompactionDecision:
        """See `Effects`."""
        with self._lane.in_hook():
            return await self._env.hooks.before_compaction(event, parent)

    async def before_navigation(self, event: BeforeNavigation, parent: TelemetryContext) -> NavigationDecision:
        """See `Effects`."""
        with self._lane.in_hook():
            return await self._env.hooks.before_navigation(event, parent)

    async def before_resume(self, parent: TelemetryContext) -> None:
        """See `Effects`."""
        op = self._lane.op()
        run = op.intent if isinstance(op.intent, RunIntent) else None
        event = BeforeResume(
            lane=self._lane.name,
            run_id=op.id,
            kind=op.kind,
            prompt=run.original_prompt if run else (),
            system_prompt_override=run.system_prompt_override if run else None,
        )
        resume_data = dict(run.resume_data or {}) if run else {}
        with self._lane.in_hook():
            await self._env.hooks.before_resume(event, resume_data, parent)

    # Time ------------------------------------------------------------------

    async def sleep(self, delay_ms: int, parent: TelemetryContext) -> Literal["elapsed", "aborted"]:
        """See `Effects`."""

        async def work(span: Span[SleepEnd]) -> Literal["elapsed", "aborted"]:
            outcome = await self._wait(delay_ms)
            span.set_attributes({"pi.sleep.outcome": outcome})
            return outcome

        return await start_harness_span(
            parent,
            "pi.harness.sleep",
            {"pi.operation.id": self._lane.op().id, "pi.sleep.delay_ms": delay_ms},
            work,
        )

    async def _wait(self, delay_ms: int) -> Literal["elapsed", "aborted"]:
        if self._lane.signal.aborted:
            return "aborted"
        waiting = asyncio.ensure_future(self._env.clock.sleep(delay_ms))
        aborted = asyncio.ensure_future(self._lane.signal.wait())
        try:
            await asyncio.wait({waiting, aborted}, return_when=asyncio.FIRST_COMPLETED)
            return "aborted" if self._lane.signal.aborted else "elapsed"
        finally:
            waiting.cancel()
            aborted.cancel()
