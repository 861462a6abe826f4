"""What the procedures ask of the state: pure claims over `OperationState` (harness-v2 §15, A-15)."""

from typing import Literal, TypeAlias

from ..types.entries import ProvisionedEntry
from ..types.state import OperationState

QueueMode: TypeAlias = Literal["all", "one-at-a-time"]
"""How much of a queue one checkpoint takes: everything, or the oldest item."""


def needs_assistant(op: OperationState) -> bool:
    """The newest own message asks for an answer.

    Not after a step error, and not after a complete batch in which every result persisted `terminate`.
    """
    newest = op.newest_message
    if newest is None or op.terminal_failure is not None:
        return False
    if newest.role == "assistant":
        return False
    if newest.role != "toolResult" or op.tool_batch is None:
        return True
    return op.tool_batch.unresolved or not all(call.terminate for call in op.tool_batch.calls)


def has_pending_input(op: OperationState) -> bool:
    """Accepted writes or queued messages are waiting."""
    return bool(op.pending_writes or op.pending_steer or op.pending_follow_up)


def has_queued_input(op: OperationState) -> bool:
    """Steering or follow-up messages are waiting; an abort clears them."""
    return bool(op.pending_steer or op.pending_follow_up)


def has_pending_work(op: OperationState) -> bool:
    """Something is left to do before the run may end."""
    return has_pending_input(op) or needs_assistant(op)


def ended_by_abort(op: OperationState) -> bool:
    """The newest own message is the closing one of an abort, or an answer that was cut by one."""
    newest = op.newest_message
    return newest is not None and newest.role == "assistant" and newest.stop_reason == "aborted"


def pick(items: tuple[ProvisionedEntry, ...], mode: QueueMode) -> tuple[ProvisionedEntry, ...]:
    """What one checkpoint consumes of a queue."""
    return items if mode == "all" else items[:1]
