"""The durable writes of one lane: each in its span, folded into live state and told in the commit's own callback (§15).

Called inside line jobs only. `parent` None is the application's telemetry context: a write that no operation's work
makes.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from ..events.catalog import (
    ConfigUpdate,
    EntryAdded,
    MessageEnd,
    MessageStart,
    QueueUpdate,
    RunAbort,
    RunEnd,
    RunStart,
    UsageEvent,
    WritePending,
)
from ..telemetry.attributes import WriteEnd, WriteStart
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from ..telemetry.vocabulary import SessionMutation
from ..types.entries import Entry, MessageBody, ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage
from ..types.records import (
    AbortRequested,
    AdjustmentUsage,
    HookUsage,
    LaneRecord,
    NewRecord,
    OperationFinished,
    OperationStarted,
    RecordBody,
    RequestUsage,
    RunIntent,
    ToolUsage,
    WriteDeferred,
)
from ..types.state import EffectiveLaneConfiguration, LaneMoved, Reconfigured
from ..types.usage import add_usage
from .lane import LaneRuntime
from .live import queues
from .restore import messages_of

T = TypeVar("T")


async def write_entry(lane: LaneRuntime, entry: ProvisionedEntry, parent: TelemetryContext | None = None) -> Entry:
    """Append one entry."""

    async def write(span: Span[WriteEnd]) -> Entry:
        committed = await lane.guard(
            lane.env.session.append_entry(entry, lane.name, on_commit=lambda entry: _entry_committed(lane, entry))
        )
        span.set_attributes({"pi.session.seq": committed.seq})
        return committed

    return await _in_span(lane, parent, "entry", entry.body.type, write)


async def write_record(lane: LaneRuntime, body: RecordBody, parent: TelemetryContext | None = None) -> LaneRecord:
    """Append one record under a fresh id."""
    record = NewRecord(id=lane.env.session.id_generator.next(), lane=lane.name, body=body)

    async def write(span: Span[WriteEnd]) -> LaneRecord:
        committed = await lane.guard(
            lane.env.session.append_record(record, on_commit=lambda record: _record_committed(lane, record))
        )
        span.set_attributes({"pi.session.seq": committed.seq})
        return committed

    starts = record.id if isinstance(body, OperationStarted) else None
    return await _in_span(lane, parent, "record", body.type, write, starts=starts)


async def write_fact(
    lane: LaneRuntime,
    item_type: Literal["label", "name"],
    write: Callable[[], Awaitable[None]],
    parent: TelemetryContext | None = None,
) -> None:
    """Write a fact of the session; `write` hands it to the session."""
    await _in_span(lane, parent, "fact", item_type, lambda _span: lane.guard(write()))


async def write_move(lane: LaneRuntime, to: str | None, parent: TelemetryContext | None = None) -> None:
    """Jump the leaf to `to`."""
    path = await lane.view.path_to(to)
    source = lane.state.lane_state.leaf_id

    async def write(span: Span[WriteEnd]) -> None:
        def committed(seq: int) -> None:
            span.set_attributes({"pi.session.seq": seq})
            lane.apply_fact(LaneMoved(lane=lane.name, to=to))
            lane.view.moved(source, path)
            lane.context.moved()

        await lane.guard(lane.env.session.move_lane(lane.name, to, on_commit=committed))

    await _in_span(lane, parent, "lane", None, write)


async def _in_span(
    lane: LaneRuntime,
    parent: TelemetryContext | None,
    mutation: SessionMutation,
    item_type: str | None,
    write: Callable[[Span[WriteEnd]], Awaitable[T]],
    *,
    starts: str | None = None,
) -> T:
    operation = lane.operation
    attributes: WriteStart = {
        "pi.lane.name": lane.name,
        "pi.operation.id": operation.id if operation is not None else starts,
        "pi.session.mutation": mutation,
        "pi.session.item_type": item_type,
    }
    return await start_harness_span(parent or lane.env.telemetry, "pi.session.write", attributes, write)


def reconfigure(lane: LaneRuntime, configuration: EffectiveLaneConfiguration) -> None:
    """Take over the configuration of the path that a closed navigation left the lane on."""
    before = lane.state.effective_configuration
    lane.apply_fact(Reconfigured(configuration=configuration))
    _tell_configuration(lane, before)


# Commit callbacks: no await may stand between a change of state and the event that tells it --------------------------


def _entry_committed(lane: LaneRuntime, entry: Entry) -> None:
    operation = lane.operation
    run_id = operation.id if operation is not None else None
    before = lane.state.effective_configuration
    lane.apply_fact(entry)
    lane.view.entry_committed(entry)
    lane.context.entry_committed(entry)
    message = entry.message
    if message is None:
        lane.emit(EntryAdded(lane=lane.name, run_id=run_id, entry=entry))
    else:
        noted = operation is not None and any(write.id == entry.id for write in operation.pending_writes)
        _tell_message(lane, entry, message, run_id, noted=noted)
    _tell_configuration(lane, before)


def _tell_message(lane: LaneRuntime, entry: Entry, message: AgentMessage, run_id: str | None, *, noted: bool) -> None:
    if isinstance(message, AssistantMessage) and lane.view.message_open and not noted:
        lane.view.message_open = False  # its message_start came with the first delta
    else:
        lane.emit(MessageStart(lane=lane.name, run_id=run_id, message=message))
    if isinstance(message, AssistantMessage) and message.stop_reason != "deferred" and run_id is not None:
        lane.answer = entry.id, message
    lane.emit(
        MessageEnd(
            lane=lane.name,
            run_id=run_id,
            message=message,
            entry_id=entry.id,
            parent_id=entry.parent_id,
            seq=entry.seq,
            timestamp=entry.timestamp,
            terminate=isinstance(entry.body, MessageBody) and entry.body.terminate is True,
        )
    )
    operation = lane.operation
    if operation is not None and entry.id in operation.queued_ids:
        _tell_queues(lane)


def _record_committed(lane: LaneRuntime, record: LaneRecord) -> None:
    if isinstance(record.body, OperationStarted):
        lane.answer = None
    before = queues(lane.state.lane_state)
    operation = lane.operation
    lane.apply_fact(record)
    match record.body:
        case RequestUsage() | ToolUsage() | HookUsage() | AdjustmentUsage() as body:
            lane.env.totals = add_usage(lane.env.totals, body.usage)
            lane.emit(UsageEvent(lane=lane.name, record=record, totals=lane.env.totals))
        case OperationStarted(intent=RunIntent()):
            lane.view.message_open = False
            lane.emit(RunStart(lane=lane.name, run_id=record.id, started_at=record.timestamp))
        case AbortRequested(run_id=run_id):
            assert operation is not None
            steer, follow_up = messages_of(operation.pending_steer), messages_of(operation.pending_follow_up)
            lane.emit(RunAbort(lane=lane.name, run_id=run_id, steer=steer, follow_up=follow_up))
        case WriteDeferred() as body:
            lane.emit(WritePending(lane=lane.name, run_id=body.run_id, entry_id=body.target.id, entry=body.target))
        case OperationFinished() as body if operation is not None and operation.kind == "run":
            _tell_run_end(lane, body)
        case _:
            pass
    if queues(lane.state.lane_state) != before:
        _tell_queues(lane)


def _tell_run_end(lane: LaneRuntime, body: OperationFinished) -> None:
    assert body.outcome != "declined", "a run is never declined"
    entry_id, message = lane.answer if lane.answer is not None else (None, None)
    lane.emit(
        RunEnd(
            lane=lane.name,
            run_id=body.run_id,
            outcome=body.outcome,
            leaf_id=lane.state.lane_state.leaf_id,
            final_entry_id=entry_id,
            final_message=message,
            error=body.error,
            recovery=lane.recovery,
        )
    )


def _tell_queues(lane: LaneRuntime) -> None:
    now = queues(lane.state.lane_state)
    lane.emit(QueueUpdate(lane=lane.name, steer=now.steer, follow_up=now.follow_up, next_run=now.next_run))


def _tell_configuration(lane: LaneRuntime, before: EffectiveLaneConfiguration) -> None:
    old, new = _shown(before), _shown(lane.state.effective_configuration)
    for property in old:
        if new[property] != old[property]:
            lane.emit(ConfigUpdate(lane=lane.name, property=property, value=new[property], previous=old[property]))


def _shown(
    configuration: EffectiveLaneConfiguration,
) -> dict[Literal["model", "thinkingLevel", "activeTools"], JsonValue]:
    model = configuration.model
    return {
        "model": {"provider": model.provider, "modelId": model.model_id},
        "thinkingLevel": configuration.thinking_level,
        "activeTools": list(configuration.active_tool_names),
    }
