"""The SQLite storage keeps the contract of harness-v2 §13: order, refusals, cancellation, faults."""

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlite_support import (
    CountingIds,
    TickingClock,
    attempt,
    custom,
    database_of,
    finished,
    look,
    record,
    started,
    storage_of,
    usage,
    user,
)

from agent_harness.errors import (
    DuplicateId,
    LaneAlreadyExists,
    OperationOpen,
    ReadOnlySession,
    SessionClosed,
    StorageError,
    UnknownEntry,
    UnknownLane,
)
from agent_harness.session.session import Session
from agent_harness.types.records import QueueEnqueued
from session_backends.sqlite import SqliteSessionRepo


@pytest.fixture
async def repo(tmp_path: Path) -> AsyncIterator[SqliteSessionRepo]:
    repo = SqliteSessionRepo(tmp_path / "s.db", clock=TickingClock(), id_generator=CountingIds())
    yield repo
    await repo.close()


@pytest.fixture
async def session(repo: SqliteSessionRepo) -> AsyncIterator[Session]:
    async with await repo.create(id="s") as session:
        yield session


async def reopened(repo: SqliteSessionRepo, session: Session) -> Session:
    await session.close()
    return await repo.open(session.id)


async def test_storage_assigns_parent_seq_and_time_and_a_reopened_session_reads_the_same(
    repo: SqliteSessionRepo, session: Session
) -> None:
    first = await session.append_entry(user("a", "x\u2028\U0001f600"), "main")
    await session.append_record(started("run"))
    second = await session.append_entry(custom("b", data={"big": 2**63, "deep": [None, 1.5]}), "main")
    assert (first.parent_id, first.seq, second.parent_id, second.seq) == (None, 1, "a", 3)
    assert first.timestamp < second.timestamp
    log = await session.get_log()
    again = await reopened(repo, session)
    assert await again.get_log() == log
    assert (await again.get_entry("a"), await again.get_entry("b")) == (first, second)
    assert [item.seq for item in log] == [1, 2, 3]
    await again.close()


async def test_one_sequence_counts_entries_records_lane_moves_and_facts(session: Session) -> None:
    await session.append_entry(user("a"), "main")
    await session.create_lane("side", "a")
    await session.set_name("n")
    await session.append_record(usage("u", 3))
    await session.set_label("a", "l")
    await session.move_lane("side", None)
    log = await session.get_log()
    assert [(item.seq, item.kind) for item in log] == [
        (1, "entry"), (2, "lane"), (3, "fact"), (4, "record"), (5, "fact"), (6, "lane"),
    ]  # fmt: skip
    assert await session.get_log(after_seq=2, limit=2) == log[2:4]


async def test_refusals_write_nothing_and_leave_the_session_usable(session: Session) -> None:
    await session.append_entry(user("a"), "main")
    await session.append_record(started("run"))
    before = await session.get_log()
    for refusal, write in (
        (DuplicateId, session.append_entry(user("a"), "main")),
        (DuplicateId, session.append_entry(user("run"), "main")),
        (DuplicateId, session.append_record(attempt("a", "run"))),
        (DuplicateId, session.append_record(attempt("run", "run"))),
        (UnknownLane, session.append_entry(user("b"), "nowhere")),
        (UnknownLane, session.append_record(attempt("c", "run", lane="nowhere"))),
        (UnknownLane, session.move_lane("nowhere", "a")),
        (UnknownEntry, session.move_lane("main", "nothing")),
        (UnknownEntry, session.create_lane("side", "nothing")),
        (UnknownEntry, session.set_label("run", "a record has no label")),
        (LaneAlreadyExists, session.create_lane("main", None)),
        (OperationOpen, session.append_record(started("other"))),
    ):
        with pytest.raises(refusal):
            await write
    assert await session.get_log() == before
    assert (await session.append_entry(user("b"), "main")).seq == 3


async def test_an_id_is_unique_per_session_not_per_database(repo: SqliteSessionRepo, session: Session) -> None:
    await session.append_entry(user("a"), "main")
    async with await repo.create(id="other") as other:
        assert (await other.append_entry(user("a"), "main")).seq == 1


async def test_the_open_operation_is_a_projection_of_its_lane(repo: SqliteSessionRepo, session: Session) -> None:
    await session.create_lane("side", None)
    run = await session.append_record(started("run"))
    other = await session.append_record(started("other", "side"))
    assert await session.find_open_operations("main", limit=2) == [run]
    assert await session.find_open_operations("nowhere") == []
    await session.append_record(finished("f0", "another run"))
    assert await session.find_open_operations("main") == [run]
    with pytest.raises(OperationOpen):
        await session.append_record(started("third"))
    await session.append_record(finished("f", "run"))
    assert await session.find_open_operations("main") == []
    again = await reopened(repo, session)
    assert await again.find_open_operations("side") == [other]
    assert await again.find_open_operations("main") == []
    await again.append_record(started("next"))
    await again.close()


async def test_statistics_are_a_running_projection_that_survives_reopening(
    repo: SqliteSessionRepo, session: Session
) -> None:
    await session.append_entry(user("a"), "main")
    await session.append_entry(custom("b"), "main")
    await session.append_record(usage("u1", 10))
    await session.append_record(usage("u2", -3))
    stats = await session.get_stats()
    assert (stats.message_count, stats.usage.input, stats.total_tokens) == (1, 7, 7)
    again = await reopened(repo, session)
    assert await again.get_stats() == stats
    await again.close()


async def test_facts_keep_their_history_and_the_latest_wins(repo: SqliteSessionRepo, session: Session) -> None:
    for entry_id in ("a", "b"):
        await session.append_entry(user(entry_id), "main")
    await session.set_name("first")
    await session.set_name("second")
    await session.set_label("a", "x")
    await session.set_label("b", "y")
    await session.set_label("b", None)
    assert (await session.get_label("a"), await session.get_label("b")) == ("x", None)
    again = await reopened(repo, session)
    assert (await again.get_name(), await again.get_labels()) == ("second", {"a": "x"})
    assert len([item for item in await again.get_log() if item.kind == "fact"]) == 5
    await again.set_name(None)
    assert await again.get_name() is None
    await again.close()


async def test_concurrent_writes_resolve_in_commit_order_and_callbacks_come_first(session: Session) -> None:
    order: list[str] = []

    async def write(n: int) -> None:
        await session.append_entry(user(f"e{n}"), "main", on_commit=lambda entry: order.append(f"commit {entry.seq}"))
        order.append(f"resolved {n + 1}")

    await asyncio.gather(*(write(n) for n in range(50)))
    commits = [line for line in order if line.startswith("commit")]
    resolved = [line for line in order if line.startswith("resolved")]
    assert commits == [f"commit {n}" for n in range(1, 51)]
    assert resolved == [f"resolved {n}" for n in range(1, 51)]
    for n in range(1, 51):
        assert order.index(f"commit {n}") < order.index(f"resolved {n}")


async def test_what_queues_up_behind_a_commit_shares_the_next_one(session: Session) -> None:
    database = database_of(session)
    gate, inside = threading.Event(), threading.Event()
    commits: list[None] = []

    def hold(conn: sqlite3.Connection) -> None:
        conn.set_trace_callback(lambda sql: commits.append(None) if sql == "COMMIT" else None)
        inside.set()
        assert gate.wait(10)

    held = asyncio.ensure_future(database.write(hold, durability="process"))
    assert await asyncio.to_thread(inside.wait, 10)
    writes = [asyncio.ensure_future(session.append_entry(user(f"e{n}"), "main")) for n in range(40)]
    refused = asyncio.ensure_future(session.append_entry(user("e0"), "main"))
    await asyncio.sleep(0)
    gate.set()
    await held
    await asyncio.gather(*writes)
    with pytest.raises(DuplicateId):  # its savepoint alone was rolled back
        await refused
    await database.write(lambda conn: conn.set_trace_callback(None), durability="process")
    assert len(commits) == 2  # the held one's, and one for all forty
    assert len(await session.get_log()) == 40


async def test_cancelling_a_write_that_has_not_started_withdraws_it(session: Session) -> None:
    database = database_of(session)
    gate, inside = threading.Event(), threading.Event()
    held = asyncio.ensure_future(database.write(lambda conn: (inside.set(), gate.wait(10)), durability="process"))
    assert await asyncio.to_thread(inside.wait, 10)
    seen: list[str] = []
    write = asyncio.ensure_future(
        session.append_entry(user("gone"), "main", on_commit=lambda entry: seen.append(entry.id))
    )
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write  # at once: the thread is still held
    gate.set()
    await held
    assert (await session.append_entry(user("next"), "main")).seq == 1
    assert seen == []


async def test_cancelling_a_started_write_waits_for_its_end_and_still_tells_the_commit(session: Session) -> None:
    database = database_of(session)
    gate, inside = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow(conn: sqlite3.Connection) -> str:
        inside.set()
        assert gate.wait(10)
        return "done"

    write = asyncio.ensure_future(database.write(slow, durability="process", on_commit=seen.append))
    assert await asyncio.to_thread(inside.wait, 10)
    write.cancel()
    write.cancel()
    await asyncio.sleep(0)
    assert not write.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert seen == ["done"]


async def test_random_cancellation_loses_and_doubles_nothing(session: Session, tmp_path: Path) -> None:
    announced: list[str] = []

    async def write(n: int) -> None:
        await session.append_entry(user(f"e{n}"), "main", on_commit=lambda entry: announced.append(entry.id))

    acknowledged: set[str] = set()
    for base in range(0, 400, 20):
        tasks = {f"e{n}": asyncio.ensure_future(write(n)) for n in range(base, base + 20)}
        for turns, (name, task) in enumerate(tasks.items()):
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            if int(name[1:]) % 3 == 0:
                task.cancel()
        await asyncio.wait(tasks.values())
        acknowledged |= {name for name, task in tasks.items() if not task.cancelled()}
    with look(tmp_path / "s.db") as conn:
        stored = [row[0] for row in conn.execute("SELECT id FROM entries ORDER BY seq")]
        seqs = [row[0] for row in conn.execute("SELECT seq FROM entries ORDER BY seq")]
    assert stored == announced
    assert acknowledged <= set(stored)
    assert seqs == list(range(1, len(stored) + 1))


async def test_a_commit_that_fails_faults_its_session_and_no_other(
    repo: SqliteSessionRepo, session: Session, tmp_path: Path
) -> None:
    """The file may not grow while s writes: COMMIT itself fails, as on a full disk."""
    other = await repo.create(id="other")
    await session.append_entry(user("kept"), "main")
    wal = tmp_path / "s.db-wal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size, hard))
    try:
        with pytest.raises(StorageError, match="outcome is unknown"):
            await session.append_entry(user("lost", "x" * 10_000), "main")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # This opening writes nothing more, even past the session's own guard.
    with pytest.raises(StorageError):
        await session.append_entry(user("after"), "main")
    with pytest.raises(StorageError):
        await storage_of(session).set_name("after", None)
    # The transaction is closed: another session and another program write at once.
    await other.append_entry(user("fine"), "main")
    with look(tmp_path / "s.db") as conn:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("ROLLBACK")
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    again = await reopened(repo, session)
    assert [item.seq for item in await again.get_log()] == [1]
    assert (await again.append_entry(user("lost"), "main")).seq == 2
    await again.close()
    await other.close()


async def test_a_statement_that_fails_half_way_leaves_nothing_of_its_write(
    repo: SqliteSessionRepo, session: Session, tmp_path: Path
) -> None:
    other = await repo.create(id="other")
    await session.append_entry(user("kept"), "main")
    database = database_of(session)

    def limit_to_now(conn: sqlite3.Connection) -> None:
        pages = conn.execute("PRAGMA page_count").fetchone()[0]
        conn.execute("PRAGMA max_page_count = 1000000" if limited else f"PRAGMA max_page_count = {pages}")

    limited = False
    await database.write(limit_to_now, durability="process")
    with pytest.raises(StorageError):
        await session.append_entry(user("lost", "x" * 200_000), "main")
    limited = True
    await database.write(limit_to_now, durability="process")
    assert (await other.append_entry(user("fine"), "main")).seq == 1
    with look(tmp_path / "s.db") as conn:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("ROLLBACK")
        assert conn.execute("SELECT count(*) FROM entries WHERE session_id = 's'").fetchone() == (1,)
        assert conn.execute("SELECT next_seq FROM session_sequences WHERE session_id = 's'").fetchone() == (2,)
    with pytest.raises(StorageError):
        await session.set_name("after")
    await other.close()


async def test_a_job_that_raises_half_way_leaves_nothing_and_its_neighbours_in_the_same_commit_stay(
    session: Session, tmp_path: Path
) -> None:
    database = database_of(session)
    gate, inside = threading.Event(), threading.Event()
    held = asyncio.ensure_future(database.write(lambda conn: (inside.set(), gate.wait(10)), durability="process"))
    assert await asyncio.to_thread(inside.wait, 10)

    def half_way(conn: sqlite3.Connection) -> None:
        conn.execute("INSERT INTO facts (session_id, seq, kind, key, value) VALUES ('s', 77, 'name', '', 'half')")
        raise ValueError("defect")

    def twice(conn: sqlite3.Connection) -> None:
        conn.execute("INSERT INTO facts (session_id, seq, kind, key, value) VALUES ('s', 78, 'name', '', 'half')")
        conn.execute("INSERT INTO facts (session_id, seq, kind, key, value) VALUES ('s', 78, 'name', '', 'half')")

    before = asyncio.ensure_future(session.append_entry(user("a"), "main"))
    await asyncio.sleep(0)
    failing = [asyncio.ensure_future(database.write(job, durability="process")) for job in (half_way, twice)]
    await asyncio.sleep(0)
    after = asyncio.ensure_future(session.append_entry(user("b"), "main"))
    await asyncio.sleep(0)
    gate.set()
    await held
    assert [(await before).seq, (await after).seq] == [1, 2]
    with pytest.raises(ValueError, match="defect"):
        await failing[0]
    with pytest.raises(StorageError, match="UNIQUE"):
        await failing[1]
    with look(tmp_path / "s.db") as conn:
        assert conn.execute("SELECT count(*) FROM facts").fetchone() == (0,)
        conn.execute("BEGIN IMMEDIATE")  # the writer's transaction is closed
        conn.execute("ROLLBACK")


async def test_writes_queued_behind_a_failed_one_are_dropped_with_it(session: Session) -> None:
    database = database_of(session)
    gate, inside = threading.Event(), threading.Event()
    held = asyncio.ensure_future(database.write(lambda conn: (inside.set(), gate.wait(10)), durability="process"))
    assert await asyncio.to_thread(inside.wait, 10)
    storage = storage_of(session)

    def broken(conn: sqlite3.Connection) -> None:
        conn.execute("INSERT INTO session_sequences (session_id, next_seq) VALUES ('s', 1)")

    first = asyncio.ensure_future(database.write(broken, durability="process", opening=storage._opening))
    second = asyncio.ensure_future(session.append_entry(user("staged"), "main"))
    await asyncio.sleep(0)
    gate.set()
    await held
    for write in (first, second):
        with pytest.raises(StorageError):
            await write
    assert await storage.get_log() == []


async def test_a_cursor_nobody_fetched_fails_its_own_commit_and_not_the_next(session: Session) -> None:
    database = database_of(session)
    kept: list[sqlite3.Cursor] = []

    def unfetched(conn: sqlite3.Connection) -> None:
        kept.append(conn.execute("UPDATE session_stats SET message_count = 9 WHERE session_id = 's' RETURNING 1"))

    with pytest.raises(StorageError, match="in progress"):
        await database.write(unfetched, durability="process")
    assert (await session.append_entry(user("a"), "main")).seq == 1
    assert await database.read(lambda conn: conn.execute("SELECT message_count FROM session_stats").fetchone()) == (1,)


async def test_a_paused_reader_holds_no_lock(repo: SqliteSessionRepo, session: Session) -> None:
    for n in range(20):
        await session.append_entry(user(f"e{n}"), "main")
    found = await session.find_entries(limit=1)
    await asyncio.wait_for(session.append_entry(user("next"), "main"), 1)
    with look(repo._path) as conn:
        assert conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0  # no reader stands in the way
    assert [entry.id for entry in found] == ["e19"]


async def test_a_read_only_session_shows_the_moment_it_was_opened(repo: SqliteSessionRepo, session: Session) -> None:
    await session.append_entry(user("a"), "main")
    await session.append_record(started("run"))
    async with await repo.open("s", read_only=True) as reader:
        await session.append_entry(user("b"), "main")
        await session.append_record(finished("f", "run"))
        await session.set_name("later")
        assert [item.seq for item in await reader.get_log()] == [1, 2]
        assert await reader.get_leaf_id() == "a"
        assert await reader.get_name() is None
        assert await reader.get_entry("b") is None
        assert len(await reader.find_open_operations("main")) == 1
        assert [entry.id for entry in await reader.find_entries()] == ["a"]
        with pytest.raises(ReadOnlySession):
            await reader.set_name("no")


async def test_a_closed_session_answers_nothing_and_closing_twice_is_fine(session: Session) -> None:
    await session.close()
    await session.close()
    for call in (session.get_log(), session.get_lanes(), session.append_entry(user("a"), "main")):
        with pytest.raises(SessionClosed):
            await call


async def test_closing_finishes_what_was_submitted(repo: SqliteSessionRepo, session: Session) -> None:
    writes = [asyncio.ensure_future(session.append_entry(user(f"e{n}"), "main")) for n in range(10)]
    await asyncio.sleep(0)
    await session.close()
    await asyncio.gather(*writes)
    again = await repo.open("s")
    assert len(await again.get_log()) == 10
    await again.close()


async def test_a_callback_that_raises_reaches_its_caller_and_not_the_others(session: Session) -> None:
    def defect(_: object) -> None:
        raise ValueError("listener")

    with pytest.raises(ValueError, match="listener"):
        await session.append_entry(user("a"), "main", on_commit=defect)
    assert (await session.append_entry(user("b"), "main")).parent_id == "a"


async def test_records_are_found_by_lane_type_operation_kind_and_sequence(session: Session) -> None:
    await session.create_lane("side", None)
    await session.append_record(started("run"))
    await session.append_record(attempt("t1", "run", 1))
    await session.append_record(attempt("t2", "run", 2))
    queued = QueueEnqueued(queue="nextRun", target=user("q"))
    await session.append_record(record("q1", queued, "side"))

    async def ids(**query: object) -> list[str]:
        return [found.id for found in await session.find_records(**query)]

    assert await ids() == ["q1", "t2", "t1", "run"]
    assert await ids(order="oldestFirst", limit=2) == ["run", "t1"]
    assert await ids(lane="main", type="step_attempt") == ["t2", "t1"]
    assert await ids(run_id="run", after_seq=3) == ["t2"]
    assert await ids(type="operation_started", operation_kind="run", lane="main") == ["run"]
    assert await ids(type="operation_started", operation_kind="compaction") == []
    assert await ids(lane="side") == ["q1"]
