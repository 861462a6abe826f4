"""The corruption rules of harness-v2 §5, one function each (amendments A-4, A-14).

A rule's name is the `reason` of the format's oracle; a finding carries lane and record or entry id.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..errors import CorruptLog
from ..types.entries import BranchSummaryBody, CompactionBody, Entry, MessageBody, ProvisionedEntry
from ..types.messages import AssistantMessage, DeferredHandle, ToolResultMessage
from ..types.records import (
    CompactionIntent,
    LaneRecord,
    NavigationIntent,
    QueueCancelled,
    QueueEnqueued,
    StepAttempt,
    ToolSettled,
    ToolStarted,
)
from ..types.state import LaneState, OperationState, ToolBatchState, ToolCallState

RULES: Mapping[str, str] = {
    "multiple_open_operations": "At most one operation of a lane is open.",
    "unknown_operation": "A record belongs to the operation that is open.",
    "record_after_finish": "Nothing but usage follows an operation's finish.",
    "non_consecutive_attempt": "Attempts count up from 1 within their step.",
    "invalid_compaction_reason": "A compaction attempt gives a reason, no other attempt does.",
    "queue_after_abort": "Nothing is queued behind an abort.",
    "invalid_queue_cancellation": "A cancellation names an item that was enqueued and not consumed.",
    "inconsistent_step": "The attempts of one structural step agree on result entry and reason.",
    "tool_call_mismatch": "A tool start names a call of its assistant entry by position, id and name.",
    "duplicate_tool_invocation": "A call starts once.",
    "tool_settled_mismatch": "A settled call has exactly one start, with the same identity and result entry.",
    "provisioned_entry_mismatch": "A provisioned id exists only with the content it was provisioned for.",
    "invalid_deferred_handle": "A deferred answer carries the handle that redeems it.",
}
"""Rule name -> what must hold."""


def _corrupt(rule: str, lane: str, item_id: str, message: str) -> NoReturn:
    assert rule in RULES
    raise CorruptLog(rule, f"lane {lane!r}: {message}", lane=lane, item_id=item_id)


def require_single_open(lane: str, open_operations: Sequence[LaneRecord]) -> None:
    """At most one operation is open."""
    if len(open_operations) > 1:
        ids = ", ".join(record.id for record in open_operations)
        _corrupt("multiple_open_operations", lane, open_operations[0].id, f"operations {ids} are open at once")


def require_idle(state: LaneState, record: LaneRecord) -> None:
    """An operation starts only on an idle lane."""
    if state.operation is not None:
        message = f"operation {record.id} started while {state.operation.id} is open"
        _corrupt("multiple_open_operations", state.lane, record.id, message)


def require_open(state: LaneState, record: LaneRecord) -> OperationState:
    """A record of an operation belongs to the one that is open."""
    op = state.operation
    if op is None or record.run_id != op.id:
        message = f"record {record.id} references unknown operation {record.run_id}"
        _corrupt("unknown_operation", state.lane, record.id, message)
    return op


def require_attempt(lane: str, op: OperationState, record: LaneRecord, body: StepAttempt) -> None:
    """Attempts count up from 1; a compaction attempt has a reason, no other has; one step agrees with itself."""
    if (body.step == "compaction") != (body.compaction_reason is not None):
        message = f"{body.step} attempt {record.id} " + (
            "has no compaction reason" if body.step == "compaction" else "has a compaction reason"
        )
        _corrupt("invalid_compaction_reason", lane, record.id, message)
    step = op.step if op.step is not None and op.step.kind == body.step else None
    expected = step.attempts + 1 if step is not None else 1
    if body.attempt != expected:
        message = f"{body.step} attempt {record.id} is {body.attempt}; expected {expected}"
        _corrupt("non_consecutive_attempt", lane, record.id, message)
    if body.step == "assistant":
        return
    provisioned = step.result_entry_id if step is not None else _intended_result(op, body)
    if provisioned is not None and body.result_entry_id != provisioned:
        _corrupt("inconsistent_step", lane, record.id, f"{body.step} attempts disagree on their result entry id")
    if step is not None and step.compaction_reason != body.compaction_reason:
        _corrupt("inconsistent_step", lane, record.id, f"{body.step} attempts disagree on their compaction reason")


def _intended_result(op: OperationState, body: StepAttempt) -> str | None:
    if isinstance(op.intent, CompactionIntent) and body.step == "compaction":
        return op.intent.result_entry_id
    if isinstance(op.intent, NavigationIntent) and body.step == "branch_summary":
        return op.intent.summary_entry_id
    return None


def require_startable(
    lane: str, op: OperationState, record: LaneRecord, body: ToolStarted
) -> tuple[ToolBatchState, ToolCallState]:
    """The ordinal names that call in its assistant entry, and it was not started before."""
    batch = op.tool_batch
    if batch is not None and batch.assistant_entry_id == body.assistant_entry_id:
        for call in batch.calls:
            if call.tool_index != body.tool_index:
                continue
            if call.started is not None:
                message = f"tool invocation {body.assistant_entry_id}:{body.tool_index} is duplicated"
                _corrupt("duplicate_tool_invocation", lane, record.id, message)
            if call.tool_call.id == body.tool_call_id and call.tool_call.name == body.tool_name:
                return batch, call
    _corrupt("tool_call_mismatch", lane, record.id, f"tool start {record.id} does not match its assistant's call")


def require_started(
    lane: str, op: OperationState, record: LaneRecord, body: ToolSettled
) -> tuple[ToolBatchState, ToolCallState]:
    """A `tool_settled` has exactly one preceding `tool_started` of the same identity and result id (A-4)."""
    batch = op.tool_batch
    if batch is not None and batch.assistant_entry_id == body.assistant_entry_id:
        for call in batch.calls:
            started = call.started.body if call.started is not None else None
            if (
                call.tool_index == body.tool_index
                and isinstance(started, ToolStarted)
                and started.tool_call_id == body.tool_call_id
                and started.result_entry_id == body.result_entry_id
                and call.settled is None
            ):
                return batch, call
    _corrupt("tool_settled_mismatch", lane, record.id, f"tool_settled {record.id} has no unsettled start of its own")


def require_not_aborting(lane: str, op: OperationState, record: LaneRecord, body: QueueEnqueued) -> None:
    """Nothing is queued behind an abort marker."""
    if op.aborting:
        _corrupt("queue_after_abort", lane, record.id, f"{body.queue} item {body.target.id} was enqueued after abort")


def require_pending(lane: str, pending: Sequence[ProvisionedEntry], record: LaneRecord, body: QueueCancelled) -> None:
    """A cancellation kills an item that was enqueued and not consumed."""
    if all(item.id != body.entry_id for item in pending):
        message = f"queue cancellation {record.id} has no pending matching enqueue"
        _corrupt("invalid_queue_cancellation", lane, record.id, message)


def require_provisioned_content(lane: str, op: OperationState, entry: Entry) -> None:
    """A provisioned id exists with the content it was provisioned for."""
    for item in (
        *op.missing_initial_messages,
        *op.pending_steer,
        *op.pending_follow_up,
        *op.pending_writes,
        *op.aborted_steer,
        *op.aborted_follow_up,
    ):
        if item.id == entry.id and item.body != entry.body:
            _mismatch(lane, entry, "accepted")
    if op.step is not None and op.step.result_entry_id == entry.id and not _fits_step(op.step.kind, entry):
        _mismatch(lane, entry, f"{op.step.kind} result")
    for call in op.tool_batch.calls if op.tool_batch is not None else ():
        started = call.started.body if call.started is not None else None
        if isinstance(started, ToolStarted) and started.result_entry_id == entry.id:
            message = entry.message
            if not isinstance(message, ToolResultMessage) or message.tool_call_id != started.tool_call_id:
                _mismatch(lane, entry, "tool result")
    if isinstance(op.intent, CompactionIntent) and op.intent.result_entry_id == entry.id:
        if not isinstance(entry.body, CompactionBody):
            _mismatch(lane, entry, "compaction result")
    if isinstance(op.intent, NavigationIntent) and op.intent.summary_entry_id == entry.id:
        if not isinstance(entry.body, BranchSummaryBody):
            _mismatch(lane, entry, "branch summary")


def _fits_step(kind: str, entry: Entry) -> bool:
    if kind == "assistant":
        return isinstance(entry.body, MessageBody) and isinstance(entry.body.message, AssistantMessage)
    return isinstance(entry.body, CompactionBody if kind == "compaction" else BranchSummaryBody)


def _mismatch(lane: str, entry: Entry, what: str) -> NoReturn:
    message = f"provisioned {what} entry {entry.id} exists with different content"
    _corrupt("provisioned_entry_mismatch", lane, entry.id, message)


def require_handle(lane: str, entry: Entry, message: AssistantMessage) -> DeferredHandle:
    """A deferred assistant entry carries the handle that redeems it."""
    if message.deferred is None:
        _corrupt(
            "invalid_deferred_handle", lane, entry.id, f"deferred assistant entry {entry.id} does not carry a handle"
        )
    return message.deferred
