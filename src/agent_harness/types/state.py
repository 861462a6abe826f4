"""Live lane state (harness-v2 §15, A-4, A-15): always equal to the reduction of the lane's facts."""

from dataclasses import dataclass, field
from typing import Literal

from .entries import EntryType, ProvisionedEntry
from .messages import AssistantMessage, DeferredHandle, TerminalStopReason, ThinkingLevel, ToolCall
from .records import CompactionReason, Intent, LaneRecord, OperationKind, StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model by name: what entries persist."""

    provider: str
    model_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveLaneConfiguration:
    """What the next request of a lane uses: the newest entries on its path, else the harness defaults."""

    model: ModelRef
    thinking_level: ThinkingLevel
    active_tool_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """The unfinished step: the newest attempt's result entry is missing."""

    kind: StepKind
    attempts: int
    result_entry_id: str  # the newest attempt's provisioned result
    compaction_reason: CompactionReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallState:
    """One call of the newest batch, at its crash site (harness-v2 §6)."""

    tool_index: int
    tool_call: ToolCall
    started: LaneRecord | None = None  # its tool_started record
    settled: LaneRecord | None = None  # its tool_settled record
    result_exists: bool = False
    terminate: bool = False  # persisted on the result entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBatchState:
    """The newest assistant entry with tool calls, each call in source order."""

    assistant_entry_id: str
    calls: tuple[ToolCallState, ...]
    truncated: bool  # the assistant stopped with "length": nothing of it may execute
    unresolved: bool  # some call has no result yet


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestOwn:
    """The newest entry (or message) this operation appended; predicates read it."""

    entry_id: str
    type: EntryType
    role: str | None = None
    stop_reason: TerminalStopReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalFailureState:
    """The run failed by this step-produced error; only consumed steering or follow-up input clears it (A-15)."""

    entry_id: str
    source: Literal["step", "deferred_fetch"]
    message: AssistantMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Structural operations: whether the provisioned entries exist; None when the operation provisions none."""

    result: bool | None = None
    summary: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationState:
    """The lane's open operation."""

    id: str
    kind: OperationKind
    intent: Intent
    started_at: int  # Unix ms
    started_seq: int  # own entries are those on the path with a higher seq
    source_leaf_id: str | None
    aborting: bool = False
    step: StepState | None = None
    tool_batch: ToolBatchState | None = None
    missing_initial_messages: tuple[ProvisionedEntry, ...] = ()
    pending_steer: tuple[ProvisionedEntry, ...] = ()
    pending_follow_up: tuple[ProvisionedEntry, ...] = ()
    pending_writes: tuple[ProvisionedEntry, ...] = ()
    deferred: DeferredHandle | None = None  # unredeemed handle
    overflow_recovery_used: bool = False  # once per conversational input (harness-v2 §6)
    threshold_tried: bool = False  # at most one threshold compaction between two answers
    newest_own: NewestOwn | None = None
    newest_message: NewestOwn | None = None  # like newest_own, messages only
    terminal_failure: TerminalFailureState | None = None
    targets: Targets = field(default_factory=Targets)
    # Bookkeeping that tells one kind of later fact from another:
    attempt_ids: frozenset[str] = frozenset()  # provisioned assistant results of this operation
    conversational_ids: frozenset[str] = frozenset()  # initial, steer and follow-up entries
    queued_ids: frozenset[str] = frozenset()  # every steer and follow-up item ever accepted by this run
    aborted_steer: tuple[ProvisionedEntry, ...] = ()  # cleared by abort, offered for requeue
    aborted_follow_up: tuple[ProvisionedEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """In-memory orchestration state of one lane."""

    lane: str
    leaf_id: str | None = None
    operation: OperationState | None = None
    pending_next_run: tuple[ProvisionedEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReductionResult:
    """What the records and own entries of a lane reduce to."""

    lane_state: LaneState
    effective_configuration: EffectiveLaneConfiguration

    @property
    def terminal_failure(self) -> TerminalFailureState | None:
        """The open operation's terminal failure, if it has one."""
        operation = self.lane_state.operation
        return operation.terminal_failure if operation else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMoved:
    """Fact: the lane's leaf jumped. The configuration stays the source's until the navigation is closed."""

    lane: str
    to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured:
    """Fact: a closed navigation left the lane on another path, with this configuration."""

    configuration: EffectiveLaneConfiguration
