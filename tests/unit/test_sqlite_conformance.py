"""The SQLite backend passes the suite of every backend when each write reaches the disk before it resolves."""

from pathlib import Path

from session_backends.conformance import BackendConformance
from session_backends.sqlite import SqliteSessionRepo


class TestSqlitePower(BackendConformance):
    """With a sync before each write resolves."""

    def make_repo(self, directory: Path) -> SqliteSessionRepo:
        """A database file in the folder."""
        return SqliteSessionRepo(directory / "s.db", durability="power")
