"""Memory: the reference backend. The parity suite runs against it first (harness-v2 §13 "Memory")."""

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from agent_harness.errors import SessionExists, SessionLocked, SessionNotFound
from agent_harness.session.repo import BranchFork, ForkOptions
from agent_harness.session.session import Session
from agent_harness.session.storage import Durability, SessionMetadata
from agent_harness.types.clock import SystemWallClock, WallClock
from agent_harness.types.ids import IdGenerator, Uuid7Ids
from agent_harness.types.json import JsonValue

from .creation import absolute, check_session_id, new_metadata
from .forking import fork_of
from .staging import Mutation, Staged, check
from .state import SessionState
from .state_storage import StateStorage
from .waiting import until_free
from .write_queue import Draft, Landed


class _MemoryJournal:
    """Nothing can fail and nothing takes time: a mutation is durable as soon as it is staged."""

    blocking = False

    def __init__(self, on_release: Callable[[], None]) -> None:
        self._on_release = on_release

    def prelude(self, staged: Staged) -> Sequence[Draft[object]]:
        return ()

    def persist(self, mutations: Sequence[Mutation]) -> Landed:
        return Landed(len(mutations))

    def release(self) -> None:
        self._on_release()


class MemoryStorage(StateStorage):
    """One session in memory, outside of any repository: `Session(MemoryStorage())`."""

    def __init__(
        self,
        metadata: SessionMetadata | None = None,
        *,
        state: SessionState | None = None,
        clock: WallClock | None = None,
        read_only: bool = False,
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        clock = clock or SystemWallClock()
        super().__init__(
            metadata=metadata or SessionMetadata(id=Uuid7Ids().next(), created_at=clock.now_ms()),
            state=SessionState() if state is None else state,
            clock=clock,
            journal=None if read_only else _MemoryJournal(on_release),
        )


@dataclass(slots=True)
class _Held:
    metadata: SessionMetadata
    state: SessionState
    claimed: bool = False

    def release(self) -> None:
        self.claimed = False


class MemorySessionRepo:
    """A `SessionRepo` that lives as long as the object."""

    def __init__(self, clock: WallClock | None = None, id_generator: IdGenerator | None = None) -> None:
        self._clock = clock or SystemWallClock()
        self._id_generator = id_generator or Uuid7Ids()
        self._sessions: dict[str, _Held] = {}

    async def create(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`."""
        return self._create((), id=id, cwd=cwd, metadata=metadata, parent_session_id=parent_session_id)

    async def open(
        self, id_or_path: str, *, read_only: bool = False, wait: float = 0.0, strict: bool = False
    ) -> Session:
        """See `SessionRepo`."""
        held = self._held(id_or_path)
        if read_only:
            return self._session(held, state=held.state.copy(), read_only=True)
        await until_free(lambda: self._check_free(held), wait)
        return self._session(held)

    async def list(self, *, cwd: str | None = None) -> list[SessionMetadata]:
        """See `SessionRepo`."""
        wanted = absolute(cwd)
        found = [
            replace(held.metadata, name=held.state.name, metadata=deepcopy(dict(held.metadata.metadata)))
            for held in self._sessions.values()
            if wanted in (None, held.metadata.cwd)
        ]
        return sorted(found, key=lambda metadata: metadata.created_at, reverse=True)

    async def delete(self, session_id: str) -> None:
        """See `SessionRepo`."""
        held = self._held(session_id)
        self._check_free(held)
        del self._sessions[session_id]

    async def fork(
        self,
        source: Session | str,
        options: ForkOptions | None = None,
        *,
        id: str | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`."""
        if isinstance(source, str):
            source = await self.open(source, read_only=True)
        items = await fork_of(source, options or BranchFork())
        return self._create(items, id=id, cwd=source.metadata.cwd, parent_session_id=parent_session_id or source.id)

    async def snapshot(self, directory: Path) -> Self:
        """See `SessionRepo`; `directory` is not used."""
        twin = type(self)(self._clock, self._id_generator)
        twin._sessions = {
            key: _Held(metadata=held.metadata, state=held.state.copy()) for key, held in self._sessions.items()
        }
        return twin

    async def close(self) -> None:
        """See `SessionRepo`."""

    def _create(
        self,
        content: Sequence[Mutation],
        *,
        id: str | None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        header = new_metadata(
            clock=self._clock,
            id_generator=self._id_generator,
            id=id,
            cwd=cwd,
            metadata=metadata,
            parent_session_id=parent_session_id,
        )
        if header.id in self._sessions:
            raise SessionExists(f"a session {header.id} exists already")
        state = SessionState()
        for mutation in content:
            check(state, mutation)
            state.apply(mutation)
        held = self._sessions[header.id] = _Held(metadata=header, state=state)
        return self._session(held)

    def _session(self, held: _Held, *, state: SessionState | None = None, read_only: bool = False) -> Session:
        held.claimed = held.claimed or not read_only
        header = replace(held.metadata, metadata=deepcopy(dict(held.metadata.metadata)))
        storage = MemoryStorage(
            header, state=state or held.state, clock=self._clock, read_only=read_only, on_release=held.release
        )
        return Session(storage, id_generator=self._id_generator)

    def _held(self, session_id: str) -> _Held:
        held = self._sessions.get(check_session_id(session_id))
        if held is None:
            raise SessionNotFound(f"no session {session_id}")
        return held

    def _check_free(self, held: _Held) -> None:
        if self._sessions.get(held.metadata.id) is not held:
            raise SessionNotFound(f"no session {held.metadata.id}")
        if held.claimed:
            raise SessionLocked(held.metadata.id, f"this process (pid {os.getpid()})")


def from_url(
    rest: str,
    *,
    clock: WallClock | None = None,
    id_generator: IdGenerator | None = None,
    durability: Durability = "process",
) -> MemorySessionRepo:
    """The repository of `memory:`; nothing may follow the colon, and no durability is on offer.

    Raises:
        ValueError: something follows the colon.
    """
    if rest:
        raise ValueError(f"memory: takes nothing after the colon, not {rest!r}")
    return MemorySessionRepo(clock, id_generator)
