"""Snapshots, and the pure step from one to the next (harness-v2 §9, A-13).

A snapshot is what a watcher would have accumulated from the events so far: `reduce_lane_snapshot` over the events that
follow gives the snapshot a new `watch()` would take at that moment.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..outcomes import LaneInfo, SuspendedOperation
from ..types.entries import CompactionBody, Entry, ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import AssistantMessage
from ..types.records import OperationKind
from ..types.tools import AgentToolResult
from .catalog import (
    CompactionEnd,
    CompactionStart,
    EntryAdded,
    Fault,
    HarnessEvent,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    NavigationEnd,
    NavigationStart,
    QueuedItem,
    QueueUpdate,
    RetryEnd,
    RetryScheduled,
    RetryStart,
    RunAbort,
    RunEnd,
    RunResume,
    RunStart,
    RunSuspend,
    ToolEnd,
    ToolStart,
    ToolUpdate,
    TurnEnd,
    UsageEvent,
    WritePending,
)

OperationStatus: TypeAlias = Literal["running", "suspended", "aborting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTool:
    """A call between its `tool_start` and its `tool_end`."""

    tool_index: int  # 0-based among the calls of the message; `tool_call_id` may repeat
    tool_call_id: str
    tool_name: str
    args: JsonValue
    partial_result: AgentToolResult | None = None  # the newest progress report


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRetry:
    """The wait before the next attempt."""

    attempt: int  # that failed, 1-based
    max_attempts: int
    next_attempt_at: int  # Unix ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProgress:
    """What streams and is lost with the process."""

    streaming_message: AssistantMessage | None = None
    running_tools: tuple[RunningTool, ...] = ()
    retry: ScheduledRetry | None = None


NO_PROGRESS = LiveProgress()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSnapshot:
    """A lane's open operation. `suspended` is present while nothing executes it: resume or abort it."""

    id: str
    kind: OperationKind
    status: OperationStatus
    started_at: int  # Unix ms
    suspended: SuspendedOperation | None = None
    streaming_message: AssistantMessage | None = None
    running_tools: tuple[RunningTool, ...] = ()
    retry: ScheduledRetry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """Accepted messages that no run has consumed yet, oldest first."""

    steer: tuple[QueuedItem, ...] = ()
    follow_up: tuple[QueuedItem, ...] = ()
    next_run: tuple[QueuedItem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWrite:
    """A deferred write; its entry follows under the same id."""

    id: str
    entry: ProvisionedEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSnapshot:
    """One lane as a UI shows it. Configuration is not here: getters answer it (harness-v2 §9)."""

    lane: str
    transcript: tuple[Entry, ...]  # oldest first: the newest compaction and what follows it, or the whole branch
    leaf_id: str | None
    operation: OperationSnapshot | None
    queues: QueueSnapshot
    pending_writes: tuple[PendingWrite, ...]
    faulted: bool  # the whole harness stopped; reopen the session


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOverview(LaneInfo):
    """A lane in a session snapshot."""

    suspended: SuspendedOperation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot:
    """All lanes without their transcripts."""

    lanes: tuple[LaneOverview, ...]
    faulted: bool


def is_for_lane(event: HarnessEvent, lane: str) -> bool:
    """Whether a watcher of `lane` receives `event`: its own, and what concerns the whole harness."""
    return isinstance(event, UsageEvent) or getattr(event, "lane", None) in (None, lane)


def reduce_lane_snapshot(snapshot: LaneSnapshot, event: HarnessEvent) -> LaneSnapshot:
    """The snapshot after `event`. Pure; the events of other lanes change nothing.

    `snapshot` and the events must come from one watch, or the events from the same harness and all of them, in order.
    """
    if isinstance(event, Fault):
        return replace(snapshot, faulted=True, operation=with_progress(snapshot.operation, NO_PROGRESS))
    if getattr(event, "lane", None) != snapshot.lane:
        return snapshot
    match event:
        case MessageEnd():
            snapshot = _with_entry(snapshot, event.entry)
        case EntryAdded():
            snapshot = _with_entry(snapshot, event.entry)
        case WritePending():
            pending = PendingWrite(id=event.entry_id, entry=event.entry)
            return replace(snapshot, pending_writes=(*snapshot.pending_writes, pending))
        case QueueUpdate():
            queues = QueueSnapshot(steer=event.steer, follow_up=event.follow_up, next_run=event.next_run)
            return replace(snapshot, queues=queues)
        case NavigationEnd() if event.transcript is not None:
            leaf_id = event.transcript[-1].id if event.transcript else None
            snapshot = replace(snapshot, transcript=event.transcript, leaf_id=leaf_id)
        case _:
            pass
    operation = operation_after(snapshot.operation, event)
    return replace(snapshot, operation=with_progress(operation, NO_PROGRESS) if snapshot.faulted else operation)


def _with_entry(snapshot: LaneSnapshot, entry: Entry) -> LaneSnapshot:
    pending = tuple(write for write in snapshot.pending_writes if write.id != entry.id)
    if entry.parent_id != snapshot.leaf_id:
        return snapshot  # behind a navigation's move: `navigation_end` brings the whole new path
    path = (entry,) if isinstance(entry.body, CompactionBody) else (*snapshot.transcript, entry)
    return replace(snapshot, transcript=path, leaf_id=entry.id, pending_writes=pending)


def operation_after(operation: OperationSnapshot | None, event: HarnessEvent) -> OperationSnapshot | None:
    """A lane's operation after `event` of that lane: the lane itself and its watchers share this step."""
    match event:
        case RunStart():
            return OperationSnapshot(id=event.run_id, kind="run", status="running", started_at=event.started_at)
        case CompactionStart() | NavigationStart() if operation is None:
            kind: OperationKind = "compaction" if isinstance(event, CompactionStart) else "navigation"
            started_at = event.started_at or 0
            return OperationSnapshot(id=event.run_id, kind=kind, status="running", started_at=started_at)
        case RunEnd():
            return None
        case CompactionEnd() if operation is not None and operation.kind == "compaction":
            return None
        case NavigationEnd() if operation is not None and operation.kind == "navigation":
            return None
        case _:
            pass
    if operation is None:
        return None
    match event:
        case RunResume():
            status: OperationStatus = "aborting" if operation.status == "aborting" else "running"
            operation = replace(operation, status=status, suspended=None)
        case RunAbort():
            operation = replace(operation, status="aborting", suspended=None)
        case RunSuspend():
            operation = replace(operation, status="suspended", suspended=event.suspended)
        case _:
            pass
    before = LiveProgress(
        streaming_message=operation.streaming_message, running_tools=operation.running_tools, retry=operation.retry
    )
    return with_progress(operation, progress_after(before, event))


def with_progress(operation: OperationSnapshot | None, progress: LiveProgress) -> OperationSnapshot | None:
    """`operation` with other live progress."""
    if operation is None:
        return None
    return replace(
        operation,
        streaming_message=progress.streaming_message,
        running_tools=progress.running_tools,
        retry=progress.retry,
    )


def progress_after(progress: LiveProgress, event: HarnessEvent) -> LiveProgress:
    """Live progress after `event`."""
    match event:
        case MessageStart(message=AssistantMessage() as message) | MessageUpdate(message=message):
            return replace(progress, streaming_message=message)
        case MessageEnd(message=AssistantMessage()) | TurnEnd():
            return replace(progress, streaming_message=None)
        case ToolStart():
            running = RunningTool(
                tool_index=event.tool_index, tool_call_id=event.tool_call_id, tool_name=event.tool_name, args=event.args
            )
            return replace(progress, running_tools=(*progress.running_tools, running))
        case ToolUpdate():
            tools = tuple(
                replace(tool, partial_result=event.partial_result) if tool.tool_index == event.tool_index else tool
                for tool in progress.running_tools
            )
            return replace(progress, running_tools=tools)
        case ToolEnd():
            left = tuple(tool for tool in progress.running_tools if tool.tool_index != event.tool_index)
            return replace(progress, running_tools=left)
        case RetryScheduled():
            retry = ScheduledRetry(
                attempt=event.attempt, max_attempts=event.max_attempts, next_attempt_at=event.next_attempt_at
            )
            return replace(progress, streaming_message=None, retry=retry)
        case RetryStart() | RetryEnd():
            return replace(progress, retry=None)
        case RunStart() | RunResume() | RunSuspend() | RunEnd() | Fault():
            return NO_PROGRESS
        case _:
            return progress
