"""SQL is text of this project alone, restores seek and never scan, and cost does not grow with history."""

import ast
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from sqlite_support import CountingIds, TickingClock, attempt, custom, finished, look, started, usage, user

from agent_harness.errors import SessionError
from agent_harness.session.queries import BranchBounds, EntryQuery, RecordQuery
from agent_harness.session.storage import SessionMetadata
from agent_harness.types.codec import seal_entry, seal_record
from session_backends.sqlite import SqliteSessionRepo, branches, leases, mutations, queries, schema

SRC = Path(__file__).parents[2] / "src"


def dynamic_sql(source: str) -> list[int]:
    """Lines that hand a computed string to `execute`, `executemany` or `executescript`."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in ("execute", "executemany", "executescript") or not node.args:
            continue
        computed = (ast.JoinedStr, ast.BinOp, ast.Call)
        if any(isinstance(part, computed) for part in ast.walk(node.args[0])):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "line",
    [
        "conn.execute(f'SELECT {x}')",
        "conn.execute('SELECT %s' % x)",
        "conn.execute('SELECT ' + x)",
        "conn.execute('SELECT {}'.format(x))",
        "await db.executemany(f'{x}', rows)",
        "conn.execute(a if b else 'x' + c)",
    ],
)
def test_the_check_finds_computed_sql(line: str) -> None:
    assert dynamic_sql(f"async def f():\n    {line}\n") == [2]


def test_no_source_file_computes_sql_inside_execute() -> None:
    files = list(SRC.rglob("*.py"))
    assert len(files) > 20
    assert {str(path): lines for path in files if (lines := dynamic_sql(path.read_text()))} == {}


def test_no_statement_returns_rows_that_somebody_could_forget_to_fetch() -> None:
    for path in (SRC / "session_backends" / "sqlite").glob("*.py"):
        assert "RETURNING" not in path.read_text(), path


PAYLOADS = [
    "'; DROP TABLE entries; --",
    "' OR '1'='1",
    '" OR ""="',
    "x'); DELETE FROM sessions; --",
    "%",
    "_",
    "*",
    "?",
    "?1",
    ":name",
    "@x",
    "$x",
    "NULL",
    "null",
    "0",
    "-1",
    "1 OR 1",
    "\\",
    "'",
    '"',
    "`",
    "[a]",
    "--",
    "/*",
    "*/",
    ";",
    "\x00",
    "a\x00b",
    "\n",
    "\t",
    "é",
    "\u202e",
    "\U0001f600",
    "𝔘",
    "main",
    "MAIN",
    "Main ",
    "entries",
    "x" * 2000,
    "UNION SELECT payload FROM entries",
]


@pytest.fixture
async def repo(tmp_path: Path) -> AsyncIterator[SqliteSessionRepo]:
    repo = SqliteSessionRepo(tmp_path / "s.db", clock=TickingClock(), id_generator=CountingIds())
    yield repo
    await repo.close()


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_text_from_outside_is_a_value_wherever_it_goes(repo: SqliteSessionRepo, payload: str) -> None:
    async with await repo.create(id="s") as session:
        await session.append_entry(user("kept"), "main")
        await session.append_entry(custom(payload, payload), "main")
        await session.append_record(usage(f"r{payload}", 1))
        if payload != "main":
            await session.create_lane(payload, payload)
        one_line = " ".join(payload.splitlines()) if payload.splitlines() != [payload] else payload
        await session.set_label(payload, payload)
        await session.set_name(payload)
        assert (await session.get_label(payload), await session.get_name()) == (one_line, one_line)
        found = await session.find_entries(custom_type=payload)
        assert [entry.id for entry in found] == [payload]
        assert [entry.id for entry in await session.find_entries_on_branch(custom_type=payload)] == [payload]
        assert await session.find_records(run_id=payload) == []
        assert (await session.find_records(lane=payload) == []) == (payload != "main")
        assert await repo.list(cwd=payload) == []
        for bad in ({"order": payload}, {"type": payload}, {"limit": payload}):
            with pytest.raises(SessionError):
                await session.find_entries(**bad)
        assert len(await session.get_log()) >= 5


def fill(conn: sqlite3.Connection, size: int) -> None:
    """A session "s" with two lanes, `size` finished runs and an open one, compactions among them."""
    schema.create(conn)
    mutations.create_session(conn, SessionMetadata(id="s", created_at=1))
    owner = leases.this_process(0)
    leases.claim(conn, "s", owner_id="me", owner=owner, ttl_ms=1000, now_ms=0)
    mutations.create_lane(conn, "s", "side", None)
    for n in range(size):
        run_id = f"run{n}"
        mutations.append_record(conn, "s", seal_record(started(run_id)), n)
        mutations.append_entry(conn, "s", seal_entry(user(f"u{n}")), "main", n)
        mutations.append_record(conn, "s", seal_record(attempt(f"t{n}", run_id)), n)
        mutations.append_entry(conn, "s", seal_entry(custom(f"c{n}")), "main", n)
        mutations.append_entry(conn, "s", seal_entry(user(f"s{n}")), "side", n)
        mutations.append_record(conn, "s", seal_record(finished(f"f{n}", run_id)), n)
        mutations.set_label(conn, "s", "u0", f"l{n}")
    mutations.append_record(conn, "s", seal_record(started("open")), size)


@pytest.fixture
def conn() -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    fill(conn, 20)
    yield conn
    conn.close()


def plan(conn: sqlite3.Connection, sql: str, params: object) -> list[str]:
    return [row[3] for row in conn.execute("EXPLAIN QUERY PLAN " + sql, params)]


RESTORE: dict[str, tuple[tuple[str, object], str]] = {
    "open operation": ((queries.RECORD_BY_ID, ("s", "open")), "records_id (session_id=? AND id=?)"),
    "newest run start": (
        queries.records_sql("s", RecordQuery(lane="main", type="operation_started", operation_kind="run", limit=1)),
        "records_lane_kind (session_id=? AND lane=? AND type=? AND op_kind=? AND seq>? AND seq<?)",
    ),
    "queue records above it": (
        queries.records_sql("s", RecordQuery(lane="main", type="queue_enqueued", after_seq=5)),
        "records_lane_type (session_id=? AND lane=? AND type=? AND seq>? AND seq<?)",
    ),
    "records of the operation": (
        queries.records_sql("s", RecordQuery(lane="main", after_seq=5)),
        "records_lane (session_id=? AND lane=? AND seq>? AND seq<?)",
    ),
    "records of one run": (
        queries.records_sql("s", RecordQuery(run_id="run3")),
        "records_run (session_id=? AND run_id=? AND seq>? AND seq<?)",
    ),
    "a provisioned entry": ((queries.ENTRY_BY_ID, ("s", "u3")), "entries_id (session_id=? AND id=?)"),
    "a branch with the leaf": (
        (branches.BRANCH_WITH, ("s", "u3")),
        "branch_entries_entry (session_id=? AND entry_id=?)",
    ),
    "own entries, the branch": (
        queries.branch_sql("s", 2, 5, 99, EntryQuery()),
        "PRIMARY KEY (session_id=? AND branch_id=? AND entry_seq>? AND entry_seq<?)",
    ),
    "own entries, the rows": (
        queries.branch_sql("s", 2, 5, 99, EntryQuery()),
        "entries_seq (session_id=? AND seq=?)",
    ),
    "the newest of a type on the path": (
        queries.branch_sql("s", 2, 0, 99, EntryQuery(type="model_change", limit=1)),
        "branch_entries_type (session_id=? AND branch_id=? AND entry_type=? AND entry_seq>? AND entry_seq<?)",
    ),
    "an extension's newest on the path": (
        queries.branch_sql("s", 2, 0, 99, EntryQuery(custom_type="note", limit=1)),
        "branch_entries_custom (session_id=? AND branch_id=? AND custom_type=? AND entry_seq>? AND entry_seq<?)",
    ),
    "the newest compaction": (
        (queries.STOP_NEWEST, ("s", 2, "compaction", 0, 99)),
        "branch_entries_type (session_id=? AND branch_id=? AND entry_type=? AND entry_seq>? AND entry_seq<?)",
    ),
    "the oldest stop": (
        (queries.STOP_OLDEST, ("s", 2, "compaction", 0, 99)),
        "branch_entries_type (session_id=? AND branch_id=? AND entry_type=? AND entry_seq>? AND entry_seq<?)",
    ),
    "a stop by id": ((queries.STOP_ID, ("s", 2, "u3", 0, 99)), "branch_entries_entry (session_id=? AND entry_id=?"),
    "name or label": (
        (queries.FACT, ("s", "name", "", 99)),
        "facts_latest (session_id=? AND kind=? AND key=? AND seq<?)",
    ),
    "labels": ((queries.LABELS, ("s", 99)), "facts_latest (session_id=? AND kind=?)"),
    "header and name": ((queries.METADATA_ONE, ("s",)), "facts_latest (session_id=? AND kind=? AND key=?)"),
    "log, entries": ((queries.LOG_ENTRIES, ("s", 3, 9)), "entries_seq (session_id=? AND seq>?)"),
    "log, records": ((queries.LOG_RECORDS, ("s", 3, 9)), "records_seq (session_id=? AND seq>?)"),
    "log, lanes": ((queries.LOG_LANES, ("s", 3, 9)), "PRIMARY KEY (session_id=? AND seq>?)"),
    "log, facts": ((queries.LOG_FACTS, ("s", 3, 9)), "(session_id=? AND seq>?)"),
    "entries of a type": (
        queries.entries_sql("s", EntryQuery(type="message", limit=3)),
        "entries_type (session_id=? AND type=? AND seq>? AND seq<?)",
    ),
    "custom entries": (
        queries.entries_sql("s", EntryQuery(type="custom", custom_type="note", limit=3)),
        "entries_custom (session_id=? AND custom_type=? AND seq>? AND seq<?)",
    ),
    "a path copy": ((branches.COPY_PATH, (9, "s", 2, 50)), "(session_id=? AND branch_id=? AND entry_seq<?)"),
}


@pytest.mark.parametrize("name", RESTORE)
def test_a_restore_query_is_an_index_seek_without_scan_or_sort(conn: sqlite3.Connection, name: str) -> None:
    (sql, params), seek = RESTORE[name]
    steps = plan(conn, sql, params)
    assert any(seek in step for step in steps), steps
    assert not [step for step in steps if step.startswith("SCAN") or "TEMP B-TREE" in step], steps


def instructions(conn: sqlite3.Connection, run: Callable[[], object]) -> int:
    """How many steps SQLite's machine takes."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    conn.set_progress_handler(step, 1)
    run()
    conn.set_progress_handler(None, 1)
    return count


def costs(size: int) -> dict[str, int]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    fill(conn, size)
    lease = leases.Lease(session_id="s", owner_id="me", fence=1)
    last = conn.execute("SELECT next_seq - 1 FROM session_sequences").fetchone()[0]
    everything: dict[str, Callable[[], object]] = {
        "renew": lambda: leases.renew(conn, lease, 0),
        "append entry": lambda: mutations.append_entry(conn, "s", seal_entry(user("new")), "main", 0),
        "append record": lambda: mutations.append_record(conn, "s", seal_record(attempt("x", "open")), 0),
        "append usage": lambda: mutations.append_record(conn, "s", seal_record(usage("y", 1)), 0),
        "finish": lambda: mutations.append_record(conn, "s", seal_record(finished("z", "open")), 0),
        "label": lambda: mutations.set_label(conn, "s", "u3", "l"),
        "move": lambda: mutations.move_lane(conn, "s", "side", "u3"),
        "live state": lambda: queries.load_live(conn, "s"),
        "open operation": lambda: queries.get_record(conn, "s", "open"),
        "last run": lambda: queries.find_records(
            conn, "s", RecordQuery(lane="main", type="operation_started", operation_kind="run", limit=1)
        ),
        "records above": lambda: queries.find_records(conn, "s", RecordQuery(lane="main", after_seq=last - 3)),
        "own entries": lambda: queries.find_entries_on_branch(
            conn, "s", EntryQuery(), BranchBounds(start="new", after_seq=last - 6)
        ),
        "newest custom": lambda: queries.find_entries_on_branch(
            conn, "s", EntryQuery(custom_type="note", limit=1), BranchBounds(start="new")
        ),
        "no model change": lambda: queries.find_entries_on_branch(
            conn, "s", EntryQuery(type="model_change", limit=1), BranchBounds(start="new")
        ),
        "name": lambda: queries.get_fact(conn, "s", "name", "", last),
    }
    found = {name: instructions(conn, run) for name, run in everything.items()}
    conn.close()
    return found


def test_the_cost_of_writes_and_restore_queries_does_not_grow_with_history() -> None:
    small, large = costs(30), costs(1500)
    assert all(count > 5 for count in small.values()), small
    grown = {name: (small[name], large[name]) for name in small if large[name] > small[name] + 5}
    assert grown == {}


def test_a_path_copy_costs_as_much_as_the_path_is_long() -> None:
    def copy_cost(size: int) -> int:
        conn = sqlite3.connect(":memory:", isolation_level=None)
        fill(conn, size)
        mutations.move_lane(conn, "s", "side", f"c{size // 2}")
        cost = instructions(conn, lambda: mutations.append_entry(conn, "s", seal_entry(user("new")), "side", 0))
        conn.close()
        return cost

    assert copy_cost(200) > copy_cost(20) * 4


async def test_the_stored_payload_is_the_wire_form_as_bytes(repo: SqliteSessionRepo, tmp_path: Path) -> None:
    async with await repo.create(id="s") as session:
        await session.append_entry(custom("a", data={"text": "é"}), "main")
        with look(tmp_path / "s.db") as conn:
            kind, payload = conn.execute("SELECT typeof(payload), payload FROM entries").fetchone()
    assert (kind, payload) == ("blob", '{"id":"a","type":"custom","customType":"note","data":{"text":"é"}}'.encode())
