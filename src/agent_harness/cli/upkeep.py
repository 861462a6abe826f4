"""`doctor`, which looks at a store, and `sessions repair`, which saves what can be saved of a session."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import SessionNotFound
from ..types.json import JsonValue
from .failure import Failure
from .output import one_line, say, to_json
from .store import Store, open_store


async def doctor(store: Store, *, json: bool) -> int:
    """What may endanger the sessions of a store; exit code 1 when there is a problem. Changes nothing."""
    import sqlite3

    from session_backends.doctor import examine

    path = _place(store)
    findings = examine(path)
    problems = sum(finding.severity == "problem" for finding in findings)
    versions = {"agentHarness": _version(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    if json:
        told: list[JsonValue] = [
            {"code": one.code, "severity": one.severity, "path": one.path, "message": one.message} for one in findings
        ]
        say(to_json({"store": store.url, "exists": path.exists(), "versions": dict(versions), "findings": told}))
    else:
        say(f"agent-harness {_version()}, Python {versions['python']}, SQLite {versions['sqlite']}")
        say(one_line(f"{path}: {_count(len(findings), problems) if path.exists() else 'nothing is there yet'}"))
        for finding in findings:
            say(f"{finding.severity}: {one_line(finding.message)} [{finding.code}]")
    if problems:
        raise Failure(f"{problems} problem(s) in {path}")
    return 0


def _count(findings: int, problems: int) -> str:
    return "nothing to report" if not findings else f"{problems} problem(s), {findings - problems} note(s)"


def _place(store: Store) -> Path:
    if store.path is None:
        raise Failure(f"{store.url} is neither sqlite:FILE nor jsonl:FOLDER: nothing is known of its insides")
    if store.url.startswith("jsonl:") and store.path.exists() and not store.path.is_dir():
        raise Failure(f"{store.path} is not a folder")
    if store.url.startswith("sqlite:") and store.path.is_dir():
        raise Failure(f"{store.path} is a folder, not a database file")
    return store.path


def _version() -> str:
    try:
        return version("agent-harness")
    except PackageNotFoundError:
        return "(not installed)"


async def repair(store: Store, session: str, output: Path | None, *, json: bool) -> int:
    """Save what can be saved: a file's good beginning in a new file, a database's branch cache in its place.

    `session` is a session's id, or the path of a session file.
    """
    if session.endswith(".jsonl"):
        return _repair_file(Path(session), output, json=json)
    if store.url.startswith("jsonl:"):
        return _repair_file(await _file_of(store, session), output, json=json)
    if output is not None:
        raise Failure("--output is for session files: a database is repaired in its place")
    return await _repair_branches(store, session, json=json)


async def _file_of(store: Store, session_id: str) -> Path:
    async with open_store(store, must_exist=True) as repo:
        for found in await repo.list():
            if found.id == session_id and found.path is not None:
                return Path(found.path)
    raise Failure(f"no session {session_id!r} in {store.shown}; a file whose first line is lost is named by its path")


def _repair_file(path: Path, output: Path | None, *, json: bool) -> int:
    from session_backends.repairing import repair_file

    if output is None:
        raise Failure("a session file is repaired into a new one: name it with --output FILE.jsonl")
    if output.suffix != ".jsonl":
        raise Failure(f"{output} is no name of a session file: those end with .jsonl")
    made = repair_file(path, output)
    if json:
        wire: dict[str, JsonValue] = {
            "session": made.session_id,
            "file": str(made.destination),
            "items": made.items,
            "bytesKept": made.bytes_kept,
            "bytesLeft": made.bytes_left,
            "linesLeft": made.lines_left,
            "line": made.line,
            "offset": made.offset,
            "reason": made.reason,
        }
        say(to_json(wire))
        return 0
    say(one_line(f"session {made.session_id}: {made.items} items kept in {made.destination}"))
    if made.reason is not None:
        say(f"left out from line {made.line} on: {made.lines_left} line(s), {made.bytes_left} bytes")
        say(one_line(made.reason))
    else:
        say("nothing was damaged")
    return 0


async def _repair_branches(store: Store, session_id: str, *, json: bool) -> int:
    from session_backends import SqliteSessionRepo

    async with open_store(store, must_exist=True) as repo:
        if not isinstance(repo, SqliteSessionRepo):
            raise Failure(f"{store.url}: only sqlite: and jsonl: stores can be repaired")
        try:
            sound = await repo.check_branches(session_id)
            if not sound:
                await repo.repair_branches(session_id)
        except SessionNotFound:
            raise Failure(f"no session {session_id!r} in {store.shown}; see `agent-harness sessions list`") from None
    if json:
        say(to_json({"session": session_id, "rebuilt": not sound}))
    else:
        say(f"session {session_id}: " + ("nothing to repair" if sound else "the branch cache was rebuilt"))
    return 0
