"""Two processes and one session, with a harness on top: a stopped owner that wakes up does nothing more (case 40).

The claims themselves are tested beside their backends: `test_sqlite_leases.py` (refused and named, kill -9, takeover,
fence) and `test_jsonl_files.py` (refused and named, kill -9, waiting).
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_harness.errors import SessionLocked
from agent_harness.session.repo import BranchFork, TreeFork
from agent_harness.session.storage import EntryItem, NameItem
from agent_harness.testing import World
from agent_harness.types.entries import Entry
from agent_harness.types.messages import ToolResultMessage
from session_backends import JsonlSessionRepo, SqliteSessionRepo
from session_backends.conformance.samples import message
from tests.support.scenarios import ONE_TOOL_NEVER, text_of

ROOT = Path(__file__).parents[2]

OWNER = """
import asyncio, sys
from pathlib import Path
from agent_harness import AgentHarness, AgentTool, AgentToolResult, TextContent
from agent_harness.providers.base import ModelRegistry
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, World
from agent_harness.types.entries import Entry
from agent_harness.types.messages import ToolResultMessage
from session_backends import JsonlSessionRepo, SqliteSessionRepo
from tests.support.scenarios import measure_then_tell

backend, path, where, world = sys.argv[1], sys.argv[2], sys.argv[3], World(Path(sys.argv[4]))

def pause(place):
    # Blocks the whole process, as a stop does: no beat of the loop runs, and the thread of the database is stopped too.
    if place == where:
        print("paused", flush=True)
        sys.stdin.readline()

async def main():
    repo = SqliteSessionRepo(path, lease_ttl_ms=400) if backend == "sqlite" else JsonlSessionRepo(path)
    session = await repo.open("s1")

    def respond(request):
        world.bump("requests")
        answer = measure_then_tell(world, request)
        pause("provider")
        return answer

    async def measure(invocation):
        world.bump("measure")
        pause("tool")
        return AgentToolResult(content=(TextContent(text="ok"),))

    tool = AgentTool(name="measure", description="m", parameters={"type": "object"}, execute=measure, replay="never")
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([ScriptedProvider(respond=respond)], [SCRIPTED_MODEL]),
        model=SCRIPTED_MODEL,
        tools=[tool],
    )
    for word in ("first", "second"):
        try:
            print(await created.harness.prompt("Measure bed 1."), flush=True)
        except Exception as error:
            print(word, type(error).__name__, type(error.cause).__name__, flush=True)
    await created.harness.close()
    await repo.close()
    print("closed", flush=True)

asyncio.run(main())
"""


@contextmanager
def owner(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "paused\n"
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


async def create(repo: SqliteSessionRepo | JsonlSessionRepo) -> None:
    await (await repo.create(id="s1")).close()


@pytest.mark.parametrize("where", ["provider", "tool"])
async def test_a_stopped_owner_that_lost_its_session_calls_nothing_and_writes_nothing(
    where: str, tmp_path: Path
) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db", lease_ttl_ms=400)
    await create(repo)
    theirs, ours = World(tmp_path / "theirs"), World(tmp_path / "ours")
    with owner("sqlite", tmp_path / "s.db", where, theirs.root) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(SessionLocked, match=f"pid {process.pid} on"):
            await repo.open("s1")  # it may wake at any moment
        session = await repo.open("s1", wait=60)
        harness = await ONE_TOOL_NEVER.build(session, ours, "automatic")
        [operation] = harness.suspended
        lane = await harness.lane(operation.lane)
        assert lane is not None
        assert (await lane.resume()).ok
        log = await session.get_log()
        effects = {name: theirs.count(name) for name in ("requests", "measure")}
        assert effects == {"requests": 1, "measure": 1 if where == "tool" else 0}

        process.send_signal(signal.SIGCONT)
        said = process.communicate("go\n", timeout=60)[0].splitlines()
        assert said == ["first HarnessFault FencedWriter", "second HarnessFault FencedWriter", "closed"]
        assert {name: theirs.count(name) for name in effects} == effects
        assert await session.get_log() == log
        assert await session.verify() == []
        results = [item.entry.message for item in log if isinstance(item, EntryItem)]
        [result] = [one for one in results if isinstance(one, ToolResultMessage)]
        assert ("interrupted" in text_of(result)) == (where == "tool")
        await session.append_entry(message("still-ours"), "main")
        await harness.close()
    await repo.close()


async def test_a_stopped_owner_of_a_session_file_keeps_it(tmp_path: Path) -> None:
    repo = JsonlSessionRepo(tmp_path / "store")
    await create(repo)
    theirs = World(tmp_path / "theirs")
    with owner("jsonl", tmp_path / "store", "tool", theirs.root) as process:
        process.send_signal(signal.SIGSTOP)
        for wait in (0.0, 1.5):
            with pytest.raises(SessionLocked, match=f"pid {process.pid} on"):
                await repo.open("s1", wait=wait)
        async with await repo.open("s1", read_only=True) as reader:
            assert len(await reader.get_log()) > 3
        process.send_signal(signal.SIGCONT)
        said = process.communicate("go\n\n", timeout=60)[0].splitlines()
        assert said[-1] == "closed"
        assert sum("RunCompleted" in line for line in said) == 2  # it was never disturbed
    async with await repo.open("s1") as session:
        assert await session.verify() == []
        await session.append_entry(message("ours-now"), "main")


@pytest.mark.parametrize("backend", ["sqlite", "jsonl"])
async def test_after_kill_9_in_a_tool_the_second_process_opens_at_once_and_ends_the_run(
    backend: str, tmp_path: Path
) -> None:
    path = tmp_path / ("s.db" if backend == "sqlite" else "store")
    # A minute of lease: nothing but the death of the owner can free it in time.
    repo = SqliteSessionRepo(path, lease_ttl_ms=60_000) if backend == "sqlite" else JsonlSessionRepo(path)
    await create(repo)
    world = World(tmp_path / "world")
    with owner(backend, path, "tool", world.root) as process:
        with pytest.raises(SessionLocked, match=f"pid {process.pid} on"):
            await repo.open("s1")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        session = await asyncio.wait_for(repo.open("s1"), 10)  # wait=0: at once, or refused
        harness = await ONE_TOOL_NEVER.build(session, world, "automatic")
        [operation] = harness.suspended
        lane = await harness.lane(operation.lane)
        assert lane is not None
        assert (await lane.resume()).ok
        assert await session.verify() == []
        assert world.count("measure") == 1
        await harness.close()
    await repo.close()


WRITER = """
import asyncio, sys
from session_backends import open_repo
from session_backends.conformance.samples import custom, message

async def main():
    repo = open_repo(sys.argv[1], durability=sys.argv[2])
    session = await repo.create(id="s1")
    await session.append_entry(message("e0"), "main")
    await session.create_lane("side", "e0")
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    print("going", flush=True)
    number = 0
    while not stop.done():
        number += 1
        await asyncio.gather(
            session.append_entry(message(f"m{number}", "x" * (number * 37 % 3000)), "main"),
            session.append_entry(custom(f"s{number}", data="y" * (number * 53 % 2000)), "side"),
            session.set_name(f"name {number}"),
        )
        await asyncio.sleep(0.002)
    await session.close()
    await repo.close()
    print("closed", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("backend", ["sqlite", "jsonl"])
async def test_a_fork_of_a_session_that_another_process_is_writing_is_its_committed_prefix(
    backend: str, durability: str, tmp_path: Path
) -> None:
    path = tmp_path / ("s.db" if backend == "sqlite" else "store")
    repo = SqliteSessionRepo(path) if backend == "sqlite" else JsonlSessionRepo(path)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, f"{backend}:{path}", durability],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    forks: list[tuple[list[Entry], dict[str, str | None], str | None]] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        while len({len(entries) for entries, _, _ in forks}) < 8:  # eight moments, however slow the writer is
            number = len(forks)
            options = TreeFork() if number % 2 else BranchFork()
            async with await repo.fork("s1", options, id=f"fork{number}") as fork:
                entries = [item.entry for item in await fork.get_log() if isinstance(item, EntryItem)]
                leaves = {pointer.lane: pointer.leaf_id for pointer in await fork.get_lanes()}
                forks.append((entries, leaves, await fork.get_name()))
                grown = await fork.append_entry(message("goes-on"), "main")
                assert grown.parent_id == leaves["main"]
        assert process.poll() is None  # it was writing all the time
    finally:
        said = process.communicate("stop\n", timeout=60)[0]
    assert said == "closed\n"
    async with await repo.open("s1", read_only=True) as session:
        assert await session.verify() == []
        log = await session.get_log()
    await repo.close()
    everything = [item.entry for item in log if isinstance(item, EntryItem)]
    for number, (entries, leaves, name) in enumerate(forks):
        on_main = [entry for entry in everything if not entry.id.startswith("s")]
        source = everything if number % 2 else on_main
        assert [(e.id, e.parent_id, e.body) for e in entries] == [
            (e.id, e.parent_id, e.body) for e in source[: len(entries)]
        ]
        newest = {"main": [e.id for e in entries if not e.id.startswith("s")][-1]}
        if number % 2:
            newest["side"] = next((e.id for e in reversed(entries) if e.id.startswith("s")), "e0")
        assert leaves == newest
        if number % 2:  # one moment: the newest name before the first entry left out, which may itself be left out
            end = everything[len(entries)].seq if len(entries) < len(everything) else len(log) + 1
            names = [item.name for item in log if isinstance(item, NameItem) and item.seq < end]
            assert name in [None, *names][-2:]
