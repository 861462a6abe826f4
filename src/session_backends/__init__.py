"""Where sessions are kept: memory, JSONL files, SQLite, and backends of third parties.

A repository is made by its class, or by `open_repo` from an address. `session_backends.conformance` is the suite that
every backend passes.
"""

from typing import TYPE_CHECKING

from .memory import MemorySessionRepo as MemorySessionRepo
from .memory import MemoryStorage as MemoryStorage
from .urls import UnknownScheme as UnknownScheme
from .urls import open_repo as open_repo

if TYPE_CHECKING:
    from .jsonl.repo import JsonlSessionRepo as JsonlSessionRepo
    from .sqlite.repo import SqliteSessionRepo as SqliteSessionRepo

__all__ = [
    "JsonlSessionRepo",
    "MemorySessionRepo",
    "MemoryStorage",
    "SqliteSessionRepo",
    "UnknownScheme",
    "open_repo",
]


def __getattr__(name: str) -> object:
    # sqlite3 and the file locks of POSIX are imported by those who use them.
    match name:
        case "JsonlSessionRepo":
            from .jsonl.repo import JsonlSessionRepo

            return JsonlSessionRepo
        case "SqliteSessionRepo":
            from .sqlite.repo import SqliteSessionRepo

            return SqliteSessionRepo
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
