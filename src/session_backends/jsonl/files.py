"""Every call that touches a session's files, made so that no name chosen by somebody else is followed (T3-T7)."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agent_harness.errors import CorruptSession, StorageError

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CHUNK = 1024 * 1024


class FileOps:
    """The calls that make data durable. A test counts them, or makes them fail, in a subclass."""

    def write(self, fd: int, data: bytes) -> int:
        """Append; returns how many bytes were taken."""
        return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """Cut back to `size` bytes."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Make a file's data survive power loss."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Make a created or renamed name survive power loss."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target`."""
        os.replace(source, target)


def open_regular(path: Path, *, append: bool = False) -> int:
    """Open a regular file that is not a symbolic link; never blocks on a FIFO.

    Raises:
        OSError: it cannot be opened.
        CorruptSession: it is no regular file, or may not be appended to safely.
    """
    fd = os.open(path, _SAFE | (os.O_RDWR | os.O_APPEND if append else os.O_RDONLY))
    info = os.fstat(fd)
    problem = None
    if not stat.S_ISREG(info.st_mode):
        problem = "not a regular file"
    elif append and info.st_uid != os.geteuid():
        problem = "owned by another user; open it read-only"
    elif append and info.st_nlink != 1:
        problem = f"it has {info.st_nlink} names (hard links); open it read-only or copy it"
    if problem is not None:
        os.close(fd)
        raise CorruptSession(f"{path}: {problem}")
    return fd


def read_chunks(fd: int) -> Iterator[bytes]:
    """The file from its start, piece by piece, up to the size it has now."""
    offset, size = 0, os.fstat(fd).st_size
    while chunk := os.pread(fd, min(_CHUNK, size - offset), offset):
        yield chunk
        offset += len(chunk)


def read_all(fd: int) -> bytes:
    """The whole file, from its start."""
    return b"".join(read_chunks(fd))


def read_head(path: Path, limit: int) -> tuple[bytes, os.stat_result]:
    """The first `limit` bytes of a regular file.

    Raises:
        OSError, CorruptSession: it cannot be opened.
    """
    fd = open_regular(path)
    try:
        return os.pread(fd, limit, 0), os.fstat(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path) -> list[Path]:
    """Create missing folders, each of them 0700 whatever the umask; returns those that were missing."""
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            continue
        path.chmod(FOLDER_MODE)
    return missing


def check_root(root: Path) -> None:
    """Refuse a folder that every user of the machine may change.

    Raises:
        StorageError: naming the way out.
    """
    mode = root.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise StorageError(f"{root} is writable by every user; chmod o-w it before keeping sessions there")


def write_new(folder: Path, data: bytes, *, ops: FileOps, sync: bool, mode: int = FILE_MODE) -> tuple[Path, int]:
    """A new file under a random name in `folder`; returns its path and a descriptor that appends.

    The name cannot be guessed and is never followed. The caller renames it.

    Raises:
        OSError: nothing is left behind.
    """
    path = folder / f".{secrets.token_hex(16)}.tmp"
    fd = os.open(path, _SAFE | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        os.fchmod(fd, mode)
        rest = memoryview(data)
        while rest:
            rest = rest[ops.write(fd, bytes(rest)) :]
        if sync:
            ops.sync(fd)
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            path.unlink()
        raise
    return path, fd
