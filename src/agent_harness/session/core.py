"""SessionCore: validation, id provisioning, the delivered bound and the fault of one opened session.

`Session` and its lane views are thin faces of this one object.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar

from ..errors import InvalidPayload, InvalidWrite, StorageError, UnknownEntry, UnknownLane
from ..types.codec import seal_entry, seal_record
from ..types.entries import Entry, MessageBody, ProvisionedEntry
from ..types.ids import IdGenerator
from ..types.json import InvalidJson, JsonValue, check_text, is_text
from ..types.messages import ExtensionMessage
from ..types.records import LaneRecord, NewRecord
from .observing import OBSERVER
from .queries import BranchBounds, EntryQuery, RecordQuery, check_limit, check_seq
from .storage import LogItem, OnEntry, OnRecord, OnSeq, SessionStorage

MessageValidator: TypeAlias = Callable[[Mapping[str, JsonValue]], object]
"""Checks the fields of a registered custom message; raises ValueError."""

T = TypeVar("T")
C = TypeVar("C", Entry, LaneRecord, int)
MAX_NAME = 4096
"""Longest session name, label or lane name, in characters."""


class SessionCore:
    """Every read is bounded by the last delivered sequence number, so that reads agree with events."""

    def __init__(
        self, storage: SessionStorage, id_generator: IdGenerator, message_types: Mapping[str, MessageValidator]
    ) -> None:
        self.storage = storage
        self.id_generator = id_generator
        self.message_types = dict(message_types)
        self.delivered_seq = storage.last_seq
        self.fault: StorageError | None = None
        self.observer = OBSERVER.get()
        if self.observer is not None:
            self.observer.opened(storage)

    # Writes ----------------------------------------------------------------

    async def append_entry(self, entry: ProvisionedEntry, lane: str, on_commit: OnEntry | None = None) -> Entry:
        self._check_message(entry)
        sealed = seal_entry(entry)
        _check_lane(lane)
        return await self._write(
            lambda: self.storage.append_entry(
                sealed, lane, lambda committed: self._deliver(committed.seq, committed, on_commit)
            )
        )

    async def append_record(self, record: NewRecord, on_commit: OnRecord | None = None) -> LaneRecord:
        _check_lane(record.lane)
        sealed = seal_record(record)
        return await self._write(
            lambda: self.storage.append_record(
                sealed, lambda committed: self._deliver(committed.seq, committed, on_commit)
            )
        )

    async def create_lane(self, lane: str, at: str | None, on_commit: OnSeq | None = None) -> None:
        check_name("lane name", lane)
        _check_entry(at)
        await self._write(lambda: self.storage.create_lane(lane, at, lambda seq: self._deliver(seq, seq, on_commit)))

    async def move_lane(self, lane: str, to: str | None, on_commit: OnSeq | None = None) -> None:
        _check_lane(lane)
        _check_entry(to)
        await self._write(lambda: self.storage.move_lane(lane, to, lambda seq: self._deliver(seq, seq, on_commit)))

    async def set_name(self, name: str | None, on_commit: OnSeq | None = None) -> None:
        line = None if name is None else one_line("session name", name)
        await self._write(lambda: self.storage.set_name(line, lambda seq: self._deliver(seq, seq, on_commit)))

    async def set_label(self, target_id: str, label: str | None, on_commit: OnSeq | None = None) -> None:
        line = None if label is None else one_line("label", label)
        _check_entry(target_id)
        await self._write(
            lambda: self.storage.set_label(target_id, line, lambda seq: self._deliver(seq, seq, on_commit))
        )

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        if self.fault is not None:
            raise self.fault
        try:
            return await write()
        except StorageError as error:
            # A failed write's outcome is unknown: this opening writes nothing more (decisions section 5).
            self.fault = self.fault or error
            raise

    def _deliver(self, seq: int, item: C, on_commit: Callable[[C], None] | None) -> None:
        self.delivered_seq = max(self.delivered_seq, seq)
        if self.observer is not None:
            self.observer.committed(self.storage, item)
        if on_commit is not None:
            on_commit(item)

    def _check_message(self, entry: ProvisionedEntry) -> None:
        if not isinstance(entry.body, MessageBody) or not isinstance(entry.body.message, ExtensionMessage):
            return
        message = entry.body.message
        validator = self.message_types.get(message.role)
        if validator is None:
            raise InvalidPayload(f"message role {message.role!r} is not registered; pass it in message_types")
        try:
            validator(message.fields)
        except ValueError:
            raise InvalidPayload(f"message of role {message.role!r} does not fit its registered type") from None

    # Reads -----------------------------------------------------------------

    async def get_entry(self, entry_id: str) -> Entry | None:
        entry = await self.storage.get_entry(entry_id) if is_text(entry_id) else None
        return entry if entry is not None and entry.seq <= self.delivered_seq else None

    async def get_label(self, target_id: str) -> str | None:
        return await self.storage.get_label(target_id) if is_text(target_id) else None

    async def find_entries(self, query: EntryQuery) -> list[Entry]:
        return await self.storage.find_entries(replace(query, up_to_seq=self.delivered_seq))

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        return await self.storage.find_entries_on_branch(replace(query, up_to_seq=self.delivered_seq), bounds)

    async def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        return await self.storage.find_records(replace(query, up_to_seq=self.delivered_seq))

    async def find_open_operations(self, lane: str, limit: int | None = None) -> list[LaneRecord]:
        check_limit(limit)
        return await self.storage.find_open_operations(lane, limit) if is_text(lane) else []

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        check_limit(limit)
        check_seq("after_seq", after_seq)
        bound = self.delivered_seq
        return [item for item in await self.storage.get_log(after_seq, limit) if item.seq <= bound]


# A name that is no text names nothing, in every backend; not every one could even look for it.


def _check_lane(lane: str) -> None:
    if not is_text(lane):
        raise UnknownLane(lane)


def _check_entry(entry_id: str | None) -> None:
    if entry_id is not None and not is_text(entry_id):
        raise UnknownEntry(entry_id)


def check_name(what: str, value: str) -> None:
    """Refuse a name that is empty, too long or not valid text.

    Raises:
        InvalidWrite: naming what is wrong.
    """
    if not value:
        raise InvalidWrite(f"{what} is empty")
    if len(value) > MAX_NAME:
        raise InvalidWrite(f"{what} is longer than {MAX_NAME} characters")
    try:
        check_text(value)
    except InvalidJson:
        raise InvalidWrite(f"{what} is not valid Unicode") from None


def one_line(what: str, value: str) -> str:
    """Line breaks become spaces (A-11)."""
    line = " ".join(value.splitlines()) if value.splitlines() != [value] else value
    if line:
        check_name(what, line)
    return line
