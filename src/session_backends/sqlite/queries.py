"""Every read of a session, as SQL that is an index seek and a bounded scan (harness-v2 §13, "Read plan").

Each function runs inside one read transaction and drains its cursors. Statements are put together from literals of
this module alone (`LiteralString`); values are bound.
"""

import heapq
import sqlite3
from operator import attrgetter, itemgetter
from typing import LiteralString

import orjson

from agent_harness.errors import CorruptSession, SessionNotFound, UnknownEntry
from agent_harness.session.queries import BranchBounds, EntryQuery, RecordQuery
from agent_harness.session.storage import (
    EntryItem,
    LabelItem,
    LaneItem,
    LogItem,
    NameItem,
    RecordItem,
    SessionMetadata,
    SessionStats,
)
from agent_harness.types.codec import Wire, WireError, load_entry, load_record, load_usage, parse
from agent_harness.types.entries import Entry
from agent_harness.types.records import LaneRecord

from .branches import BRANCH_WITH
from .live import LaneState, Live

Params = list[str | int | None]

_ENTRY: LiteralString = "SELECT seq, parent_id, timestamp, payload FROM entries WHERE "
_RECORD: LiteralString = "SELECT seq, timestamp, payload FROM records WHERE "
_BRANCH: LiteralString = """SELECT e.seq, e.parent_id, e.timestamp, e.payload
    FROM branch_entries b CROSS JOIN entries e ON e.session_id = b.session_id AND e.seq = b.entry_seq WHERE """
_METADATA: LiteralString = """SELECT s.session_id, s.created_at, s.cwd, s.parent_session_id, s.metadata,
    (SELECT f.value FROM facts f INDEXED BY facts_latest
     WHERE f.session_id = s.session_id AND f.kind = 'name' AND f.key = ''
     ORDER BY f.seq DESC LIMIT 1) FROM sessions s """

ALL = -1
"""As a LIMIT: no limit."""


def load_live(conn: sqlite3.Connection, session_id: str) -> tuple[SessionMetadata, Live]:
    """What an opening keeps in memory: header, lanes, statistics, last sequence number.

    Raises:
        SessionNotFound.
    """
    found = conn.execute(METADATA_ONE, (session_id,)).fetchone()
    if found is None:
        raise SessionNotFound(f"no session {session_id!r}")
    lanes = conn.execute(
        "SELECT lane, leaf_id, open_operation_id FROM lanes WHERE session_id = ? ORDER BY created_seq", (session_id,)
    ).fetchall()
    next_seq: int = conn.execute(
        "SELECT next_seq FROM session_sequences WHERE session_id = ?", (session_id,)
    ).fetchone()[0]
    live = Live(
        last_seq=next_seq - 1,
        lanes={lane: LaneState(leaf_id=leaf, open_operation_id=run) for lane, leaf, run in lanes},
        stats=load_stats(conn, session_id),
    )
    return _metadata(found), live


def list_sessions(conn: sqlite3.Connection, cwd: str | None) -> list[SessionMetadata]:
    """Headers, newest first."""
    rows = (conn.execute(LIST_ALL) if cwd is None else conn.execute(LIST_CWD, (cwd,))).fetchall()
    return [_metadata(row) for row in rows]


METADATA_ONE: LiteralString = _METADATA + "WHERE s.session_id = ?"
LIST_ALL: LiteralString = _METADATA + "ORDER BY s.created_at DESC, s.rowid DESC"
LIST_CWD: LiteralString = _METADATA + "WHERE s.cwd = ? ORDER BY s.created_at DESC, s.rowid DESC"


def load_stats(conn: sqlite3.Connection, session_id: str) -> SessionStats:
    """The running projection."""
    count, usage = conn.execute(
        "SELECT message_count, usage FROM session_stats WHERE session_id = ?", (session_id,)
    ).fetchone()
    return SessionStats(message_count=count, usage=load_usage(parse(usage)))


def get_entry(conn: sqlite3.Connection, session_id: str, entry_id: str) -> Entry | None:
    """Point lookup."""
    row = conn.execute(ENTRY_BY_ID, (session_id, entry_id)).fetchone()
    return None if row is None else _entry(row)


ENTRY_BY_ID: LiteralString = _ENTRY + "session_id = ? AND id = ?"
RECORD_BY_ID: LiteralString = _RECORD + "session_id = ? AND id = ?"


def get_record(conn: sqlite3.Connection, session_id: str, record_id: str) -> LaneRecord | None:
    """Point lookup."""
    row = conn.execute(RECORD_BY_ID, (session_id, record_id)).fetchone()
    return None if row is None else _record(row)


def find_entries(conn: sqlite3.Connection, session_id: str, query: EntryQuery) -> list[Entry]:
    """See `queries.select_entries`."""
    sql, params = entries_sql(session_id, query)
    return [_entry(row) for row in conn.execute(sql, params).fetchall()]


def entries_sql(session_id: str, query: EntryQuery) -> tuple[LiteralString, Params]:
    """The statement and its values."""
    where: list[LiteralString] = ["session_id = ?"]
    params: Params = [session_id]
    if query.custom_type is not None:
        where.append("custom_type = ?")
        params.append(query.custom_type)
    elif query.type is not None:
        where.append("type = ?")
        params.append(query.type)
    low, high = _window(query)
    where.append("seq > ? AND seq < ?")
    params += [low, high, query.limit or ALL]
    order: LiteralString = " ORDER BY seq DESC LIMIT ?" if query.order == "newestFirst" else " ORDER BY seq LIMIT ?"
    return _ENTRY + " AND ".join(where) + order, params


def find_entries_on_branch(
    conn: sqlite3.Connection, session_id: str, query: EntryQuery, bounds: BranchBounds
) -> list[Entry]:
    """See `queries.select_on_branch`: a path is one range of one branch."""
    found = conn.execute(BRANCH_WITH, (session_id, bounds.start)).fetchone()
    if found is None:
        raise UnknownEntry(bounds.start)
    branch_id, start = found
    low, high = bounds.after_seq or 0, start + 1  # exclusive both
    newest = query.order == "newestFirst"
    by_type = STOP_NEWEST if newest else STOP_OLDEST
    found_stops = (
        _stop(conn, by_type, (session_id, branch_id, bounds.stop_at_type, low, high)),
        _stop(conn, STOP_ID, (session_id, branch_id, bounds.stop_at_id, low, high)),
    )
    stops = [seq for seq in found_stops if seq is not None]
    if stops and newest:
        low = max(stops) - 1
    elif stops:
        high = min(stops) + 1
    sql, params = branch_sql(session_id, branch_id, low, high, query)
    return [_entry(row) for row in conn.execute(sql, params).fetchall()]


def branch_sql(session_id: str, branch_id: int, low: int, high: int, query: EntryQuery) -> tuple[LiteralString, Params]:
    """The range of one branch between `low` and `high`, both exclusive."""
    where: list[LiteralString] = ["b.session_id = ? AND b.branch_id = ?"]
    params: Params = [session_id, branch_id]
    if query.custom_type is not None:
        where.append("b.custom_type = ?")
        params.append(query.custom_type)
    elif query.type is not None:
        where.append("b.entry_type = ?")
        params.append(query.type)
    page_low, page_high = _window(query)
    where.append("b.entry_seq > ? AND b.entry_seq < ?")
    params += [max(low, page_low), min(high, page_high), query.limit or ALL]
    order: LiteralString = (
        " ORDER BY b.entry_seq DESC LIMIT ?" if query.order == "newestFirst" else " ORDER BY b.entry_seq LIMIT ?"
    )
    return _BRANCH + " AND ".join(where) + order, params


STOP_NEWEST: LiteralString = """SELECT entry_seq FROM branch_entries WHERE session_id = ? AND branch_id = ?
    AND entry_type = ? AND entry_seq > ? AND entry_seq < ? ORDER BY entry_seq DESC LIMIT 1"""
STOP_OLDEST: LiteralString = """SELECT entry_seq FROM branch_entries WHERE session_id = ? AND branch_id = ?
    AND entry_type = ? AND entry_seq > ? AND entry_seq < ? ORDER BY entry_seq LIMIT 1"""
STOP_ID: LiteralString = """SELECT entry_seq FROM branch_entries WHERE session_id = ? AND branch_id = ?
    AND entry_id = ? AND entry_seq > ? AND entry_seq < ?"""


def _stop(conn: sqlite3.Connection, sql: LiteralString, values: tuple[str, int, str | None, int, int]) -> int | None:
    row = None if values[2] is None else conn.execute(sql, values).fetchone()
    return None if row is None else row[0]


def find_records(conn: sqlite3.Connection, session_id: str, query: RecordQuery) -> list[LaneRecord]:
    """See `queries.select_records`."""
    sql, params = records_sql(session_id, query)
    return [_record(row) for row in conn.execute(sql, params).fetchall()]


def records_sql(session_id: str, query: RecordQuery) -> tuple[LiteralString, Params]:
    """The statement and its values."""
    where: list[LiteralString] = ["session_id = ?"]
    params: Params = [session_id]
    if query.lane is not None:
        where.append("lane = ?")
        params.append(query.lane)
    if query.type is not None:
        where.append("type = ?")
        params.append(query.type)
    if query.operation_kind is not None:
        where.append("op_kind = ?")
        params.append(query.operation_kind)
    if query.run_id is not None:
        where.append("run_id = ?")
        params.append(query.run_id)
    where.append("seq > ? AND seq < ?")
    params += [query.after_seq or 0, _above(query.up_to_seq), query.limit or ALL]
    order: LiteralString = " ORDER BY seq DESC LIMIT ?" if query.order == "newestFirst" else " ORDER BY seq LIMIT ?"
    return _RECORD + " AND ".join(where) + order, params


LOG_ENTRIES: LiteralString = (
    "SELECT seq, parent_id, timestamp, payload, lane FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
)
LOG_RECORDS: LiteralString = _RECORD + "session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
LOG_LANES: LiteralString = (
    "SELECT seq, lane, leaf_id FROM lane_moves WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
)
LOG_FACTS: LiteralString = (
    "SELECT seq, kind, key, value FROM facts WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
)


def get_log(conn: sqlite3.Connection, session_id: str, after_seq: int, limit: int | None) -> list[LogItem]:
    """Everything above `after_seq`, merged by sequence number."""
    values = (session_id, after_seq, limit or ALL)
    parts: list[list[LogItem]] = [
        [
            EntryItem(seq=row[0], entry=_entry(row[:4]), lane=row[4])
            for row in conn.execute(LOG_ENTRIES, values).fetchall()
        ],
        [RecordItem(seq=row[0], record=_record(row)) for row in conn.execute(LOG_RECORDS, values).fetchall()],
        [LaneItem(seq=row[0], lane=row[1], leaf_id=row[2]) for row in conn.execute(LOG_LANES, values).fetchall()],
        [_fact(row) for row in conn.execute(LOG_FACTS, values).fetchall()],
    ]
    return list(heapq.merge(*parts, key=attrgetter("seq")))[:limit]


FACT: LiteralString = """SELECT value FROM facts INDEXED BY facts_latest
    WHERE session_id = ? AND kind = ? AND key = ? AND seq <= ?
    ORDER BY seq DESC LIMIT 1"""
LABELS: LiteralString = """SELECT key, value, max(seq) FROM facts INDEXED BY facts_latest
    WHERE session_id = ? AND kind = 'label' AND seq <= ?
    GROUP BY key"""


def get_fact(conn: sqlite3.Connection, session_id: str, kind: str, key: str, up_to_seq: int) -> str | None:
    """The newest value of a fact; None when it was cleared or never set."""
    row = conn.execute(FACT, (session_id, kind, key, up_to_seq)).fetchone()
    return None if row is None else row[0]


def get_labels(conn: sqlite3.Connection, session_id: str, up_to_seq: int) -> dict[str, str]:
    """All current labels, in the order of their newest facts.

    SQLite takes the bare column from the row that holds the maximum.
    """
    rows = conn.execute(LABELS, (session_id, up_to_seq)).fetchall()
    return {key: value for key, value, _ in sorted(rows, key=itemgetter(2)) if value is not None}


def _window(query: EntryQuery) -> tuple[int, int]:
    low, high = 0, _above(query.up_to_seq)
    if query.cursor is None:
        return low, high
    return (low, min(high, query.cursor)) if query.order == "newestFirst" else (query.cursor, high)


def _above(up_to_seq: int | None) -> int:
    return 2**62 if up_to_seq is None else up_to_seq + 1


def _entry(row: tuple[int, str | None, int, bytes]) -> Entry:
    seq, parent_id, timestamp, payload = row
    try:
        wire: Wire = parse(payload)
        return load_entry({**wire, "parentId": parent_id, "seq": seq, "timestamp": timestamp})
    except (WireError, TypeError) as error:
        raise CorruptSession(f"entry at sequence number {seq} cannot be read: {error}") from None


def _record(row: tuple[int, int, bytes]) -> LaneRecord:
    seq, timestamp, payload = row
    try:
        wire: Wire = parse(payload)
        return load_record({**wire, "seq": seq, "timestamp": timestamp})
    except (WireError, TypeError) as error:
        raise CorruptSession(f"record at sequence number {seq} cannot be read: {error}") from None


def _fact(row: tuple[int, str, str, str | None]) -> LogItem:
    seq, kind, key, value = row
    if kind == "name":
        return NameItem(seq=seq, name=value)
    return LabelItem(seq=seq, target_id=key, label=value)


def _metadata(row: tuple[str, int, str | None, str | None, bytes, str | None]) -> SessionMetadata:
    session_id, created_at, cwd, parent, metadata, name = row
    return SessionMetadata(
        id=session_id,
        created_at=created_at,
        cwd=cwd,
        parent_session_id=parent,
        metadata=orjson.loads(metadata),
        name=name,
    )
