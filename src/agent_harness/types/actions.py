"""ActionInfo: what a parked effect is about to do, JSON-safe and free of content (harness-v2 §15)."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .entries import EntryType
from .records import Outcome, RecordType, StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntryAction:
    """An entry is about to be appended."""

    kind: Literal["append_entry"] = "append_entry"
    entry_type: EntryType
    entry_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecordAction:
    """A record is about to be appended."""

    kind: Literal["append_record"] = "append_record"
    record_type: RecordType


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLaneAction:
    """The lane's leaf is about to move."""

    kind: Literal["move_lane"] = "move_lane"
    to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFactAction:
    """A global fact is about to be written."""

    kind: Literal["set_fact"] = "set_fact"
    fact: Literal["name", "label"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryFinishRunAction:
    """The run is about to be closed if nothing is pending."""

    kind: Literal["try_finish_run"] = "try_finish_run"
    outcome: Literal["completed", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishOperationAction:
    """The operation is about to be closed unless preempted."""

    kind: Literal["finish_operation"] = "finish_operation"
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFollowUpAction:
    """The follow-up of a `before_run_end` handler is about to be accepted."""

    kind: Literal["commit_follow_up"] = "commit_follow_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueItemAction:
    """A queued message is about to enter the tree."""

    kind: Literal["consume_queue_item"] = "consume_queue_item"
    queue: Literal["steer", "followUp"]
    entry_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPendingWriteAction:
    """A deferred write is about to enter the tree."""

    kind: Literal["apply_pending_write"] = "apply_pending_write"
    entry_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAssistantAction:
    """A provider request is about to be made."""

    kind: Literal["stream_assistant"] = "stream_assistant"
    step: StepKind
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteToolAction:
    """A tool is about to run."""

    kind: Literal["execute_tool"] = "execute_tool"
    tool_call_id: str
    tool_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchDeferredAction:
    """A deferred handle is about to be redeemed."""

    kind: Literal["fetch_deferred"] = "fetch_deferred"
    provider: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelDeferredAction:
    """A deferred request is about to be cancelled at its provider."""

    kind: Literal["cancel_deferred"] = "cancel_deferred"
    provider: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookAction:
    """The handlers of a hook are about to run."""

    kind: Literal["hook"] = "hook"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepAction:
    """The procedure is about to wait before a retry."""

    kind: Literal["sleep"] = "sleep"
    delay_ms: int


ActionInfo: TypeAlias = (
    AppendEntryAction
    | AppendRecordAction
    | MoveLaneAction
    | SetFactAction
    | TryFinishRunAction
    | FinishOperationAction
    | CommitFollowUpAction
    | ConsumeQueueItemAction
    | ApplyPendingWriteAction
    | StreamAssistantAction
    | ExecuteToolAction
    | FetchDeferredAction
    | CancelDeferredAction
    | HookAction
    | SleepAction
)
