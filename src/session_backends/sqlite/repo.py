"""SqliteSessionRepo: many sessions in one database (harness-v2 §13 "SQLite", §17)."""

import asyncio
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from agent_harness.errors import SessionExists, SessionLocked, SessionNotFound
from agent_harness.session.repo import BranchFork, ForkOptions
from agent_harness.session.session import Session
from agent_harness.session.storage import Durability, LogItem, SessionMetadata
from agent_harness.types.clock import SystemWallClock, WallClock
from agent_harness.types.ids import IdGenerator, Uuid7Ids
from agent_harness.types.json import JsonValue

from ..creation import absolute, check_session_id, names_folder, new_metadata
from ..forking import fork_of
from . import branches, leases, mutations, queries
from .copying import copy_database
from .database import Database, acquire, release, retain
from .files import FilesystemType, key_of, mounted_type
from .leases import Held, Lease
from .live import Live
from .reader import NoTables
from .storage import SqliteStorage

LEASE_TTL_MS = 10_000
"""How long a claim outlives the last beat of its owner."""

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claimed:
    lease: Lease
    metadata: SessionMetadata
    live: Live


class SqliteSessionRepo:
    """A `SessionRepo` in one database file, which is made private (0600) when the first session is created.

    Reading never changes the file; SQLite's own `-wal` and `-shm` files may appear beside it. Never copy a database
    that is in use as a file: take a `snapshot`.

    `durability` is what a resolved write survives: a crash of the process, or power loss. `lease_ttl_ms` is how long
    another process must see this one's claims stand still before it may take them over, by its own `lease_clock`
    (seconds that never go back). `filesystem_type` names the file system of a path; network and shared ones are
    refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: WallClock | None = None,
        id_generator: IdGenerator | None = None,
        durability: Durability = "process",
        lease_ttl_ms: int = LEASE_TTL_MS,
        lease_clock: Callable[[], float] = time.monotonic,
        filesystem_type: FilesystemType = mounted_type,
    ) -> None:
        self._path = Path(path).absolute()
        self._clock = clock or SystemWallClock()
        self._id_generator = id_generator or Uuid7Ids()
        self._durability: Durability = durability
        self._lease_ttl_ms = lease_ttl_ms
        self._lease_clock = lease_clock
        self._filesystem_type = filesystem_type
        self._database: Database | None = None

    async def create(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`."""
        return await self._create((), id=id, cwd=cwd, metadata=metadata, parent_session_id=parent_session_id)

    async def open(
        self, id_or_path: str, *, read_only: bool = False, wait: float = 0.0, strict: bool = False
    ) -> Session:
        """See `SessionRepo`."""
        session_id = check_session_id(id_or_path)
        database, metadata, live = await self._holding(session_id)
        if read_only:
            return Session(self._storage(database, metadata, live, None), id_generator=self._id_generator)
        return self._session(database, await self._open_claimed(database, session_id, wait))

    async def list(self, *, cwd: str | None = None) -> list[SessionMetadata]:
        """See `SessionRepo`; reads the catalogue only, never a claim."""
        wanted = absolute(cwd)
        database = await self._use()
        if database is None or not names_folder(cwd):
            return []
        try:
            return await database.read(lambda conn: queries.list_sessions(conn, wanted))
        except NoTables:
            return []

    async def delete(self, session_id: str) -> None:
        """See `SessionRepo`."""
        check_session_id(session_id)

        def run(conn: sqlite3.Connection) -> None:
            if not mutations.exists(conn, session_id):
                raise SessionNotFound(f"no session {session_id}")
            held = leases.read(conn, session_id)
            if held is not None and not (held.owner is not None and leases.is_gone(held.owner)):
                raise SessionLocked(session_id, held.name)
            mutations.delete_session(conn, session_id)

        database, _, _ = await self._holding(session_id)
        await database.write(run, durability=self._durability)

    async def fork(
        self,
        source: Session | str,
        options: ForkOptions | None = None,
        *,
        id: str | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`; the source may be a session of any backend."""
        if isinstance(source, str):
            async with await self.open(source, read_only=True) as opened:
                return await self.fork(opened, options, id=id, parent_session_id=parent_session_id)
        items = [mutation.item for mutation in await fork_of(source, options or BranchFork())]
        return await self._create(
            items, id=id, cwd=source.metadata.cwd, parent_session_id=parent_session_id or source.id
        )

    async def snapshot(self, directory: Path) -> Self:
        """See `SessionRepo`; the copy is made by SQLite's backup interface, never by copying files (T19)."""
        target = directory / self._path.name
        database = await self._use()
        if database is not None:
            try:
                await database.read(lambda conn: copy_database(conn, target))
            except NoTables:
                pass  # nothing was ever created
        return type(self)(
            target,
            clock=self._clock,
            id_generator=self._id_generator,
            durability=self._durability,
            lease_ttl_ms=self._lease_ttl_ms,
            lease_clock=self._lease_clock,
            filesystem_type=self._filesystem_type,
        )

    async def close(self) -> None:
        """See `SessionRepo`. Idempotent; the repository can be used again."""
        database, self._database = self._database, None
        if database is not None:
            await release(database)

    async def check_branches(self, session_id: str) -> bool:
        """Whether the branch cache of a session is what its parent pointers say. Reads only."""
        database, _, _ = await self._holding(check_session_id(session_id))
        return await database.read(lambda conn: branches.is_sound(conn, session_id))

    async def repair_branches(self, session_id: str) -> None:
        """Rebuild the branch cache of a session from its parent pointers, under the writer claim.

        Raises:
            SessionNotFound, SessionLocked: nothing was changed.
            CorruptSession: a parent pointer leads nowhere; nothing was changed.
        """
        database, _, _ = await self._holding(check_session_id(session_id))
        claimed = await self._open_claimed(database, session_id, 0)
        storage = self._storage(database, claimed.metadata, claimed.live, claimed.lease)
        try:
            await storage.repair_branches()
        finally:
            await storage.close()

    # Inside -------------------------------------------------------------------

    async def _use(self, *, create: bool = False) -> Database | None:
        """The database, referenced by this repository from its first use until `close`."""
        path = self._path.resolve()
        if self._database is not None and key_of(path) != self._database.key:
            await self.close()  # the file was removed or replaced
        if self._database is None:
            self._database = acquire(
                path, filesystem_type=self._filesystem_type, durability=self._durability, create=create
            )
        return self._database

    async def _holding(self, session_id: str) -> tuple[Database, SessionMetadata, Live]:
        """The database, if it holds the session, and the session as it is now."""
        database = await self._use()
        if database is not None:
            try:
                return database, *await database.read(lambda conn: queries.load_live(conn, session_id))
            except NoTables:
                pass  # the file is still empty
        raise SessionNotFound(f"no session {session_id}")

    async def _create(
        self,
        items: Sequence[LogItem],
        *,
        id: str | None,
        cwd: str | None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None,
    ) -> Session:
        header = new_metadata(
            clock=self._clock,
            id_generator=self._id_generator,
            id=id,
            cwd=cwd,
            metadata=metadata,
            parent_session_id=parent_session_id,
        )

        def make(conn: sqlite3.Connection) -> None:
            if mutations.exists(conn, header.id):
                raise SessionExists(f"a session {header.id} exists already")
            mutations.create_session(conn, header)
            mutations.import_items(conn, header.id, items)

        database = await self._use(create=True)
        assert database is not None, "made above"
        claimed = await self._claim(database, header.id, make)
        assert isinstance(claimed, _Claimed), "nobody can hold a session that did not exist"
        return self._session(database, claimed)

    async def _open_claimed(self, database: Database, session_id: str, wait: float) -> _Claimed:
        """Take the writer claim: at once if it is free or its owner is provably gone, else by waiting."""
        deadline = self._lease_clock() + wait
        held = await self._claim(database, session_id)
        seen = self._lease_clock()
        while isinstance(held, Held):
            now = self._lease_clock()
            if now - seen >= held.ttl_ms / 1000:
                held, seen = await self._claim(database, session_id, stale=held), now
                continue
            if now >= deadline:
                raise SessionLocked(session_id, held.name)
            await asyncio.sleep(min(POLL_SECONDS, deadline - now))
            current = await database.read(lambda conn: leases.read(conn, session_id))
            if current is None or (current.owner is not None and leases.is_gone(current.owner)):
                held, seen = await self._claim(database, session_id), self._lease_clock()
            elif current != held:
                held, seen = current, self._lease_clock()  # it lives: its beat moved
        return held

    async def _claim(
        self,
        database: Database,
        session_id: str,
        make: Callable[[sqlite3.Connection], None] | None = None,
        stale: Held | None = None,
    ) -> _Claimed | Held:
        now_ms = SystemWallClock().now_ms()
        owner = leases.this_process(now_ms)
        owner_id = secrets.token_hex(16)
        taken: list[Lease] = []

        def run(conn: sqlite3.Connection) -> _Claimed | Held:
            if make is not None:
                make(conn)
            metadata, live = queries.load_live(conn, session_id)
            lease = leases.claim(
                conn,
                session_id,
                owner_id=owner_id,
                owner=owner,
                ttl_ms=self._lease_ttl_ms,
                now_ms=now_ms,
                stale=stale,
            )
            return lease if isinstance(lease, Held) else _Claimed(lease=lease, metadata=metadata, live=live)

        def committed(claimed: _Claimed | Held) -> None:
            if isinstance(claimed, _Claimed):
                taken.append(claimed.lease)
                database.hold(claimed.lease, self._lease_ttl_ms)

        try:
            return await database.write(run, durability=self._durability, on_commit=committed)
        except asyncio.CancelledError:
            for lease in taken:  # nobody will own what was claimed meanwhile
                database.drop(lease)
                database.submit(partial(leases.release, lease=lease), self._durability)
            raise

    def _session(self, database: Database, claimed: _Claimed) -> Session:
        storage = self._storage(database, claimed.metadata, claimed.live, claimed.lease)
        return Session(storage, id_generator=self._id_generator)

    def _storage(self, database: Database, metadata: SessionMetadata, live: Live, lease: Lease | None) -> SqliteStorage:
        return SqliteStorage(
            retain(database), metadata, live, clock=self._clock, durability=self._durability, lease=lease
        )


def from_url(
    rest: str,
    *,
    clock: WallClock | None = None,
    id_generator: IdGenerator | None = None,
    durability: Durability = "process",
) -> SqliteSessionRepo:
    """The repository of `sqlite:PATH`.

    Raises:
        ValueError: there is no path.
    """
    if not rest:
        raise ValueError("sqlite: needs the path of a database file, as in sqlite:sessions.db")
    return SqliteSessionRepo(rest, clock=clock, id_generator=id_generator, durability=durability)
