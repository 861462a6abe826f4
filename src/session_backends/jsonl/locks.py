"""The writer claim of a JSONL session: flock on a side file that is never renamed (decisions section 5, T20)."""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

from agent_harness.errors import SessionLocked
from agent_harness.types.clock import WallClock

from .files import FILE_MODE

_MOMENTS, _MOMENT_S = 5, 0.01
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def lock_path(path: Path) -> Path:
    """The lock file of a session file, beside it; listings do not see it."""
    return path.with_name(f".{path.name}.lock")


class FileLock:
    """Held until `release`, or until the process dies."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd: int | None = fd
        self._pid = os.getpid()

    def release(self, *, remove: bool = False) -> None:
        """Let go; `remove` unlinks the file first, while it is held. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if os.getpid() == self._pid:
            if remove:
                with suppress(OSError):
                    self._path.unlink()
            # A child that was forked meanwhile shares this lock, so closing alone would not let go.
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def __del__(self) -> None:
        self.release()


def acquire(path: Path, session_id: str, clock: WallClock) -> FileLock:
    """Claim the session file at `path` for this process.

    Raises:
        SessionLocked: naming the owner as far as it is known.
        OSError: the lock file cannot be made.
    """
    side = lock_path(path)
    while True:
        fd = os.open(side, _FLAGS, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner_soon(fd)
            os.close(fd)
            raise SessionLocked(session_id, owner) from None
        except OSError:
            os.close(fd)
            raise
        if _is_current(side, fd):
            break
        os.close(fd)  # the previous owner deleted the session between our open and our lock
    lock = FileLock(side, fd)
    os.ftruncate(fd, 0)  # what it says is of an owner that is gone
    os.fchmod(fd, FILE_MODE)
    owner_line = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": clock.now_ms()})
    with suppress(OSError):  # only a name: on a full disk the claim holds all the same, and sessions can be deleted
        os.pwrite(fd, owner_line.encode(), 0)
    return lock


def _is_current(side: Path, fd: int) -> bool:
    try:
        found = os.stat(side, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (found.st_ino, found.st_dev) == (held.st_ino, held.st_dev)


def _owner_soon(fd: int) -> str:
    """The owner's name; one that has just taken the lock is given a moment to write it."""
    for _ in range(_MOMENTS):
        owner = _owner(fd)
        if owner is not None:
            return owner
        time.sleep(_MOMENT_S)
    return "another process"


def _owner(fd: int) -> str | None:
    try:
        value: object = json.loads(os.pread(fd, 4096, 0))
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict):
        return None
    owner = cast("dict[str, object]", value)
    return f"pid {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"
