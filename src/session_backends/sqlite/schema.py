"""The tables, and whether a file holds exactly them (harness-v2 §13 "SQLite").

`branch_entries` and `branch_tips` are a private read cache; every other table is the session itself.
"""

import sqlite3
from functools import cache
from typing import Literal, LiteralString

from agent_harness.errors import CorruptSession, UnsupportedFormat

APPLICATION_ID = 0x41483034
"""Ours, in the file header: "AH04"."""

USER_VERSION = 1
"""Of this schema; a higher one is opened by nobody who does not know it."""

STATEMENTS: tuple[LiteralString, ...] = (
    """CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY NOT NULL,
        created_at INTEGER NOT NULL,
        cwd TEXT,
        parent_session_id TEXT,
        metadata BLOB NOT NULL
    )""",
    """CREATE TABLE session_sequences (
        session_id TEXT PRIMARY KEY NOT NULL,
        next_seq INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE session_stats (
        session_id TEXT PRIMARY KEY NOT NULL,
        message_count INTEGER NOT NULL,
        usage BLOB NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE entries (
        session_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        id TEXT NOT NULL,
        parent_id TEXT,
        type TEXT NOT NULL,
        custom_type TEXT,
        timestamp INTEGER NOT NULL,
        payload BLOB NOT NULL,
        lane TEXT
    )""",
    "CREATE UNIQUE INDEX entries_seq ON entries (session_id, seq)",
    "CREATE UNIQUE INDEX entries_id ON entries (session_id, id)",
    "CREATE INDEX entries_type ON entries (session_id, type, seq)",
    "CREATE INDEX entries_custom ON entries (session_id, custom_type, seq) WHERE custom_type IS NOT NULL",
    """CREATE TABLE records (
        session_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        id TEXT NOT NULL,
        lane TEXT NOT NULL,
        run_id TEXT,
        type TEXT NOT NULL,
        op_kind TEXT,
        timestamp INTEGER NOT NULL,
        payload BLOB NOT NULL
    )""",
    "CREATE UNIQUE INDEX records_seq ON records (session_id, seq)",
    "CREATE UNIQUE INDEX records_id ON records (session_id, id)",
    "CREATE INDEX records_lane ON records (session_id, lane, seq)",
    "CREATE INDEX records_lane_type ON records (session_id, lane, type, seq)",
    """CREATE INDEX records_lane_kind ON records (session_id, lane, type, op_kind, seq)
        WHERE op_kind IS NOT NULL""",
    "CREATE INDEX records_run ON records (session_id, run_id, seq) WHERE run_id IS NOT NULL",
    """CREATE TABLE lanes (
        session_id TEXT NOT NULL,
        lane TEXT NOT NULL,
        created_seq INTEGER NOT NULL,
        leaf_id TEXT,
        open_operation_id TEXT,
        PRIMARY KEY (session_id, lane)
    ) WITHOUT ROWID""",
    """CREATE TABLE lane_moves (
        session_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        lane TEXT NOT NULL,
        leaf_id TEXT,
        PRIMARY KEY (session_id, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE facts (
        session_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT,
        PRIMARY KEY (session_id, seq)
    ) WITHOUT ROWID""",
    "CREATE INDEX facts_latest ON facts (session_id, kind, key, seq)",
    """CREATE TABLE branch_entries (
        session_id TEXT NOT NULL,
        branch_id INTEGER NOT NULL,
        entry_seq INTEGER NOT NULL,
        entry_id TEXT NOT NULL,
        entry_type TEXT NOT NULL,
        custom_type TEXT,
        PRIMARY KEY (session_id, branch_id, entry_seq)
    ) WITHOUT ROWID""",
    "CREATE INDEX branch_entries_type ON branch_entries (session_id, branch_id, entry_type, entry_seq)",
    """CREATE INDEX branch_entries_custom ON branch_entries (session_id, branch_id, custom_type, entry_seq)
        WHERE custom_type IS NOT NULL""",
    "CREATE INDEX branch_entries_entry ON branch_entries (session_id, entry_id)",
    """CREATE TABLE branch_tips (
        session_id TEXT NOT NULL,
        tip_id TEXT NOT NULL,
        branch_id INTEGER NOT NULL,
        PRIMARY KEY (session_id, tip_id)
    ) WITHOUT ROWID""",
    """CREATE TABLE writer_leases (
        session_id TEXT PRIMARY KEY NOT NULL,
        owner_id TEXT,
        owner BLOB,
        fence INTEGER NOT NULL,
        beat INTEGER NOT NULL,
        ttl_ms INTEGER NOT NULL,
        expires_at_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
)

SESSION_TABLES: tuple[LiteralString, ...] = (
    "DELETE FROM branch_tips WHERE session_id = ?",
    "DELETE FROM branch_entries WHERE session_id = ?",
    "DELETE FROM facts WHERE session_id = ?",
    "DELETE FROM lane_moves WHERE session_id = ?",
    "DELETE FROM lanes WHERE session_id = ?",
    "DELETE FROM records WHERE session_id = ?",
    "DELETE FROM entries WHERE session_id = ?",
    "DELETE FROM session_stats WHERE session_id = ?",
    "DELETE FROM session_sequences WHERE session_id = ?",
    "DELETE FROM writer_leases WHERE session_id = ?",
    "DELETE FROM sessions WHERE session_id = ?",
)
"""What deleting a session is."""


def create(conn: sqlite3.Connection) -> None:
    """Make the tables, inside the caller's transaction: the header marks and the tables appear together."""
    for statement in STATEMENTS:
        conn.execute(statement)
    # Pragmas take no bound parameters; these are the two constants above, spelled as SQL literals.
    conn.execute("PRAGMA application_id = 0x41483034")
    conn.execute("PRAGMA user_version = 1")


def examine(conn: sqlite3.Connection) -> Literal["empty", "ours"]:
    """Whether the database is new or ours. Reads only.

    Raises:
        UnsupportedFormat: a newer version of ours.
        CorruptSession: another program's database, or one with other tables, triggers or views (T24).
    """
    found = objects(conn)
    application: int = conn.execute("PRAGMA application_id").fetchone()[0]
    version: int = conn.execute("PRAGMA user_version").fetchone()[0]
    if not found and application == 0 and version == 0:
        return "empty"
    if application != APPLICATION_ID:
        raise CorruptSession("the file is not a session database of agent-harness")
    if version > USER_VERSION:
        raise UnsupportedFormat(f"the session database has schema version {version}; this program reads {USER_VERSION}")
    if found != expected_objects():
        raise CorruptSession("the session database holds tables, triggers or views that are not those of its version")
    return "ours"


def objects(conn: sqlite3.Connection) -> frozenset[tuple[str, str, str]]:
    """Type, name and SQL of everything the database defines, SQLite's own tables left out."""
    rows = conn.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall()
    return frozenset((kind, name, sql) for kind, name, sql in rows if not name.startswith("sqlite_"))


@cache
def expected_objects() -> frozenset[tuple[str, str, str]]:
    """What `objects` gives for a database made by `create`."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    try:
        create(conn)
        return objects(conn)
    finally:
        conn.close()
