"""What a read touches, counted and not timed: the newest entries of a branch, and the restore of a lane.

SQLite's work is counted in steps of its machine, the work on a session in memory in lines of the module that answers
its queries. Both are the same at every length of history.
"""

import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, cast

import pytest
from sqlite_support import database_of, finished, look, record, started

from agent_harness.session.session import Session
from agent_harness.session.storage import SessionMetadata
from agent_harness.testing import answer
from agent_harness.types.codec import Sealed, Wire, encode, seal_entry, seal_record
from agent_harness.types.entries import MessageBody, ProvisionedEntry
from agent_harness.types.messages import AssistantMessage, TextContent, Usage, UserMessage
from agent_harness.types.records import AdjustmentUsage, NewRecord
from session_backends import JsonlSessionRepo, SqliteSessionRepo, state
from session_backends.jsonl.lines import encode_header, line_of
from session_backends.jsonl.reading import load_lines
from session_backends.memory import MemoryStorage
from session_backends.sqlite import mutations
from session_backends.staging import Mutation, Staged
from tests.support.backends import BACKENDS
from tests.support.rig import close_rigs, open_rig

Count = Callable[[Callable[[], Awaitable[object]]], Awaitable[int]]


async def lines_run(work: Callable[[], Awaitable[object]]) -> int:
    """How many lines of `session_backends.state` run, every turn of a loop counted."""
    count = 0

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != state.__file__:
            return None
        count += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        await work()
    finally:
        sys.settrace(before)
    return count


def steps_taken(session: Session) -> Count:
    """How many steps the machine of SQLite takes for the reads of a session."""

    async def counted(work: Callable[[], Awaitable[object]]) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        database = database_of(session)
        await database.read(lambda conn: conn.set_progress_handler(step, 1))
        await work()
        await database.read(lambda conn: conn.set_progress_handler(None, 1))
        return count

    return counted


def counter(backend: str, session: Session) -> Count:
    return steps_taken(session) if backend == "sqlite" else lines_run


# The newest of a branch ---------------------------------------------------------------


def note(number: int) -> Wire:
    return {"id": f"e{number}", "type": "custom", "customType": "note", "data": number}


def file_of_notes(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.write(encode_header(SessionMetadata(id="s", created_at=1)) + b"\n")
        for number in range(1, size + 1):
            parent = f"e{number - 1}" if number > 1 else None
            place: Wire = {"parentId": parent, "seq": number, "timestamp": 1}
            file.write(encode({"kind": "entry", "lane": "main", **note(number), **place}) + b"\n")
    path.chmod(0o600)


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "


def rows_of_notes(conn: sqlite3.Connection, size: int) -> None:
    conn.execute(
        "INSERT INTO entries (session_id, seq, id, parent_id, type, custom_type, timestamp, payload, lane) "
        + NUMBERS
        + """SELECT 's', i, 'e' || i, iif(i > 1, 'e' || (i - 1), NULL), 'custom', 'note', 1,
            CAST('{"id":"e' || i || '","type":"custom","customType":"note","data":' || i || '}' AS BLOB), 'main'
            FROM n""",
        (size,),
    )
    conn.execute(
        "INSERT INTO branch_entries (session_id, branch_id, entry_seq, entry_id, entry_type, custom_type) "
        + NUMBERS
        + "SELECT 's', 1, i, 'e' || i, 'custom', 'note' FROM n",
        (size,),
    )
    conn.execute("INSERT INTO branch_tips (session_id, tip_id, branch_id) VALUES ('s', ?, 1)", (f"e{size}",))
    conn.execute("UPDATE lanes SET leaf_id = ?", (f"e{size}",))
    conn.execute("UPDATE session_sequences SET next_seq = ?", (size + 1,))


async def session_of_notes(backend: str, folder: Path, size: int) -> Session:
    folder.mkdir(mode=0o700)
    if backend == "sqlite":
        repo = SqliteSessionRepo(folder / "s.db")
        await (await repo.create(id="s")).close()
        with look(folder / "s.db") as conn:
            conn.execute("BEGIN")
            rows_of_notes(conn, size)
            conn.execute("COMMIT")
        if size <= 1_000:
            assert await repo.check_branches("s")
        session = await repo.open("s", read_only=True)
        await repo.close()
        return session
    path = folder / "s.jsonl"
    file_of_notes(path, size)
    if backend == "jsonl":
        return await JsonlSessionRepo(folder).open(str(path), read_only=True)
    return Session(MemoryStorage(state=load_lines([path.read_bytes()], path).state, read_only=True))


async def cost_of_newest(session: Session, count: Count, size: int) -> dict[str, int]:
    found: list[str] = []

    async def newest(**query: Any) -> None:
        found[:] = [entry.id for entry in await session.find_entries_on_branch(limit=20, **query)]

    costs: dict[str, int] = {}
    for query in (
        {},
        {"type": "custom"},
        {"custom_type": "note"},
        {"stop_at_type": "compaction"},
        {"cursor": size - 99},
    ):
        costs[str([*query])] = await count(lambda query=query: newest(**query))
        first = size - 100 if "cursor" in query else size
        assert found == [f"e{number}" for number in range(first, first - 20, -1)]
    return costs


@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_newest_twenty_of_a_branch_cost_the_same_at_100_000_entries(backend: str, tmp_path: Path) -> None:
    costs: list[dict[str, int]] = []
    for size in (1_000, 100_000):
        async with await session_of_notes(backend, tmp_path / str(size), size) as session:
            costs.append(await cost_of_newest(session, counter(backend, session), size))
    small, large = costs
    assert all(cost >= 20 for cost in small.values())
    assert {name: cost for name, cost in large.items() if cost > small[name] + 5} == {}


# Restore ------------------------------------------------------------------------------

ENTRIES_OF_A_RUN = 10


Item: TypeAlias = Sealed[NewRecord] | Sealed[ProvisionedEntry]


def sealed_message(message: UserMessage | AssistantMessage) -> Sealed[ProvisionedEntry]:
    return seal_entry(ProvisionedEntry(id="x", body=MessageBody(message=message)))


QUESTION = sealed_message(UserMessage(content=(TextContent(text="How long is bed 1?"),), timestamp=1))
ANSWER = sealed_message(answer("3.5 metres."))


def again(entry: Sealed[ProvisionedEntry], entry_id: str) -> Sealed[ProvisionedEntry]:
    return Sealed(replace(entry.value, id=entry_id), entry.wire.replace(b'"id":"x"', f'"id":"{entry_id}"'.encode(), 1))


def history(entries: int, *, suspended: bool) -> Iterator[Item]:
    """Runs of ten entries; the last one is not finished if `suspended`."""
    runs = entries // ENTRIES_OF_A_RUN
    leaf: str | None = None
    for run in range(runs):
        run_id = f"run{run}"
        yield seal_record(started(run_id, source=leaf))
        for number in range(0, ENTRIES_OF_A_RUN, 2):
            yield again(QUESTION, f"{run_id}-{number}")
            leaf = f"{run_id}-{number + 1}"
            yield again(ANSWER, leaf)
        yield seal_record(record(f"{run_id}-usage", AdjustmentUsage(usage=Usage(input=1, total_tokens=1))))
        if run < runs - 1 or not suspended:
            yield seal_record(finished(f"{run_id}-end", run_id))


def staged(items: Iterator[Item], content: state.SessionState) -> Iterator[Mutation]:
    for item in items:
        value, wire = item.value, item.wire
        if isinstance(value, NewRecord):
            made = Staged(content).append_record(value, wire, 1)
        else:
            made = Staged(content).append_entry(value, wire, "main", 1)
        content.apply(made)
        yield made


def write_rows(conn: sqlite3.Connection, items: Iterator[Item]) -> None:
    for item in items:
        if isinstance(item.value, NewRecord):
            mutations.append_record(conn, "s", cast("Sealed[NewRecord]", item), 1)
        else:
            mutations.append_entry(conn, "s", cast("Sealed[ProvisionedEntry]", item), "main", 1)


async def session_of_runs(backend: str, folder: Path, entries: int, *, suspended: bool) -> Session:
    folder.mkdir(mode=0o700)
    items = history(entries, suspended=suspended)
    if backend == "sqlite":
        repo = SqliteSessionRepo(folder / "s.db")
        session = await repo.create(id="s")
        await database_of(session).write(lambda conn: write_rows(conn, items), durability="process")
        await session.close()
        session = await repo.open("s")
        await repo.close()
        return session
    content = state.SessionState()
    lines = [line_of(made) for made in staged(items, content)]
    if backend == "memory":
        return Session(MemoryStorage(state=content))
    path = folder / "s.jsonl"
    path.write_bytes(b"\n".join([encode_header(SessionMetadata(id="s", created_at=1)), *lines, b""]))
    return await JsonlSessionRepo(folder).open(str(path))


@pytest.mark.parametrize("suspended", [False, True], ids=["idle", "suspended"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_restore_of_a_lane_costs_the_same_at_20_000_entries(
    backend: str, suspended: bool, tmp_path: Path
) -> None:
    costs: list[int] = []
    for entries in (200, 20_000):
        session = await session_of_runs(backend, tmp_path / str(entries), entries, suspended=suspended)

        async def restore(session: Session = session) -> None:
            rig = await open_rig(session)
            assert [operation.kind for operation in rig.suspended] == (["run"] if suspended else [])

        costs.append(await counter(backend, session)(restore))
        await close_rigs()
        await session.close()
    small, large = costs
    assert small > 10
    assert large <= small + 40  # rows are found by bisection, which takes a step more when there are twice as many
