"""The search itself, run as a program of its own by `search`: a request in JSON on stdin, the answer on stdout.

A regular expression of a model can take for ever, and Python's `re` cannot be interrupted: a process can. This file
imports the standard library alone, so that it starts in a few milliseconds.
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import TypedDict

SKIPPED = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".agent-harness", ".mypy_cache", ".ruff_cache"}
)
"""Folders that are not searched unless the search starts in them."""


class Request(TypedDict):
    """What is searched."""

    root: str  # absolute; results are relative to it
    start: str  # relative to root, a folder or a file
    pattern: str
    regex: bool
    ignore_case: bool
    glob: str | None
    max_matches: int
    max_line_chars: int
    max_file_bytes: int


class Match(TypedDict):
    """One matching line."""

    path: str
    line: int  # 1-based
    text: str


class Answer(TypedDict):
    """What was found. `error` is set when the pattern is none."""

    matches: list[Match]
    truncated: bool
    files: int  # searched
    skipped_large: int
    error: str | None


def search(request: Request) -> Answer:
    """Search line by line, files in the order of their names, symbolic links not followed."""
    answer: Answer = {"matches": [], "truncated": False, "files": 0, "skipped_large": 0, "error": None}
    text = request["pattern"] if request["regex"] else re.escape(request["pattern"])
    try:
        pattern = re.compile(text, re.IGNORECASE if request["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        answer["error"] = str(error)
        return answer
    for path, data in _files(request, answer):
        answer["files"] += 1
        if b"\0" in data[:8192]:
            continue
        lines = data.decode("utf-8", errors="replace").split("\n")
        for number, line in enumerate(lines, 1):
            found = pattern.search(line)
            if found is None:
                continue
            if len(answer["matches"]) == request["max_matches"]:
                answer["truncated"] = True
                return answer
            shown = _around(line.rstrip("\r"), found.start(), request["max_line_chars"])
            answer["matches"].append({"path": path, "line": number, "text": shown})
    return answer


def _around(line: str, at: int, width: int) -> str:
    if len(line) <= width:
        return line
    start = max(0, min(at - width // 4, len(line) - width))
    end = start + width
    return ("..." if start else "") + line[start:end] + ("..." if end < len(line) else "")


def _files(request: Request, answer: Answer) -> Iterator[tuple[str, bytes]]:
    top = os.path.join(request["root"], request["start"])
    if not os.path.isdir(top):
        folder, name = os.path.split(top)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield from _one(request, answer, fd, name, request["start"])
        finally:
            os.close(fd)
        return
    for folder, folders, names, fd in os.fwalk(top, follow_symlinks=False):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), request["root"])
            yield from _one(request, answer, fd, name, path)


def _one(request: Request, answer: Answer, folder: int, name: str, path: str) -> Iterator[tuple[str, bytes]]:
    glob = request["glob"]
    if glob is not None and not fnmatch.fnmatchcase(path, glob) and not fnmatch.fnmatchcase(name, glob):
        return
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:  # a symbolic link, gone meanwhile, or not ours to read
        return
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_size > request["max_file_bytes"]:
            answer["skipped_large"] += 1
            return
        yield path, file.read(request["max_file_bytes"])


if __name__ == "__main__":
    asked: Request = json.load(sys.stdin)
    json.dump(search(asked), sys.stdout)  # ASCII, so a lone surrogate in a file name gets through as an escape
