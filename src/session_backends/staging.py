"""What a write makes of a session, checked before anything is written (harness-v2 §13 "Contract rules").

Every rule about a mutation stands here once: live writes, replayed lines and imported forks all pass `check`.
"""

from dataclasses import dataclass
from typing import Protocol, assert_never

from agent_harness.errors import DuplicateId, InvalidWrite, LaneAlreadyExists, OperationOpen, UnknownEntry, UnknownLane
from agent_harness.session.storage import EntryItem, LabelItem, LaneItem, LogItem, NameItem, RecordItem
from agent_harness.types.codec import encode
from agent_harness.types.entries import Entry, ProvisionedEntry
from agent_harness.types.records import LaneRecord, NewRecord, OperationFinished, OperationStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One log item on its way into a session."""

    item: LogItem
    wire: bytes = b""  # entries and records: the committed item as JSON; what the state keeps
    lane: str | None = None  # entries: the lane whose leaf it becomes; None for an imported one


class View(Protocol):
    """What the rules need to know of a session: the committed state, or that and a batch on top."""

    @property
    def next_seq(self) -> int:
        """The sequence number of the next mutation."""
        ...

    def has_id(self, item_id: str) -> bool:
        """Whether an entry or a record has this id."""
        ...

    def has_entry(self, entry_id: str) -> bool:
        """Whether an entry has this id."""
        ...

    def has_lane(self, lane: str) -> bool:
        """Whether the lane exists."""
        ...

    def leaf_of(self, lane: str) -> str | None:
        """The leaf of an existing lane."""
        ...

    def open_operations(self, lane: str) -> tuple[str, ...]:
        """Ids of the unfinished operations of a lane, oldest first."""
        ...


def check(view: View, mutation: Mutation) -> None:
    """Refuse a mutation that no single writer can have made of this session.

    A second open operation passes: an import must be able to show that corruption (harness-v2 §13).

    Raises:
        InvalidWrite: and its subclasses, saying which rule is broken.
    """
    item = mutation.item
    if item.seq != view.next_seq:
        raise InvalidWrite(f"seq is {item.seq}, but {view.next_seq} is next")
    match item:
        case EntryItem(entry=entry):
            if mutation.lane is not None:
                _check_lane(view, mutation.lane)
                if entry.parent_id != view.leaf_of(mutation.lane):
                    raise InvalidWrite(f"parentId of entry {entry.id!r} is not the leaf of lane {mutation.lane!r}")
            elif entry.parent_id is not None:
                _check_entry(view, entry.parent_id)
            _check_new(view, entry.id)
        case RecordItem(record=record):
            _check_lane(view, record.lane)
            _check_new(view, record.id)
        case LaneItem(leaf_id=leaf_id):
            if leaf_id is not None:
                _check_entry(view, leaf_id)
        case LabelItem(target_id=target_id):
            _check_entry(view, target_id)
        case NameItem():
            pass
        case _:
            assert_never(item)


def _check_lane(view: View, lane: str) -> None:
    if not view.has_lane(lane):
        raise UnknownLane(lane)


def _check_entry(view: View, entry_id: str) -> None:
    if not view.has_entry(entry_id):
        raise UnknownEntry(entry_id)


def _check_new(view: View, item_id: str) -> None:
    if view.has_id(item_id):
        raise DuplicateId(item_id)


def open_after(item: LogItem, open_ids: tuple[str, ...]) -> tuple[str, ...]:
    """The lane's unfinished operations after `item`, which belongs to the lane."""
    match item:
        case RecordItem(record=LaneRecord(id=run_id, body=OperationStarted())):
            return (*open_ids, run_id)
        case RecordItem(record=LaneRecord(body=OperationFinished(run_id=run_id))):
            return tuple(open_id for open_id in open_ids if open_id != run_id)
        case _:
            return open_ids


class Staged:
    """A session plus the mutations of one batch that are not committed yet.

    A write queued behind another takes its parent and sequence number from here; dropping the object is all that
    a failed batch needs (decisions section 5). The methods build a checked mutation and add it.
    """

    def __init__(self, base: View) -> None:
        self._base = base
        self._next_seq = base.next_seq
        self._ids: set[str] = set()
        self._entries: set[str] = set()
        self._leaves: dict[str, str | None] = {}
        self._open: dict[str, tuple[str, ...]] = {}

    @property
    def next_seq(self) -> int:
        """See `View`."""
        return self._next_seq

    def has_id(self, item_id: str) -> bool:
        """See `View`."""
        return item_id in self._ids or self._base.has_id(item_id)

    def has_entry(self, entry_id: str) -> bool:
        """See `View`."""
        return entry_id in self._entries or self._base.has_entry(entry_id)

    def has_lane(self, lane: str) -> bool:
        """See `View`."""
        return lane in self._leaves or self._base.has_lane(lane)

    def leaf_of(self, lane: str) -> str | None:
        """See `View`."""
        return self._leaves[lane] if lane in self._leaves else self._base.leaf_of(lane)

    def open_operations(self, lane: str) -> tuple[str, ...]:
        """See `View`."""
        return self._open[lane] if lane in self._open else self._base.open_operations(lane)

    def append_entry(self, value: ProvisionedEntry, wire: bytes, lane: str, timestamp: int) -> Mutation:
        """An entry at the lane's leaf; `wire` is its sealed form.

        Raises:
            UnknownLane, DuplicateId.
        """
        _check_lane(self, lane)
        entry = Entry(
            id=value.id, seq=self._next_seq, parent_id=self.leaf_of(lane), timestamp=timestamp, body=value.body
        )
        place = encode({"parentId": entry.parent_id, "seq": entry.seq, "timestamp": timestamp})
        return self._add(
            Mutation(item=EntryItem(seq=entry.seq, entry=entry, lane=lane), wire=_join(wire, place), lane=lane)
        )

    def append_record(self, value: NewRecord, wire: bytes, timestamp: int) -> Mutation:
        """A record of its lane; `wire` is its sealed form.

        Raises:
            UnknownLane, DuplicateId, OperationOpen.
        """
        _check_lane(self, value.lane)
        _check_new(self, value.id)
        open_ids = self.open_operations(value.lane)
        if isinstance(value.body, OperationStarted) and open_ids:
            raise OperationOpen(value.lane, open_ids[-1])
        record = LaneRecord(id=value.id, lane=value.lane, seq=self._next_seq, timestamp=timestamp, body=value.body)
        place = encode({"seq": record.seq, "timestamp": timestamp})
        return self._add(Mutation(item=RecordItem(seq=record.seq, record=record), wire=_join(wire, place)))

    def create_lane(self, lane: str, at: str | None) -> Mutation:
        """A new lane.

        Raises:
            LaneAlreadyExists, UnknownEntry.
        """
        if self.has_lane(lane):
            raise LaneAlreadyExists(f"the session already has a lane {lane!r}")
        return self._add(Mutation(item=LaneItem(seq=self._next_seq, lane=lane, leaf_id=at)))

    def move_lane(self, lane: str, to: str | None) -> Mutation:
        """A jump of a lane's leaf.

        Raises:
            UnknownLane, UnknownEntry.
        """
        _check_lane(self, lane)
        return self._add(Mutation(item=LaneItem(seq=self._next_seq, lane=lane, leaf_id=to)))

    def set_name(self, name: str | None) -> Mutation:
        """The session's name."""
        return self._add(Mutation(item=NameItem(seq=self._next_seq, name=name)))

    def set_label(self, target_id: str, label: str | None) -> Mutation:
        """An entry's label.

        Raises:
            UnknownEntry.
        """
        return self._add(Mutation(item=LabelItem(seq=self._next_seq, target_id=target_id, label=label)))

    def _add(self, mutation: Mutation) -> Mutation:
        check(self, mutation)
        item = mutation.item
        self._next_seq += 1
        match item:
            case EntryItem(entry=entry):
                self._ids.add(entry.id)
                self._entries.add(entry.id)
                if mutation.lane is not None:
                    self._leaves[mutation.lane] = entry.id
            case RecordItem(record=record):
                self._ids.add(record.id)
                self._open[record.lane] = open_after(item, self.open_operations(record.lane))
            case LaneItem(lane=lane, leaf_id=leaf_id):
                self._leaves[lane] = leaf_id
            case NameItem() | LabelItem():
                pass
            case _:
                assert_never(item)
        return mutation


def _join(first: bytes, second: bytes) -> bytes:
    """Two JSON objects that are not empty, as one."""
    return first[:-1] + b"," + second[1:]
