"""Processes, loops and threads: forgotten closes, forks, one loop after another (cases 19, 25, 26, T19, T21)."""

import asyncio
import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from sqlite_support import Child, TickingClock, custom, database_of, look, storage_of, user

from agent_harness.errors import StorageError
from agent_harness.session.session import Session
from session_backends.sqlite import SqliteSessionRepo, leases
from session_backends.sqlite import database as databases


def test_a_forgotten_close_neither_hangs_the_interpreter_nor_loses_an_acknowledged_write(tmp_path: Path) -> None:
    script = """
    async def main():
        repo = SqliteSessionRepo(path)
        session = await repo.create(id="s")
        for n in range(20):
            await session.append_custom_entry("n", n)
        asyncio.ensure_future(session.append_custom_entry("not", "awaited"))
        say("done")
        return repo, session
    kept = asyncio.run(main())
    """
    begun = time.monotonic()
    with Child(script, tmp_path / "s.db") as child:
        assert child.hear() == "done"
        assert child.end(timeout=15) == 0
    assert time.monotonic() - begun < 15
    with look(tmp_path / "s.db") as conn:
        assert conn.execute("SELECT count(*) FROM entries").fetchone()[0] >= 20
        assert leases.read(conn, "s") is None  # released on the way out
    assert not (tmp_path / "s.db-wal").exists()  # and the log was cleaned up


async def test_kill_9_at_any_moment_loses_no_acknowledged_write_and_leaves_none_half_done(tmp_path: Path) -> None:
    script = """
    async def main():
        repo = SqliteSessionRepo(path)
        session = await repo.open("s")
        say("ready")
        async def write(lane):
            while True:
                entry = await session.view(lane).append_custom_entry("n", "x" * 2000)
                say(entry)
        await asyncio.gather(write("main"), write("side"))
    asyncio.run(main())
    """
    path = tmp_path / "s.db"
    repo = SqliteSessionRepo(path)
    async with await repo.create(id="s") as session:
        await session.create_lane("side", None)
    acknowledged: set[str] = set()
    for kill in range(6):
        with Child(script, path) as child:
            assert child.hear() == "ready"
            for _ in range(kill * 7):
                acknowledged.add(child.hear())
            child.process.kill()
            assert child.process.stdout is not None
            acknowledged |= {line.strip() for line in child.process.stdout if line.endswith("\n")}
        async with await repo.open("s") as session:
            log = await session.get_log()
            assert [item.seq for item in log] == list(range(1, len(log) + 1))
            stored = {item.entry.id for item in log if item.kind == "entry"}
            assert acknowledged <= stored
            for pointer in await session.get_lanes():
                assert pointer.leaf_id is None or await session.find_entries_on_branch(start=pointer.leaf_id)
        assert await repo.check_branches("s")
    await repo.close()
    assert len(acknowledged) >= 7 * 15


def test_an_uncaught_error_ends_the_process_as_usual(tmp_path: Path) -> None:
    script = """
    async def main():
        session = await SqliteSessionRepo(path).create(id="s")
        await session.append_custom_entry("n", 1)
        raise SystemExit(7)
    asyncio.run(main())
    """
    with Child(script, tmp_path / "s.db") as child:
        assert child.process.wait(timeout=15) == 7


def test_a_write_in_flight_when_the_loop_ends_is_known_to_the_next_loop(tmp_path: Path) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db", clock=TickingClock())
    seen: list[int] = []

    async def first() -> Session:
        session = await repo.create(id="s")
        await session.append_entry(user("a"), "main")
        pending = asyncio.ensure_future(
            session.append_entry(user("b"), "main", on_commit=lambda entry: seen.append(entry.seq))
        )
        while not storage_of(session)._database._writer._queue.empty():
            await asyncio.sleep(0)
        assert pending is not None
        return session

    session = asyncio.run(first())

    async def second() -> None:
        assert (await session.append_entry(user("c"), "main")).seq in (2, 3)
        log = await session.get_log()
        assert [item.seq for item in log] == list(range(1, len(log) + 1))
        assert len(seen) == len(log) - 2
        await session.close()
        await repo.close()

    begun = time.monotonic()
    asyncio.run(second())
    assert time.monotonic() - begun < 5


def test_what_a_closed_loop_could_not_be_told_the_next_loop_hears_first(tmp_path: Path) -> None:
    """The loop is closed while its write runs: the commit is announced on the next loop, before anything newer."""
    repo = SqliteSessionRepo(tmp_path / "s.db", clock=TickingClock())
    gate, inside = threading.Event(), threading.Event()
    heard: list[str] = []

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(repo.create(id="s"))
    database = database_of(session)

    async def submit() -> list[object]:
        held = database._started().submit(lambda conn: (inside.set(), gate.wait(10)), durability="process")
        write = session.append_entry(user("a"), "main", on_commit=lambda entry: heard.append(entry.id))
        write.send(None)  # submitted, and waiting
        return [held, write]

    kept = loop.run_until_complete(submit())
    assert inside.wait(10)
    loop.close()

    async def after() -> None:
        later = asyncio.ensure_future(
            session.append_entry(user("b"), "main", on_commit=lambda entry: heard.append(entry.id))
        )
        await asyncio.sleep(0)
        gate.set()
        entry = await later
        assert (entry.seq, entry.parent_id) == (2, "a")
        assert heard == ["a", "b"]
        assert session.delivered_seq == 2
        assert await session.get_leaf_id() == "b"
        await session.close()
        await repo.close()

    asyncio.run(after())
    assert len(kept) == 2


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    script = """
    async def use(repo, session):
        answers = []
        for call in (lambda: session.append_custom_entry("n", 1), lambda: session.get_entry("x"), repo.list,
                     SqliteSessionRepo(path).list, lambda: SqliteSessionRepo(path).create(id="other")):
            try:
                await asyncio.wait_for(call(), 5)
                answers.append("accepted")
            except Exception as error:
                answers.append(type(error).__name__)
        await session.close()
        await repo.close()
        say(*answers)
    async def start():
        repo = SqliteSessionRepo(path)
        session = await repo.create(id="s")
        await session.append_custom_entry("n", 0)
        return repo, session
    loop = asyncio.new_event_loop()
    repo, session = loop.run_until_complete(start())
    if (pid := os.fork()) == 0:
        asyncio.run(use(repo, session))
        sys.exit(0)
    say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    loop.run_until_complete(session.append_custom_entry("n", 1))
    say("parent", len(loop.run_until_complete(session.get_log())))
    loop.run_until_complete(session.close())
    loop.run_until_complete(repo.close())
    loop.close()
    """
    with Child(script, tmp_path / "s.db") as child:
        assert child.hear() == " ".join(["StorageError"] * 5)
        assert child.hear() == "child 0"
        assert child.hear() == "parent 2"
        assert child.end() == 0


def test_the_files_of_a_database_are_not_inherited_by_programs_that_are_started(tmp_path: Path) -> None:
    script = """
    import subprocess
    async def main():
        session = await SqliteSessionRepo(path).create(id="s")
        await session.append_custom_entry("n", 0)
        found = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False)
        say("open:", found.stdout.count("s.db"))
    asyncio.run(main())
    """
    with Child(script, tmp_path / "s.db") as child:
        assert child.hear() == "open: 0"
        assert child.end() == 0


async def test_every_repository_of_a_file_shares_one_writing_connection(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    one = SqliteSessionRepo(tmp_path / "s.db")
    two = SqliteSessionRepo(tmp_path / "sub" / ".." / "s.db", durability="power")
    async with await one.create(id="a") as a, await two.create(id="b") as b:
        assert database_of(a) is database_of(b)
        writers = [thread for thread in threading.enumerate() if thread.name == "sqlite-writer" and thread.is_alive()]
        mine = {database_of(a)._writer._thread} & set(writers)
        assert len(mine) == 1
        await one.close()
        await b.append_entry(user("x"), "main")  # the sessions keep it open
        await a.append_entry(user("x"), "main")
    await two.close()
    assert database_of(a).ended.is_set()
    assert database_of(a).key not in databases._REGISTRY.open


async def test_a_database_can_be_opened_again_at_once_after_its_close(tmp_path: Path) -> None:
    for n in range(10):
        repo = SqliteSessionRepo(tmp_path / "s.db")
        async with await repo.create(id=f"s{n}") as session:
            await session.append_entry(user("a"), "main")
        closing = asyncio.ensure_future(repo.close())
        again = SqliteSessionRepo(tmp_path / "s.db")
        assert len(await again.list()) == n + 1
        await closing
        await again.close()


async def test_a_new_writer_waits_until_the_old_one_of_the_same_file_has_closed(tmp_path: Path) -> None:
    old, new = SqliteSessionRepo(tmp_path / "s.db"), SqliteSessionRepo(tmp_path / "s.db")
    await (await old.create(id="a")).close()
    database = old._database
    assert database is not None
    gate, inside = threading.Event(), threading.Event()
    held = asyncio.ensure_future(database.write(lambda conn: (inside.set(), gate.wait(10)), durability="process"))
    assert await asyncio.to_thread(inside.wait, 10)
    closing = asyncio.ensure_future(old.close())
    await asyncio.sleep(0)
    creating = asyncio.ensure_future(new.create(id="b"))
    await asyncio.wait([creating], timeout=0.3)
    assert not creating.done()
    assert new._database is not database
    assert new._database._writer._conn is None
    gate.set()
    await held
    await closing
    async with await creating as session:
        assert session.id == "b"
    await new.close()


async def test_a_store_that_was_removed_under_a_repository_is_made_anew(tmp_path: Path) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db")
    await (await repo.create(id="s")).close()
    for path in tmp_path.iterdir():
        path.unlink()
    assert await repo.list() == []
    await (await repo.create(id="t")).close()
    assert [found.id for found in await repo.list()] == ["t"]
    await repo.close()


INTRUDER = """
import sqlite3
conn = sqlite3.connect(path, timeout=0.2)
try:
    conn.execute("BEGIN IMMEDIATE")
    say("in")
except sqlite3.OperationalError:
    say("out")
"""


async def test_a_snapshot_during_a_write_leaves_the_lock_in_place(tmp_path: Path) -> None:
    """T19: while a write is in its transaction, a snapshot leaves our lock in place: another program stays out."""
    (tmp_path / "live").mkdir()
    (tmp_path / "copy").mkdir()
    repo = SqliteSessionRepo(tmp_path / "live" / "s.db")
    session = await repo.create(id="s")
    await session.append_entry(user("a"), "main")
    gate, inside = threading.Event(), threading.Event()

    def hold(conn: sqlite3.Connection) -> None:
        inside.set()
        assert gate.wait(20)

    held = asyncio.ensure_future(database_of(session).write(hold, durability="process"))
    assert await asyncio.to_thread(inside.wait, 10)
    copy = await repo.snapshot(tmp_path / "copy")
    with Child(INTRUDER, tmp_path / "live" / "s.db") as other:
        assert other.hear() == "out"
    gate.set()
    await held
    async with await copy.open("s") as copied:
        assert len(await copied.get_log()) == 1
    await copy.close()
    await session.close()
    await repo.close()
    shutil.rmtree(tmp_path / "live")


async def test_a_busy_file_is_waited_for_and_a_waiting_write_can_still_be_withdrawn(tmp_path: Path) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db")
    session = await repo.create(id="s")
    with look(tmp_path / "s.db") as conn:
        conn.execute("BEGIN IMMEDIATE")
        withdrawn = asyncio.ensure_future(session.append_entry(user("no"), "main"))
        await asyncio.sleep(0.05)
        withdrawn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(withdrawn, 1)
        waiting = asyncio.ensure_future(session.append_entry(user("a"), "main"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        conn.execute("COMMIT")
    assert (await waiting).seq == 1
    await session.close()
    await repo.close()


async def test_a_database_that_cannot_be_opened_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db")
    await (await repo.create(id="s")).close()
    await repo.close()
    shm = tmp_path / "s.db-shm"
    shm.mkdir()  # in the place of SQLite's shared memory
    with pytest.raises(StorageError):
        await repo.create(id="t")
    shm.rmdir()
    async with await repo.create(id="t"):
        assert len(await repo.list()) == 2
    await repo.close()
    assert os.listdir(tmp_path) == ["s.db"]


def test_threads_with_loops_of_their_own_share_a_database_and_lose_nothing(tmp_path: Path) -> None:
    """Case 76: four threads, a thousand operations each; one connection writes for all of them."""
    path = tmp_path / "s.db"
    writers: set[int] = set()
    failures: list[BaseException] = []

    async def work(name: str) -> None:
        repo = SqliteSessionRepo(path)
        async with await repo.create(id=name) as session:
            for number in range(20):
                ids = [f"e{number}-{index}" for index in range(25)]
                await asyncio.gather(*(session.append_entry(custom(one), "main") for one in ids))
                found = await asyncio.gather(*(session.get_entry(one) for one in ids))
                assert [entry.id for entry in found if entry is not None] == ids
            writers.add(id(database_of(session)._writer))
            together.wait(60)  # no thread closes while another is still at work
        await repo.close()

    def run(name: str) -> None:
        try:
            asyncio.run(work(name))
        except BaseException as error:
            failures.append(error)
            together.abort()

    together = threading.Barrier(4)
    threads = [threading.Thread(target=run, args=(f"s{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert len(writers) == 1
    with look(path) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        counted = conn.execute("SELECT session_id, count(*), max(seq) FROM entries GROUP BY session_id").fetchall()
    assert counted == [(f"s{number}", 500, 500) for number in range(4)]
