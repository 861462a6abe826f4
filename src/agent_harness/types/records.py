"""Records: a lane's operation log (harness-v2 §5, amendment A-4). A record is an envelope around a body."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, with_config

from .entries import ProvisionedEntry
from .messages import AgentMessage, TerminalStopReason, Usage
from .wire import WIRE, Absent, Bool, Int, Json, JsonObject

OperationKind: TypeAlias = Literal["run", "compaction", "navigation"]
StepKind: TypeAlias = Literal["assistant", "compaction", "branch_summary"]
CompactionReason: TypeAlias = Literal["manual", "threshold", "overflow"]
Outcome: TypeAlias = Literal["completed", "aborted", "failed", "declined"]
QueueName: TypeAlias = Literal["steer", "followUp", "nextRun"]
Replay: TypeAlias = Literal["never", "safe"]


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunIntent:
    """Everything about a run that was decided before acceptance."""

    kind: Literal["run"] = "run"
    original_prompt: tuple[AgentMessage, ...]
    initial_messages: tuple[ProvisionedEntry, ...]  # captured nextRun items, the prompt, before_run injections
    system_prompt_override: Absent[str] = None
    resume_data: Absent[JsonObject] = None  # by hook registration id


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionIntent:
    """A manual compaction."""

    kind: Literal["compaction"] = "compaction"
    custom_instructions: Absent[str] = None
    result_entry_id: str  # provisioned


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationIntent:
    """A move of the lane to an existing entry."""

    kind: Literal["navigation"] = "navigation"
    target_id: str | None  # null: the root
    summarize: Bool
    label: Absent[str] = None
    summary_entry_id: Absent[str] = None  # provisioned
    custom_instructions: Absent[str] = None


Intent: TypeAlias = Annotated[RunIntent | CompactionIntent | NavigationIntent, Discriminator("kind")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStarted:
    """Acceptance. The record's own id is the run id that all other records of the operation carry."""

    type: Literal["operation_started"] = "operation_started"
    source_leaf_id: str | None
    intent: Intent


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequested:
    """A request marker, not a terminal state; kills this operation's steer and follow-up items."""

    type: Literal["abort_requested"] = "abort_requested"
    run_id: str


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class OperationError:
    """Why an operation failed: a stable code and a sentence."""

    code: str
    message: str


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFinished:
    """Closes the operation."""

    type: Literal["operation_finished"] = "operation_finished"
    run_id: str
    outcome: Outcome
    error: Absent[OperationError] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class StepAttempt:
    """Intent: the n-th attempt at a retryable step is about to start (harness-v2 §5)."""

    type: Literal["step_attempt"] = "step_attempt"
    run_id: str
    step: StepKind
    attempt: Int  # 1-based within the step
    result_entry_id: str  # provisioned; an entry has this id only if the attempt succeeded
    compaction_reason: Absent[CompactionReason] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """Intent: a cleared call is about to execute. (assistant_entry_id, tool_index) is its identity."""

    type: Literal["tool_started"] = "tool_started"
    run_id: str
    assistant_entry_id: str
    tool_index: Int  # 0-based among the calls of the message
    tool_call_id: str
    tool_name: str
    effective_args: JsonObject  # after before_tool
    result_entry_id: str  # provisioned
    replay: Replay


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettled:
    """The effect finished and something still stands between it and its entry (A-4).

    `result` is the raw phase-2 result, absent when a `redacts` handler forbids keeping content.
    """

    type: Literal["tool_settled"] = "tool_settled"
    run_id: str
    assistant_entry_id: str
    tool_index: Int
    tool_call_id: str
    result_entry_id: str
    result: Absent[JsonObject] = None
    is_error: Bool


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnqueued:
    """A queue item was accepted; its entry appears where it is consumed."""

    type: Literal["queue_enqueued"] = "queue_enqueued"
    queue: QueueName
    run_id: Absent[str] = None  # absent for nextRun
    target: ProvisionedEntry


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCancelled:
    """A pending queue item was retracted before consumption."""

    type: Literal["queue_cancelled"] = "queue_cancelled"
    run_id: Absent[str] = None
    entry_id: str


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDeferred:
    """A tree or configuration write was accepted while a run was open; the next checkpoint applies it."""

    type: Literal["write_deferred"] = "write_deferred"
    run_id: str
    target: ProvisionedEntry


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUsage:
    """A provider request settled, whatever its outcome."""

    type: Literal["usage"] = "usage"
    usage: Usage
    cause: Literal["assistant", "compaction", "branch_summary", "deferred_fetch"]
    run_id: str
    entry_id: str
    attempt: Int
    stop_reason: TerminalStopReason


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUsage:
    """A tool reported nested model work."""

    type: Literal["usage"] = "usage"
    usage: Usage
    cause: Literal["tool"] = "tool"
    run_id: str
    entry_id: str
    tool_call_id: str


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class HookUsage:
    """A hook-supplied summary carried usage that the hook measured itself."""

    type: Literal["usage"] = "usage"
    usage: Usage
    cause: Literal["hook"] = "hook"
    run_id: str
    entry_id: str


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustmentUsage:
    """The application's own correction; negative values are legal."""

    type: Literal["usage"] = "usage"
    usage: Usage
    cause: Literal["adjustment"] = "adjustment"
    run_id: Absent[str] = None
    entry_id: Absent[str] = None
    details: Absent[Json] = None


UsageBody: TypeAlias = Annotated[RequestUsage | ToolUsage | HookUsage | AdjustmentUsage, Discriminator("cause")]

RecordBody: TypeAlias = Annotated[
    OperationStarted
    | AbortRequested
    | OperationFinished
    | StepAttempt
    | ToolStarted
    | ToolSettled
    | QueueEnqueued
    | QueueCancelled
    | WriteDeferred
    | UsageBody,
    Discriminator("type"),
]

RecordType: TypeAlias = Literal[
    "operation_started",
    "abort_requested",
    "operation_finished",
    "step_attempt",
    "tool_started",
    "tool_settled",
    "queue_enqueued",
    "queue_cancelled",
    "write_deferred",
    "usage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record before storage gave it its `seq` and `timestamp`."""

    id: str
    lane: str
    body: RecordBody


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecord:
    """A committed record of one lane's operation log."""

    id: str
    lane: str
    seq: Int
    timestamp: Int  # Unix ms
    body: RecordBody

    @property
    def type(self) -> RecordType:
        """The body's discriminant."""
        return self.body.type

    @property
    def run_id(self) -> str | None:
        """The operation this record belongs to: its own id for an `operation_started`."""
        return self.id if isinstance(self.body, OperationStarted) else self.body.run_id
