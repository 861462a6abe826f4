"""Queries over entries and records, and their pure semantics (harness-v2 §12, §13).

Backends may answer them from indexes; `select_*` here say what the answer is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NewType, TypeAlias, TypeVar, get_args

from ..errors import InvalidWrite, UnknownEntry
from ..types.entries import CustomBody, Entry, EntryType
from ..types.json import is_text
from ..types.records import LaneRecord, OperationKind, OperationStarted, RecordType

Order: TypeAlias = Literal["newestFirst", "oldestFirst"]

_LARGEST = 2**63 - 1

EntryCursor = NewType("EntryCursor", int)
"""Where the next page starts: the `seq` of the last entry of this page, exclusive, in the query's own order."""


class InvalidQuery(InvalidWrite):
    """A query that no backend answers: a limit below 1, an unknown type, a filter that does not apply or is no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryQuery:
    """Which entries. `custom_type` applies to type "custom"; `limit` is at least 1."""

    type: EntryType | None = None
    custom_type: str | None = None
    order: Order = "newestFirst"
    limit: int | None = None
    cursor: EntryCursor | None = None
    up_to_seq: int | None = None  # set by Session: nobody sees an entry before its event (decisions section 5)

    def __post_init__(self) -> None:
        _check_common(self.order, self.limit)
        if self.type is not None and self.type not in get_args(EntryType):
            raise InvalidQuery(f"unknown entry type {self.type!r}")
        if self.custom_type is not None and self.type not in (None, "custom"):
            raise InvalidQuery(f"custom_type does not apply to entries of type {self.type!r}")
        _check_filter("custom_type", self.custom_type)
        check_seq("cursor", self.cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchBounds:
    """Which part of a path: from `start` towards the root, ending after the first stop match, inclusive.

    `after_seq` is exclusive: an operation's own entries are those above its start (A-1).
    """

    start: str
    stop_at_type: EntryType | None = None
    stop_at_id: str | None = None
    after_seq: int | None = None

    def __post_init__(self) -> None:
        if self.stop_at_type is not None and self.stop_at_type not in get_args(EntryType):
            raise InvalidQuery(f"unknown entry type {self.stop_at_type!r}")
        if not is_text(self.start):
            raise UnknownEntry(self.start)
        _check_filter("stop_at_id", self.stop_at_id)
        check_seq("after_seq", self.after_seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """Which records. `operation_kind` is valid only with type "operation_started"; `after_seq` is exclusive."""

    lane: str | None = None
    type: RecordType | None = None
    run_id: str | None = None
    operation_kind: OperationKind | None = None
    after_seq: int | None = None
    order: Order = "newestFirst"
    limit: int | None = None
    up_to_seq: int | None = None  # set by Session

    def __post_init__(self) -> None:
        _check_common(self.order, self.limit)
        if self.type is not None and self.type not in get_args(RecordType):
            raise InvalidQuery(f"unknown record type {self.type!r}")
        if self.operation_kind is not None:
            if self.type != "operation_started":
                raise InvalidQuery("operation_kind needs type='operation_started'")
            if self.operation_kind not in get_args(OperationKind):
                raise InvalidQuery(f"unknown operation kind {self.operation_kind!r}")
        _check_filter("lane", self.lane)
        _check_filter("run_id", self.run_id)
        check_seq("after_seq", self.after_seq)


def _check_common(order: str, limit: int | None) -> None:
    if order not in get_args(Order):
        raise InvalidQuery(f"unknown order {order!r}")
    check_limit(limit)


def _check_filter(what: str, value: str | None) -> None:
    if value is not None and not is_text(value):
        raise InvalidQuery(f"{what} must be valid Unicode text, not {value!r}")


def check_seq(what: str, seq: int | None) -> None:
    """A sequence number to compare with fits in 64 bits.

    Raises:
        InvalidQuery: it does not.
    """
    if seq is not None and (type(seq) is not int or not -_LARGEST <= seq <= _LARGEST):
        raise InvalidQuery(f"{what} must be an integer of 64 bits, not {seq!r}")


def check_limit(limit: int | None) -> None:
    """A limit is at least 1.

    Raises:
        InvalidQuery: it is not.
    """
    if limit is not None and (type(limit) is not int or not 1 <= limit <= _LARGEST):
        raise InvalidQuery(f"limit must be a positive integer, not {limit!r}")


def entry_matches(query: EntryQuery, entry: Entry) -> bool:
    """Filters, cursor and sequence bound; not order and limit."""
    if query.type is not None and entry.type != query.type:
        return False
    if query.custom_type is not None:
        if not isinstance(entry.body, CustomBody) or entry.body.custom_type != query.custom_type:
            return False
    if query.up_to_seq is not None and entry.seq > query.up_to_seq:
        return False
    if query.cursor is None:
        return True
    return entry.seq < query.cursor if query.order == "newestFirst" else entry.seq > query.cursor


def record_matches(query: RecordQuery, record: LaneRecord) -> bool:
    """Filters and sequence bounds; not order and limit."""
    return (
        (query.lane is None or record.lane == query.lane)
        and (query.type is None or record.type == query.type)
        and (query.run_id is None or record.run_id == query.run_id)
        and (query.after_seq is None or record.seq > query.after_seq)
        and (query.up_to_seq is None or record.seq <= query.up_to_seq)
        and (
            query.operation_kind is None
            or (isinstance(record.body, OperationStarted) and record.body.intent.kind == query.operation_kind)
        )
    )


def select_entries(entries: Sequence[Entry], query: EntryQuery) -> list[Entry]:
    """`entries` in sequence order -> the answer."""
    ordered = reversed(entries) if query.order == "newestFirst" else iter(entries)
    return _limited((entry for entry in ordered if entry_matches(query, entry)), query.limit)


def select_records(records: Sequence[LaneRecord], query: RecordQuery) -> list[LaneRecord]:
    """`records` in sequence order -> the answer."""
    ordered = reversed(records) if query.order == "newestFirst" else iter(records)
    return _limited((record for record in ordered if record_matches(query, record)), query.limit)


def select_on_branch(path: Sequence[Entry], query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
    """`path` from the start towards the root -> the answer.

    The walk goes in `order` direction and stops after a stop match; filters, cursor and limit come after.
    """
    within = [entry for entry in path if bounds.after_seq is None or entry.seq > bounds.after_seq]
    walk = within if query.order == "newestFirst" else list(reversed(within))
    return _limited((entry for entry in until_stop(walk, bounds) if entry_matches(query, entry)), query.limit)


def until_stop(walk: Iterable[Entry], bounds: BranchBounds) -> Iterator[Entry]:
    """The walk up to and including the first entry that matches a stop."""
    for entry in walk:
        yield entry
        if entry.type == bounds.stop_at_type or entry.id == bounds.stop_at_id:
            return


T = TypeVar("T")


def _limited(items: Iterator[T], limit: int | None) -> list[T]:
    return list(items if limit is None else islice(items, limit))
