"""Every write of a session, as one function inside one transaction (harness-v2 §13, "Append plan").

Refusals raise before the first row is written; the caller's savepoint undoes the beat that went before.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from agent_harness.errors import DuplicateId, LaneAlreadyExists, OperationOpen, UnknownEntry, UnknownLane
from agent_harness.session.stats import count_entry, count_record
from agent_harness.session.storage import (
    MAIN,
    EntryItem,
    LabelItem,
    LaneItem,
    LogItem,
    NameItem,
    RecordItem,
    SessionMetadata,
    SessionStats,
)
from agent_harness.types.codec import Sealed, dump, dump_entry, encode
from agent_harness.types.entries import Entry, MessageBody, ProvisionedEntry
from agent_harness.types.json import JsonValue
from agent_harness.types.records import LaneRecord, NewRecord, OperationFinished, OperationStarted

from . import branches
from .queries import load_stats
from .schema import SESSION_TABLES

_COLUMNS = frozenset({"parentId", "seq", "timestamp"})
"""What storage assigned: in columns, not in the payload."""


def create_session(conn: sqlite3.Connection, metadata: SessionMetadata) -> None:
    """A new session with its lane `main` at the root."""
    fields: JsonValue = dict(metadata.metadata)
    conn.execute(
        "INSERT INTO sessions (session_id, created_at, cwd, parent_session_id, metadata) VALUES (?, ?, ?, ?, ?)",
        (metadata.id, metadata.created_at, metadata.cwd, metadata.parent_session_id, encode(fields)),
    )
    conn.execute("INSERT INTO session_sequences (session_id, next_seq) VALUES (?, 1)", (metadata.id,))
    conn.execute(
        "INSERT INTO session_stats (session_id, message_count, usage) VALUES (?, 0, ?)",
        (metadata.id, encode(dump(SessionStats().usage))),
    )
    conn.execute("INSERT INTO lanes (session_id, lane, created_seq) VALUES (?, ?, 0)", (metadata.id, MAIN))


def exists(conn: sqlite3.Connection, session_id: str) -> bool:
    """Whether the store holds the session."""
    return conn.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,)).fetchone() is not None


def delete_session(conn: sqlite3.Connection, session_id: str) -> None:
    """Remove every row of the session."""
    for statement in SESSION_TABLES:
        conn.execute(statement, (session_id,))


def append_entry(
    conn: sqlite3.Connection, session_id: str, sealed: Sealed[ProvisionedEntry], lane: str, timestamp: int
) -> Entry:
    """Append at the lane's leaf and make it the leaf.

    Raises:
        UnknownLane, DuplicateId.
    """
    place = _place(conn, session_id, lane, sealed.value.id)
    entry = Entry(
        id=sealed.value.id,
        seq=place.seq,
        parent_id=place.leaf_id,
        timestamp=timestamp,
        body=sealed.value.body,
    )
    _take_seq(conn, session_id)
    insert_entry(conn, session_id, entry, sealed.wire, lane)
    conn.execute("UPDATE lanes SET leaf_id = ? WHERE session_id = ? AND lane = ?", (entry.id, session_id, lane))
    if isinstance(entry.body, MessageBody):  # `count_entry`, in place: the usage stays as it is
        conn.execute("UPDATE session_stats SET message_count = message_count + 1 WHERE session_id = ?", (session_id,))
    return entry


def insert_entry(
    conn: sqlite3.Connection, session_id: str, entry: Entry, payload: bytes, lane: str | None = None
) -> None:
    """The entry's row and its place in the branch cache; `lane` is the one whose leaf it becomes."""
    custom_type = branches.custom_type_of(entry)
    conn.execute(
        """INSERT INTO entries (session_id, seq, id, parent_id, type, custom_type, timestamp, payload, lane)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (session_id, entry.seq, entry.id, entry.parent_id, entry.type, custom_type, entry.timestamp, payload, lane),
    )
    branches.append(conn, session_id, entry)


def append_record(conn: sqlite3.Connection, session_id: str, sealed: Sealed[NewRecord], timestamp: int) -> LaneRecord:
    """Append to a lane's operation log and keep its open-operation projection.

    Raises:
        UnknownLane, DuplicateId, OperationOpen.
    """
    new = sealed.value
    place = _place(conn, session_id, new.lane, new.id)
    if isinstance(new.body, OperationStarted) and place.open_id is not None:
        raise OperationOpen(new.lane, place.open_id)
    record = LaneRecord(id=new.id, lane=new.lane, seq=place.seq, timestamp=timestamp, body=new.body)
    _take_seq(conn, session_id)
    kind = new.body.intent.kind if isinstance(new.body, OperationStarted) else None
    conn.execute(
        """INSERT INTO records (session_id, seq, id, lane, run_id, type, op_kind, timestamp, payload)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            session_id,
            record.seq,
            record.id,
            record.lane,
            record.run_id,
            record.type,
            kind,
            timestamp,
            sealed.wire,
        ),
    )
    if isinstance(new.body, OperationStarted):
        _set_open(conn, session_id, new.lane, new.id)
    elif isinstance(new.body, OperationFinished) and place.open_id == new.body.run_id:
        _set_open(conn, session_id, new.lane, None)
    if new.body.type == "usage":
        _save_stats(conn, session_id, count_record(load_stats(conn, session_id), record))
    return record


def create_lane(conn: sqlite3.Connection, session_id: str, lane: str, at: str | None) -> int:
    """A permanent named pointer.

    Raises:
        LaneAlreadyExists, UnknownEntry.
    """
    if conn.execute("SELECT 1 FROM lanes WHERE session_id = ? AND lane = ?", (session_id, lane)).fetchone() is not None:
        raise LaneAlreadyExists(f"the session already has a lane {lane!r}")
    _check_entry(conn, session_id, at)
    seq = _next_seq(conn, session_id)
    conn.execute(
        "INSERT INTO lanes (session_id, lane, created_seq, leaf_id) VALUES (?, ?, ?, ?)", (session_id, lane, seq, at)
    )
    _log_move(conn, session_id, seq, lane, at)
    return seq


def move_lane(conn: sqlite3.Connection, session_id: str, lane: str, to: str | None) -> int:
    """Jump a lane's leaf.

    Raises:
        UnknownLane, UnknownEntry.
    """
    _check_lane(conn, session_id, lane)
    _check_entry(conn, session_id, to)
    seq = _next_seq(conn, session_id)
    conn.execute("UPDATE lanes SET leaf_id = ? WHERE session_id = ? AND lane = ?", (to, session_id, lane))
    _log_move(conn, session_id, seq, lane, to)
    return seq


def set_name(conn: sqlite3.Connection, session_id: str, name: str | None) -> int:
    """Set or clear the name; history is kept."""
    return _set_fact(conn, session_id, "name", "", name)


def set_label(conn: sqlite3.Connection, session_id: str, target_id: str, label: str | None) -> int:
    """Set or clear a label; history is kept.

    Raises:
        UnknownEntry.
    """
    _check_entry(conn, session_id, target_id)
    return _set_fact(conn, session_id, "label", target_id, label)


def import_items(conn: sqlite3.Connection, session_id: str, items: Sequence[LogItem]) -> None:
    """Fill a session that was just created with the items of a fork, numbered from 1 (harness-v2 §17)."""
    stats = SessionStats()
    for item in items:
        match item:
            case EntryItem(entry=entry):
                seq = _next_seq(conn, session_id)
                wire = dump_entry(entry)
                insert_entry(conn, session_id, entry, encode({k: wire[k] for k in wire if k not in _COLUMNS}))
                stats = count_entry(stats, entry)
            case LaneItem(lane=lane, leaf_id=leaf_id):
                place = move_lane if lane == MAIN else create_lane
                seq = place(conn, session_id, lane, leaf_id)
            case NameItem(name=name):
                seq = set_name(conn, session_id, name)
            case LabelItem(target_id=target_id, label=label):
                seq = set_label(conn, session_id, target_id, label)
            case RecordItem():
                raise AssertionError("a fork has no records")
            case _:
                assert_never(item)
        assert seq == item.seq, "a fork's items are numbered from 1"
    _save_stats(conn, session_id, stats)


def _check_lane(conn: sqlite3.Connection, session_id: str, lane: str) -> None:
    if conn.execute("SELECT 1 FROM lanes WHERE session_id = ? AND lane = ?", (session_id, lane)).fetchone() is None:
        raise UnknownLane(lane)


class _Place(NamedTuple):
    """Where the next item of a lane goes."""

    leaf_id: str | None
    open_id: str | None  # the lane's open operation
    seq: int


_PLACE = """SELECT leaf_id, open_operation_id, (SELECT next_seq FROM session_sequences WHERE session_id = ?1),
        EXISTS (SELECT 1 FROM entries WHERE session_id = ?1 AND id = ?3)
        OR EXISTS (SELECT 1 FROM records WHERE session_id = ?1 AND id = ?3)
    FROM lanes WHERE session_id = ?1 AND lane = ?2"""


def _place(conn: sqlite3.Connection, session_id: str, lane: str, new_id: str) -> _Place:
    row = conn.execute(_PLACE, (session_id, lane, new_id)).fetchone()
    if row is None:
        raise UnknownLane(lane)
    leaf_id, open_id, seq, taken = row
    if taken:
        raise DuplicateId(new_id)
    return _Place(leaf_id, open_id, seq)


def _check_entry(conn: sqlite3.Connection, session_id: str, entry_id: str | None) -> None:
    if entry_id is None:
        return
    found = conn.execute("SELECT 1 FROM entries WHERE session_id = ? AND id = ?", (session_id, entry_id)).fetchone()
    if found is None:
        raise UnknownEntry(entry_id)


def _next_seq(conn: sqlite3.Connection, session_id: str) -> int:
    seq: int = conn.execute("SELECT next_seq FROM session_sequences WHERE session_id = ?", (session_id,)).fetchone()[0]
    _take_seq(conn, session_id)
    return seq


def _take_seq(conn: sqlite3.Connection, session_id: str) -> None:
    conn.execute("UPDATE session_sequences SET next_seq = next_seq + 1 WHERE session_id = ?", (session_id,))


def _set_open(conn: sqlite3.Connection, session_id: str, lane: str, run_id: str | None) -> None:
    conn.execute("UPDATE lanes SET open_operation_id = ? WHERE session_id = ? AND lane = ?", (run_id, session_id, lane))


def _log_move(conn: sqlite3.Connection, session_id: str, seq: int, lane: str, leaf_id: str | None) -> None:
    conn.execute(
        "INSERT INTO lane_moves (session_id, seq, lane, leaf_id) VALUES (?, ?, ?, ?)", (session_id, seq, lane, leaf_id)
    )


def _set_fact(conn: sqlite3.Connection, session_id: str, kind: str, key: str, value: str | None) -> int:
    seq = _next_seq(conn, session_id)
    conn.execute(
        "INSERT INTO facts (session_id, seq, kind, key, value) VALUES (?, ?, ?, ?, ?)",
        (session_id, seq, kind, key, value),
    )
    return seq


def _save_stats(conn: sqlite3.Connection, session_id: str, stats: SessionStats) -> None:
    conn.execute(
        "UPDATE session_stats SET message_count = ?, usage = ? WHERE session_id = ?",
        (stats.message_count, encode(dump(stats.usage)), session_id),
    )
