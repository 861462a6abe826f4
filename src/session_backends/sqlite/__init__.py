"""SQLite backend: many sessions in one database, one writer thread per database and process (harness-v2 §13)."""

from .files import UnsuitableFilesystem as UnsuitableFilesystem
from .files import sqlite_warning as sqlite_warning
from .repo import SqliteSessionRepo as SqliteSessionRepo
from .repo import from_url as from_url
