"""A small backend as a third party would write it: nothing of `session_backends`, only what the protocols name.

A session is a list of log items; every answer is made from it anew, by the definitions in `queries`, and is
a copy, so that nothing a caller does with it reaches the list.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from agent_harness.errors import (
    DuplicateId,
    InvalidPayload,
    InvalidSessionId,
    LaneAlreadyExists,
    OperationOpen,
    ReadOnlySession,
    SessionClosed,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    UnknownEntry,
    UnknownLane,
)
from agent_harness.session.queries import (
    BranchBounds,
    EntryQuery,
    RecordQuery,
    select_entries,
    select_on_branch,
    select_records,
)
from agent_harness.session.repo import BranchFork, ForkOptions
from agent_harness.session.session import Session
from agent_harness.session.stats import count_entry, count_record
from agent_harness.session.storage import (
    MAIN,
    Diagnostic,
    Durability,
    EntryItem,
    LabelItem,
    LaneItem,
    LanePointer,
    LogItem,
    NameItem,
    OnEntry,
    OnRecord,
    OnSeq,
    RecordItem,
    SessionMetadata,
    SessionStats,
)
from agent_harness.types.clock import SystemWallClock, WallClock
from agent_harness.types.codec import Sealed, dump_entry, dump_record, encode, load_entry, load_record, parse
from agent_harness.types.entries import Entry, ProvisionedEntry
from agent_harness.types.ids import IdGenerator, Uuid7Ids, is_session_id
from agent_harness.types.json import InvalidJson, JsonValue, canon, is_text
from agent_harness.types.records import LaneRecord, NewRecord, OperationFinished, OperationStarted

T = TypeVar("T")


def copied_entry(entry: Entry) -> Entry:
    """The same entry, sharing nothing with it."""
    return load_entry(parse(encode(dump_entry(entry))))


def copied_record(record: LaneRecord) -> LaneRecord:
    """The same record, sharing nothing with it."""
    return load_record(parse(encode(dump_record(record))))


def copied_item(item: LogItem) -> LogItem:
    """The same item, sharing nothing with it."""
    match item:
        case EntryItem(entry=entry):
            return replace(item, entry=copied_entry(entry))
        case RecordItem(record=record):
            return replace(item, record=copied_record(record))
        case _:
            return item


def copied_header(metadata: SessionMetadata) -> SessionMetadata:
    """The same header, sharing nothing with it."""
    return replace(metadata, metadata=deepcopy(dict(metadata.metadata)))


@dataclass(slots=True)
class Stored:
    """One session of the store."""

    metadata: SessionMetadata
    log: list[LogItem] = field(default_factory=list)
    is_claimed: bool = False


class NotebookStorage:
    """A `SessionStorage` over one list."""

    def __init__(self, stored: Stored, clock: WallClock, *, read_only: bool) -> None:
        self._stored = stored
        self._log = list(stored.log) if read_only else stored.log
        self._clock = clock
        self._is_read_only = read_only
        self._is_closed = False
        self.metadata = copied_header(stored.metadata)
        self.diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def last_seq(self) -> int:
        return len(self._log)

    # Writes: each is one turn of the loop of its own; a cancellation before that turn withdraws it.

    async def _write(self, make: Callable[[int], LogItem], tell: Callable[[LogItem], T]) -> T:
        if self._is_closed:
            raise SessionClosed("closed")
        if self._is_read_only:
            raise ReadOnlySession("read-only")
        await asyncio.sleep(0)
        item = make(len(self._log) + 1)
        self._log.append(item)
        return tell(copied_item(item))

    async def append_entry(self, entry: Sealed[ProvisionedEntry], lane: str, on_commit: OnEntry | None = None) -> Entry:
        def make(seq: int) -> LogItem:
            parent = self._leaf(lane)
            self._check_new(entry.value.id)
            wire = {**parse(entry.wire), "parentId": parent, "seq": seq, "timestamp": self._clock.now_ms()}
            return EntryItem(seq=seq, entry=load_entry(wire), lane=lane)

        def tell(item: LogItem) -> Entry:
            assert isinstance(item, EntryItem)
            if on_commit is not None:
                on_commit(item.entry)
            return item.entry

        return await self._write(make, tell)

    async def append_record(self, record: Sealed[NewRecord], on_commit: OnRecord | None = None) -> LaneRecord:
        def make(seq: int) -> LogItem:
            lane = record.value.lane
            self._leaf(lane)
            self._check_new(record.value.id)
            open_now = self._open(lane)
            if isinstance(record.value.body, OperationStarted) and open_now:
                raise OperationOpen(lane, open_now[0].id)
            wire = {**parse(record.wire), "seq": seq, "timestamp": self._clock.now_ms()}
            return RecordItem(seq=seq, record=load_record(wire))

        def tell(item: LogItem) -> LaneRecord:
            assert isinstance(item, RecordItem)
            if on_commit is not None:
                on_commit(item.record)
            return item.record

        return await self._write(make, tell)

    async def create_lane(self, lane: str, at: str | None, on_commit: OnSeq | None = None) -> None:
        def make(seq: int) -> LogItem:
            if lane in self._leaves():
                raise LaneAlreadyExists(f"the session already has a lane {lane!r}")
            self._check_entry(at)
            return LaneItem(seq=seq, lane=lane, leaf_id=at)

        await self._write(make, told(on_commit))

    async def move_lane(self, lane: str, to: str | None, on_commit: OnSeq | None = None) -> None:
        def make(seq: int) -> LogItem:
            self._leaf(lane)
            self._check_entry(to)
            return LaneItem(seq=seq, lane=lane, leaf_id=to)

        await self._write(make, told(on_commit))

    async def set_name(self, name: str | None, on_commit: OnSeq | None = None) -> None:
        await self._write(lambda seq: NameItem(seq=seq, name=name), told(on_commit))

    async def set_label(self, target_id: str, label: str | None, on_commit: OnSeq | None = None) -> None:
        def make(seq: int) -> LogItem:
            self._check_entry(target_id)
            return LabelItem(seq=seq, target_id=target_id, label=label)

        await self._write(make, told(on_commit))

    # What there is

    def _items(self) -> list[LogItem]:
        if self._is_closed:
            raise SessionClosed("closed")
        return self._log

    def _entries(self) -> list[Entry]:
        return [item.entry for item in self._items() if isinstance(item, EntryItem)]

    def _records(self) -> list[LaneRecord]:
        return [item.record for item in self._items() if isinstance(item, RecordItem)]

    def _leaves(self) -> dict[str, str | None]:
        leaves: dict[str, str | None] = {MAIN: None}
        for item in self._log:
            if isinstance(item, LaneItem):
                leaves[item.lane] = item.leaf_id
            elif isinstance(item, EntryItem) and item.lane is not None:
                leaves[item.lane] = item.entry.id
        return leaves

    def _leaf(self, lane: str) -> str | None:
        leaves = self._leaves()
        if lane not in leaves:
            raise UnknownLane(lane)
        return leaves[lane]

    def _check_entry(self, entry_id: str | None) -> None:
        if entry_id is not None and entry_id not in {entry.id for entry in self._entries()}:
            raise UnknownEntry(entry_id)

    def _check_new(self, item_id: str) -> None:
        if item_id in {item.id for item in (*self._entries(), *self._records())}:
            raise DuplicateId(item_id)

    def _open(self, lane: str) -> list[LaneRecord]:
        on_lane = [record for record in self._records() if record.lane == lane]
        ended = {record.body.run_id for record in on_lane if isinstance(record.body, OperationFinished)}
        return [one for one in on_lane[::-1] if isinstance(one.body, OperationStarted) and one.id not in ended]

    # Reads

    async def get_lanes(self) -> list[LanePointer]:
        self._items()
        return [LanePointer(lane=lane, leaf_id=leaf_id) for lane, leaf_id in self._leaves().items()]

    async def get_entry(self, entry_id: str) -> Entry | None:
        return next((copied_entry(entry) for entry in self._entries() if entry.id == entry_id), None)

    async def find_entries(self, query: EntryQuery) -> list[Entry]:
        return [copied_entry(entry) for entry in select_entries(self._entries(), query)]

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        self._check_entry(bounds.start)
        path = path_to({entry.id: entry for entry in self._entries()}, bounds.start)
        return [copied_entry(entry) for entry in select_on_branch(path, query, bounds)]

    async def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        return [copied_record(record) for record in select_records(self._records(), query)]

    async def find_open_operations(self, lane: str, limit: int | None = None) -> list[LaneRecord]:
        return [copied_record(record) for record in self._open(lane)[:limit]]

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        return [copied_item(item) for item in self._items()[max(after_seq, 0) :][:limit]]

    async def get_name(self) -> str | None:
        return next((item.name for item in self._items()[::-1] if isinstance(item, NameItem)), None)

    async def get_label(self, target_id: str) -> str | None:
        return (await self.get_labels()).get(target_id)

    async def get_labels(self) -> dict[str, str]:
        labels: dict[str, str] = {}
        for item in self._items():
            if isinstance(item, LabelItem):
                labels.pop(item.target_id, None)
                if item.label is not None:
                    labels[item.target_id] = item.label
        return labels

    async def get_stats(self) -> SessionStats:
        stats = SessionStats()
        for item in self._items():
            if isinstance(item, EntryItem):
                stats = count_entry(stats, item.entry)
            elif isinstance(item, RecordItem):
                stats = count_record(stats, item.record)
        return stats

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.sleep(0)  # what was accepted has its turn first
        if not self._is_read_only:
            self._stored.is_claimed = False


def told(on_commit: OnSeq | None) -> Callable[[LogItem], None]:
    def tell(item: LogItem) -> None:
        if on_commit is not None:
            on_commit(item.seq)

    return tell


def path_to(entries: Mapping[str, Entry], start: str | None) -> list[Entry]:
    """From `start` towards the root."""
    path: list[Entry] = []
    while start is not None:
        path.append(entries[start])
        start = entries[start].parent_id
    return path


class NotebookRepo:
    """A `SessionRepo` that lives as long as the object."""

    def __init__(self, clock: WallClock, ids: IdGenerator) -> None:
        self._clock = clock
        self._ids = ids
        self._stored: dict[str, Stored] = {}

    async def create(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        return self._create([], id, cwd, metadata or {}, parent_session_id)

    async def open(
        self, id_or_path: str, *, read_only: bool = False, wait: float = 0.0, strict: bool = False
    ) -> Session:
        stored = self._get(id_or_path)
        deadline = asyncio.get_running_loop().time() + wait
        while not read_only and stored.is_claimed:
            if asyncio.get_running_loop().time() >= deadline:
                raise SessionLocked(id_or_path, "this process")
            await asyncio.sleep(0.01)
        return self._session(stored, read_only=read_only)

    async def list(self, *, cwd: str | None = None) -> list[SessionMetadata]:
        wanted = None if cwd is None else os.path.abspath(cwd)
        found = [copied_header(stored.metadata) for stored in self._stored.values()]
        return [header for header in found if wanted in (None, header.cwd)][::-1]

    async def delete(self, session_id: str) -> None:
        if self._get(session_id).is_claimed:
            raise SessionLocked(session_id, "this process")
        del self._stored[session_id]

    async def fork(
        self,
        source: Session | str,
        options: ForkOptions | None = None,
        *,
        id: str | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        if isinstance(source, str):
            source = await self.open(source, read_only=True)
        options = options or BranchFork()
        lanes = await source.get_lanes()
        entries = {item.entry.id: item.entry for item in await source.get_log() if isinstance(item, EntryItem)}
        copied = list(entries.values())
        if isinstance(options, BranchFork):
            tip = options.entry_id or next(pointer.leaf_id for pointer in lanes if pointer.lane == MAIN)
            if tip is not None and tip not in entries:
                raise UnknownEntry(tip)
            if tip is not None and options.position == "before":
                tip = entries[tip].parent_id
            copied = path_to(entries, tip)[::-1]
            lanes = [LanePointer(lane=MAIN, leaf_id=tip)]
        log: list[LogItem] = []
        for entry in copied:
            seq = len(log) + 1
            log.append(EntryItem(seq=seq, entry=replace(entry, seq=seq)))
        for pointer in lanes:
            if pointer != LanePointer(lane=MAIN, leaf_id=None):
                log.append(LaneItem(seq=len(log) + 1, lane=pointer.lane, leaf_id=pointer.leaf_id))
        name = await source.get_name()
        if name is not None:
            log.append(NameItem(seq=len(log) + 1, name=name))
        for target_id, label in (await source.get_labels()).items():
            if target_id in {entry.id for entry in copied}:
                log.append(LabelItem(seq=len(log) + 1, target_id=target_id, label=label))
        return self._create(log, id, source.metadata.cwd, {}, parent_session_id or source.id)

    async def snapshot(self, directory: Path) -> "NotebookRepo":
        copy = NotebookRepo(self._clock, self._ids)
        copy._stored = {key: Stored(one.metadata, list(one.log)) for key, one in self._stored.items()}
        return copy

    async def close(self) -> None:
        pass

    def _create(
        self,
        log: Sequence[LogItem],
        id: str | None,
        cwd: str | None,
        metadata: Mapping[str, JsonValue],
        parent: str | None,
    ) -> Session:
        session_id = self._ids.next() if id is None else id
        if not is_session_id(session_id):
            raise InvalidSessionId(session_id)
        if session_id in self._stored:
            raise SessionExists(f"a session {session_id} exists already")
        try:
            checked = canon(dict(metadata))
        except InvalidJson as error:
            raise InvalidPayload(str(error)) from None
        if cwd is not None and (not is_text(cwd) or "\0" in cwd):
            raise InvalidPayload("no working directory")
        assert isinstance(checked, dict)
        header = SessionMetadata(
            id=session_id,
            created_at=self._clock.now_ms(),
            cwd=None if cwd is None else os.path.abspath(cwd),
            parent_session_id=parent,
            metadata=checked,
        )
        self._stored[session_id] = Stored(header, [copied_item(item) for item in log])
        return self._session(self._stored[session_id], read_only=False)

    def _session(self, stored: Stored, *, read_only: bool) -> Session:
        stored.is_claimed = stored.is_claimed or not read_only
        return Session(NotebookStorage(stored, self._clock, read_only=read_only), id_generator=self._ids)

    def _get(self, session_id: str) -> Stored:
        if not is_session_id(session_id):
            raise InvalidSessionId(session_id)
        if session_id not in self._stored:
            raise SessionNotFound(f"no session {session_id}")
        return self._stored[session_id]


def from_url(
    rest: str,
    *,
    clock: WallClock | None = None,
    id_generator: IdGenerator | None = None,
    durability: Durability = "process",
) -> NotebookRepo:
    """What is registered for `notebook:`."""
    if rest:
        raise ValueError("notebook: takes nothing after the colon")
    return NotebookRepo(clock or SystemWallClock(), id_generator or Uuid7Ids())
