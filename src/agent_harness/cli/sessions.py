"""`sessions list|log|show|verify`, which neither claim nor write anything, and `fork` and `import`, which copy."""

from datetime import UTC, datetime
from pathlib import Path

from session_backends import JsonlSessionRepo

from ..lanes.restore import inspect_lane
from ..session.repo import BranchFork, TreeFork
from ..session.storage import Diagnostic, SessionMetadata
from ..types.codec import dump, dump_entry
from ..types.json import JsonValue
from .failure import Failure
from .output import note, one_line, say, to_json
from .rendering import log_json, log_line
from .store import Store, open_session, open_store, prepare_default
from .transcript import transcript


async def list_sessions(store: Store, *, json: bool) -> int:
    """One line per session, newest first."""
    async with open_store(store, must_exist=True) as repo:
        for found in await repo.list():
            say(to_json(_metadata(found)) if json else metadata_line(found))
    return 0


async def log(store: Store, session_id: str, *, json: bool) -> int:
    """One line per item of the log, oldest first."""
    async with (
        open_store(store, must_exist=True) as repo,
        await open_session(repo, session_id, store, read_only=True) as session,
    ):
        for diagnostic in session.diagnostics:
            _tell(diagnostic)
        for item in await session.get_log():
            say(to_json(log_json(item)) if json else log_line(item))
    return 0


async def show(store: Store, session_id: str, lane: str, *, full: bool, json: bool) -> int:
    """What a session is now: its lanes, what they have open, its cost; and the conversation of one lane."""

    async with (
        open_store(store, must_exist=True) as repo,
        await open_session(repo, session_id, store, read_only=True) as session,
    ):
        stats = await session.get_stats()
        lanes: list[JsonValue] = []
        pointers = await session.get_lanes()
        shown = next((pointer for pointer in pointers if pointer.lane == lane), None)
        if shown is None:
            raise Failure(f"session {session_id} has no lane {lane!r}")
        entries = (
            await session.find_entries_on_branch(start=shown.leaf_id, order="oldestFirst") if shown.leaf_id else []
        )
        for pointer in pointers:
            reduction = await inspect_lane(session, pointer.lane)
            operation = reduction.lane_state.operation
            lanes.append(
                {
                    "lane": pointer.lane,
                    "leafId": pointer.leaf_id,
                    "open": None if operation is None else {"kind": operation.kind, "id": operation.id},
                }
            )
        name = await session.get_name()
        told = {**_metadata(session.metadata), "name": name, "messages": stats.message_count}
        if json:
            wire = [dump_entry(entry) for entry in entries]
            say(to_json({**told, "usage": dump(stats.usage), "lanes": lanes, "lane": lane, "entries": [*wire]}))
            return 0
        say(metadata_line(session.metadata, name))
        say(f"{stats.message_count} messages, {stats.total_tokens:g} tokens, {stats.cost_total:.4f} USD")
        for one in lanes:
            assert isinstance(one, dict)
            state = one["open"]
            kind = f"interrupted {state['kind']}" if isinstance(state, dict) else "idle"
            say(f"lane {one_line(str(one['lane']))}: {kind}, at {one['leafId'] or 'the root'}")
        for line in transcript(entries, full=full):
            say(line)
    return 0


async def fork(store: Store, session_id: str, at: str | None, *, json: bool) -> int:
    """Copy a session's path into a new one, up to `at` or to the end of lane main; the source stays as it is."""
    async with open_store(store, must_exist=True) as repo:
        source = await open_session(repo, session_id, store, read_only=True)
        async with source:
            forked = await repo.fork(source, BranchFork(entry_id=at))
    await forked.close()
    return _made(forked.id, json=json)


async def import_file(store: Store, path: Path, *, json: bool) -> int:
    """Copy a session file, of format 3 or 4, into the store; the file stays as it is."""
    _check_file(path)
    async with await JsonlSessionRepo(path.parent).open(str(path), read_only=True) as source:
        for diagnostic in source.diagnostics:
            _tell(diagnostic)
        findings = await source.verify()
        if findings:
            first = findings[0]
            raise Failure(f"{path} breaks {len(findings)} rule(s), first item {first.seq}: {first.message}")
        name = await source.get_name()
        prepare_default(store)
        async with open_store(store, must_exist=False) as repo:
            imported = await repo.fork(source, TreeFork())
            async with imported:
                if name is not None:
                    await imported.set_name(name)
    return _made(imported.id, json=json)


def _check_file(path: Path) -> None:
    if path.suffix != ".jsonl":
        raise Failure(f"{path} is no session file: those end with .jsonl")
    if not path.is_file():
        raise Failure(f"no such file: {path}")


def _tell(diagnostic: Diagnostic) -> None:
    place = "" if diagnostic.line is None else f"line {diagnostic.line}: "
    note(f"note: {place}{one_line(diagnostic.message)}")


def _made(session_id: str, *, json: bool) -> int:
    say(to_json({"session": session_id}) if json else session_id)
    return 0


async def verify(store: Store, session_id: str, *, json: bool) -> int:
    """Check the whole log against every validity rule; one line per finding, exit code 1 if there is any."""
    async with (
        open_store(store, must_exist=True) as repo,
        await open_session(repo, session_id, store, read_only=True) as session,
    ):
        findings = await session.verify()
    for finding in findings:
        wire: dict[str, JsonValue] = {
            "rule": finding.rule,
            "message": finding.message,
            "lane": finding.lane,
            "itemId": finding.item_id,
            "seq": finding.seq,
        }
        say(to_json(wire) if json else f"{finding.seq:>5}  {one_line(finding.message)} [{finding.rule}]")
    if findings:
        raise Failure(f"session {session_id} breaks {len(findings)} rule(s)")
    if not json:
        say(f"session {session_id}: no finding")
    return 0


def _metadata(metadata: SessionMetadata) -> dict[str, JsonValue]:
    return {
        "id": metadata.id,
        "name": metadata.name,
        "createdAt": metadata.created_at,
        "cwd": metadata.cwd,
        "parentSessionId": metadata.parent_session_id,
        "path": metadata.path,
    }


def metadata_line(metadata: SessionMetadata, name: str | None = None) -> str:
    """`ID  2026-11-30 20:37  Fix the bug`: printable."""
    try:
        when = datetime.fromtimestamp(metadata.created_at / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        when = "?"
    return f"{one_line(metadata.id)}  {when}  {one_line(name or metadata.name or '', 60)}".rstrip()
