"""The journal of a JSONL session: one `os.write` per line on a descriptor it keeps (decisions section 5)."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agent_harness.errors import StorageError
from agent_harness.session.storage import Durability

from ..staging import Mutation, Staged
from ..write_queue import Draft, Landed
from .conversion import Conversion
from .files import FileOps
from .lines import line_of
from .locks import FileLock


class FileJournal:
    """Appends to one session file, whose claim it holds.

    A failed write faults the opening: nothing is retried and nothing more is written. A short write is cut back to
    the acknowledged end once, unless a sync has failed.
    """

    def __init__(
        self,
        *,
        path: Path,
        fd: int,
        lock: FileLock,
        end: int,
        newline_missing: bool,
        durability: Durability,
        ops: FileOps,
        conversion: Conversion | None = None,
    ) -> None:
        self._path = path
        self._fd: int | None = fd
        self._lock = lock
        self._end = end  # of the last acknowledged line
        self._lead = b"\n" if newline_missing else b""
        self._power = durability == "power"
        self._ops = ops
        self._conversion = conversion

    @property
    def blocking(self) -> bool:
        """See `Journal`: a line into the page cache takes microseconds, a sync milliseconds."""
        return self._power or self._conversion is not None

    def prelude(self, staged: Staged) -> Sequence[Draft[object]]:
        """See `Journal`."""
        return () if self._conversion is None else (self._conversion.adjustment(staged),)

    def persist(self, mutations: Sequence[Mutation]) -> Landed:
        """See `Journal`."""
        done = 0
        try:
            if self._fd is None:
                raise StorageError(f"{self._path}: the file is closed")
            self._check_same_file(self._fd)
            if self._conversion is not None:
                self._convert(self._fd, self._conversion, mutations[0])
                done = 1
        except (OSError, StorageError) as error:
            return Landed(0, _fault(self._path, error))
        fault: StorageError | None = None
        wrote = False
        for mutation in mutations[done:]:
            try:
                self._append(self._fd, self._lead + line_of(mutation) + b"\n")
            except (OSError, StorageError) as error:
                fault = _fault(self._path, error)
                break
            self._lead = b""
            wrote = True
            done += 1
        if self._power and wrote:
            try:
                self._ops.sync(self._fd)
            except OSError as error:
                # Nobody knows which of the pages reached the disk.
                return Landed(0, _fault(self._path, error))
        return Landed(done, fault)

    def release(self) -> None:
        """See `Journal`."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)
        self._lock.release()

    def __del__(self) -> None:
        self.release()

    def _append(self, fd: int, data: bytes) -> None:
        written = self._ops.write(fd, data)
        if written != len(data):
            self._ops.truncate(fd, self._end)
            raise StorageError(f"only {written} of {len(data)} bytes were written; cut back")
        self._end += written

    def _check_same_file(self, fd: int) -> None:
        held = os.fstat(fd)
        found = os.stat(self._path, follow_symlinks=False)
        if (found.st_ino, found.st_dev) != (held.st_ino, held.st_dev):
            raise StorageError("the file was replaced by another one")
        if held.st_size != self._end:
            raise StorageError(f"somebody else wrote to the file: {held.st_size} bytes instead of {self._end}")

    def _convert(self, fd: int, conversion: Conversion, adjustment: Mutation) -> None:
        new_fd, size = conversion.run(fd, self._path, adjustment, self._ops)
        os.close(fd)
        self._fd, self._end, self._lead = new_fd, size, b""
        self._conversion = None


def _fault(path: Path, error: Exception) -> StorageError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return StorageError(f"{path}: a write failed, its outcome is unknown: {reason}")
