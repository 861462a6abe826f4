"""The repository: catalogue, deletion, forks of any backend, snapshots, and answers equal to the reference backend."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlite_support import (
    Child,
    CountingIds,
    TickingClock,
    attempt,
    custom,
    database_of,
    finished,
    look,
    started,
    usage,
    user,
)

from agent_harness.errors import (
    InvalidPayload,
    InvalidSessionId,
    SessionError,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    UnknownEntry,
)
from agent_harness.session.repo import BranchFork, ForkOptions, TreeFork
from agent_harness.session.session import Session
from session_backends.memory import MemorySessionRepo
from session_backends.sqlite import SqliteSessionRepo, from_url, leases


@pytest.fixture
async def repo(tmp_path: Path) -> AsyncIterator[SqliteSessionRepo]:
    repo = SqliteSessionRepo(tmp_path / "s.db", clock=TickingClock(), id_generator=CountingIds())
    yield repo
    await repo.close()


async def test_the_catalogue_lists_newest_first_with_names_and_filters_by_cwd(repo: SqliteSessionRepo) -> None:
    async with (
        await repo.create(id="a", cwd="/srv/a", metadata={"k": [1]}) as a,
        await repo.create(id="b", cwd="/srv/a-b", parent_session_id="a"),
    ):
        await a.set_name("one")
        await a.set_name("two")
        found = await repo.list()
        assert [(m.id, m.name, m.parent_session_id, m.cwd) for m in found] == [
            ("b", None, "a", "/srv/a-b"),
            ("a", "two", None, "/srv/a"),
        ]
        assert found[1].metadata == {"k": [1]}
        assert [m.id for m in await repo.list(cwd="/srv/a")] == ["a"]
        assert await repo.list(cwd="/srv") == []


BAD_IDS = [
    "",
    "..",
    "../x",
    "a/b",
    "a\n",
    "a\x00",
    "-a",
    "_a",
    "é",
    "a" * 129,
    "a b",
    ".a",
    "a.db",
    "a\\b",
    "/abs",
    "~",
]


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_ids_that_may_not_name_a_session_are_refused_everywhere(repo: SqliteSessionRepo, bad: str) -> None:
    for call in (
        lambda: repo.create(id=bad),
        lambda: repo.open(bad),
        lambda: repo.open(bad, read_only=True),
        lambda: repo.delete(bad),
        lambda: repo.fork(bad),
        lambda: repo.check_branches(bad),
        lambda: repo.repair_branches(bad),
    ):
        with pytest.raises(InvalidSessionId):
            await call()
    assert not repo._path.exists()


async def test_creating_refuses_a_taken_id_and_values_that_are_no_json(repo: SqliteSessionRepo) -> None:
    async with await repo.create(id="s") as session:
        await session.append_entry(user("a"), "main")
        with pytest.raises(SessionExists):
            await repo.create(id="s")
        assert len(await session.get_log()) == 1
    with pytest.raises(InvalidPayload, match=r"\$\.metadata\.x"):
        await repo.create(id="t", metadata={"x": float("nan")})
    assert [m.id for m in await repo.list()] == ["s"]


async def test_deleting_removes_every_row_of_one_session(repo: SqliteSessionRepo, tmp_path: Path) -> None:
    for session_id in ("gone", "kept"):
        async with await repo.create(id=session_id) as session:
            await session.append_entry(custom("a"), "main")
            await session.append_record(started("run"))
            await session.create_lane("side", "a")
            await session.set_label("a", "l")
            with pytest.raises(SessionLocked):
                await repo.delete(session_id)
    await repo.delete("gone")
    with pytest.raises(SessionNotFound):
        await repo.delete("gone")
    with pytest.raises(SessionNotFound):
        await repo.open("gone", read_only=True)
    with look(tmp_path / "s.db") as conn:
        tables = [row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert len(tables) == 11
        for table in tables:
            left = {row[0] for row in conn.execute(f"SELECT session_id FROM {table}")}
            assert left == {"kept"}, table


async def test_a_session_whose_owner_was_killed_can_be_deleted(repo: SqliteSessionRepo, tmp_path: Path) -> None:
    script = """
    async def main():
        session = await SqliteSessionRepo(path).create(id="s")
        say("ready")
        await asyncio.sleep(60)
    asyncio.run(main())
    """
    with Child(script, tmp_path / "s.db") as child:
        child.hear()
        with pytest.raises(SessionLocked):
            await repo.delete("s")
        child.process.kill()
        child.process.wait()
        await repo.delete("s")
    assert await repo.list() == []


async def test_reading_works_while_another_process_writes_and_changes_nothing(
    repo: SqliteSessionRepo, tmp_path: Path
) -> None:
    script = """
    async def main():
        session = await SqliteSessionRepo(path).create(id="s")
        for n in range(3000):
            await session.append_custom_entry("n", n)
            if n == 10:
                say("going")
        await session.close()
        say("done")
    asyncio.run(main())
    """
    with Child(script, tmp_path / "s.db") as child:
        assert child.hear() == "going"
        lengths: list[int] = []
        for _ in range(30):
            async with await repo.open("s", read_only=True) as reader:
                log = await reader.get_log()
                assert [item.seq for item in log] == list(range(1, len(log) + 1))
                assert len(await reader.find_entries_on_branch()) == len(log)
                lengths.append(len(log))
        assert child.hear() == "done"
        assert child.end() == 0
    assert lengths == sorted(lengths)
    assert lengths[0] >= 11
    async with await repo.open("s", read_only=True) as reader:
        assert len(await reader.get_log()) == 3000


async def source_of(repo: SqliteSessionRepo | MemorySessionRepo) -> Session:
    """main: a b c d; side: a b u; d and u labelled, a name, an open operation and usage."""
    session = await repo.create(id="source", cwd="/srv/x", metadata={"not": "copied"})
    for entry in (user("a"), user("b")):
        await session.append_entry(entry, "main")
    await session.create_lane("side", "b")
    await session.append_record(started("run"))
    await session.append_entry(user("c"), "main")
    await session.append_entry(custom("u"), "side")
    await session.append_entry(user("d"), "main")
    await session.append_record(usage("spent", 12))
    await session.set_name("named")
    await session.set_label("d", "tip")
    await session.set_label("u", "other")
    return session


FORKS: dict[str, tuple[ForkOptions | None, list[str], dict[str, str | None], dict[str, str]]] = {
    "main's leaf by default": (None, ["a", "b", "c", "d"], {"main": "d"}, {"d": "tip"}),
    "at an entry": (BranchFork(entry_id="u"), ["a", "b", "u"], {"main": "u"}, {"u": "other"}),
    "before an entry": (BranchFork(entry_id="c", position="before"), ["a", "b"], {"main": "b"}, {}),
    "before the root": (BranchFork(entry_id="a", position="before"), [], {"main": None}, {}),
    "the tree": (
        TreeFork(),
        ["a", "b", "c", "u", "d"],
        {"main": "d", "side": "u"},
        {"d": "tip", "u": "other"},
    ),
}


@pytest.mark.parametrize("backend", ["sqlite, opened", "sqlite, by id", "memory"])
@pytest.mark.parametrize("name", FORKS)
async def test_a_fork_copies_entries_lanes_and_facts_and_nothing_else(
    repo: SqliteSessionRepo, name: str, backend: str
) -> None:
    options, ids, lanes, labels = FORKS[name]
    source = await source_of(MemorySessionRepo(TickingClock()) if backend == "memory" else repo)
    before = await source.get_log()
    fork = await repo.fork("source" if backend == "sqlite, by id" else source, options, id="fork")
    log = await fork.get_log()
    entries = [item.entry for item in log if item.kind == "entry"]
    originals = {item.entry.id: item.entry for item in before if item.kind == "entry"}
    assert [entry.id for entry in entries] == ids
    assert [(e.parent_id, e.timestamp, e.body) for e in entries] == [
        (originals[i].parent_id, originals[i].timestamp, originals[i].body) for i in ids
    ]
    assert [item.seq for item in log] == list(range(1, len(log) + 1))
    assert {pointer.lane: pointer.leaf_id for pointer in await fork.get_lanes()} == lanes
    assert await fork.get_name() == "named"
    assert await fork.get_labels() == labels
    assert await fork.find_records() == []
    assert await fork.find_open_operations("main") == []
    stats = await fork.get_stats()
    assert (stats.message_count, stats.total_tokens) == (len([i for i in ids if i != "u"]), 0)
    assert (fork.metadata.parent_session_id, fork.metadata.cwd, fork.metadata.metadata) == ("source", "/srv/x", {})
    assert await source.get_log() == before
    assert await repo.check_branches("fork")
    await fork.append_entry(user("new"), "main")
    assert [e.id for e in await fork.find_entries_on_branch(order="oldestFirst")][-1] == "new"
    await fork.close()
    await source.close()


async def test_a_fork_at_an_unknown_entry_or_under_a_taken_id_makes_nothing(repo: SqliteSessionRepo) -> None:
    source = await source_of(repo)
    with pytest.raises(UnknownEntry):
        await repo.fork(source, BranchFork(entry_id="nowhere"), id="fork")
    with pytest.raises(SessionExists):
        await repo.fork(source, id="source")
    with pytest.raises(SessionNotFound):
        await repo.fork("absent", id="fork")
    assert [m.id for m in await repo.list()] == ["source"]
    await source.close()


async def test_a_snapshot_holds_the_committed_data_and_no_claims(repo: SqliteSessionRepo, tmp_path: Path) -> None:
    session = await source_of(repo)
    (tmp_path / "copy").mkdir()
    copy = await repo.snapshot(tmp_path / "copy")
    await session.append_entry(user("later"), "main")
    async with await copy.open("source") as copied:
        assert await copied.get_log() == (await session.get_log())[:-1]
        assert await copied.get_stats() != await session.get_stats()
        await copied.append_entry(user("elsewhere"), "main")
    assert await session.get_entry("elsewhere") is None
    await copy.close()
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["s.db"]
    with look(tmp_path / "s.db") as conn:
        assert leases.read(conn, "source") is not None  # ours is still there
    await session.close()


async def test_a_snapshot_of_nothing_is_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy = await SqliteSessionRepo(tmp_path / "s.db").snapshot(tmp_path / "copy")
    assert await copy.list() == []
    async with await copy.create(id="s"):
        pass
    await copy.close()


async def test_a_url_names_the_path(tmp_path: Path) -> None:
    repo = from_url(str(tmp_path / "x.db"), durability="power", id_generator=CountingIds("url"))
    async with await repo.create() as session:
        assert session.id == "url-1"
        assert database_of(session).path == tmp_path / "x.db"
    await repo.close()
    with pytest.raises(ValueError, match="path"):
        from_url("")


async def attempt_write(session: Session, rng: random.Random, ids: list[str], n: int) -> str:
    """One random write; returns what came of it."""
    lanes = ["main", "side", "nowhere"]
    lane = rng.choice(lanes)
    target = rng.choice([*ids, "nowhere"])
    try:
        match rng.randrange(9):
            case 0 | 1 | 2:
                new = rng.choice([f"e{n}", f"e{n}", target])
                entry = rng.choice([user(new, f"text {n}"), custom(new, rng.choice("xy"), {"n": n})])
                committed = await session.append_entry(entry, lane)
                ids.append(new)
                return f"entry {committed}"
            case 3:
                return f"record {await session.append_record(started(f'run{n}', lane))}"
            case 4:
                record = rng.choice([attempt(f"t{n}", target, lane=lane), usage(f"u{n}", n, lane)])
                return f"record {await session.append_record(record)}"
            case 5:
                open_now = await session.find_open_operations(lane)
                run_id = open_now[0].id if open_now else target
                return f"record {await session.append_record(finished(f'f{n}', run_id, lane))}"
            case 6:
                await session.create_lane(rng.choice(["side", f"lane{n}"]), rng.choice([None, target]))
            case 7:
                await session.move_lane(lane, rng.choice([None, target]))
            case _:
                await session.set_label(target, rng.choice([None, f"l{n}"]))
                await session.set_name(rng.choice([None, f"name {n}"]))
    except SessionError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


async def answers(session: Session) -> list[object]:
    """Every kind of read."""
    found: list[object] = [
        await session.get_log(),
        await session.get_lanes(),
        await session.get_stats(),
        await session.get_name(),
        list((await session.get_labels()).items()),
        await session.find_records(),
        await session.find_records(type="usage", order="oldestFirst", limit=2),
        await session.find_entries(type="message", limit=3),
        await session.find_entries(custom_type="x", order="oldestFirst"),
        session.delivered_seq,
    ]
    for pointer in await session.get_lanes():
        found.append(await session.view(pointer.lane).find_entries_on_branch(stop_at_type="custom"))
        found.append(await session.find_open_operations(pointer.lane, limit=2))
        found.append(await session.find_records(lane=pointer.lane, after_seq=5))
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_it_answers_as_the_reference_backend_does(repo: SqliteSessionRepo, seed: int) -> None:
    memory = MemorySessionRepo(TickingClock(), CountingIds())
    sessions = [await memory.create(id="s"), await repo.create(id="s")]
    rngs = [random.Random(seed), random.Random(seed)]
    ids: list[list[str]] = [[], []]
    for n in range(150):
        outcomes = [
            await attempt_write(session, rng, known, n) for session, rng, known in zip(sessions, rngs, ids, strict=True)
        ]
        assert outcomes[0] == outcomes[1], n
    reference, ours = [await answers(session) for session in sessions]
    assert reference == ours
    await sessions[1].close()
    reopened = await repo.open("s")
    assert await answers(reopened) == reference
    await reopened.close()
