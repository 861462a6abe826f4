"""The branch cache: every root path as a range of rows (harness-v2 §13, "Read plan" and "Append plan").

Two invariants: every entry is in at least one branch, and a branch ends only in an entry that was just appended. A
branch holds a full root path, so its rows in sequence order are that path. A branch's id is the `seq` of the entry
that opened it.
"""

import sqlite3
from typing import TypeAlias

from agent_harness.errors import CorruptSession
from agent_harness.types.entries import CustomBody, Entry

Row: TypeAlias = tuple[int, int, str, str, str | None]
"""branch_id, entry_seq, entry_id, entry_type, custom_type."""

_INSERT = """INSERT INTO branch_entries
    (session_id, branch_id, entry_seq, entry_id, entry_type, custom_type) VALUES (?, ?, ?, ?, ?, ?)"""

BRANCH_WITH = "SELECT branch_id, entry_seq FROM branch_entries WHERE session_id = ? AND entry_id = ? LIMIT 1"
"""Any branch that holds an entry, and the entry's place in it."""

MOVE_TIP = "UPDATE branch_tips SET tip_id = ? WHERE session_id = ? AND tip_id = ?"
"""To a new entry from its parent, where a branch ends there."""

APPEND_TO_BRANCH = """INSERT INTO branch_entries
    (session_id, branch_id, entry_seq, entry_id, entry_type, custom_type)
    SELECT session_id, branch_id, ?, tip_id, ?, ? FROM branch_tips WHERE session_id = ? AND tip_id = ?"""
"""The new tip, in the branch that ends in it."""

COPY_PATH = """INSERT INTO branch_entries (session_id, branch_id, entry_seq, entry_id, entry_type, custom_type)
    SELECT session_id, ?, entry_seq, entry_id, entry_type, custom_type FROM branch_entries
    WHERE session_id = ? AND branch_id = ? AND entry_seq <= ?"""


def append(conn: sqlite3.Connection, session_id: str, entry: Entry) -> None:
    """Put a new entry into the cache: one row where a branch ends at the parent, else a copy of the parent's path.

    Runs in the append's own transaction. The parent is in the cache, or None for a new root.
    """
    parent_id = entry.parent_id
    moved = 0 if parent_id is None else conn.execute(MOVE_TIP, (entry.id, session_id, parent_id)).rowcount
    if not moved:
        if parent_id is not None:
            source = conn.execute(BRANCH_WITH, (session_id, parent_id)).fetchone()
            if source is None:
                raise sqlite3.IntegrityError("the parent entry is missing from the branch cache")
            conn.execute(COPY_PATH, (entry.seq, session_id, *source))
        conn.execute(
            "INSERT INTO branch_tips (session_id, branch_id, tip_id) VALUES (?, ?, ?)",
            (session_id, entry.seq, entry.id),
        )
    conn.execute(APPEND_TO_BRANCH, (entry.seq, entry.type, custom_type_of(entry), session_id, entry.id))


def custom_type_of(entry: Entry) -> str | None:
    """What the index of custom entries holds."""
    return entry.body.custom_type if isinstance(entry.body, CustomBody) else None


def stored(conn: sqlite3.Connection, session_id: str) -> list[Row]:
    """The cache as it is."""
    return conn.execute(
        """SELECT branch_id, entry_seq, entry_id, entry_type, custom_type FROM branch_entries
        WHERE session_id = ? ORDER BY branch_id, entry_seq""",
        (session_id,),
    ).fetchall()


def stored_tips(conn: sqlite3.Connection, session_id: str) -> dict[str, int]:
    """Which branch ends at which entry, as it is."""
    rows = conn.execute("SELECT tip_id, branch_id FROM branch_tips WHERE session_id = ?", (session_id,)).fetchall()
    return dict(rows)


def derived(conn: sqlite3.Connection, session_id: str) -> tuple[list[Row], dict[str, int]]:
    """The cache as the parent pointers say it should be. Reads only; costs as much as the session is long.

    Raises:
        CorruptSession: a parent pointer leads nowhere.
    """
    entries = conn.execute(
        """SELECT parent_id, seq, id, type, custom_type FROM entries
        WHERE session_id = ? ORDER BY seq""",
        (session_id,),
    ).fetchall()
    paths: dict[str, int] = {}  # entry -> a branch that holds it
    branches: dict[int, list[Row]] = {}
    tips: dict[str, int] = {}
    for parent_id, seq, entry_id, entry_type, custom_type in entries:
        branch_id = tips.pop(parent_id, None) if parent_id is not None else None
        if branch_id is None:
            branch_id = seq
            branches[seq] = []
            if parent_id is not None:
                if parent_id not in paths:
                    raise CorruptSession(f"entry {entry_id!r} has a parent that is not before it: {parent_id!r}")
                for row in branches[paths[parent_id]]:
                    branches[seq].append((seq, *row[1:]))
                    if row[2] == parent_id:
                        break
        branches[branch_id].append((branch_id, seq, entry_id, entry_type, custom_type))
        tips[entry_id] = branch_id
        paths[entry_id] = branch_id
    return [row for branch_id in sorted(branches) for row in branches[branch_id]], tips


def is_sound(conn: sqlite3.Connection, session_id: str) -> bool:
    """Whether the cache is what the parent pointers say. Reads only."""
    return (stored(conn, session_id), stored_tips(conn, session_id)) == derived(conn, session_id)


def rebuild(conn: sqlite3.Connection, session_id: str) -> None:
    """Write the cache anew from the parent pointers, in the caller's transaction: an explicit repair, nothing else."""
    rows, tips = derived(conn, session_id)
    conn.execute("DELETE FROM branch_entries WHERE session_id = ?", (session_id,))
    conn.execute("DELETE FROM branch_tips WHERE session_id = ?", (session_id,))
    conn.executemany(_INSERT, [(session_id, *row) for row in rows])
    conn.executemany(
        "INSERT INTO branch_tips (session_id, branch_id, tip_id) VALUES (?, ?, ?)",
        [(session_id, branch_id, tip_id) for tip_id, branch_id in tips.items()],
    )
