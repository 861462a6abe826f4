"""A disk that loses what was not synced: a recorded stream of file operations, and the images a power cut can leave.

Model. Bytes are durable once their file is synced. Until then every 512-byte sector of a pending write survives or not
by itself, or only a prefix of the pending bytes survives, or the size survives and lost sectors read as zeros. Names
are durable once their folder is synced; until then a prefix of the pending changes of names survives.
"""

import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from session_backends.jsonl.files import FileOps

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    file: int


@dataclass(frozen=True, slots=True)
class Link:
    """A name now leads to a file: created, or renamed over another."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Unlink:
    name: str


@dataclass(frozen=True, slots=True)
class SyncFolder:
    pass


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The caller was told that so many items are durable."""

    items: int


Event: TypeAlias = Write | Truncate | Sync | Link | Unlink | SyncFolder | Acknowledged


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)


@dataclass(slots=True)
class LossyDisk:
    """What is durable, and what is pending."""

    files: dict[int, _File] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    pending_names: list[Link | Unlink] = field(default_factory=list)
    acknowledged: int = -1  # items; -1: not even the session was

    def add(self, event: Event) -> None:
        """One operation more."""
        match event:
            case Write() | Truncate():
                self._file(event.file).pending.append(event)
            case Sync():
                found = self._file(event.file)
                found.durable = _applied(found.durable, found.pending)
                found.pending = []
            case Link() | Unlink():
                self.pending_names.append(event)
            case SyncFolder():
                _rename(self.names, self.pending_names)
                self.pending_names = []
            case Acknowledged():
                self.acknowledged = max(self.acknowledged, event.items)

    def image(self, rng: random.Random) -> dict[str, bytes]:
        """What is found after a power cut now."""
        names = dict(self.names)
        _rename(names, self.pending_names[: rng.randint(0, len(self.pending_names))])
        return {name: self._survives(self.files.get(file, _File()), rng) for name, file in names.items()}

    def _file(self, number: int) -> _File:
        return self.files.setdefault(number, _File())

    def _survives(self, file: _File, rng: random.Random) -> bytes:
        how = rng.choice(("sectors", "prefix", "zeros"))
        if how == "prefix":
            kept = file.pending[: rng.randint(0, len(file.pending))]
            if kept and isinstance(kept[-1], Write):
                last = kept[-1]
                kept = [*kept[:-1], Write(last.file, last.offset, last.data[: rng.randint(0, len(last.data))])]
            return _applied(file.durable, kept)
        survivors = [part for event in file.pending for part in _sectors(event) if rng.random() < 0.5]
        image = _applied(file.durable, survivors)
        if how == "zeros":
            image = image.ljust(len(_applied(file.durable, file.pending)), b"\0")
        return image


def _rename(names: dict[str, int], events: Iterable[Link | Unlink]) -> None:
    for event in events:
        if isinstance(event, Link):
            names[event.name] = event.file
        else:
            names.pop(event.name, None)


def _sectors(event: Write | Truncate) -> Iterator[Write | Truncate]:
    if isinstance(event, Truncate):
        yield event
        return
    start = 0
    while start < len(event.data):
        end = min(len(event.data), start + SECTOR - (event.offset + start) % SECTOR)
        yield Write(event.file, event.offset + start, event.data[start:end])
        start = end


def _applied(durable: bytes, events: Iterable[Write | Truncate]) -> bytes:
    data = bytearray(durable)
    for event in events:
        if isinstance(event, Truncate):
            del data[event.size :]
            continue
        if len(data) < event.offset:
            data.extend(bytes(event.offset - len(data)))
        data[event.offset : event.offset + len(event.data)] = event.data
    return bytes(data)


def cuts(events: list[Event], seeds: Iterable[int]) -> Iterator[tuple[str, int, dict[str, bytes]]]:
    """For a cut after every event, and each seed: what identifies it, the acknowledged items, and an image."""
    disk = LossyDisk()
    chosen = list(seeds)
    for position, event in enumerate(events):
        disk.add(event)
        for seed in chosen:
            label = f"cut after event {position} ({type(event).__name__}), seed {seed}"
            yield label, disk.acknowledged, disk.image(random.Random(f"{seed}/{position}"))


def put(image: dict[str, bytes], folder: Path) -> None:
    """Make the files of an image."""
    for name, data in image.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class RecordingFiles(FileOps):
    """The file operations of a JSONL store, done and noted in order. Names are relative to `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.events: list[Event] = []

    def write(self, fd: int, data: bytes) -> int:
        """See `FileOps`."""
        offset = os.fstat(fd).st_size
        written = super().write(fd, data)
        self.events.append(Write(os.fstat(fd).st_ino, offset, data[:written]))
        return written

    def truncate(self, fd: int, size: int) -> None:
        """See `FileOps`."""
        super().truncate(fd, size)
        self.events.append(Truncate(os.fstat(fd).st_ino, size))

    def sync(self, fd: int) -> None:
        """See `FileOps`."""
        super().sync(fd)
        self.events.append(Sync(os.fstat(fd).st_ino))

    def sync_folder(self, folder: Path) -> None:
        """See `FileOps`."""
        super().sync_folder(folder)
        self.events.append(SyncFolder())

    def rename(self, source: Path, target: Path) -> None:
        """See `FileOps`."""
        number = source.stat().st_ino
        super().rename(source, target)
        self.events.append(Link(str(target.relative_to(self._root)), number))
