"""Repair of a damaged JSONL session: the good prefix goes into a new file, and the damaged one stays as it is.

The branch cache of a SQLite store is rebuilt by `SqliteSessionRepo.repair_branches`.
"""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agent_harness.errors import CorruptSession, SessionNotFound, StorageError

from .jsonl.files import FILE_MODE, FileOps, open_regular, read_chunks
from .jsonl.lines import MAX_HEADER
from .jsonl.reading import is_old, load_prefix, split_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a repair kept and left out. `line`, `offset` and `reason` say where the good prefix ends."""

    session_id: str
    destination: Path
    items: int  # log items kept
    bytes_kept: int
    bytes_left: int
    lines_left: int  # a cut last line counts
    line: int | None = None  # 1-based; None when nothing was left out
    offset: int | None = None  # bytes
    reason: str | None = None


def repair_file(path: str | os.PathLike[str], destination: str | os.PathLike[str]) -> Repair:
    """Copy what stands before the first damage of the file at `path` into a new file, byte for byte.

    The copy is a whole session file, private (0600) and synced, and appears whole or not at all. It keeps the
    session's id: a store should hold one of the two files. `path` is only read, and takes no claim.

    Raises:
        SessionNotFound, StorageError: `path` cannot be read, or `destination` exists or cannot be made.
        CorruptSession, UnsupportedFormat: there is no header, so there is nothing to keep; or the file has format 3,
            whose damage is skipped when it is opened. Nothing was written.
    """
    source, target = Path(path), Path(destination)
    try:
        fd = open_regular(source)
    except FileNotFoundError:
        raise SessionNotFound(f"no session file {source}") from None
    except OSError as error:
        raise StorageError(f"{source}: {error.strerror}") from None
    try:
        return _repair(fd, source, target)
    finally:
        os.close(fd)


def _repair(fd: int, source: Path, target: Path) -> Repair:
    if is_old(os.pread(fd, MAX_HEADER, 0)):
        raise CorruptSession(f"{source}: a file of format 3 needs no repair: opening it skips damage and reports it")
    size = os.fstat(fd).st_size
    loaded, damage = load_prefix(read_chunks(fd), source)
    try:
        _copy_prefix(fd, loaded.end, target, newline=loaded.newline_missing)
    except FileExistsError:
        raise StorageError(f"{target} exists; a repair makes a new file") from None
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror}") from None
    kept = loaded.state.last_seq
    torn = next((found for found in loaded.diagnostics if found.code == "torn_tail"), None)
    left = size - loaded.end
    line: int | None = None
    reason: str | None = None
    if damage is not None:
        line, reason = damage.line, str(damage)
    elif torn is not None:
        line, reason = torn.line, torn.message
    return Repair(
        session_id=loaded.metadata.id,
        destination=target,
        items=kept,
        bytes_kept=loaded.end,
        bytes_left=left,
        lines_left=sum(1 for _ in islice(split_lines(read_chunks(fd)), kept + 1, None)),
        line=line,
        offset=loaded.end if left else None,
        reason=reason,
    )


def _copy_prefix(fd: int, size: int, target: Path, *, newline: bool) -> None:
    ops = FileOps()
    temp = target.parent / f".{secrets.token_hex(16)}.tmp"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    new = os.open(temp, flags, FILE_MODE)
    try:
        os.fchmod(new, FILE_MODE)
        left = size
        for chunk in read_chunks(fd):
            _write_all(ops, new, chunk[:left])
            left -= min(left, len(chunk))
            if not left:
                break
        if newline:
            _write_all(ops, new, b"\n")
        ops.sync(new)
        # A link, not a rename: it refuses a name that exists.
        os.link(temp, target, follow_symlinks=False)
        temp.unlink()
        ops.sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise
    finally:
        os.close(new)


def _write_all(ops: FileOps, fd: int, data: bytes) -> None:
    while data:
        data = data[ops.write(fd, data) :]
