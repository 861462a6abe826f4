"""SqliteStorage: one opened session of a database."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from agent_harness.errors import ReadOnlySession, SessionClosed, StorageError
from agent_harness.session.queries import BranchBounds, EntryQuery, RecordQuery
from agent_harness.session.storage import (
    Diagnostic,
    Durability,
    LanePointer,
    LogItem,
    OnEntry,
    OnRecord,
    OnSeq,
    SessionMetadata,
    SessionStats,
)
from agent_harness.types.clock import SystemWallClock, WallClock
from agent_harness.types.codec import Sealed
from agent_harness.types.entries import Entry, ProvisionedEntry
from agent_harness.types.records import LaneRecord, NewRecord

from . import leases, mutations, queries
from .database import CLOSE_SECONDS, Database, release
from .jobs import Opening
from .leases import Lease
from .live import Live

T = TypeVar("T")

_SYSTEM_CLOCK = SystemWallClock()  # of leases: the injected clock belongs to entries and records


class SqliteStorage:
    """A `SessionStorage`; without a lease it is read-only and shows the session as it was when it was opened.

    Owns one reference to its database, given back by `close`.
    """

    def __init__(
        self,
        database: Database,
        metadata: SessionMetadata,
        live: Live,
        *,
        clock: WallClock,
        durability: Durability,
        lease: Lease | None,
    ) -> None:
        self._database = database
        self._metadata = metadata
        self._live = live
        self._clock = clock
        self._durability: Durability = durability
        self._lease = lease
        self._opening = Opening()
        self._closed = False

    @property
    def metadata(self) -> SessionMetadata:
        """See `SessionStorage`."""
        return self._metadata

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """See `SessionStorage`; a database has nothing to cope with."""
        return ()

    @property
    def last_seq(self) -> int:
        """See `SessionStorage`."""
        return self._live.last_seq

    # Writes -----------------------------------------------------------------

    async def append_entry(self, entry: Sealed[ProvisionedEntry], lane: str, on_commit: OnEntry | None = None) -> Entry:
        """See `SessionStorage`."""
        return await self._write(
            lambda conn, session_id: mutations.append_entry(conn, session_id, entry, lane, self._clock.now_ms()),
            lambda committed: self._live.appended(lane, committed),
            on_commit,
        )

    async def append_record(self, record: Sealed[NewRecord], on_commit: OnRecord | None = None) -> LaneRecord:
        """See `SessionStorage`."""
        return await self._write(
            lambda conn, session_id: mutations.append_record(conn, session_id, record, self._clock.now_ms()),
            self._live.recorded,
            on_commit,
        )

    async def create_lane(self, lane: str, at: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._write(
            lambda conn, session_id: mutations.create_lane(conn, session_id, lane, at),
            lambda seq: self._live.pointed(seq, lane, at),
            on_commit,
        )

    async def move_lane(self, lane: str, to: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._write(
            lambda conn, session_id: mutations.move_lane(conn, session_id, lane, to),
            lambda seq: self._live.pointed(seq, lane, to),
            on_commit,
        )

    async def set_name(self, name: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._write(
            lambda conn, session_id: mutations.set_name(conn, session_id, name), self._live.advanced, on_commit
        )

    async def set_label(self, target_id: str, label: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._write(
            lambda conn, session_id: mutations.set_label(conn, session_id, target_id, label),
            self._live.advanced,
            on_commit,
        )

    async def repair_branches(self) -> None:
        """Write the branch cache anew from the parent pointers: an explicit repair, never a fallback."""
        from . import branches

        await self._write(branches.rebuild, lambda _: None, None)

    async def _write(
        self,
        mutate: Callable[[sqlite3.Connection, str], T],
        follow: Callable[[T], None],
        on_commit: Callable[[T], None] | None,
    ) -> T:
        self._check_open()
        lease = self._lease
        if lease is None:
            raise ReadOnlySession(f"session {self._metadata.id} was opened read-only")

        def run(conn: sqlite3.Connection) -> T:
            leases.renew(conn, lease, _SYSTEM_CLOCK.now_ms())
            return mutate(conn, lease.session_id)

        def committed(value: T) -> None:
            follow(value)
            if on_commit is not None:
                on_commit(value)

        return await self._database.write(run, durability=self._durability, opening=self._opening, on_commit=committed)

    # Reads ------------------------------------------------------------------

    async def get_lanes(self) -> list[LanePointer]:
        """See `SessionStorage`."""
        self._check_open()
        return self._live.pointers()

    async def get_stats(self) -> SessionStats:
        """See `SessionStorage`."""
        self._check_open()
        return self._live.stats

    async def get_entry(self, entry_id: str) -> Entry | None:
        """See `SessionStorage`."""
        return await self._read(lambda conn, session_id: queries.get_entry(conn, session_id, entry_id))

    async def find_entries(self, query: EntryQuery) -> list[Entry]:
        """See `SessionStorage`."""
        return await self._read(lambda conn, session_id: queries.find_entries(conn, session_id, query))

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        """See `SessionStorage`.

        Raises:
            UnknownEntry: `bounds.start` is no entry of this session.
        """
        return await self._read(
            lambda conn, session_id: queries.find_entries_on_branch(conn, session_id, query, bounds)
        )

    async def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        """See `SessionStorage`."""
        return await self._read(lambda conn, session_id: queries.find_records(conn, session_id, query))

    async def find_open_operations(self, lane: str, limit: int | None = None) -> list[LaneRecord]:
        """See `SessionStorage`; the projection holds at most one, since a second start is refused."""
        self._check_open()
        state = self._live.lanes.get(lane)
        if state is None or state.open_operation_id is None:
            return []
        run_id = state.open_operation_id
        record = await self._read(lambda conn, session_id: queries.get_record(conn, session_id, run_id))
        return [] if record is None else [record]

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        """See `SessionStorage`."""
        return await self._read(lambda conn, session_id: queries.get_log(conn, session_id, after_seq, limit))

    async def get_name(self) -> str | None:
        """See `SessionStorage`."""
        bound = self._live.last_seq
        return await self._read(lambda conn, session_id: queries.get_fact(conn, session_id, "name", "", bound))

    async def get_label(self, target_id: str) -> str | None:
        """See `SessionStorage`."""
        bound = self._live.last_seq
        return await self._read(lambda conn, session_id: queries.get_fact(conn, session_id, "label", target_id, bound))

    async def get_labels(self) -> dict[str, str]:
        """See `SessionStorage`."""
        bound = self._live.last_seq
        return await self._read(lambda conn, session_id: queries.get_labels(conn, session_id, bound))

    async def _read(self, run: Callable[[sqlite3.Connection, str], T]) -> T:
        self._check_open()
        session_id = self._metadata.id
        return await self._database.read(lambda conn: run(conn, session_id))

    # End ----------------------------------------------------------------------

    async def close(self) -> None:
        """See `SessionStorage`. Writes that were submitted before are finished first."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._lease is not None and self._database.is_ours():
                await self._give_up(self._lease)
        finally:
            await release(self._database)

    async def _give_up(self, lease: Lease) -> None:
        self._database.drop(lease)
        try:
            released = self._database.submit(lambda conn: leases.release(conn, lease), self._durability)
        except StorageError:
            return  # the database cannot be used any more, and the claim runs out by itself
        # The thread finishes it even if nobody waits any more: a cancelled or impatient close loses nothing.
        await asyncio.wait([released], timeout=CLOSE_SECONDS)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"session {self._metadata.id} is closed")
