"""Copies of a live database, by SQLite's own backup interface (decisions section 5, threat T19)."""

import sqlite3
from pathlib import Path

from .files import reserve
from .leases import clear_all


def copy_database(conn: sqlite3.Connection, target: Path) -> None:
    """Write the committed content to a new private file, without claims."""
    reserve(target, sync=False)
    copy = sqlite3.connect(target, isolation_level=None)
    try:
        conn.backup(copy)
        copy.execute("PRAGMA synchronous = OFF")
        clear_all(copy)
    finally:
        copy.close()
