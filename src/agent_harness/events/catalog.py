"""The event types (harness-v2 §10): one flat stream, JSON-safe, free of secrets and live objects.

Lane-scoped events carry `lane`; events of recovered work carry `recovery=True`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..outcomes import SuspendedOperation
from ..providers.base import AssistantMessageEvent
from ..types.entries import Entry, MessageBody, ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage, DeferredHandle, ToolResultMessage, Usage
from ..types.records import CompactionReason, LaneRecord, OperationError, Outcome, StepKind
from ..types.tools import AgentToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedItem:
    """A pending queue message; `entry_id` is what `cancel_queued` takes."""

    entry_id: str
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """A run was accepted."""

    type: Literal["run_start"] = "run_start"
    lane: str
    run_id: str
    started_at: int  # Unix ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResume:
    """`resume()` entered an operation of any kind."""

    type: Literal["run_resume"] = "run_resume"
    lane: str
    run_id: str
    recovery: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSuspend:
    """The lane parked on a deferred handle; no event of it follows before the next `run_resume` or `run_abort`."""

    type: Literal["run_suspend"] = "run_suspend"
    lane: str
    run_id: str
    deferred: DeferredHandle
    suspended: SuspendedOperation  # what a client needs to offer resume and abort
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAbort:
    """An abort was accepted; the cleared queue payloads."""

    type: Literal["run_abort"] = "run_abort"
    lane: str
    run_id: str
    steer: tuple[AgentMessage, ...]
    follow_up: tuple[AgentMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """A run was closed."""

    type: Literal["run_end"] = "run_end"
    lane: str
    run_id: str
    outcome: Literal["completed", "aborted", "failed"]
    leaf_id: str | None
    final_entry_id: str | None = None
    final_message: AssistantMessage | None = None
    error: OperationError | None = None
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The harness stopped: reopen the session."""

    type: Literal["fault"] = "fault"
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerError:
    """A hook handler, listener or extension failed; `error` is a class name, never an exception's text."""

    type: Literal["handler_error"] = "handler_error"
    lane: str | None
    kind: Literal["hook", "event", "extension"]
    name: str  # of the hook, the event or the extension
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """One assistant step plus its tool batch begins."""

    type: Literal["turn_start"] = "turn_start"
    lane: str
    run_id: str
    turn_id: str
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """A turn is complete."""

    type: Literal["turn_end"] = "turn_end"
    lane: str
    run_id: str
    turn_id: str
    message: AssistantMessage | None
    tool_results: tuple[ToolResultMessage, ...]
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled:
    """An attempt failed and another follows after `delay_ms`."""

    type: Literal["retry_scheduled"] = "retry_scheduled"
    lane: str
    run_id: str
    step: StepKind
    attempt: int  # that failed, 1-based
    max_attempts: int
    delay_ms: int
    next_attempt_at: int  # Unix ms
    error_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStart:
    """The next attempt begins."""

    type: Literal["retry_start"] = "retry_start"
    lane: str
    run_id: str
    step: StepKind
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryEnd:
    """Retrying resolved, either way."""

    type: Literal["retry_end"] = "retry_end"
    lane: str
    run_id: str
    step: StepKind
    attempt: int
    success: bool
    final_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStart:
    """A message begins to enter the tree."""

    type: Literal["message_start"] = "message_start"
    lane: str
    run_id: str | None
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUpdate:
    """A streaming answer grew."""

    type: Literal["message_update"] = "message_update"
    lane: str
    run_id: str
    message: AssistantMessage
    event: AssistantMessageEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEnd:
    """A message is committed as the entry `entry_id`; the rest of the envelope lets a client rebuild it."""

    type: Literal["message_end"] = "message_end"
    lane: str
    run_id: str | None
    message: AgentMessage
    entry_id: str
    parent_id: str | None
    seq: int
    timestamp: int  # Unix ms
    terminate: bool = False

    @property
    def entry(self) -> Entry:
        """The committed entry."""
        body = MessageBody(message=self.message, terminate=True if self.terminate else None)
        return Entry(id=self.entry_id, seq=self.seq, parent_id=self.parent_id, timestamp=self.timestamp, body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStart:
    """A call was cleared and is about to run."""

    type: Literal["tool_start"] = "tool_start"
    lane: str
    run_id: str
    turn_id: str | None
    tool_index: int  # 0-based among the calls of the message
    tool_call_id: str
    tool_name: str
    args: JsonValue
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUpdate:
    """A running tool reported progress."""

    type: Literal["tool_update"] = "tool_update"
    lane: str
    run_id: str
    turn_id: str | None
    tool_index: int  # 0-based among the calls of the message
    tool_call_id: str
    tool_name: str
    partial_result: AgentToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnd:
    """A call has its final result, after hooks."""

    type: Literal["tool_end"] = "tool_end"
    lane: str
    run_id: str
    turn_id: str | None
    tool_index: int  # 0-based among the calls of the message
    tool_call_id: str
    tool_name: str
    result: AgentToolResult
    is_error: bool
    terminate: bool
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAdded:
    """A non-message entry is committed."""

    type: Literal["entry_added"] = "entry_added"
    lane: str
    run_id: str | None
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePending:
    """A deferred write was accepted; an entry with the same id follows."""

    type: Literal["write_pending"] = "write_pending"
    lane: str
    run_id: str
    entry_id: str
    entry: ProvisionedEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUpdate:
    """The queues as they are now."""

    type: Literal["queue_update"] = "queue_update"
    lane: str
    steer: tuple[QueuedItem, ...]
    follow_up: tuple[QueuedItem, ...]
    next_run: tuple[QueuedItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactUpdate:
    """A global fact changed; `target_id` is set for labels."""

    type: Literal["fact_update"] = "fact_update"
    fact: Literal["name", "label"]
    value: str | None
    target_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigUpdate:
    """Configuration changed; read it again through its getter. Values are given for persisted lane settings."""

    type: Literal["config_update"] = "config_update"
    lane: str | None
    property: Literal[
        "model",
        "thinkingLevel",
        "activeTools",
        "tools",
        "resources",
        "streamOptions",
        "retryPolicy",
        "compactionSettings",
        "steeringMode",
        "followUpMode",
    ]
    value: JsonValue = None
    previous: JsonValue = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStart:
    """A compaction begins."""

    type: Literal["compaction_start"] = "compaction_start"
    lane: str
    run_id: str
    reason: CompactionReason
    started_at: int | None = None  # Unix ms, of a compaction that is its own operation; the lane fills it in
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEnd:
    """A compaction ended."""

    type: Literal["compaction_end"] = "compaction_end"
    lane: str
    run_id: str
    reason: CompactionReason
    outcome: Outcome
    entry: Entry | None = None
    from_hook: bool = False
    error: OperationError | None = None
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationStart:
    """A navigation begins."""

    type: Literal["navigation_start"] = "navigation_start"
    lane: str
    run_id: str
    target_id: str | None
    started_at: int | None = None  # Unix ms; the lane fills it in
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationEnd:
    """A navigation ended."""

    type: Literal["navigation_end"] = "navigation_end"
    lane: str
    run_id: str
    outcome: Outcome
    old_leaf_id: str | None
    new_leaf_id: str | None
    transcript: tuple[Entry, ...] | None = None  # of the new path, if the lane moved; the lane fills it in
    summary_entry: Entry | None = None
    error: OperationError | None = None
    recovery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCreated:
    """A lane was created."""

    type: Literal["lane_created"] = "lane_created"
    lane: str
    at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEvent:
    """Cost: delivered to every watcher; `totals` is the session's ledger sum as of this commit."""

    type: Literal["usage"] = "usage"
    lane: str
    record: LaneRecord
    totals: Usage


HarnessEvent: TypeAlias = (
    RunStart
    | RunResume
    | RunSuspend
    | RunAbort
    | RunEnd
    | Fault
    | HandlerError
    | TurnStart
    | TurnEnd
    | RetryScheduled
    | RetryStart
    | RetryEnd
    | MessageStart
    | MessageUpdate
    | MessageEnd
    | ToolStart
    | ToolUpdate
    | ToolEnd
    | EntryAdded
    | WritePending
    | QueueUpdate
    | FactUpdate
    | ConfigUpdate
    | CompactionStart
    | CompactionEnd
    | NavigationStart
    | NavigationEnd
    | LaneCreated
    | UsageEvent
)
"""Everything that listeners and watchers are told, told apart by `type`."""

EventType: TypeAlias = Literal[
    "run_start",
    "run_resume",
    "run_suspend",
    "run_abort",
    "run_end",
    "fault",
    "handler_error",
    "turn_start",
    "turn_end",
    "retry_scheduled",
    "retry_start",
    "retry_end",
    "message_start",
    "message_update",
    "message_end",
    "tool_start",
    "tool_update",
    "tool_end",
    "entry_added",
    "write_pending",
    "queue_update",
    "fact_update",
    "config_update",
    "compaction_start",
    "compaction_end",
    "navigation_start",
    "navigation_end",
    "lane_created",
    "usage",
]
"""The `type` of each event, as `events.on` takes it."""
