"""What was said at the prompt before: one JSON string per line, oldest first. Damage costs its own lines (case 86)."""

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..output import printable
from ..store import FOLDER, prepare_folder
from ..variables import HISTORY_VARIABLE

KEPT = 1_000
"""How many of the newest lines are recalled."""

READ_BYTES = 1_000_000
"""How much of the file's end is read."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a history file holds. `warning` says what could not be read, None when all could."""

    lines: list[str]
    warning: str | None = None


class History:
    """The file at `path`, private, made by the first append. Only appends write to it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Remembered:
        """Never raises: without its history a conversation is still a conversation."""
        try:
            data = self._tail()
        except FileNotFoundError:
            return Remembered([])
        except OSError as error:
            return Remembered([], f"{self._path}: {error.strerror}; the prompt history is not available")
        lines, damaged = _parse(data.split(b"\n"))
        told = f"{self._path}: {damaged} damaged line{'s' if damaged > 1 else ''} left out" if damaged else None
        return Remembered(lines[-KEPT:], told)

    def append(self, text: str) -> None:
        """Remember `text`.

        Raises:
            OSError: it could not be written.
        """
        if self._path.parent.name == FOLDER:
            prepare_folder(self._path.parent)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags, 0o600)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "not a regular file")
            # A line that was cut stays by itself.
            cut = status.st_size > 0 and os.pread(fd, 1, status.st_size - 1) != b"\n"
            os.write(fd, (b"\n" if cut else b"") + json.dumps(text).encode() + b"\n")
        finally:
            os.close(fd)

    def _tail(self) -> bytes:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "not a regular file")
            start = max(status.st_size - READ_BYTES, 0)
            data = os.pread(fd, READ_BYTES, start)
        finally:
            os.close(fd)
        return data.partition(b"\n")[2] if start else data  # the first line is cut by us


class Memory:
    """The history of one conversation: what can be recalled now, and the file that keeps it."""

    def __init__(self, history: History, recalled: list[str]) -> None:
        remembered = history.read()
        recalled[:] = remembered.lines
        self.warning = remembered.warning
        self._history = history
        self._recalled = recalled
        self._works = True

    def add(self, text: str) -> str | None:
        """Remember what was said; gives a warning, once, when the file cannot be written."""
        if self._recalled[-1:] == [text]:
            return None
        self._recalled.append(text)
        if not self._works:
            return None
        try:
            self._history.append(text)
        except OSError as error:
            self._works = False
            return f"the prompt history is not kept: {error.strerror}"
        return None


def history_of(folder: Path) -> History:
    """The project's own history, or the file that the environment names."""
    return History(Path(os.environ.get(HISTORY_VARIABLE) or folder / FOLDER / "history.jsonl"))


def _parse(lines: Iterable[bytes]) -> tuple[list[str], int]:
    kept: list[str] = []
    damaged = 0
    for line in lines:
        if not line.strip(b" \t\r"):
            continue
        try:
            value: object = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, str):
            kept.append(printable(value))
        else:
            damaged += 1
    return kept, damaged
