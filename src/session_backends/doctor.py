"""What may endanger the sessions of a store, as plain data: nothing is changed, claimed or made."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from agent_harness.errors import SessionError

from .jsonl.layout import SUFFIX, session_files, session_folders
from .jsonl.locks import lock_path
from .sqlite import leases
from .sqlite.files import FilesystemType, is_shared, mounted_type, open_reader, sqlite_warning

Severity: TypeAlias = Literal["problem", "note"]

_LOCK = ".lock"
_TEMPORARY_NAME = 36  # "." and 32 digits in front of ".tmp", less one
_SIDES = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know. `code` is stable, `message` says what to do about it."""

    code: str  # sqlite_version, shared_filesystem, not_private, unreadable, stale_lease, stale_lock, leftover
    severity: Severity
    path: str
    message: str


def examine(
    path: str | os.PathLike[str],
    *,
    filesystem_type: FilesystemType = mounted_type,
    sqlite_version: tuple[int, int, int] = sqlite3.sqlite_version_info[:3],
) -> list[Finding]:
    """Look at a store: a database file of `SqliteSessionRepo`, or the folder of a `JsonlSessionRepo`.

    A path that does not exist has nothing to find but the version of the SQLite library and the file system.
    """
    place = Path(path).absolute()
    found = list(_library(place, sqlite_version)) if not place.is_dir() else []
    found += _filesystem(place, filesystem_type)
    found += _folder_of_jsonl(place) if place.is_dir() else _database(place)
    return found


def _library(path: Path, version: tuple[int, int, int]) -> Iterator[Finding]:
    warning = sqlite_warning(version)
    if warning is not None:
        yield Finding(code="sqlite_version", severity="note", path=str(path), message=warning)


def _filesystem(path: Path, filesystem_type: FilesystemType) -> Iterator[Finding]:
    kind = filesystem_type(path.resolve())
    if not is_shared(kind):
        return
    what = "the locks of session files may not" if path.is_dir() else "SQLite's WAL mode does not"
    message = f"{path} is on a {kind} file system, where {what} hold between machines: use a local disk"
    yield Finding(code="shared_filesystem", severity="problem", path=str(path), message=message)


def _database(path: Path) -> Iterator[Finding]:
    if not path.exists():
        return
    if not path.is_file():
        message = f"{path} is not a regular file: no session can be in it"
        yield Finding(code="unreadable", severity="problem", path=str(path), message=message)
        return
    for side in _SIDES:
        yield from _private(Path(f"{path}{side}"))
    yield from _writable_folder(path.parent)
    # A connection of its own that cannot write: never the file itself, whose closing would drop SQLite's locks.
    try:
        conn = open_reader(path)
        if conn is None:
            return
        with closing(conn):
            names = [row[0] for row in conn.execute("SELECT session_id FROM writer_leases ORDER BY session_id")]
            held = {name: leases.read(conn, name) for name in names}
    except (sqlite3.Error, SessionError, OSError) as error:
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        yield Finding(code="unreadable", severity="problem", path=str(path), message=message)
        return
    for name, lease in held.items():
        if lease is not None and lease.owner is not None and leases.is_gone(lease.owner):
            message = f"session {name} is claimed by {lease.name}, which is gone: the next open takes it over"
            yield Finding(code="stale_lease", severity="note", path=str(path), message=message)


def _folder_of_jsonl(root: Path) -> Iterator[Finding]:
    yield from _writable_folder(root)
    for folder in session_folders(root):
        yield from _private(folder)
        files = list(session_files(folder))
        for path in files:
            yield from _private(path)
        yield from _leftovers(folder, {lock_path(path).name for path in files})


def _leftovers(folder: Path, locks: set[str]) -> Iterator[Finding]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        message = f"{folder}: {error.strerror}"
        yield Finding(code="unreadable", severity="problem", path=str(folder), message=message)
        return
    for name in names:
        path = folder / name
        if name.startswith(".") and name.endswith(SUFFIX + _LOCK) and name not in locks:
            message = f"{path} is the lock of a session that is not there; it can be removed"
            yield Finding(code="stale_lock", severity="note", path=str(path), message=message)
        elif name.startswith(".") and name.endswith(".tmp") and len(name) == _TEMPORARY_NAME + 1:
            message = f"{path} was left by a write that did not finish; it can be removed when nobody writes"
            yield Finding(code="leftover", severity="note", path=str(path), message=message)


def _private(path: Path) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        right = "700" if path.is_dir() else "600"
        message = f"{path} can be reached by other users (mode {mode:o}): chmod {right}"
        yield Finding(code="not_private", severity="problem", path=str(path), message=message)


def _writable_folder(folder: Path) -> Iterator[Finding]:
    mode = folder.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        message = f"{folder} is writable by other users (mode {stat.S_IMODE(mode):o}): chmod go-w"
        yield Finding(code="not_private", severity="problem", path=str(folder), message=message)
