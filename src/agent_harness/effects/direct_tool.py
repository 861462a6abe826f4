"""One tool call of a lane: its span, its reports as events, and what it is told about itself (harness-v2 §14, §18)."""

from collections.abc import Awaitable, Callable

from ..events.catalog import ToolUpdate
from ..lanes.lane import LaneRuntime
from ..loop.tools import create_error_tool_result, execute_tool_call, presentable, reporter
from ..telemetry.attributes import ToolEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from ..telemetry.status import error_status
from ..types.messages import Usage
from ..types.records import ToolStarted, ToolUsage
from ..types.tools import AgentToolResult, ExecutedToolCall, PreparedToolCall, ToolOrigin
from ..types.usage import sum_usage


async def execute_tool(
    lane: LaneRuntime, prepared: PreparedToolCall, turn_id: str | None, parent: TelemetryContext
) -> ExecutedToolCall:
    """Run one cleared call; what it reports while it runs is told."""
    lane.env.require_alive()
    call = prepared.tool_call
    run_id = lane.op().id
    finished = False

    def update(partial: AgentToolResult) -> None:
        shown = presentable(partial)
        if finished or shown is None:
            return  # a late report of a call whose result is already decided, or none that can be shown
        lane.emit(
            ToolUpdate(
                lane=lane.name,
                run_id=run_id,
                turn_id=turn_id,
                tool_index=prepared.tool_index,
                tool_call_id=call.id,
                tool_name=call.name,
                partial_result=shown,
            )
        )

    async def work() -> ExecutedToolCall:
        try:
            context = await lane.env.resolve_tool_context()
        except Exception as error:
            text = f"the tool's context failed: {type(error).__name__}"
            return ExecutedToolCall(result=create_error_tool_result(text), is_error=True)
        return await execute_tool_call(
            prepared,
            lane.signal,
            context=context,
            update=reporter(prepared.tool, update),
            origin=await _origin(lane, prepared),
        )

    try:
        if lane.signal.aborted:  # it does not begin: no span
            return await work()
        return await _in_span(lane, prepared, turn_id, parent, work)
    finally:
        finished = True


async def _in_span(
    lane: LaneRuntime,
    prepared: PreparedToolCall,
    turn_id: str | None,
    parent: TelemetryContext,
    work: Callable[[], Awaitable[ExecutedToolCall]],
) -> ExecutedToolCall:
    async def executed(span: Span[ToolEnd]) -> ExecutedToolCall:
        raw = await work()
        span.set_attributes({"pi.tool.is_error": raw.is_error})
        if raw.is_error:
            span.set_status(error_status("tool_error", "the raw result is an error"))
        return raw

    return await start_harness_span(
        parent,
        "pi.harness.tool",
        {
            "pi.lane.name": lane.name,
            "pi.operation.id": lane.op().id,
            "pi.turn.id": turn_id,
            "pi.tool.name": prepared.tool_call.name,
            "pi.tool.call_id": prepared.tool_call.id,
            "pi.tool.replay": prepared.tool.replay,
            "pi.tool.recovery": turn_id is None,
        },
        executed,
    )


async def _origin(lane: LaneRuntime, prepared: PreparedToolCall) -> ToolOrigin | None:
    op = lane.op()
    batch = op.tool_batch
    if batch is None:
        return None
    started = batch.calls[prepared.tool_index].started
    billed: list[Usage] = []
    if lane.recovery and started is not None and isinstance(started.body, ToolStarted):
        entry_id = started.body.result_entry_id
        records = await lane.env.session.find_records(lane=lane.name, type="usage", run_id=op.id)
        billed = [r.body.usage for r in records if isinstance(r.body, ToolUsage) and r.body.entry_id == entry_id]
    return ToolOrigin(
        session_id=lane.env.session.id,
        lane=lane.name,
        run_id=op.id,
        assistant_entry_id=batch.assistant_entry_id,
        tool_index=prepared.tool_index,
        billed=sum_usage(billed) if billed else None,
    )
