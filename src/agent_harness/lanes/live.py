"""LiveView: what the watchers of one lane have been told so far, kept so that a snapshot can be copied at once (§9).

Every event of the lane passes through `told` on its way to the bus. The transcript is read once, when the first watcher
comes, and follows the commits from then on; nothing is kept for a lane that nobody ever watched.
"""

from collections.abc import Callable
from dataclasses import replace

from ..events.catalog import CompactionStart, HarnessEvent, NavigationEnd, NavigationStart, QueuedItem
from ..events.snapshot import (
    NO_PROGRESS,
    LaneSnapshot,
    OperationSnapshot,
    OperationStatus,
    PendingWrite,
    QueueSnapshot,
    operation_after,
    with_progress,
)
from ..outcomes import SuspendedOperation
from ..types.entries import CompactionBody, Entry, MessageBody, ProvisionedEntry
from ..types.state import LaneReductionResult, LaneState
from .environment import Environment
from .restore import missing_identities, suspended_operation


class LiveView:
    """`operation` is reduced from the events themselves; the rest is read from live state or follows commits."""

    def __init__(self, env: Environment, state: Callable[[], LaneReductionResult]) -> None:
        self._env = env
        self._state = state
        self._path: list[Entry] | None = None  # None: nobody watched yet
        self._moved: tuple[str | None, list[Entry]] | None = None  # old leaf, new path: until `navigation_end` tells
        self.message_open = False  # a `message_start` whose `message_end` has not come
        self.operation = self._restored()

    def _restored(self) -> OperationSnapshot | None:
        suspended = self.suspended()
        if suspended is None:
            return None
        status: OperationStatus = "suspended" if suspended.aborting_steer is None else "aborting"
        return OperationSnapshot(
            id=suspended.id,
            kind=suspended.kind,
            status=status,
            started_at=suspended.started_at,
            suspended=suspended,
        )

    def suspended(self) -> SuspendedOperation | None:
        """What a client needs to offer resume and abort, as of now."""
        return suspended_operation(self._state(), self._env.tools, self._env.models)

    # Following -------------------------------------------------------------

    def told(self, event: HarnessEvent) -> HarnessEvent:
        """Take note of an event that is about to be published; returns it with what only the lane knows."""
        operation = self._state().lane_state.operation
        match event:
            case CompactionStart() | NavigationStart() if operation is not None and operation.kind != "run":
                event = replace(event, started_at=operation.started_at)
            case NavigationEnd() if self._moved is not None:
                path = self._moved[1]
                event = replace(event, transcript=tuple(path))
                self._path = None if self._path is None else path
                self._moved = None
            case _:
                pass
        self.operation = operation_after(self.operation, event)
        return event

    def entry_committed(self, entry: Entry) -> None:
        """The path grew by `entry`."""
        path = self._path if self._moved is None else self._moved[1]
        if path is None:
            return
        if isinstance(entry.body, CompactionBody):
            path.clear()
        path.append(entry)

    async def path_to(self, target: str | None) -> list[Entry]:
        """The transcript of a path: its newest compaction and what follows, or all of it; oldest first."""
        if target is None:
            return []
        return (await self._env.session.find_entries_on_branch(start=target, stop_at_type="compaction"))[::-1]

    def moved(self, source: str | None, path: list[Entry]) -> None:
        """The leaf jumped to the end of `path`; watchers learn it with `navigation_end`."""
        self._moved = (source if self._moved is None else self._moved[0], path)

    # Snapshots -------------------------------------------------------------

    async def load(self) -> None:
        """Read the transcript if it is not at hand. When this returns, `snapshot` may be called without an await."""
        while self._path is None:
            leaf_id = self._leaf_id()
            path = await self.path_to(leaf_id)
            # Entries never change, so a path is known by its leaf; one that grew meanwhile is read again.
            if self._path is None and leaf_id == self._leaf_id():
                self._path = path

    def _leaf_id(self) -> str | None:
        return self._state().lane_state.leaf_id if self._moved is None else self._moved[0]

    def snapshot(self) -> LaneSnapshot:
        """The lane as its events so far tell it. Copies; never waits."""
        assert self._path is not None, "load() comes first"
        result = self._state()
        state, operation = result.lane_state, self.operation
        if operation is not None and self._env.fault is not None:
            operation = with_progress(operation, NO_PROGRESS)
        if operation is not None and operation.suspended is not None:
            # Registries may have changed since: a client must not be told to register what is there.
            missing = missing_identities(result, self._env.tools, self._env.models)
            operation = replace(operation, suspended=replace(operation.suspended, missing=missing))
        writes = state.operation.pending_writes if state.operation is not None else ()
        return LaneSnapshot(
            lane=state.lane,
            transcript=tuple(self._path),
            leaf_id=self._leaf_id(),
            operation=operation,
            queues=queues(state),
            pending_writes=tuple(PendingWrite(id=write.id, entry=write) for write in writes),
            faulted=self._env.fault is not None,
        )


def queues(state: LaneState) -> QueueSnapshot:
    """The lane's queues as clients see them."""
    operation = state.operation
    return QueueSnapshot(
        steer=_queued(operation.pending_steer) if operation is not None else (),
        follow_up=_queued(operation.pending_follow_up) if operation is not None else (),
        next_run=_queued(state.pending_next_run),
    )


def _queued(items: tuple[ProvisionedEntry, ...]) -> tuple[QueuedItem, ...]:
    return tuple(
        QueuedItem(entry_id=item.id, message=item.body.message) for item in items if isinstance(item.body, MessageBody)
    )
