"""StateStorage: a session held in memory whose writes go through a journal. Memory and JSONL are both this."""

import os
from collections.abc import Callable
from typing import TypeVar

from agent_harness.errors import ReadOnlySession, SessionClosed
from agent_harness.session.queries import BranchBounds, EntryQuery, RecordQuery
from agent_harness.session.storage import (
    Diagnostic,
    EntryItem,
    LanePointer,
    LogItem,
    OnEntry,
    OnRecord,
    OnSeq,
    RecordItem,
    SessionMetadata,
    SessionStats,
)
from agent_harness.types.clock import WallClock
from agent_harness.types.codec import Sealed
from agent_harness.types.entries import Entry, ProvisionedEntry
from agent_harness.types.records import LaneRecord, NewRecord

from .staging import Mutation, Staged
from .state import SessionState
from .write_queue import Draft, Journal, WriteQueue

T = TypeVar("T")


class StateStorage:
    """A `SessionStorage` over a `SessionState`; without a journal it is read-only."""

    def __init__(
        self,
        *,
        metadata: SessionMetadata,
        state: SessionState,
        clock: WallClock,
        journal: Journal | None,
        diagnostics: tuple[Diagnostic, ...] = (),
    ) -> None:
        self._metadata = metadata
        self._state = state
        self._clock = clock
        self._diagnostics = diagnostics
        self._queue = None if journal is None else WriteQueue(state, journal)
        self._closed = False
        self._pid = os.getpid()

    @property
    def metadata(self) -> SessionMetadata:
        """See `SessionStorage`."""
        return self._metadata

    def replace_metadata(self, metadata: SessionMetadata) -> None:
        """The header changed under this opening: an old file was converted."""
        self._metadata = metadata

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """See `SessionStorage`."""
        return self._diagnostics

    @property
    def last_seq(self) -> int:
        """See `SessionStorage`."""
        return self._state.last_seq

    # Writes -----------------------------------------------------------------

    async def create_lane(self, lane: str, at: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._mutate(lambda staged: staged.create_lane(lane, at), on_commit)

    async def move_lane(self, lane: str, to: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._mutate(lambda staged: staged.move_lane(lane, to), on_commit)

    async def set_name(self, name: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._mutate(lambda staged: staged.set_name(name), on_commit)

    async def set_label(self, target_id: str, label: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._mutate(lambda staged: staged.set_label(target_id, label), on_commit)

    async def append_entry(self, entry: Sealed[ProvisionedEntry], lane: str, on_commit: OnEntry | None = None) -> Entry:
        """See `SessionStorage`."""
        wire = entry.wire

        def job(staged: Staged) -> Draft[Entry]:
            mutation = staged.append_entry(entry.value, wire, lane, self._clock.now_ms())
            assert isinstance(mutation.item, EntryItem)
            return self._draft(mutation, mutation.item.entry, on_commit)

        return await self._writer().submit(job)

    async def append_record(self, record: Sealed[NewRecord], on_commit: OnRecord | None = None) -> LaneRecord:
        """See `SessionStorage`."""
        wire = record.wire

        def job(staged: Staged) -> Draft[LaneRecord]:
            mutation = staged.append_record(record.value, wire, self._clock.now_ms())
            assert isinstance(mutation.item, RecordItem)
            return self._draft(mutation, mutation.item.record, on_commit)

        return await self._writer().submit(job)

    async def _mutate(self, build: Callable[[Staged], Mutation], on_commit: OnSeq | None) -> None:
        def job(staged: Staged) -> Draft[int]:
            mutation = build(staged)
            return self._draft(mutation, mutation.item.seq, on_commit)

        await self._writer().submit(job)

    def _draft(self, mutation: Mutation, value: T, on_commit: Callable[[T], None] | None) -> Draft[T]:
        def commit() -> T:
            self._state.apply(mutation)
            if on_commit is not None:
                on_commit(value)
            return value

        return Draft(mutation, commit)

    def _writer(self) -> WriteQueue:
        self._check_open()
        if self._queue is None:
            raise ReadOnlySession(f"session {self._metadata.id} was opened read-only")
        if os.getpid() != self._pid:
            # A forked child shares the descriptors and the lock of its parent, but not its state (T21).
            raise SessionClosed(f"session {self._metadata.id} belongs to process {self._pid}, not to its forked child")
        return self._queue

    # Reads ------------------------------------------------------------------

    async def get_lanes(self) -> list[LanePointer]:
        """See `SessionStorage`."""
        return self._open_state().lanes()

    async def get_entry(self, entry_id: str) -> Entry | None:
        """See `SessionStorage`."""
        return self._open_state().entry(entry_id)

    async def find_entries(self, query: EntryQuery) -> list[Entry]:
        """See `SessionStorage`."""
        return self._open_state().find_entries(query)

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        """See `SessionStorage`.

        Raises:
            UnknownEntry: `bounds.start` is no entry of this session.
        """
        return self._open_state().find_entries_on_branch(query, bounds)

    async def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        """See `SessionStorage`."""
        return self._open_state().find_records(query)

    async def find_open_operations(self, lane: str, limit: int | None = None) -> list[LaneRecord]:
        """See `SessionStorage`."""
        return self._open_state().find_open_operations(lane, limit)

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        """See `SessionStorage`."""
        return self._open_state().log(after_seq, limit)

    async def get_name(self) -> str | None:
        """See `SessionStorage`."""
        return self._open_state().name

    async def get_label(self, target_id: str) -> str | None:
        """See `SessionStorage`."""
        return self._open_state().label(target_id)

    async def get_labels(self) -> dict[str, str]:
        """See `SessionStorage`."""
        return self._open_state().labels()

    async def get_stats(self) -> SessionStats:
        """See `SessionStorage`."""
        return self._open_state().stats

    async def close(self) -> None:
        """See `SessionStorage`."""
        self._closed = True
        if self._queue is not None:
            await self._queue.close()

    def _open_state(self) -> SessionState:
        self._check_open()
        return self._state

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"session {self._metadata.id} is closed")
