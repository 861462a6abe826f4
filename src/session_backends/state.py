"""A session in memory: what memory and JSONL answer their queries from (harness-v2 §13).

Entries and records are kept as wire bytes and decoded for each read, so nothing a caller does with an answer reaches
the state. The fields that queries select by stand beside the bytes; no query decodes what it does not return, and
no query by lane, type, operation or sequence number scans the session.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Self, TypeAlias, TypeVar, assert_never, cast, get_args

from agent_harness.errors import UnknownEntry
from agent_harness.session.queries import BranchBounds, EntryQuery, RecordQuery
from agent_harness.session.stats import count_entry, count_record
from agent_harness.session.storage import (
    MAIN,
    EntryItem,
    LabelItem,
    LaneItem,
    LanePointer,
    LogItem,
    NameItem,
    RecordItem,
    SessionStats,
)
from agent_harness.types.codec import Wire, load_entry, load_record, parse
from agent_harness.types.entries import CustomBody, Entry, EntryType
from agent_harness.types.records import LaneRecord, OperationKind, OperationStarted, RecordType

from .staging import Mutation, open_after

_SLOT = {entry_type: slot for slot, entry_type in enumerate(get_args(EntryType))}


# Rows are never changed. They are not declared frozen, because that makes one cost three times as much, and a load
# makes one for each line.


@dataclass(slots=True, kw_only=True, eq=False)
class EntryRow:
    """An entry's bytes and what entries are selected by."""

    seq: int
    id: str
    type: EntryType
    custom_type: str | None
    lane: str | None
    wire: bytes = field(repr=False)
    parent: "EntryRow | None" = field(repr=False)
    above: "tuple[EntryRow | None, ...]" = field(repr=False)  # nearest ancestor of each type, in the order of _SLOT

    def next_up(self, entry_type: EntryType | None) -> "EntryRow | None":
        """The nearest ancestor, of one type if given."""
        return self.parent if entry_type is None else self.above[_SLOT[entry_type]]


@dataclass(slots=True, kw_only=True, eq=False)
class RecordRow:
    """A record's bytes and what records are selected by."""

    seq: int
    lane: str
    type: RecordType
    run_id: str | None
    operation_kind: OperationKind | None
    wire: bytes = field(repr=False)


Row: TypeAlias = EntryRow | RecordRow | LaneItem | NameItem | LabelItem
_RecordKey: TypeAlias = tuple[str | None, RecordType | None, OperationKind | None]

_NONE_ABOVE: tuple[EntryRow | None, ...] = (None,) * len(_SLOT)


class SessionState:
    """The committed content of one session. `apply` is the only way in; the caller has checked the mutation."""

    def __init__(self) -> None:
        self._log: list[Row] = []  # seq n stands at index n - 1
        self._entries: dict[str, EntryRow] = {}
        self._entries_by_type: dict[EntryType | None, list[EntryRow]] = {None: []}
        self._records: dict[str, RecordRow] = {}
        self._records_by_key: dict[_RecordKey, list[RecordRow]] = {}
        self._records_by_run: dict[str, list[RecordRow]] = {}
        self._leaves: dict[str, str | None] = {MAIN: None}
        self._open: dict[str, tuple[str, ...]] = {}
        self._name: str | None = None
        self._labels: dict[str, str] = {}
        self.stats = SessionStats()

    def copy(self) -> Self:
        """The same content, apart from later changes; rows are immutable and shared."""
        twin = type(self)()
        twin._log = self._log.copy()
        twin._entries = self._entries.copy()
        twin._entries_by_type = {key: rows.copy() for key, rows in self._entries_by_type.items()}
        twin._records = self._records.copy()
        twin._records_by_key = {key: rows.copy() for key, rows in self._records_by_key.items()}
        twin._records_by_run = {key: rows.copy() for key, rows in self._records_by_run.items()}
        twin._leaves = self._leaves.copy()
        twin._open = self._open.copy()
        twin._name = self._name
        twin._labels = self._labels.copy()
        twin.stats = self.stats
        return twin

    # The view that staging reads --------------------------------------------

    @property
    def last_seq(self) -> int:
        """The highest committed sequence number, 0 when empty."""
        return len(self._log)

    @property
    def next_seq(self) -> int:
        """See `staging.View`."""
        return len(self._log) + 1

    def has_id(self, item_id: str) -> bool:
        """See `staging.View`."""
        return item_id in self._entries or item_id in self._records

    def has_entry(self, entry_id: str) -> bool:
        """See `staging.View`."""
        return entry_id in self._entries

    def has_lane(self, lane: str) -> bool:
        """See `staging.View`."""
        return lane in self._leaves

    def leaf_of(self, lane: str) -> str | None:
        """See `staging.View`."""
        return self._leaves[lane]

    def open_operations(self, lane: str) -> tuple[str, ...]:
        """See `staging.View`."""
        return self._open.get(lane, ())

    # Writing ----------------------------------------------------------------

    def apply(self, mutation: Mutation) -> None:
        """Take in one committed mutation."""
        item = mutation.item
        match item:
            case EntryItem(entry=entry):
                self._add_entry(entry, mutation)
            case RecordItem(record=record):
                self._add_record(record, mutation)
                self._open[record.lane] = open_after(item, self.open_operations(record.lane))
            case LaneItem(lane=lane, leaf_id=leaf_id):
                self._leaves[lane] = leaf_id
                self._log.append(item)
            case NameItem(name=name):
                self._name = name
                self._log.append(item)
            case LabelItem(target_id=target_id, label=label):
                self._labels.pop(target_id, None)  # so that the answer is in the order of the newest facts
                if label is not None:
                    self._labels[target_id] = label
                self._log.append(item)
            case _:
                assert_never(item)

    def _add_entry(self, entry: Entry, mutation: Mutation) -> None:
        parent = None if entry.parent_id is None else self._entries[entry.parent_id]
        above = _NONE_ABOVE
        if parent is not None:
            slot = _SLOT[parent.type]
            above = (*parent.above[:slot], parent, *parent.above[slot + 1 :])
        row = EntryRow(
            seq=entry.seq,
            id=entry.id,
            type=entry.type,
            custom_type=entry.body.custom_type if isinstance(entry.body, CustomBody) else None,
            wire=mutation.wire,
            lane=mutation.lane,
            parent=parent,
            above=above,
        )
        self._log.append(row)
        self._entries[row.id] = row
        self._entries_by_type[None].append(row)
        self._entries_by_type.setdefault(row.type, []).append(row)
        if mutation.lane is not None:
            self._leaves[mutation.lane] = row.id
        self.stats = count_entry(self.stats, entry)

    def _add_record(self, record: LaneRecord, mutation: Mutation) -> None:
        kind = record.body.intent.kind if isinstance(record.body, OperationStarted) else None
        row = RecordRow(
            seq=record.seq,
            lane=record.lane,
            type=record.type,
            run_id=record.run_id,
            operation_kind=kind,
            wire=mutation.wire,
        )
        self._log.append(row)
        self._records[record.id] = row
        for lane in (None, row.lane):
            keys: list[_RecordKey] = [(lane, None, None), (lane, row.type, None)]
            if kind is not None:
                keys.append((lane, row.type, kind))
            for key in keys:
                self._records_by_key.setdefault(key, []).append(row)
        if row.run_id is not None:
            self._records_by_run.setdefault(row.run_id, []).append(row)
        self.stats = count_record(self.stats, record)

    # Reading ----------------------------------------------------------------

    def lanes(self) -> list[LanePointer]:
        """All lanes, `main` first, then by creation."""
        return [LanePointer(lane=lane, leaf_id=leaf_id) for lane, leaf_id in self._leaves.items()]

    @property
    def name(self) -> str | None:
        """The newest name."""
        return self._name

    def label(self, target_id: str) -> str | None:
        """The newest label of an entry."""
        return self._labels.get(target_id)

    def labels(self) -> dict[str, str]:
        """All current labels by entry id."""
        return self._labels.copy()

    def entry(self, entry_id: str) -> Entry | None:
        """Point lookup."""
        row = self._entries.get(entry_id)
        return None if row is None else read_entry(row.wire)

    def find_entries(self, query: EntryQuery) -> list[Entry]:
        """See `queries.select_entries`."""
        after, before = None, query.up_to_seq
        if query.cursor is not None and query.order == "oldestFirst":
            after = int(query.cursor)
        elif query.cursor is not None:
            before = min(query.cursor - 1, query.cursor - 1 if before is None else before)
        entry_type = "custom" if query.custom_type is not None else query.type
        rows = _between(self._entries_by_type.get(entry_type, []), after, before, newest=query.order == "newestFirst")
        return [read_entry(row.wire) for row in islice(_of_custom_type(rows, query), query.limit)]

    def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        """See `queries.select_on_branch`.

        Raises:
            UnknownEntry: `bounds.start` is no entry of this session.
        """
        start = self._entries.get(bounds.start)
        if start is None:
            raise UnknownEntry(bounds.start)
        if query.order == "newestFirst":
            rows = _walk_up(start, query, bounds)
        else:
            path = _path(start, bounds.after_seq)
            rows = (row for row in _until_stop(reversed(path), bounds) if _matches_type(row, query))
        matches = (row for row in _of_custom_type(rows, query) if _in_window(row, query))
        return [read_entry(row.wire) for row in islice(matches, query.limit)]

    def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        """See `queries.select_records`."""
        if query.run_id is not None:
            rows = self._records_by_run.get(query.run_id, [])
        else:
            rows = self._records_by_key.get((query.lane, query.type, query.operation_kind), [])
        window = _between(rows, query.after_seq, query.up_to_seq, newest=query.order == "newestFirst")
        matches = (
            row
            for row in window
            if query.lane in (None, row.lane)
            and query.type in (None, row.type)
            and query.operation_kind in (None, row.operation_kind)
        )
        return [read_record(row.wire) for row in islice(matches, query.limit)]

    def find_open_operations(self, lane: str, limit: int | None) -> list[LaneRecord]:
        """Unfinished operation starts of a lane, newest first."""
        newest_first = reversed(self.open_operations(lane))
        return [read_record(self._records[run_id].wire) for run_id in islice(newest_first, limit)]

    def log(self, after_seq: int, limit: int | None) -> list[LogItem]:
        """Everything above `after_seq`, in sequence order."""
        first = max(after_seq, 0)
        last = None if limit is None else first + limit
        return [_log_item(row) for row in self._log[first:last]]

    def mutations(self) -> Iterator[Mutation]:
        """The whole content again, entries advancing no lane, for writing a session out (harness-v2 §13, §17)."""
        for row in self._log:
            wire = row.wire if isinstance(row, EntryRow | RecordRow) else b""
            yield Mutation(item=_log_item(row), wire=wire)


def read_entry(wire: bytes) -> Entry:
    """Decode a kept entry; a line's own keys may stand among its keys."""
    value = cast("Wire", parse(wire))
    value.pop("kind", None)
    value.pop("lane", None)
    return load_entry(value)


def read_record(wire: bytes) -> LaneRecord:
    """Decode a kept record; a line's own key may stand among its keys."""
    value = cast("Wire", parse(wire))
    value.pop("kind", None)
    return load_record(value)


def _log_item(row: Row) -> LogItem:
    match row:
        case EntryRow():
            return EntryItem(seq=row.seq, entry=read_entry(row.wire), lane=row.lane)
        case RecordRow():
            return RecordItem(seq=row.seq, record=read_record(row.wire))
        case LaneItem() | NameItem() | LabelItem():
            return row
        case _:
            assert_never(row)


R = TypeVar("R", EntryRow, RecordRow)


def _between(rows: Sequence[R], after: int | None, up_to: int | None, *, newest: bool) -> Iterator[R]:
    """The rows with `after < seq <= up_to`, found by bisection."""
    first = 0 if after is None else bisect_right(rows, after, key=lambda row: row.seq)
    last = len(rows) if up_to is None else bisect_left(rows, up_to + 1, key=lambda row: row.seq)
    indexes = range(first, last)
    return (rows[index] for index in (reversed(indexes) if newest else indexes))


def _matches_type(row: EntryRow, query: EntryQuery) -> bool:
    return query.type in (None, row.type)


def _of_custom_type(rows: Iterable[EntryRow], query: EntryQuery) -> Iterator[EntryRow]:
    return (row for row in rows if query.custom_type in (None, row.custom_type))


def _in_window(row: EntryRow, query: EntryQuery) -> bool:
    if query.up_to_seq is not None and row.seq > query.up_to_seq:
        return False
    if query.cursor is None:
        return True
    return row.seq < query.cursor if query.order == "newestFirst" else row.seq > query.cursor


def _path(start: EntryRow, after_seq: int | None) -> list[EntryRow]:
    path: list[EntryRow] = []
    row: EntryRow | None = start
    while row is not None and (after_seq is None or row.seq > after_seq):
        path.append(row)
        row = row.parent
    return path


def _until_stop(walk: Iterable[EntryRow], bounds: BranchBounds) -> Iterator[EntryRow]:
    for row in walk:
        yield row
        if row.type == bounds.stop_at_type or row.id == bounds.stop_at_id:
            return


def _walk_up(start: EntryRow, query: EntryQuery, bounds: BranchBounds) -> Iterator[EntryRow]:
    """The path towards the root, jumping from match to match when only one type is asked for."""
    after = 0 if bounds.after_seq is None else bounds.after_seq
    wanted: EntryType | None = "custom" if query.custom_type is not None else query.type
    if bounds.stop_at_id is not None:
        # Whether that entry is on the path at all only the walk itself can tell.
        yield from (row for row in _until_stop(_path(start, bounds.after_seq), bounds) if wanted in (None, row.type))
        return
    if bounds.stop_at_type is not None:
        stop = start if start.type == bounds.stop_at_type else start.next_up(bounds.stop_at_type)
        after = max(after, 0 if stop is None else stop.seq - 1)
    row = start if wanted in (None, start.type) else start.next_up(wanted)
    while row is not None and row.seq > after:
        yield row
        row = row.next_up(wanted)
