"""The database file: private from its first byte, on a file system that WAL can trust, opened with safe settings."""

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from agent_harness.errors import CorruptSession, SessionError, StorageError
from agent_harness.session.storage import Durability

from .schema import APPLICATION_ID, create, examine

FileKey: TypeAlias = tuple[int, int]
"""Device and inode: what a database is, whatever path leads to it."""

FilesystemType: TypeAlias = Callable[[Path], str | None]

BUSY_SECONDS = 0.25
"""SQLite's own wait for a lock; longer waits are ours, so that a close never hangs in one."""

CREATE_SECONDS = 30.0
"""How long making or switching a new database may wait for other processes that do the same."""

_NETWORK = {
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
}
_CLUSTER = {"gfs2", "ocfs2"}
_HOST_SHARE = {"9p", "drvfs", "fuse", "osxfs", "prl_fs", "vboxsf", "virtiofs", "vmhgfs", "wslfs"}
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_SHARED = frozenset(_NETWORK | _CLUSTER | _HOST_SHARE)


class UnsuitableFilesystem(SessionError):
    """The path is on a network or shared file system, where WAL loses data; nothing was written."""


def sqlite_warning(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> str | None:
    """Why this SQLite library may lose a commit, for `doctor`; None when it has the fix of the WAL-reset bug."""
    fixed = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    if fixed or version < (3, 7):
        return None
    name = ".".join(str(part) for part in version)
    return f"SQLite {name} has the WAL-reset bug: let one process at a time write a database, or use 3.51.3 or newer"


def mounted_type(path: Path) -> str | None:
    """The file system type of the mount that holds `path`, from Linux's mount table; None where there is none."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    best, found = "", None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = mount == "/" or str(path) == mount or str(path).startswith(f"{mount}/")
        if inside and len(mount) >= len(best):
            best, found = mount, after.split(" ")[0]
    return found


def is_shared(kind: str | None) -> bool:
    """Whether other machines, or the host of this one, may use a file system of this type at the same time."""
    return kind is not None and (kind in _SHARED or kind.startswith("fuse."))


def check_filesystem(path: Path, filesystem_type: FilesystemType) -> None:
    """Refuse a database whose locks or shared memory other machines cannot see.

    Raises:
        UnsuitableFilesystem: naming path and type.
    """
    kind = filesystem_type(path)
    if is_shared(kind):
        raise UnsuitableFilesystem(f"{path} is on a {kind} file system, where SQLite's WAL mode is not safe")


def key_of(path: Path) -> FileKey | None:
    """The identity of a regular file, or None where there is no file.

    Raises:
        CorruptSession: the path is a folder, a device or a pipe.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        raise CorruptSession(f"{path} is not a regular file")
    return (found.st_dev, found.st_ino)


def reserve(path: Path, *, sync: bool) -> None:
    """Make an empty private file, and the folders it needs, unless it exists; `sync` makes their names durable.

    An existing file is never opened: closing its descriptor would drop SQLite's locks in this process (T19).
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        if sync:
            _sync_folder(folder.parent)
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        return
    if sync:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_writer(path: Path, durability: Durability) -> sqlite3.Connection:
    """The one writing and checkpointing connection; makes the tables in a new file and switches it to WAL.

    Raises:
        CorruptSession, UnsupportedFormat: not ours; nothing was written.
        StorageError: SQLite cannot open it.
    """
    _refuse_foreign(path)
    conn = _connect(path, "rw")
    try:
        if _examine_at_once(conn, CREATE_SECONDS) == "empty":
            _create_once(conn)
        _switch_to_wal(conn)
        conn.execute("PRAGMA journal_size_limit = 4194304").fetchone()
        set_synchronous(conn, durability)
    except BaseException:
        conn.close()
        raise
    return conn


def open_reader(path: Path) -> sqlite3.Connection | None:
    """A connection that cannot write; None while the file is still empty, or being made.

    Raises:
        CorruptSession, UnsupportedFormat: not ours.
    """
    if path.stat().st_size == 0 or _journal_header(path):
        return None  # a connection that cannot write cannot roll back either; no session can be in it yet
    _refuse_foreign(path)
    conn = _connect(path, "ro")
    try:
        conn.execute("PRAGMA query_only = ON")
        if _examine_at_once(conn, 0) == "ours":
            return conn
    except BaseException:
        conn.close()
        raise
    conn.close()
    return None


def set_synchronous(conn: sqlite3.Connection, durability: Durability) -> None:
    """Whether the next commits reach the disk before they resolve."""
    conn.execute("PRAGMA synchronous = FULL" if durability == "power" else "PRAGMA synchronous = NORMAL")


def _connect(path: Path, mode: str, *, immutable: bool = False) -> sqlite3.Connection:
    # Encoded as the file system has it: a folder's name need not be UTF-8.
    uri = f"file:{quote(os.fsencode(path))}?mode={mode}{'&immutable=1' if immutable else ''}"
    try:
        conn = sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS, cached_statements=256, check_same_thread=True
        )
    except sqlite3.Error as error:
        raise StorageError(f"cannot open {path}: {error}") from error
    try:
        conn.execute("PRAGMA trusted_schema = OFF").fetchone()
        conn.execute("PRAGMA cell_size_check = ON").fetchone()
        conn.execute("PRAGMA mmap_size = 0").fetchone()
    except BaseException:
        conn.close()
        raise
    return conn


def _refuse_foreign(path: Path) -> None:
    # Looking with `immutable` takes no lock and makes no side file, so a stranger's database stays as it is. A file
    # that another process is just making may look odd for a moment: only a lasting oddity is a stranger.
    for last in (False, False, True):
        if path.stat().st_size == 0 or _is_half_made(path):
            return  # SQLite's rollback empties it, and takes nothing away
        conn = _connect(path, "ro", immutable=True)
        try:
            # After power loss in a checkpoint the file alone may be shorter than its first page says; the log has it.
            conn.execute("PRAGMA writable_schema = ON").fetchone()
            if conn.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
                return
        except sqlite3.DatabaseError as error:
            if last:
                raise CorruptSession(f"{path} is not a session database: {error}") from None
        finally:
            conn.close()
        if not last:
            time.sleep(0.05)
    raise CorruptSession(f"{path} is not a session database of agent-harness")


def _journal_header(path: Path) -> bytes:
    """The first bytes of the rollback journal of an unfinished transaction; empty without one.

    Only the making of a store uses such a journal, later there is WAL: power loss can leave it in the midst of that.
    """
    try:
        descriptor = os.open(f"{path}-journal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        header = os.pread(descriptor, 28, 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return b"" if header.startswith(b"\0") else header  # as SQLite itself tells a finished one


def _is_half_made(path: Path) -> bool:
    """Whether the file was empty when its unfinished transaction began: rolling that back takes nothing away."""
    header = _journal_header(path)
    # https://www.sqlite.org/fileformat.html#the_rollback_journal: the magic, a count, a nonce, the size in pages.
    return len(header) == 28 and header.startswith(_JOURNAL_MAGIC) and header[16:20] == bytes(4)


def _examine_at_once(conn: sqlite3.Connection, seconds: float) -> Literal["empty", "ours"]:
    """See `examine`. One transaction, or the tables of one moment are held against the marks of another."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            conn.execute("BEGIN")
            try:
                return examine(conn)
            finally:
                if conn.in_transaction:
                    conn.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _create_once(conn: sqlite3.Connection) -> None:
    # In rollback-journal mode, so that marks and tables are in the main file as soon as they exist at all.
    begin(conn, CREATE_SECONDS)
    try:
        if examine(conn) == "empty":
            create(conn)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def _switch_to_wal(conn: sqlite3.Connection) -> None:
    deadline = time.monotonic() + CREATE_SECONDS
    while True:
        try:
            mode: str = conn.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise UnsuitableFilesystem(f"SQLite cannot use WAL here (journal mode {mode!r})")
        return


def begin(conn: sqlite3.Connection, seconds: float) -> None:
    """Start a write transaction, waiting up to `seconds` for other processes.

    Raises:
        sqlite3.OperationalError: still busy, or the file cannot be read; nothing was written.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        return


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether another connection holds the lock: worth another try, since nothing was done."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
