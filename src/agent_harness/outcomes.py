"""Rejection classes, operation outcomes and the per-call unions (harness-v2 §8 "Results and tagged errors")."""

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, cast, get_args

from .result import Result
from .types.entries import Entry
from .types.messages import AgentMessage, AssistantMessage, DeferredHandle
from .types.records import OperationError, OperationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBusy:
    """The lane already has an operation."""

    lane: str
    operation_id: str
    operation_kind: OperationKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIdentities:
    """Tools or models that the work needs are not registered."""

    lane: str
    tools: tuple[str, ...]
    models: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoActiveRun:
    """No run that takes messages."""

    lane: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoActiveOperation:
    """Nothing to abort."""

    lane: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToResume:
    """The lane is idle."""

    lane: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidMessage:
    """The input cannot become a user message."""

    lane: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSkill:
    """No skill of this name."""

    name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTemplate:
    """No prompt template of this name."""

    name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTarget:
    """No entry of this id, or the lane stands there already."""

    target_id: str | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownQueueItem:
    """No queue item of this id."""

    lane: str
    entry_id: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneExists:
    """Lane names are permanent and this one is taken."""

    lane: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidLane:
    """The text may not name a lane."""

    lane: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToCompact:
    """The context holds nothing that a summary could replace."""

    lane: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The harness was closed."""

    message: str = "the harness is closed; open the session again"


Rejected: TypeAlias = (
    LaneBusy
    | MissingIdentities
    | NoActiveRun
    | NoActiveOperation
    | NothingToResume
    | InvalidMessage
    | UnknownSkill
    | UnknownTemplate
    | UnknownTarget
    | UnknownQueueItem
    | LaneExists
    | InvalidLane
    | NothingToCompact
    | Closed
)

RunRejected: TypeAlias = LaneBusy | InvalidMessage | UnknownSkill | UnknownTemplate | MissingIdentities | Closed
CompactionRejected: TypeAlias = LaneBusy | NothingToCompact | MissingIdentities | Closed
NavigationRejected: TypeAlias = LaneBusy | UnknownTarget | MissingIdentities | Closed
ResumeRejected: TypeAlias = LaneBusy | NothingToResume | MissingIdentities | Closed
QueueRejected: TypeAlias = NoActiveRun | InvalidMessage | Closed
CancelQueuedRejected: TypeAlias = UnknownQueueItem | Closed
AbortRejected: TypeAlias = NoActiveOperation | Closed
CreateLaneRejected: TypeAlias = LaneExists | InvalidLane | UnknownTarget | Closed


def rejection_to_wire(error: Rejected) -> dict[str, object]:
    """`{_tag, message, ...payload}`, for a transport."""
    from .types.wire import wire_key

    wire: dict[str, object] = {"_tag": type(error).__name__}
    for f in fields(error):
        value = getattr(error, f.name)
        wire[wire_key(f.name)] = list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value
    return wire


def rejection_from_wire(wire: dict[str, object]) -> Rejected:
    """The inverse of `rejection_to_wire`.

    Raises:
        ValueError: the tag is none of ours, or a field is missing.
    """
    from .types.wire import wire_key

    for cls in get_args(Rejected):
        if cls.__name__ == wire.get("_tag"):
            given = {f.name: wire[wire_key(f.name)] for f in fields(cls) if wire_key(f.name) in wire}
            values = {k: tuple(cast("list[str]", v)) if isinstance(v, list) else v for k, v in given.items()}
            try:
                rejected: Rejected = cls(**values)
            except TypeError as error:
                raise ValueError(f"rejection {cls.__name__}: {error}") from None
            return rejected
    raise ValueError(f"unknown rejection tag {wire.get('_tag')!r}")


# Outcomes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted:
    """Nothing was left to do."""

    kind: Literal["completed"] = "completed"
    run_id: str
    leaf_id: str
    final_entry_id: str
    final_message: AssistantMessage
    output: object = None  # with an output type: the validated answer
    output_error: str | None = None  # with an output type: why the last answer is none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAborted:
    """Closed by abort."""

    kind: Literal["aborted"] = "aborted"
    run_id: str
    leaf_id: str
    final_entry_id: str
    final_message: AssistantMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """An orderly, durable failure."""

    kind: Literal["failed"] = "failed"
    run_id: str
    leaf_id: str | None
    error: OperationError
    final_entry_id: str | None = None
    final_message: AssistantMessage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSuspended:
    """Parked on a deferred handle; `resume()` asks the provider again."""

    kind: Literal["suspended"] = "suspended"
    run_id: str
    leaf_id: str
    final_entry_id: str
    deferred: DeferredHandle


RunOutcome: TypeAlias = RunCompleted | RunAborted | RunFailed | RunSuspended
"""How a run ended, told apart by `kind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCompleted:
    """The summary is in the tree."""

    kind: Literal["completed"] = "completed"
    run_id: str
    leaf_id: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEnded:
    """Declined by a hook, aborted or failed; nothing was compacted."""

    kind: Literal["declined", "aborted", "failed"]
    run_id: str
    leaf_id: str | None
    error: OperationError | None = None


CompactionOutcome: TypeAlias = CompactionCompleted | CompactionEnded
"""How a compaction ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationCompleted:
    """The lane stands at its new leaf."""

    kind: Literal["completed"] = "completed"
    run_id: str
    new_leaf_id: str | None
    summary_entry: Entry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationEnded:
    """Declined by a hook, aborted or failed."""

    kind: Literal["declined", "aborted", "failed"]
    run_id: str
    leaf_id: str | None
    error: OperationError | None = None


NavigationOutcome: TypeAlias = NavigationCompleted | NavigationEnded
"""How a move to another entry ended."""
OperationOutcome: TypeAlias = RunOutcome | CompactionOutcome | NavigationOutcome
"""How an operation of any kind ended, as `resume()` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The message is durable; `entry_id` identifies it until it is consumed."""

    entry_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelQueued:
    """How the cancellation ended: the entry will never be appended, or it already is, or abort cleared it."""

    outcome: Literal["cancelled", "already_consumed", "already_cleared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAccepted:
    """The abort is durable; the queue payloads it cleared."""

    run_id: str
    steer: tuple[AgentMessage, ...]
    follow_up: tuple[AgentMessage, ...]


RunResult: TypeAlias = Result[RunOutcome, RunRejected]
"""What `prompt()` returns: the outcome, or why it was not accepted."""
CompactionResult: TypeAlias = Result[CompactionOutcome, CompactionRejected]
"""What `compact()` returns."""
NavigationResult: TypeAlias = Result[NavigationOutcome, NavigationRejected]
"""What `navigate_tree()` returns."""
ResumeResult: TypeAlias = Result[OperationOutcome, ResumeRejected]
"""What `resume()` returns."""
QueueResult: TypeAlias = Result[Queued, QueueRejected]
"""What `steer()`, `follow_up()` and `next_run()` return."""
CancelQueuedResult: TypeAlias = Result[CancelQueued, CancelQueuedRejected]
AbortResult: TypeAlias = Result[AbortAccepted, AbortRejected]
"""What `abort()` returns."""
RecordUsageResult: TypeAlias = Result[None, Closed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What `resume()` needs and is not registered (A-12)."""

    tools: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tools or self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedOperation:
    """An open operation that nothing executes: `resume()` continues it, `abort()` closes it."""

    lane: str
    kind: OperationKind
    id: str
    started_at: int  # Unix ms
    reason: Literal["crash", "deferred"]
    prompt: tuple[AgentMessage, ...] = ()  # of a run: the caller's normalised input
    deferred: DeferredHandle | None = None
    aborting_steer: tuple[AgentMessage, ...] | None = None  # not None: an abort was accepted before the crash
    aborting_follow_up: tuple[AgentMessage, ...] | None = None
    missing: Missing = Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOperation:
    """A lane's open operation, in inventories."""

    id: str
    kind: OperationKind
    status: Literal["running", "suspended", "aborting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInfo:
    """A lane, in inventories."""

    name: str
    leaf_id: str | None
    operation: LaneOperation | None
