"""The branch cache: the four append cases of harness-v2 §13, its invariants, its explicit repair."""

import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlite_support import CountingIds, TickingClock, custom, database_of, user

from agent_harness.errors import CorruptSession, SessionLocked, UnknownEntry
from agent_harness.session.queries import BranchBounds, EntryQuery, Order, select_on_branch
from agent_harness.session.session import Session
from agent_harness.types.entries import Entry
from session_backends.sqlite import SqliteSessionRepo, branches


@pytest.fixture
async def repo(tmp_path: Path) -> AsyncIterator[SqliteSessionRepo]:
    repo = SqliteSessionRepo(tmp_path / "s.db", clock=TickingClock(), id_generator=CountingIds())
    yield repo
    await repo.close()


@pytest.fixture
async def session(repo: SqliteSessionRepo) -> AsyncIterator[Session]:
    async with await repo.create(id="s") as session:
        yield session


async def cache(session: Session) -> list[str]:
    """The branches as in the specification: one string of entry ids each, in order of creation."""
    rows = await database_of(session).read(lambda conn: branches.stored(conn, "s"))
    paths: dict[int, str] = {}
    for branch_id, _, entry_id, _, _ in rows:
        paths[branch_id] = paths.get(branch_id, "") + entry_id
    tips = await database_of(session).read(lambda conn: branches.stored_tips(conn, "s"))
    assert {path[-1]: branch_id for branch_id, path in paths.items()} == tips
    return [paths[branch_id] for branch_id in sorted(paths)]


async def path(session: Session, start: str) -> str:
    found = await session.find_entries_on_branch(start=start, order="oldestFirst")
    return "".join(entry.id for entry in found)


async def grow(session: Session, ids: str, lane: str = "main") -> None:
    for entry_id in ids:
        await session.append_entry(user(entry_id), lane)


async def test_case_1_a_plain_append_extends_its_branch(session: Session) -> None:
    await grow(session, "abc")
    assert await cache(session) == ["abc"]
    await grow(session, "d")
    assert await cache(session) == ["abcd"]


async def test_case_2_of_two_lanes_on_one_leaf_the_second_copies(session: Session) -> None:
    await grow(session, "abc")
    await session.create_lane("t1", "c")
    await grow(session, "u", "t1")
    assert await cache(session) == ["abcu"]
    assert await path(session, "c") == "abc"  # main's reads stop at its leaf
    await grow(session, "d")
    assert await cache(session) == ["abcu", "abcd"]


async def test_case_3_a_lane_parked_in_the_middle_copies_when_it_appends(session: Session) -> None:
    await grow(session, "abc")
    await session.create_lane("t1", "c")
    await grow(session, "u", "t1")
    await grow(session, "d")
    await session.create_lane("t2", "b")
    assert await path(session, "b") == "ab"
    assert await cache(session) == ["abcu", "abcd"]  # nothing was built for the read
    await grow(session, "x", "t2")
    assert await cache(session) == ["abcu", "abcd", "abx"]


async def test_case_4_what_counts_is_whether_a_branch_ends_there_not_whether_it_has_children(session: Session) -> None:
    await grow(session, "abc")
    await session.create_lane("t1", "c")
    await grow(session, "u", "t1")
    await grow(session, "d")
    await session.move_lane("main", "c")
    await grow(session, "e")
    assert await cache(session) == ["abcu", "abcd", "abce"]
    await session.move_lane("t1", "u")
    await grow(session, "v", "t1")
    assert await cache(session) == ["abcuv", "abcd", "abce"]  # a branch ended at u: one row


async def test_a_second_root_is_a_branch_of_its_own(session: Session) -> None:
    await grow(session, "ab")
    await session.move_lane("main", None)
    await grow(session, "c")
    assert await cache(session) == ["ab", "c"]
    assert await path(session, "c") == "c"


async def random_tree(session: Session, rng: random.Random, size: int) -> list[Entry]:
    entries: list[Entry] = []
    for n in range(size):
        if entries and rng.random() < 0.3:
            await session.move_lane("main", rng.choice([None, *(entry.id for entry in entries)]))
        entry = user(f"e{n}") if rng.random() < 0.6 else custom(f"e{n}", rng.choice(["x", "y"]))
        entries.append(await session.append_entry(entry, "main"))
    return entries


@pytest.mark.parametrize("seed", range(4))
async def test_every_branch_query_gives_what_walking_the_parents_gives(session: Session, seed: int) -> None:
    rng = random.Random(seed)
    entries = await random_tree(session, rng, 40)
    by_id = {entry.id: entry for entry in entries}
    storage = session._core.storage
    for _ in range(150):
        start = rng.choice(entries)
        walked = [start]
        while (parent := walked[-1].parent_id) is not None:
            walked.append(by_id[parent])
        seqs = [None, *(entry.seq for entry in entries)]
        kind = rng.choice([None, "message", "custom", "compaction"])
        query = EntryQuery(
            type=kind,
            custom_type=rng.choice([None, "x"]) if kind in (None, "custom") else None,
            order=rng.choice(["newestFirst", "oldestFirst"]),
            limit=rng.choice([None, 1, 3]),
            cursor=rng.choice(seqs),
            up_to_seq=rng.choice(seqs),
        )
        bounds = BranchBounds(
            start=start.id,
            stop_at_type=rng.choice([None, "custom", "message", "compaction"]),
            stop_at_id=rng.choice([None, "nowhere", rng.choice(entries).id, rng.choice(walked).id]),
            after_seq=rng.choice(seqs),
        )
        assert await storage.find_entries_on_branch(query, bounds) == select_on_branch(walked, query, bounds), (
            query,
            bounds,
        )


async def test_of_two_stops_the_first_on_the_walk_ends_it(session: Session) -> None:
    for entry in (user("a"), custom("b"), user("c"), custom("d"), user("e")):
        await session.append_entry(entry, "main")

    async def walk(order: Order, stop_at_id: str) -> str:
        found = await session.find_entries_on_branch(order=order, stop_at_type="custom", stop_at_id=stop_at_id)
        return "".join(entry.id for entry in found)

    assert await walk("oldestFirst", "a") == "a"
    assert await walk("oldestFirst", "c") == "ab"
    assert await walk("newestFirst", "c") == "ed"
    assert await walk("newestFirst", "e") == "e"


async def test_a_path_from_an_entry_that_does_not_exist_is_refused(session: Session) -> None:
    with pytest.raises(UnknownEntry):
        await session.find_entries_on_branch(start="nowhere")


async def test_the_cache_is_what_the_parent_pointers_say(repo: SqliteSessionRepo, session: Session) -> None:
    await random_tree(session, random.Random(9), 60)
    assert await repo.check_branches("s")


async def test_repair_rebuilds_a_damaged_cache_and_reads_never_do(repo: SqliteSessionRepo, session: Session) -> None:
    await grow(session, "abc")
    await session.create_lane("t1", "b")
    await grow(session, "u", "t1")
    whole = await cache(session)

    def damage(conn: sqlite3.Connection) -> None:
        conn.execute("DELETE FROM branch_entries WHERE entry_id IN ('b', 'u')")
        conn.execute("DELETE FROM branch_tips WHERE tip_id = 'u'")

    await database_of(session).write(damage, durability="process")
    assert not await repo.check_branches("s")
    with pytest.raises(UnknownEntry):
        await path(session, "u")
    assert not await repo.check_branches("s")  # reading repaired nothing
    with pytest.raises(SessionLocked):
        await repo.repair_branches("s")
    await session.close()
    await repo.repair_branches("s")
    assert await repo.check_branches("s")
    async with await repo.open("s") as again:
        assert await cache(again) == whole
        assert await path(again, "u") == "abu"


async def test_a_parent_pointer_that_leads_nowhere_is_named_not_repaired(
    repo: SqliteSessionRepo, session: Session
) -> None:
    await grow(session, "ab")
    await database_of(session).write(
        lambda conn: conn.execute("UPDATE entries SET parent_id = 'gone' WHERE id = 'b'").rowcount,
        durability="process",
    )
    await session.close()
    with pytest.raises(CorruptSession, match=r"'b'.*'gone'"):
        await repo.check_branches("s")
    with pytest.raises(CorruptSession):
        await repo.repair_branches("s")
    async with await repo.open("s") as again:
        assert await cache(again) == ["ab"]
