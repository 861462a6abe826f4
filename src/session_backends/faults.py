"""Faults on purpose: a wrapper around any repository, and file operations that fail, for tests of what is above.

```python
faults = Faults(at=3, kind="after")
repo = FaultyRepo(MemorySessionRepo(), faults)  # the third write is durable, and reported as failed
```
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from agent_harness.errors import StorageError
from agent_harness.session.queries import (
    BranchBounds,
    EntryQuery,
    RecordQuery,
    select_entries,
    select_on_branch,
    select_records,
)
from agent_harness.session.repo import ForkOptions, SessionRepo
from agent_harness.session.session import Session
from agent_harness.session.storage import (
    Diagnostic,
    LanePointer,
    LogItem,
    OnEntry,
    OnRecord,
    OnSeq,
    SessionMetadata,
    SessionStats,
)
from agent_harness.types.codec import Sealed
from agent_harness.types.entries import Entry, MessageBody, ProvisionedEntry
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import ExtensionMessage
from agent_harness.types.records import LaneRecord, NewRecord

from .jsonl.files import FileOps

FaultKind: TypeAlias = Literal["before", "after"]
"""`before`: the write fails and nothing is stored; `after`: it is stored, and fails all the same."""

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Faults:
    """Which writes go wrong, counted over all sessions of a `FaultyRepo`. Change it at any time."""

    at: int | None = None  # 1-based number of the first write that fails
    kind: FaultKind = "before"
    forever: bool = False  # every write from then on, not that one alone
    delay: Callable[[], Awaitable[None]] | None = None  # awaited before each write is passed on
    writes: int = 0  # how many were asked for

    def hits(self) -> bool:
        """Count a write; whether it is to fail."""
        self.writes += 1
        return self.at is not None and (self.writes >= self.at if self.forever else self.writes == self.at)

    async def run(self, write: Callable[[bool], Awaitable[T]]) -> T:
        """Do `write` as planned; it gets whether its commit may be announced.

        Raises:
            StorageError: the planned one.
        """
        number = self.writes + 1
        failing = self.hits()
        kind = self.kind
        if self.delay is not None:
            await self.delay()
        if not failing:
            return await write(True)
        if kind == "after":
            await write(False)
        raise StorageError(f"injected fault at write {number}, {kind} the commit")


class FaultyStorage:
    """A `SessionStorage` over an opened session, whose writes go through `Faults`."""

    def __init__(self, inner: Session, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def metadata(self) -> SessionMetadata:
        """See `SessionStorage`."""
        return self._inner.metadata

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """See `SessionStorage`."""
        return self._inner.diagnostics

    @property
    def last_seq(self) -> int:
        """See `SessionStorage`."""
        return self._inner.delivered_seq

    async def get_lanes(self) -> list[LanePointer]:
        """See `SessionStorage`."""
        return await self._inner.get_lanes()

    async def create_lane(self, lane: str, at: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._faults.run(
            lambda announce: self._inner.create_lane(lane, at, on_commit=on_commit if announce else None)
        )

    async def move_lane(self, lane: str, to: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`."""
        await self._faults.run(
            lambda announce: self._inner.move_lane(lane, to, on_commit=on_commit if announce else None)
        )

    async def append_entry(self, entry: Sealed[ProvisionedEntry], lane: str, on_commit: OnEntry | None = None) -> Entry:
        """See `SessionStorage`."""
        body = entry.value.body
        if isinstance(body, MessageBody) and isinstance(body.message, ExtensionMessage):
            self._inner.register_message_types({body.message.role: _passed_above})
        return await self._faults.run(
            lambda announce: self._inner.append_entry(entry.value, lane, on_commit=on_commit if announce else None)
        )

    async def append_record(self, record: Sealed[NewRecord], on_commit: OnRecord | None = None) -> LaneRecord:
        """See `SessionStorage`."""
        return await self._faults.run(
            lambda announce: self._inner.append_record(record.value, on_commit=on_commit if announce else None)
        )

    async def set_name(self, name: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`; the session's own method takes no callback, so the commit is announced after it."""

        async def write(announce: bool) -> None:
            await self._inner.set_name(name)
            if announce and on_commit is not None:
                on_commit(self._inner.delivered_seq)

        await self._faults.run(write)

    async def set_label(self, target_id: str, label: str | None, on_commit: OnSeq | None = None) -> None:
        """See `SessionStorage`; the session's own method takes no callback, so the commit is announced after it."""

        async def write(announce: bool) -> None:
            await self._inner.set_label(target_id, label)
            if announce and on_commit is not None:
                on_commit(self._inner.delivered_seq)

        await self._faults.run(write)

    async def get_entry(self, entry_id: str) -> Entry | None:
        """See `SessionStorage`."""
        return await self._inner.get_entry(entry_id)

    async def find_entries(self, query: EntryQuery) -> list[Entry]:
        """See `SessionStorage`."""
        return select_entries(await self._inner.find_entries(order="oldestFirst"), query)

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        """See `SessionStorage`."""
        return select_on_branch(await self._inner.find_entries_on_branch(start=bounds.start), query, bounds)

    async def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        """See `SessionStorage`."""
        return select_records(await self._inner.find_records(lane=query.lane, order="oldestFirst"), query)

    async def find_open_operations(self, lane: str, limit: int | None = None) -> list[LaneRecord]:
        """See `SessionStorage`."""
        return await self._inner.find_open_operations(lane, limit)

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        """See `SessionStorage`."""
        return await self._inner.get_log(after_seq, limit)

    async def get_name(self) -> str | None:
        """See `SessionStorage`."""
        return await self._inner.get_name()

    async def get_label(self, target_id: str) -> str | None:
        """See `SessionStorage`."""
        return await self._inner.get_label(target_id)

    async def get_labels(self) -> dict[str, str]:
        """See `SessionStorage`."""
        return await self._inner.get_labels()

    async def get_stats(self) -> SessionStats:
        """See `SessionStorage`."""
        return await self._inner.get_stats()

    async def close(self) -> None:
        """See `SessionStorage`."""
        await self._inner.close()


def _passed_above(fields: Mapping[str, JsonValue]) -> None:
    """The outer session has checked the message."""


class FaultyRepo:
    """A `SessionRepo` whose sessions write through `Faults`. Its snapshots are healthy."""

    def __init__(self, inner: SessionRepo, faults: Faults) -> None:
        self._inner = inner
        self.faults = faults

    async def create(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`."""
        return self._wrap(
            await self._inner.create(id=id, cwd=cwd, metadata=metadata, parent_session_id=parent_session_id)
        )

    async def open(
        self, id_or_path: str, *, read_only: bool = False, wait: float = 0.0, strict: bool = False
    ) -> Session:
        """See `SessionRepo`."""
        return self._wrap(await self._inner.open(id_or_path, read_only=read_only, wait=wait, strict=strict))

    async def list(self, *, cwd: str | None = None) -> list[SessionMetadata]:
        """See `SessionRepo`."""
        return await self._inner.list(cwd=cwd)

    async def delete(self, session_id: str) -> None:
        """See `SessionRepo`."""
        await self._inner.delete(session_id)

    async def fork(
        self,
        source: Session | str,
        options: ForkOptions | None = None,
        *,
        id: str | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`."""
        return self._wrap(await self._inner.fork(source, options, id=id, parent_session_id=parent_session_id))

    async def snapshot(self, directory: Path) -> "FaultyRepo":
        """See `SessionRepo`."""
        return FaultyRepo(await self._inner.snapshot(directory), Faults())

    async def close(self) -> None:
        """See `SessionRepo`."""
        await self._inner.close()

    def _wrap(self, session: Session) -> Session:
        return Session(FaultyStorage(session, self.faults), id_generator=session.id_generator)


@dataclass(slots=True, kw_only=True)
class FaultyFiles(FileOps):
    """File operations of a `JsonlSessionRepo` that fail on plan, and count what was asked of them.

    `fail_write` fails with ENOSPC; `short_write` takes half of the bytes; `fail_sync` fails with EIO. All are
    1-based numbers of the call; None never.
    """

    fail_write: int | None = None
    short_write: int | None = None
    fail_sync: int | None = None
    writes: int = 0
    syncs: int = 0
    truncates: int = 0
    renames: int = 0

    def write(self, fd: int, data: bytes) -> int:
        """See `FileOps`."""
        self.writes += 1
        if self.writes == self.fail_write:
            raise OSError(ENOSPC, "injected: no space left")
        if self.writes == self.short_write:
            data = data[: len(data) // 2]
        return FileOps.write(self, fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """See `FileOps`."""
        self.truncates += 1
        FileOps.truncate(self, fd, size)

    def sync(self, fd: int) -> None:
        """See `FileOps`."""
        self.syncs += 1
        if self.syncs == self.fail_sync:
            raise OSError(EIO, "injected: input/output error")
        FileOps.sync(self, fd)

    def rename(self, source: Path, target: Path) -> None:
        """See `FileOps`."""
        self.renames += 1
        FileOps.rename(self, source, target)
