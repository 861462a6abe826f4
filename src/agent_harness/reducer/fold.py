"""The fold: facts in, lane state out (harness-v2 §7). Live commits and restore run this same code.

It knows no drive mode, backend or lane surface. It raises `CorruptLog` on what a single writer cannot have written;
the rules themselves are in `validity.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import TypeAlias, assert_never

from ..types.entries import (
    ActiveToolsBody,
    BranchSummaryBody,
    CompactionBody,
    CustomBody,
    Entry,
    MessageBody,
    ModelChangeBody,
    ProvisionedEntry,
    ThinkingLevelBody,
)
from ..types.messages import AgentMessage, AssistantMessage, ToolResultMessage
from ..types.records import (
    AbortRequested,
    AdjustmentUsage,
    CompactionIntent,
    HookUsage,
    Intent,
    LaneRecord,
    NavigationIntent,
    OperationFinished,
    OperationStarted,
    QueueCancelled,
    QueueEnqueued,
    RequestUsage,
    RunIntent,
    StepAttempt,
    ToolSettled,
    ToolStarted,
    ToolUsage,
    WriteDeferred,
)
from ..types.state import (
    EffectiveLaneConfiguration,
    LaneMoved,
    LaneReductionResult,
    LaneState,
    ModelRef,
    NewestOwn,
    OperationState,
    Reconfigured,
    StepState,
    Targets,
    TerminalFailureState,
    ToolBatchState,
    ToolCallState,
)
from . import validity

Fact: TypeAlias = Entry | LaneRecord | LaneMoved | Reconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReductionInput:
    """What restore reads for one lane: bounded by the open operation, or by the idle queue."""

    lane: str
    leaf_id: str | None
    open_operations: Sequence[LaneRecord] = ()  # newest first, at most two are looked up
    queue_records: Sequence[LaneRecord] = ()  # nextRun items above the newest run start, below the open operation
    records: Sequence[LaneRecord] = ()  # of the lane, above the open operation's start, oldest first
    own_entries: Sequence[Entry] = ()  # appended by the open operation, oldest first
    configuration_entries: Sequence[Entry] = ()  # at the operation's anchor or the idle leaf, oldest first
    defaults: EffectiveLaneConfiguration


def reduce_lane_state(source: LaneReductionInput) -> LaneReductionResult:
    """The state of a lane, from nothing but its facts.

    Raises:
        CorruptLog: a validity rule is broken; stops at the first.
    """
    validity.require_single_open(source.lane, source.open_operations)
    state = LaneReductionResult(
        lane_state=LaneState(lane=source.lane),
        effective_configuration=configuration_from(source.configuration_entries, source.defaults),
    )
    for record in source.queue_records:
        if record.run_id is None:
            state = apply(state, record)
    for start in source.open_operations:
        anchor = start.body.source_leaf_id if isinstance(start.body, OperationStarted) else None
        state = replace(state, lane_state=replace(state.lane_state, leaf_id=anchor))
        state = apply(state, start)
    sequence: Iterable[LaneRecord | Entry] = merge(source.records, source.own_entries, key=_seq)
    for fact in sequence:
        state = apply(state, fact)
    return replace(state, lane_state=replace(state.lane_state, leaf_id=source.leaf_id))


def _seq(fact: LaneRecord | Entry) -> int:
    return fact.seq


def configuration_from(entries: Sequence[Entry], defaults: EffectiveLaneConfiguration) -> EffectiveLaneConfiguration:
    """The configuration after `entries` in order: the newest of each kind wins."""
    configuration = defaults
    for entry in entries:
        configuration = _configured(configuration, entry)
    return configuration


def apply(state: LaneReductionResult, fact: Fact) -> LaneReductionResult:
    """One committed fact of this lane.

    Raises:
        CorruptLog: a single writer cannot have written it here.
    """
    match fact:
        case Entry():
            return _apply_entry(state, fact)
        case LaneRecord():
            return replace(state, lane_state=_apply_record(state.lane_state, fact))
        case LaneMoved():
            return replace(state, lane_state=replace(state.lane_state, leaf_id=fact.to))
        case Reconfigured():
            return replace(state, effective_configuration=fact.configuration)
        case _:
            assert_never(fact)


# Entries -------------------------------------------------------------------------------------------------------------


def _apply_entry(state: LaneReductionResult, entry: Entry) -> LaneReductionResult:
    lane = replace(state.lane_state, leaf_id=entry.id)
    if lane.operation is not None:
        lane = replace(lane, operation=_own_entry(lane.lane, lane.operation, entry))
    return LaneReductionResult(
        lane_state=lane, effective_configuration=_configured(state.effective_configuration, entry)
    )


def _configured(configuration: EffectiveLaneConfiguration, entry: Entry) -> EffectiveLaneConfiguration:
    match entry.body:
        case ModelChangeBody():
            return replace(configuration, model=ModelRef(provider=entry.body.provider, model_id=entry.body.model_id))
        case ThinkingLevelBody():
            return replace(configuration, thinking_level=entry.body.thinking_level)
        case ActiveToolsBody():
            return replace(configuration, active_tool_names=entry.body.active_tool_names)
        case MessageBody(message=AssistantMessage() as message):
            return replace(configuration, model=ModelRef(provider=message.provider, model_id=message.model))
        case MessageBody() | CompactionBody() | BranchSummaryBody() | CustomBody():
            return configuration
        case _:
            assert_never(entry.body)


def _own_entry(lane: str, op: OperationState, entry: Entry) -> OperationState:
    validity.require_provisioned_content(lane, op, entry)
    deferred_write = any(item.id == entry.id for item in op.pending_writes)
    produced = entry.id in op.attempt_ids or (op.deferred is not None and _is_assistant(entry) and not deferred_write)
    redeemed = produced and entry.id not in op.attempt_ids
    conversational = entry.id in op.conversational_ids
    message = entry.message
    own = _newest(entry, message)
    changed = replace(
        op,
        newest_own=own,
        newest_message=own if _drives(message, conversational, deferred_write) else op.newest_message,
        missing_initial_messages=_without(op.missing_initial_messages, entry.id),
        pending_steer=_without(op.pending_steer, entry.id),
        pending_follow_up=_without(op.pending_follow_up, entry.id),
        pending_writes=_without(op.pending_writes, entry.id),
        step=None if op.step is not None and op.step.result_entry_id == entry.id else op.step,
        deferred=None,
        targets=_targets(op, entry.id),
    )
    if isinstance(entry.body, CompactionBody):
        changed = replace(changed, threshold_tried=True)  # a hook's summary has no attempt that says so
    if conversational:
        # A compaction step that is still open here was exhausted: its failure ends with the input that clears it.
        step = None if changed.step is not None and changed.step.kind == "compaction" else changed.step
        changed = replace(changed, overflow_recovery_used=False, terminal_failure=None, step=step)
    if isinstance(message, AssistantMessage) and produced:
        return _produced(lane, changed, entry, message, redeemed)
    if isinstance(message, ToolResultMessage) and not deferred_write:
        terminate = isinstance(entry.body, MessageBody) and entry.body.terminate is True
        return replace(changed, tool_batch=_resolved(changed.tool_batch, entry.id, message, terminate))
    return changed


def _is_assistant(entry: Entry) -> bool:
    return isinstance(entry.message, AssistantMessage)


def _newest(entry: Entry, message: AgentMessage | None) -> NewestOwn:
    stop = message.stop_reason if isinstance(message, AssistantMessage) else None
    return NewestOwn(
        entry_id=entry.id,
        type=entry.type,
        role=message.role if message is not None else None,
        stop_reason=None if stop == "pending" else stop,
    )


def _drives(message: AgentMessage | None, conversational: bool, deferred_write: bool) -> bool:
    """Whether `needs_assistant` looks at this message: a fact noted on the side asks for no answer."""
    if message is None:
        return False
    if conversational or message.role == "user":
        return True
    return not deferred_write and message.role in ("assistant", "toolResult")


def _produced(lane: str, op: OperationState, entry: Entry, message: AssistantMessage, redeemed: bool) -> OperationState:
    """A message that this operation's own request produced."""
    op = replace(op, threshold_tried=False)
    if message.stop_reason == "deferred":
        return replace(op, deferred=validity.require_handle(lane, entry, message))
    if message.stop_reason == "error":
        failure = TerminalFailureState(
            entry_id=entry.id, source="deferred_fetch" if redeemed else "step", message=message
        )
        return replace(op, terminal_failure=failure)
    if not message.tool_calls:
        return op
    calls = tuple(ToolCallState(tool_index=i, tool_call=call) for i, call in enumerate(message.tool_calls))
    batch = ToolBatchState(
        assistant_entry_id=entry.id, calls=calls, truncated=message.stop_reason == "length", unresolved=True
    )
    return replace(op, tool_batch=batch)


def _resolved(
    batch: ToolBatchState | None, entry_id: str, message: ToolResultMessage, terminate: bool
) -> ToolBatchState | None:
    """The batch after a result: by its provisioned id, else the first matching call that never started."""
    if batch is None:
        return None
    call = next((c for c in batch.calls if c.started is not None and _result_id(c.started) == entry_id), None)
    if call is None:
        call = next(
            (c for c in batch.calls if c.started is None and not c.result_exists and _answers(message, c)), None
        )
    if call is None:
        return batch
    done = replace(call, result_exists=True, terminate=terminate)
    calls = tuple(done if c.tool_index == done.tool_index else c for c in batch.calls)
    return replace(batch, calls=calls, unresolved=any(not c.result_exists for c in calls))


def _result_id(started: LaneRecord) -> str | None:
    return started.body.result_entry_id if isinstance(started.body, ToolStarted) else None


def _answers(message: ToolResultMessage, call: ToolCallState) -> bool:
    return message.tool_call_id == call.tool_call.id and message.tool_name == call.tool_call.name


def _targets(op: OperationState, entry_id: str) -> Targets:
    match op.intent:
        case CompactionIntent(result_entry_id=result_id) if result_id == entry_id:
            return replace(op.targets, result=True)
        case NavigationIntent(summary_entry_id=summary_id) if summary_id == entry_id:
            return replace(op.targets, summary=True)
        case _:
            return op.targets


def _without(items: tuple[ProvisionedEntry, ...], entry_id: str) -> tuple[ProvisionedEntry, ...]:
    return tuple(item for item in items if item.id != entry_id) if items else items


# Records -------------------------------------------------------------------------------------------------------------


def _apply_record(state: LaneState, record: LaneRecord) -> LaneState:
    body = record.body
    match body:
        case RequestUsage() | ToolUsage() | HookUsage() | AdjustmentUsage():
            return state  # accounting, never orchestration (harness-v2 §5)
        case OperationStarted():
            validity.require_idle(state, record)
            return _started(state, record, body)
        case QueueEnqueued(queue="nextRun"):
            return replace(state, pending_next_run=(*state.pending_next_run, body.target))
        case QueueCancelled() if body.run_id is None:
            validity.require_pending(state.lane, state.pending_next_run, record, body)
            return replace(state, pending_next_run=_without(state.pending_next_run, body.entry_id))
        case (
            AbortRequested()
            | OperationFinished()
            | StepAttempt()
            | ToolStarted()
            | ToolSettled()
            | QueueEnqueued()
            | QueueCancelled()
            | WriteDeferred()
        ):
            op = validity.require_open(state, record)
            return replace(state, operation=_owned_record(state.lane, op, record))
        case _:
            assert_never(body)


def _started(state: LaneState, record: LaneRecord, body: OperationStarted) -> LaneState:
    intent: Intent = body.intent
    op = OperationState(
        id=record.id,
        kind=intent.kind,
        intent=intent,
        started_at=record.timestamp,
        started_seq=record.seq,
        source_leaf_id=body.source_leaf_id,
    )
    match intent:
        case RunIntent():
            captured = frozenset(item.id for item in intent.initial_messages)
            op = replace(op, missing_initial_messages=intent.initial_messages, conversational_ids=captured)
            pending = tuple(item for item in state.pending_next_run if item.id not in captured)
            return replace(state, operation=op, pending_next_run=pending)
        case CompactionIntent():
            return replace(state, operation=replace(op, targets=Targets(result=False)))
        case NavigationIntent():
            summary = False if intent.summary_entry_id is not None else None
            return replace(state, operation=replace(op, targets=Targets(summary=summary)))
        case _:
            assert_never(intent)


def _owned_record(lane: str, op: OperationState, record: LaneRecord) -> OperationState | None:
    body = record.body
    match body:
        case AbortRequested():
            return replace(
                op,
                aborting=True,
                pending_steer=(),
                pending_follow_up=(),
                aborted_steer=op.pending_steer,
                aborted_follow_up=op.pending_follow_up,
            )
        case OperationFinished():
            return None
        case StepAttempt():
            return _attempted(lane, op, record, body)
        case ToolStarted():
            batch, call = validity.require_startable(lane, op, record, body)
            return replace(op, tool_batch=_with_call(batch, replace(call, started=record)))
        case ToolSettled():
            batch, call = validity.require_started(lane, op, record, body)
            return replace(op, tool_batch=_with_call(batch, replace(call, settled=record)))
        case QueueEnqueued(queue="steer"):
            validity.require_not_aborting(lane, op, record, body)
            return replace(
                op,
                pending_steer=(*op.pending_steer, body.target),
                conversational_ids=op.conversational_ids | {body.target.id},
                queued_ids=op.queued_ids | {body.target.id},
            )
        case QueueEnqueued():
            validity.require_not_aborting(lane, op, record, body)
            return replace(
                op,
                pending_follow_up=(*op.pending_follow_up, body.target),
                conversational_ids=op.conversational_ids | {body.target.id},
                queued_ids=op.queued_ids | {body.target.id},
            )
        case QueueCancelled():
            validity.require_pending(lane, (*op.pending_steer, *op.pending_follow_up), record, body)
            return replace(
                op,
                pending_steer=_without(op.pending_steer, body.entry_id),
                pending_follow_up=_without(op.pending_follow_up, body.entry_id),
            )
        case WriteDeferred():
            return replace(op, pending_writes=(*op.pending_writes, body.target))
        case _:
            raise AssertionError(f"record type {body.type} does not belong to an operation")


def _attempted(lane: str, op: OperationState, record: LaneRecord, body: StepAttempt) -> OperationState:
    validity.require_attempt(lane, op, record, body)
    step = StepState(
        kind=body.step,
        attempts=body.attempt,
        result_entry_id=body.result_entry_id,
        compaction_reason=body.compaction_reason,
    )
    return replace(
        op,
        step=step,
        attempt_ids=op.attempt_ids | {body.result_entry_id} if body.step == "assistant" else op.attempt_ids,
        overflow_recovery_used=op.overflow_recovery_used or body.compaction_reason == "overflow",
        threshold_tried=op.threshold_tried or body.compaction_reason == "threshold",
    )


def _with_call(batch: ToolBatchState, call: ToolCallState) -> ToolBatchState:
    return replace(batch, calls=tuple(call if c.tool_index == call.tool_index else c for c in batch.calls))
