"""Where session files stand: the folders and names of the old application (harness-v2 §13)."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

_LONGEST_NAME = 200  # bytes; file systems allow 255, and the lock file needs some
SUFFIX = ".jsonl"


def folder_name(cwd: str | None) -> str:
    """`/srv/a/b` -> `--srv-a-b--`; several working directories may share a folder (T2)."""
    flat = re.sub(r"[/\\:]", "-", re.sub(r"^[/\\]", "", cwd or ""))
    encoded = os.fsencode(flat)
    if len(encoded) > _LONGEST_NAME:
        digest = hashlib.sha256(encoded).hexdigest()[:16]
        flat = f"{encoded[: _LONGEST_NAME - 20].decode(errors='ignore')}-{digest}"
    return f"--{flat}--"


def file_name(created_at: int, session_id: str) -> str:
    """`2026-11-30T20-37-18-123Z_ID.jsonl`."""
    moment = datetime.fromtimestamp(created_at / 1000, UTC)
    return f"{moment.strftime('%Y-%m-%dT%H-%M-%S')}-{created_at % 1000:03d}Z_{session_id}{SUFFIX}"


def session_files(folder: Path) -> Iterator[Path]:
    """The regular `*.jsonl` files of one folder; an unreadable folder has none."""
    for entry in _entries(folder):
        name = entry.name
        if name.endswith(SUFFIX) and not name.startswith(".") and entry.is_file(follow_symlinks=False):
            yield folder / name


def session_folders(root: Path) -> Iterator[Path]:
    """Every direct child folder of the root."""
    for entry in _entries(root):
        with suppress(OSError):  # a link to itself
            if entry.is_dir():
                yield root / entry.name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
