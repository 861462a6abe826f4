"""One writer per session: fenced claims that pauses, clocks and dead owners cannot fool (cases 10 and 40, T18)."""

import asyncio
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlite_support import Child, CountingIds, TickingClock, custom, database_of, look, user

from agent_harness.errors import FencedWriter, SessionLocked, SessionNotFound, StorageError
from agent_harness.session.session import Session
from session_backends.sqlite import SqliteSessionRepo, leases, schema
from session_backends.sqlite.leases import Held, Lease, Owner

WRITER = """
async def main():
    repo = SqliteSessionRepo(path, lease_ttl_ms=int(sys.argv[2]))
    session = await repo.open("s")
    await session.append_custom_entry("child", 1)
    say("ready", os.getpid())
    while (line := await asyncio.to_thread(hear)) == "write":
        try:
            await session.append_custom_entry("child", 2)
            say("written")
        except Exception as error:
            say(type(error).__name__)
    await session.close()
    await repo.close()
    say("closed")
asyncio.run(main())
"""


@pytest.fixture
async def repo(tmp_path: Path) -> AsyncIterator[SqliteSessionRepo]:
    repo = SqliteSessionRepo(tmp_path / "s.db", id_generator=CountingIds(), lease_ttl_ms=300)
    async with await repo.create(id="s"):
        pass
    yield repo
    await repo.close()


@pytest.fixture
def conn() -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(conn)
    yield conn
    conn.close()


def take(
    conn: sqlite3.Connection, name: str, stale: Held | None = None, now_ms: int = 0, owner: Owner | None = None
) -> Lease | Held:
    owner = owner or leases.this_process(0)
    return leases.claim(conn, "s", owner_id=name, owner=owner, ttl_ms=200, now_ms=now_ms, stale=stale)


def taken(conn: sqlite3.Connection, name: str, **options: object) -> Lease:
    lease = take(conn, name, **options)
    assert isinstance(lease, Lease)
    return lease


def test_a_live_claim_is_refused_whatever_any_clock_says(conn: sqlite3.Connection) -> None:
    """A clock an hour ahead, the taker's or the owner's, takes nothing and blocks nothing."""
    lease = taken(conn, "a", now_ms=0)
    assert isinstance(take(conn, "b", now_ms=3_600_000), Held)
    leases.renew(conn, lease, 7_200_000)
    assert isinstance(take(conn, "b", now_ms=0), Held)
    leases.release(conn, lease)
    assert taken(conn, "b", now_ms=0).fence == 2


def test_the_fence_only_rises_and_the_old_owner_is_refused_in_its_own_transaction(conn: sqlite3.Connection) -> None:
    old = taken(conn, "a")
    held = take(conn, "b")
    assert isinstance(held, Held)
    new = taken(conn, "b", stale=held)
    assert new.fence == old.fence + 1
    with pytest.raises(FencedWriter):
        leases.renew(conn, old, 0)
    leases.release(conn, old)  # releases nothing: it is not its own any more
    leases.renew(conn, new, 0)
    again = taken(conn, "a", stale=leases.read(conn, "s"))
    assert again.fence == 3
    with pytest.raises(FencedWriter):
        leases.renew(conn, replace(again, fence=1), 0)


def test_a_claim_seen_standing_still_is_not_taken_once_its_beat_moved(conn: sqlite3.Connection) -> None:
    lease = taken(conn, "a")
    seen = leases.read(conn, "s")
    leases.renew(conn, lease, 0)
    assert isinstance(take(conn, "b", stale=seen), Held)


def test_who_is_provably_gone() -> None:
    here = leases.this_process(0)
    assert not leases.is_gone(here)
    dead = Child("say('up'); hear()", "-")
    dead.hear()
    pid = dead.process.pid
    owner = replace(here, pid=pid, start_time=str(leases._process_start(pid)))
    dead.process.kill()
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is not None
    assert leases.is_gone(owner)  # a zombie: nobody waited for it yet
    dead.end()
    assert leases.is_gone(owner)
    assert leases.is_gone(replace(here, start_time="1"))  # the pid belongs to another process now
    assert leases.is_gone(replace(here, boot_id="another boot"))
    assert not leases.is_gone(replace(owner, host="elsewhere"))
    assert not leases.is_gone(replace(owner, pid_namespace="pid:[1]"))
    assert not leases.is_gone(replace(here, boot_id="another boot", host="elsewhere"))


def test_a_claim_whose_owner_describes_itself_otherwise_is_never_provably_gone(conn: sqlite3.Connection) -> None:
    taken(conn, "a")
    conn.execute("UPDATE writer_leases SET owner = '{\"node\": 7}'")
    held = take(conn, "b")
    assert isinstance(held, Held)
    assert held.owner is None
    assert held.name == "another process"


async def test_a_second_open_in_the_same_process_is_refused_by_any_repository(
    repo: SqliteSessionRepo, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
    other = SqliteSessionRepo(tmp_path / "link.db")
    async with await repo.open("s"):
        for same in (repo, other):
            with pytest.raises(SessionLocked, match=str(os.getpid())):
                await same.open("s")
            with pytest.raises(SessionLocked):
                await same.delete("s")
    async with await other.open("s"):
        pass
    await other.close()


async def test_another_process_is_refused_at_once_and_named(repo: SqliteSessionRepo, tmp_path: Path) -> None:
    with Child(WRITER, tmp_path / "s.db", 60_000) as child:
        assert child.hear() == f"ready {child.process.pid}"
        begun = time.monotonic()
        with pytest.raises(SessionLocked, match=f"pid {child.process.pid} on .* since"):
            await repo.open("s")
        assert time.monotonic() - begun < 5  # its time to live is a minute
        child.say("write")
        assert child.hear() == "written"
        child.say("close")
        assert child.hear() == "closed"
        assert child.end() == 0
    async with await repo.open("s") as session:
        assert len(await session.get_log()) == 2


async def test_after_kill_9_of_the_owner_the_next_open_succeeds_at_once(
    repo: SqliteSessionRepo, tmp_path: Path
) -> None:
    with Child(WRITER, tmp_path / "s.db", 60_000) as child:
        child.hear()
        child.process.kill()
        os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie: nobody reaped it
        async with await repo.open("s") as session:
            assert len(await session.get_log()) == 1
            await session.append_entry(user("next"), "main")


async def test_a_stopped_owner_is_taken_over_after_its_time_to_live_and_fenced_when_it_wakes(
    repo: SqliteSessionRepo, tmp_path: Path
) -> None:
    with Child(WRITER, tmp_path / "s.db", 400) as child:
        child.hear()
        os.kill(child.process.pid, signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(SessionLocked):
            await repo.open("s")  # it may wake at any moment
        with pytest.raises(SessionLocked):
            await repo.open("s", wait=0.1)
        session = await repo.open("s", wait=20)
        assert time.monotonic() - begun >= 0.4
        await session.append_entry(user("ours"), "main")
        os.kill(child.process.pid, signal.SIGCONT)
        child.say("write")
        assert child.hear() == "FencedWriter"
        child.say("write")
        assert child.hear() == "FencedWriter"
        child.say("close")
        assert child.hear() == "closed"
        await session.append_entry(user("still ours"), "main")  # its close released nothing of ours
        assert [entry.id for entry in await session.find_entries(type="message")] == ["still ours", "ours"]
        assert len(await session.get_log()) == 3
        await session.close()


async def test_an_idle_owner_keeps_its_claim_by_its_beat(repo: SqliteSessionRepo, tmp_path: Path) -> None:
    with Child(WRITER, tmp_path / "s.db", 200) as child:
        child.hear()
        with look(tmp_path / "s.db") as conn:
            before = leases.read(conn, "s")
            assert before is not None
            with pytest.raises(SessionLocked):
                await repo.open("s", wait=1.0)  # five times its time to live
            after = leases.read(conn, "s")
        assert after is not None
        assert after.fence == before.fence
        assert after.beat > before.beat
        child.say("write")
        assert child.hear() == "written"


async def test_waiting_takes_the_claim_as_soon_as_it_is_given_up(repo: SqliteSessionRepo) -> None:
    first = await repo.open("s")
    waiting = asyncio.ensure_future(repo.open("s", wait=30))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.1)
    begun = time.monotonic()
    await first.close()
    second = await waiting
    assert time.monotonic() - begun < 5
    await second.close()


async def test_a_taken_over_session_in_this_process_faults_and_writes_nothing(
    repo: SqliteSessionRepo, tmp_path: Path
) -> None:
    session = await repo.open("s")
    await session.append_entry(user("a"), "main")
    with look(tmp_path / "s.db") as conn:
        conn.execute("UPDATE writer_leases SET fence = fence + 1, owner_id = 'thief'")
        with pytest.raises(FencedWriter):
            await session.append_entry(user("b"), "main")
        with pytest.raises(StorageError):
            await session.set_name("n")
        await session.close()
        assert conn.execute("SELECT owner_id FROM writer_leases").fetchone() == ("thief",)
        assert conn.execute("SELECT count(*) FROM entries").fetchone() == (1,)


class LeapingClock:
    """Now it leaps over a whole time to live, now it hardly moves: its owner sleeps, or is sent to sleep."""

    def __init__(self, chance: random.Random, ttl: float) -> None:
        self.now = 0.0
        self.chance = chance
        self.ttl = ttl

    def __call__(self) -> float:
        self.now += self.ttl * self.chance.choice([0.1, *(1.5,) * 30])
        return self.now


async def test_after_a_thousand_pauses_nothing_was_written_by_an_owner_that_had_lost_its_claim(tmp_path: Path) -> None:
    """Two repositories take one session from each other by clocks that leap, while writes are under way."""
    chance = random.Random(18)
    clock = LeapingClock(chance, 10.0)
    repos = [SqliteSessionRepo(tmp_path / "s.db", lease_ttl_ms=10_000, lease_clock=clock) for _ in range(2)]
    owner = await repos[0].create(id="s")
    acknowledged: list[str] = []
    refused = 0

    async def write(session: Session, entry_id: str) -> None:
        await session.append_entry(custom(entry_id), "main")
        acknowledged.append(entry_id)

    for number in range(1, 1_001):
        for count in range(chance.randrange(3)):
            await write(owner, f"{number}-{count}")
        under_way: list[asyncio.Future[None]] = []
        taking = asyncio.ensure_future(repos[number % 2].open("s", wait=1e9))
        pause = chance.randrange(40)  # until then nothing is asked of the owner
        while not taking.done():
            await asyncio.sleep(0)
            pause -= 1
            if pause < 0 and len(under_way) < 4:
                under_way.append(asyncio.ensure_future(write(owner, f"{number}-late{len(under_way)}")))
                pause = chance.randrange(10)
        successor = await taking
        if chance.random() < 0.5:
            await write(successor, f"{number + 1}-first")
        outcomes = await asyncio.gather(*under_way, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), FencedWriter}
        refused += sum(isinstance(outcome, FencedWriter) for outcome in outcomes)
        with pytest.raises(FencedWriter):
            await write(owner, f"{number}-woken")
        await owner.close()  # and takes nothing from its successor
        owner = successor

    found = [entry.id for entry in await owner.find_entries(order="oldestFirst")]
    assert found == acknowledged
    owners = [int(entry_id.split("-")[0]) for entry_id in found]
    assert owners == sorted(owners)  # whoever lost it never writes behind its successor
    assert owners[-1] > 900
    assert refused > 100
    assert sum("late" in entry_id for entry_id in found) > 100  # both happen: a write before the loss, and behind it
    assert await owner.verify() == []
    with look(tmp_path / "s.db") as conn:
        assert conn.execute("SELECT fence FROM writer_leases").fetchone() == (1_001,)
    await owner.close()
    for repo in repos:
        await repo.close()


async def test_closing_releases_the_claim_and_leaves_no_thread_that_beats(
    repo: SqliteSessionRepo, tmp_path: Path
) -> None:
    session = await repo.open("s")
    database = database_of(session)
    await session.close()
    await repo.close()
    assert database.ended.is_set()
    with look(tmp_path / "s.db") as conn:
        assert leases.read(conn, "s") is None
        assert conn.execute("SELECT fence FROM writer_leases").fetchone() == (2,)


async def test_an_open_that_is_cancelled_while_it_claims_leaves_no_claim_behind(repo: SqliteSessionRepo) -> None:
    """The claim is started, in one transaction with a job that is held open, when its caller goes away."""
    await repo.list()
    database = repo._database
    assert database is not None

    def hold(inside: threading.Event, gate: threading.Event) -> "asyncio.Task[None]":
        def run(_: sqlite3.Connection) -> None:
            inside.set()
            assert gate.wait(10)

        return asyncio.ensure_future(database.write(run, durability="process"))

    events = [threading.Event() for _ in range(4)]
    first = hold(*events[:2])
    assert await asyncio.to_thread(events[0].wait, 10)
    opening = asyncio.ensure_future(repo.open("s"))
    while database._started()._queue.qsize() == 0:
        await asyncio.sleep(0.001)
    second = hold(*events[2:])
    await asyncio.sleep(0)
    events[1].set()
    assert await asyncio.to_thread(events[2].wait, 10)
    opening.cancel()
    await asyncio.sleep(0)
    assert not opening.done()
    events[3].set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.gather(first, second)
    async with await repo.open("s") as session:
        assert session.id == "s"


async def test_reading_never_claims(repo: SqliteSessionRepo, tmp_path: Path) -> None:
    with look(tmp_path / "s.db") as conn:
        before = conn.execute("SELECT * FROM writer_leases").fetchall()
        async with await repo.open("s", read_only=True) as reader:
            await reader.get_log()
        await repo.list()
        assert conn.execute("SELECT * FROM writer_leases").fetchall() == before


async def test_a_deleted_session_can_be_made_again_while_its_old_owner_is_fenced(tmp_path: Path) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db", clock=TickingClock())
    old = await repo.create(id="s")
    with look(tmp_path / "s.db") as conn:
        conn.execute("UPDATE writer_leases SET owner_id = NULL, owner = NULL")
    await repo.delete("s")
    with pytest.raises(SessionNotFound):
        await repo.open("s")
    async with await repo.create(id="s") as new:
        with pytest.raises(FencedWriter):
            await old.append_entry(user("stale"), "main")
        assert await new.get_log() == []
    await old.close()
    await repo.close()
