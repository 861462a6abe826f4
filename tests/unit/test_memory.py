"""What only the memory backend and the addresses of stores have to show."""

import asyncio
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from agent_harness.session.queries import BranchBounds, EntryQuery, RecordQuery
from agent_harness.session.session import Session
from agent_harness.types.entries import ProvisionedEntry
from agent_harness.types.messages import Usage
from session_backends import JsonlSessionRepo, MemorySessionRepo, MemoryStorage, SqliteSessionRepo, open_repo
from session_backends.conformance.samples import (
    CountingIds,
    TickingClock,
    adjustment,
    custom,
    every_entry_body,
    finished,
    message,
    started,
)
from session_backends.state import SessionState
from session_backends.urls import UnknownScheme


async def test_a_storage_alone_is_enough_for_a_session() -> None:
    session = Session(MemoryStorage(clock=TickingClock(7)))
    entry = await session.append_entry(message("e1"), "main")
    assert (entry.seq, entry.timestamp) == (1, 7)
    await session.close()


async def test_time_and_ids_come_from_the_constructor() -> None:
    clock = TickingClock(5)
    repo = MemorySessionRepo(clock, CountingIds())
    session = await repo.create()
    assert (session.id, session.metadata.created_at) == ("id-1", 5)
    clock.now = 9
    assert await session.append_custom_entry("x") == "id-2"
    assert (await session.find_entries())[0].timestamp == 9
    await session.close()


async def test_a_store_leaves_no_task_behind() -> None:
    session = await MemorySessionRepo().create()
    await asyncio.gather(*(session.append_message(message("x").body.message) for _ in range(3)))
    await session.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_listener_that_raises_is_the_callers_own_problem() -> None:
    session = await MemorySessionRepo().create()

    def broken(entry: object) -> None:
        raise LookupError("listener")

    results = await asyncio.gather(
        session.append_entry(message("e1"), "main", on_commit=broken),
        session.append_entry(message("e2"), "main"),
        return_exceptions=True,
    )
    assert isinstance(results[0], LookupError)
    assert [item.seq for item in await session.get_log()] == [1, 2]
    await session.close()


def test_a_store_outlives_its_event_loop() -> None:
    repo = MemorySessionRepo()

    async def first() -> Session:
        session = await repo.create(id="s1")
        await session.append_entry(message("e1"), "main")
        # Asked for in the last moment: the loop ends before its turn comes, so it is withdrawn.
        asyncio.create_task(session.append_entry(message("late"), "main"))  # noqa: RUF006
        return session

    async def second(session: Session) -> None:
        entry = await session.append_entry(message("e2"), "main")
        assert (entry.seq, entry.parent_id) == (2, "e1")
        await session.close()

    session = asyncio.run(first())
    asyncio.run(second(session))


class CountedDecodes:
    """Counts how many stored values were decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries = self.records = 0
        from session_backends import state

        read_entry, read_record = state.read_entry, state.read_record

        def counted_entry(wire: bytes) -> object:
            self.entries += 1
            return read_entry(wire)

        def counted_record(wire: bytes) -> object:
            self.records += 1
            return read_record(wire)

        monkeypatch.setattr(state, "read_entry", counted_entry)
        monkeypatch.setattr(state, "read_record", counted_record)


async def test_queries_decode_only_what_they_return(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(MemoryStorage())
    for number, body in enumerate(every_entry_body()):
        await session.append_entry(ProvisionedEntry(id=f"first{number}", body=body), "main")
    for number in range(300):
        await session.append_entry(message(f"e{number}"), "main")
        await session.append_record(started(f"run{number}"))
        await session.append_record(adjustment(f"use{number}", Usage(input=1)))
        await session.append_record(finished(f"end{number}", f"run{number}"))
    counts = CountedDecodes(monkeypatch)
    assert len(await session.find_entries_on_branch(type="model_change")) == 1
    assert len(await session.find_entries_on_branch(type="custom", custom_type="kit.state")) == 1
    assert len(await session.find_entries_on_branch(limit=2)) == 2
    assert len(await session.find_entries(type="compaction")) == 1
    assert counts.entries == 5
    assert len(await session.find_records(lane="main", type="operation_started", operation_kind="run", limit=1)) == 1
    assert len(await session.find_records(run_id="run7")) == 2
    assert len(await session.find_records(lane="main", after_seq=session.delivered_seq - 3)) == 3
    assert await session.find_open_operations("main") == []
    assert counts.records == 6


@pytest.mark.parametrize("size", [200, 2000])
async def test_restore_queries_take_as_many_steps_in_a_long_session(size: int) -> None:
    """Steps are line events inside the state module: what a restore asks for must not grow with history."""
    storage = MemoryStorage()
    session = Session(storage)
    await session.append_entry(ProvisionedEntry(id="model", body=every_entry_body()[3]), "main")
    for number in range(size):
        await session.append_entry(message(f"e{number}"), "main")
        await session.append_record(adjustment(f"use{number}", Usage(input=1)))
    await session.append_record(started("run"))
    state: SessionState = storage._state  # pyright: ignore[reportPrivateUsage]
    start = state.last_seq - 1
    leaf = f"e{size - 1}"
    steps = count_lines(
        lambda: (
            state.find_open_operations("main", 2),
            state.find_records(RecordQuery(lane="main", after_seq=start)),
            state.find_records(RecordQuery(lane="main", type="operation_started", operation_kind="run", limit=1)),
            state.find_entries_on_branch(EntryQuery(type="model_change", limit=1), BranchBounds(start=leaf)),
            state.find_entries_on_branch(EntryQuery(), BranchBounds(start=leaf, after_seq=start)),
            state.find_entries_on_branch(EntryQuery(limit=1), BranchBounds(start=leaf)),
            state.find_entries(EntryQuery(type="custom")),
        )
    )
    assert steps < 200
    await session.close()


def count_lines(work: object) -> int:
    """Lines executed in the state module."""
    assert callable(work)
    count = 0

    def trace(frame: object, event: str, arg: object) -> object:
        nonlocal count
        if event == "line" and frame.f_code.co_filename.endswith("session_backends/state.py"):
            count += 1
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


# Addresses --------------------------------------------------------------------


def test_an_address_gives_its_store(tmp_path: Path) -> None:
    assert isinstance(open_repo("memory:"), MemorySessionRepo)
    assert isinstance(open_repo(f"jsonl:{tmp_path}"), JsonlSessionRepo)
    assert isinstance(open_repo(f"sqlite:{tmp_path}/s.db"), SqliteSessionRepo)


async def test_an_address_passes_on_clock_ids_and_durability(tmp_path: Path) -> None:
    for url in ("memory:", f"jsonl:{tmp_path}/j", f"sqlite:{tmp_path}/s.db"):
        repo = open_repo(url, clock=TickingClock(3), id_generator=CountingIds(), durability="power")
        session = await repo.create()
        assert (session.id, session.metadata.created_at) == ("id-1", 3)
        await session.append_entry(custom("e1"), "main")
        await session.close()
        await repo.close()


@pytest.mark.parametrize("url", ["", "memory", "redis://x", "/some/path", "jsonl", "C:/x"])
def test_an_address_of_nobody_is_refused_with_those_there_are(url: str) -> None:
    with pytest.raises(UnknownScheme, match="jsonl, memory, sqlite"):
        open_repo(url)


@pytest.mark.parametrize("url", ["memory:x", "jsonl:"])
def test_an_address_that_its_backend_cannot_read_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=url.split(":", maxsplit=1)[0]):
        open_repo(url)


def test_the_schemes_are_registered_as_third_parties_do_it() -> None:
    found = {point.name: point.load() for point in entry_points(group="agent_harness.session_backends")}
    assert {"memory", "jsonl", "sqlite"} <= set(found)
    assert isinstance(found["memory"](""), MemorySessionRepo)


def test_a_third_party_scheme_is_found_through_its_entry_point(tmp_path: Path) -> None:
    package = tmp_path / "thirdparty-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[agent_harness.session_backends]\nmine = thirdparty:from_url\n")
    (tmp_path / "thirdparty.py").write_text(
        "from session_backends import MemorySessionRepo\n"
        "def from_url(rest, *, clock=None, id_generator=None, durability='process'):\n"
        "    repo = MemorySessionRepo(clock, id_generator)\n"
        "    repo.rest = rest\n"
        "    return repo\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from session_backends import open_repo; print(open_repo('mine://host/db').rest)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "//host/db"


def test_importing_the_package_loads_no_sqlite() -> None:
    code = "import sys, session_backends; print('sqlite3' in sys.modules, 'session_backends.jsonl.repo' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["False", "False"]
