"""What storage costs beside raw SQLite, aiosqlite and file appends of the same run. Prints tables; gates nothing.

nox -s bench -- storage
python benchmarks/storage.py --appends 2000 --sizes 1000 10000 100000
"""

import argparse
import asyncio
import os
import queue
import sqlite3
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiosqlite

from agent_harness import AgentHarness, inspect_lane
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.repo import SessionRepo, TreeFork
from agent_harness.session.session import Session
from agent_harness.session.storage import Durability, SessionMetadata
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, answer
from agent_harness.types.codec import Wire, dump_object, encode, seal_entry
from agent_harness.types.entries import MessageBody, ProvisionedEntry
from agent_harness.types.messages import TextContent, Usage, UserMessage
from session_backends import JsonlSessionRepo, MemorySessionRepo
from session_backends.faults import FaultyFiles
from session_backends.jsonl.lines import encode_header
from session_backends.sqlite import schema
from session_backends.sqlite.repo import SqliteSessionRepo
from session_backends.sqlite.storage import SqliteStorage

LANES = 64
TEXT = "How long is the bed beside the fence? " * 6
LEVELS: tuple[Durability, ...] = ("process", "power")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one write: the clock's microseconds, and the processor's of this process in all threads."""

    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        """Writes per second."""
        return 1e6 / self.wall

    def least(self, other: "Cost | None") -> "Cost":
        """Of two rounds; whatever else this machine does only adds."""
        return self if other is None else Cost(min(self.wall, other.wall), min(self.cpu, other.cpu))


def stopwatch() -> Callable[[int], Cost]:
    """Starts now; call it with the number of writes to stop it."""
    wall, cpu = time.perf_counter(), time.process_time()

    def stop(count: int) -> Cost:
        return Cost((time.perf_counter() - wall) * 1e6 / count, (time.process_time() - cpu) * 1e6 / count)

    return stop


def entry(entry_id: str) -> ProvisionedEntry:
    message = UserMessage(content=(TextContent(text=TEXT),), timestamp=1)
    return ProvisionedEntry(id=entry_id, body=MessageBody(message=message))


USER: Wire = {"role": "user", "content": [{"type": "text", "text": TEXT}], "timestamp": 1}
ASSISTANT: Wire = dump_object(answer(TEXT, usage=Usage(input=900, output=60, total_tokens=960)))


def wire(number: int) -> Wire:
    """The line of an entry on `main`: a question, or from the second on in turn an answer."""
    return {
        "kind": "entry",
        "lane": "main",
        "id": f"e{number}",
        "type": "message",
        "message": USER if number % 2 else ASSISTANT,
        "parentId": None if number == 1 else f"e{number - 1}",
        "seq": number,
        "timestamp": 1,
    }


# The floor ------------------------------------------------------------------------


def raw_appends(path: Path, level: Durability, count: int) -> Cost:
    """A line: one `write`, at `power` one `fdatasync`."""
    line = encode(wire(1)) + b"\n"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    stop = stopwatch()
    for _ in range(count):
        os.write(descriptor, line)
        if level == "power":
            os.fdatasync(descriptor)
    cost = stop(count)
    os.close(descriptor)
    return cost


PRAGMAS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = {}")
SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}
PAYLOAD = encode({key: value for key, value in wire(1).items() if key not in ("kind", "lane", "parentId", "seq")})
ONE_ROW = "INSERT INTO plain VALUES (?, ?)"


def statements(number: int) -> Iterator[tuple[str, Sequence[object]]]:
    """What an append changes and asks: fence, place, duplicate, rows, branch, leaf, statistics."""
    parent, new = f"e{number - 1}", f"e{number}"
    yield "UPDATE writer_leases SET beat = beat + 1 WHERE session_id = ? AND owner_id = ? AND fence = ?", ("s", "o", 1)
    yield "SELECT leaf_id FROM lanes WHERE session_id = ? AND lane = ?", ("s", "main")
    yield "SELECT 1 FROM entries WHERE session_id = ? AND id = ?", ("s", new)
    yield "SELECT 1 FROM records WHERE session_id = ? AND id = ?", ("s", new)
    yield "UPDATE session_sequences SET next_seq = next_seq + 1 WHERE session_id = ?", ("s",)
    yield "SELECT next_seq FROM session_sequences WHERE session_id = ?", ("s",)
    yield (
        "INSERT INTO entries VALUES (?, ?, ?, ?, 'message', NULL, 1, ?, 'main')",
        ("s", number, new, parent, PAYLOAD),
    )
    yield "SELECT branch_id FROM branch_tips WHERE session_id = ? AND tip_id = ?", ("s", parent)
    yield "UPDATE branch_tips SET tip_id = ? WHERE session_id = ? AND tip_id = ?", (new, "s", parent)
    yield "INSERT INTO branch_entries VALUES (?, 1, ?, ?, 'message', NULL)", ("s", number, new)
    yield "UPDATE lanes SET leaf_id = ? WHERE session_id = ? AND lane = ?", (new, "s", "main")
    yield "SELECT message_count, usage FROM session_stats WHERE session_id = ?", ("s",)
    yield "UPDATE session_stats SET message_count = message_count + 1 WHERE session_id = ?", ("s",)


SEED = (
    "INSERT INTO writer_leases VALUES ('s', 'o', NULL, 1, 1, 1, 1)",
    "INSERT INTO lanes VALUES ('s', 'main', 0, 'e0', NULL)",
    "INSERT INTO session_sequences VALUES ('s', 1)",
    "INSERT INTO branch_tips VALUES ('s', 'e0', 1)",
    "INSERT INTO session_stats VALUES ('s', 0, '{}')",
    "CREATE TABLE plain (seq INTEGER PRIMARY KEY, payload BLOB)",
)


def raw_database(path: Path, level: Durability) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    for pragma in PRAGMAS:
        connection.execute(pragma.format(SYNCHRONOUS[level])).fetchone()
    schema.create(connection)
    for statement in SEED:
        connection.execute(statement)
    return connection


def transaction(connection: sqlite3.Connection, number: int, whole: bool) -> None:
    """One row, or all that an append is made of."""
    connection.execute("BEGIN IMMEDIATE")
    for sql, values in statements(number) if whole else ((ONE_ROW, (number, PAYLOAD)),):
        connection.execute(sql, values).fetchone()
    connection.execute("COMMIT")


async def hopped(connection: sqlite3.Connection, count: int, whole: bool) -> Cost:
    """A transaction, each in the one thread that owns the connection."""
    loop = asyncio.get_running_loop()
    inbox: queue.SimpleQueue[tuple[int, asyncio.Future[None]] | None] = queue.SimpleQueue()

    def work() -> None:
        while (item := inbox.get()) is not None:
            transaction(connection, item[0], whole)
            loop.call_soon_threadsafe(item[1].set_result, None)

    thread = threading.Thread(target=work)
    thread.start()
    stop = stopwatch()
    for number in range(1, count + 1):
        done: asyncio.Future[None] = loop.create_future()
        inbox.put((number, done))
        await done
    cost = stop(count)
    inbox.put(None)
    thread.join()
    connection.close()
    return cost


def in_place(connection: sqlite3.Connection, count: int, whole: bool) -> Cost:
    """A transaction without any other thread."""
    stop = stopwatch()
    for number in range(1, count + 1):
        transaction(connection, number, whole)
    cost = stop(count)
    connection.close()
    return cost


async def through_aiosqlite(path: Path, level: Durability, count: int) -> Cost:
    """A whole transaction, statement by statement: a hop for each."""
    raw_database(path, level).close()
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        for pragma in PRAGMAS:
            await connection.execute(pragma.format(SYNCHRONOUS[level]))
        stop = stopwatch()
        for number in range(1, count + 1):
            await connection.execute("BEGIN IMMEDIATE")
            for sql, values in statements(number):
                async with connection.execute(sql, values) as cursor:
                    await cursor.fetchone()
            await connection.execute("COMMIT")
        return stop(count)


async def floor(root: Path, level: Durability, count: int) -> dict[str, Cost]:
    def database(name: str) -> sqlite3.Connection:
        return raw_database(root / f"{name}-{level}.db", level)

    return {
        "file append": raw_appends(root / f"raw-{level}.jsonl", level, count),
        "sqlite3, one row": in_place(database("row"), count, whole=False),
        "sqlite3, one row, hop": await hopped(database("row-hop"), count, whole=False),
        "sqlite3, append's rows": in_place(database("whole"), count, whole=True),
        "sqlite3, append's rows, hop": await hopped(database("whole-hop"), count, whole=True),
        "aiosqlite, append's rows": await through_aiosqlite(root / f"aio-{level}.db", level, count // 4),
    }


# Appends ----------------------------------------------------------------------------


async def append_sealed(session: Session, count: int, tag: str) -> Cost:
    """An entry in the storage alone: checked and encoded before."""
    sealed = [seal_entry(entry(f"{tag}-{number}")) for number in range(count)]
    stop = stopwatch()
    for value in sealed:
        await session._core.storage.append_entry(value, "main")
    return stop(count)


async def append_entries(session: Session, lanes: Sequence[str], count: int, tag: str) -> Cost:
    """An entry; each lane waits for its own."""
    each = count // len(lanes)

    async def fill(lane: str) -> None:
        for number in range(each):
            await session.append_entry(entry(f"{tag}-{lane}-{number}"), lane)

    stop = stopwatch()
    await asyncio.gather(*(fill(lane) for lane in lanes))
    return stop(each * len(lanes))


async def count_commits(session: Session, work: Awaitable[Cost]) -> tuple[Cost, int]:
    """The cost, and in how many transactions it was written."""
    storage = session._core.storage
    assert isinstance(storage, SqliteStorage)
    commits: list[None] = []
    traced: Callable[[str], None] = lambda sql: commits.append(None) if sql == "COMMIT" else None  # noqa: E731
    await storage._database.write(lambda conn: conn.set_trace_callback(traced), durability="process")
    cost = await work
    await storage._database.write(lambda conn: conn.set_trace_callback(None), durability="process")
    return cost, len(commits) - 1


class Subject:
    """One backend at one level, with a session of many lanes."""

    def __init__(self, name: str, level: Durability, root: Path) -> None:
        self.name = name if name == "memory" else f"{name}, {level}"
        self.files = FaultyFiles()
        self.repo: SessionRepo
        match name:
            case "memory":
                self.repo = MemorySessionRepo()
            case "jsonl":
                self.repo = JsonlSessionRepo(root / level, durability=level, file_ops=self.files)
            case _:
                self.repo = SqliteSessionRepo(root / f"{level}.db", durability=level)
        self.beside = {"jsonl": ("file append", ""), "memory": ("", "")}.get(
            name, ("sqlite3, one row, hop", "sqlite3, append's rows, hop")
        )
        self.lanes = [f"lane{number}" for number in range(LANES)]
        self.commits = 0

    async def start(self) -> None:
        self.session = await self.repo.create()
        for lane in self.lanes:
            await self.session.create_lane(lane, None)

    async def round(self, count: int, tag: str) -> tuple[Cost, Cost, Cost]:
        """Costs: the storage alone, one lane, many lanes."""
        sealed = await append_sealed(self.session, count, f"{tag}-sealed")
        one = await append_entries(self.session, ["main"], count, f"{tag}-one")
        many = append_entries(self.session, self.lanes, count, f"{tag}-many")
        if isinstance(self.session._core.storage, SqliteStorage):
            cost, self.commits = await count_commits(self.session, many)
        else:
            before = self.files.syncs
            cost = await many
            self.commits = self.files.syncs - before
        return sealed, one, cost


async def appends(root: Path, count: int, rounds: int) -> None:
    print(f"appends/s, the best of {rounds} rounds: an entry of {len(encode(wire(1)))} bytes")
    print(
        f"{'':22}{'storage':>10}{'1 lane':>10}{f'{LANES} lanes':>10}{f'{LANES}/1':>7}"
        f"{'us, 1':>9}{f'us, {LANES}':>9}{'per commit':>12}"
        f"{'storage/row':>13}{'storage/rows':>14}{'1 lane/rows':>13}"
    )
    for level in LEVELS:
        names = ("memory", "jsonl", "sqlite") if level == "process" else ("jsonl", "sqlite")
        subjects = [Subject(name, level, root) for name in names]
        best: dict[str, list[Cost]] = {}
        raw: dict[str, Cost] = {}
        for subject in subjects:
            await subject.start()
        for number in range(rounds):  # in turn, so that a slow moment strikes all alike
            place = root / f"{level}-{number}"
            place.mkdir()
            for name, cost in (await floor(place, level, count)).items():
                raw[name] = cost.least(raw.get(name))
            for subject in subjects:
                costs = await subject.round(count, f"r{number}")
                best[subject.name] = [a.least(b) for a, b in zip(costs, best.get(subject.name, costs), strict=True)]
        for subject in subjects:
            sealed, one, many = best[subject.name]
            bare, rows = (raw.get(other) for other in subject.beside)
            shared = f"{count // LANES * LANES / subject.commits:.1f}" if subject.commits else "-"
            ratios = [
                "-"
                if floor_cost is None
                else f"{ours.cpu / floor_cost.cpu:.2f}"
                if level == "process"
                else f"{ours.wall / floor_cost.wall:.2f}"
                for ours, floor_cost in ((sealed, bare), (sealed, rows), (one, rows))
            ]
            print(
                f"{subject.name:22}{sealed.rate:10.0f}{one.rate:10.0f}{many.rate:10.0f}"
                f"{one.wall / many.wall:7.1f}{one.cpu:9.0f}{many.cpu:9.0f}{shared:>12}"
                f"{ratios[0]:>13}{ratios[1]:>14}{ratios[2]:>13}"
            )
            await subject.session.close()
            await subject.repo.close()
        for name, cost in raw.items():
            print(f"  raw {level}: {name:30}{cost.rate:10.0f}{cost.cpu:9.1f} us")
    print("storage: entries that were checked and encoded before. /row: times as long as a bare line, or as one row")
    print("and a hop; /rows: as all the statements of an append in one transaction and a hop. us, and the ratios at")
    print("level process, are processor time; the ratios at level power are the clock's")
    print()


# Opening ------------------------------------------------------------------------------


def write_file(root: Path, size: int) -> Path:
    folder = root / "-bench-"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"2026-01-01T00-00-00-000Z_s{size}.jsonl"
    with path.open("wb") as file:
        file.write(encode_header(SessionMetadata(id=f"s{size}", created_at=1)) + b"\n")
        file.writelines(encode(wire(number)) + b"\n" for number in range(1, size + 1))
    path.chmod(0o600)
    return path


async def opening(repo: SessionRepo, target: str) -> tuple[float, float]:
    """Milliseconds until the session is open, and from there until a harness has restored it; the smaller of three."""
    found: list[tuple[float, float]] = []
    for _ in range(3):
        started = time.perf_counter()
        session = await repo.open(target)
        opened = time.perf_counter()
        await inspect_lane(session)
        models = ModelRegistry([ScriptedProvider(respond=lambda _: answer("Done."))], [SCRIPTED_MODEL])
        async with AgentHarness.open(session=session, models=models, model=SCRIPTED_MODEL):
            found.append(((opened - started) * 1000, (time.perf_counter() - opened) * 1000))
    return min(found, key=sum)


async def openings(root: Path, sizes: Sequence[int]) -> None:
    print("open + restore of an idle lane, ms, and bytes per entry on disk")
    print(f"{'entries':>10}{'backend':>10}{'open':>10}{'restore':>10}{'us/entry':>10}{'bytes':>8}")
    for size in sizes:
        path = write_file(root / "files", size)
        jsonl, sqlite = JsonlSessionRepo(root / "files"), SqliteSessionRepo(root / f"open-{size}.db")
        async with await jsonl.open(str(path), read_only=True) as source:
            imported = await sqlite.fork(source, TreeFork(), id=f"s{size}")
            await imported.close()
        await sqlite.close()
        places: dict[str, tuple[SessionRepo, str, Path]] = {
            "jsonl": (jsonl, str(path), path),
            "sqlite": (sqlite, f"s{size}", root / f"open-{size}.db"),
        }
        for name, (repo, target, file) in places.items():
            size_on_disk = file.stat().st_size
            opened, restored = await opening(repo, target)
            each = opened * 1000 / size
            print(f"{size:10}{name:>10}{opened:10.1f}{restored:10.1f}{each:10.2f}{size_on_disk / size:8.0f}")
            await repo.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=1_024, help="in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        await appends(Path(folder), chosen.appends, chosen.rounds)
        await openings(Path(folder), chosen.sizes)


if __name__ == "__main__":
    asyncio.run(main())
