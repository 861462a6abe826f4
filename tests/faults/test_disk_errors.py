"""Disks that are full, that fail, and that may not be written: a clear fault, and nothing lost after reopening."""

import asyncio
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_power_cuts import look_at_sqlite, recorded_sqlite, sqlite_history

from agent_harness import HarnessFault
from agent_harness.session.repo import SessionRepo
from agent_harness.session.session import Session
from agent_harness.testing import World
from session_backends import JsonlSessionRepo, SqliteSessionRepo
from session_backends.conformance.samples import custom
from session_backends.faults import FaultyFiles
from tests.support.lossy_disk import Acknowledged
from tests.support.scenarios import ONE_TOOL_NEVER, ONE_TOOL_SAFE, text_of

ROOT = Path(__file__).parents[2]

FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from agent_harness import HarnessFault
from agent_harness.testing import World
from session_backends import open_repo
from session_backends.conformance.samples import custom
from tests.support.scenarios import ONE_TOOL_NEVER

url, limit = sys.argv[1], int(sys.argv[2])

async def main():
    repo = open_repo(url)
    session = await repo.create(id="s1")
    for number in range(4):
        await session.append_entry(custom(f"e{number}", data="x" * 2000), "main")
    harness = await ONE_TOOL_NEVER.build(session, World(Path(sys.argv[3])), "automatic")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        while True:
            await ONE_TOOL_NEVER.act(harness)
            print("acknowledged", session.delivered_seq, flush=True)
    except HarnessFault as fault:
        print("fault", fault, flush=True)
        print("cause", type(fault.cause).__name__, flush=True)
        print("acknowledged", session.delivered_seq, flush=True)
    await harness.close()
    await repo.close()

asyncio.run(main())
"""


def make(backend: str, folder: Path) -> tuple[SessionRepo, str, str]:
    """A repository, its address, and the name that messages about it must hold."""
    if backend == "jsonl":
        return JsonlSessionRepo(folder), f"jsonl:{folder}", "_s1.jsonl"
    return SqliteSessionRepo(folder / "s.db"), f"sqlite:{folder / 's.db'}", "s.db"


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
@pytest.mark.parametrize("extra", [0, 700, 4096])
def test_a_full_disk_faults_the_harness_by_name_and_loses_nothing(backend: str, extra: int, tmp_path: Path) -> None:
    """The limit of the file size stands for the end of the disk: the write of the line that reaches it is short."""
    folder = tmp_path / "store"
    repo, url, name = make(backend, folder)
    limit = (20_000 if backend == "jsonl" else 200_000) + extra
    done = subprocess.run(
        [sys.executable, "-c", FULL, url, str(limit), tmp_path / "world"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line.split(" ", 1) for line in done.stdout.splitlines()]
    [fault] = [text for word, text in said if word == "fault"]
    assert name in fault
    assert any(cause in fault for cause in ("File too large", "disk is full", "disk I/O error", "cut back")), fault
    assert ["cause", "StorageError"] in said
    acknowledged = max(int(text) for word, text in said if word == "acknowledged")

    async def check() -> None:
        world = World(tmp_path / "world")
        async with await repo.open("s1", read_only=True) as reader:
            log = await reader.get_log()
            assert [item.seq for item in log] == list(range(1, len(log) + 1))
            assert len(log) >= acknowledged
        session = await repo.open("s1")
        harness = await ONE_TOOL_NEVER.build(session, world, "automatic")
        for operation in harness.suspended:
            lane = await harness.lane(operation.lane)
            assert lane is not None
            assert (await lane.resume()).ok
        assert await session.verify() == []
        assert (await session.get_log())[: len(log)] == log
        started = await session.find_records(type="tool_started")
        assert world.count("measure") in (len(started), len(started) - 1)
        await harness.close()
        await repo.close()

    asyncio.run(check())


@pytest.mark.parametrize("failure", ["fail_write", "short_write", "fail_sync"])
async def test_an_error_of_the_disk_faults_the_harness_naming_file_and_cause(failure: str, tmp_path: Path) -> None:
    """At every call, at level power: the calls are counted on a clean run."""
    counted = FaultyFiles()
    session = await JsonlSessionRepo(tmp_path / "clean", durability="power", file_ops=counted).create(id="s1")
    harness = await ONE_TOOL_SAFE.build(session, World(tmp_path / "clean-world"), "automatic")
    await ONE_TOOL_SAFE.act(harness)
    await harness.close()
    calls = counted.syncs if failure == "fail_sync" else counted.writes
    assert calls >= 8
    causes = {
        "fail_write": "injected: no space left",
        "short_write": "bytes were written; cut back",
        "fail_sync": "injected: input/output error",
    }
    for number in range(2, calls + 1):  # the first one makes the session
        root, world = tmp_path / str(number), World(tmp_path / f"world-{number}")
        files = FaultyFiles(**{failure: number})
        session = await JsonlSessionRepo(root, durability="power", file_ops=files).create(id="s1")
        harness = await ONE_TOOL_SAFE.build(session, world, "automatic")
        with pytest.raises(HarnessFault) as raised:
            await ONE_TOOL_SAFE.act(harness)
        assert str(session.metadata.path) in str(raised.value)
        assert causes[failure] in str(raised.value)
        acknowledged = await session.get_log()
        await harness.close()
        session = await JsonlSessionRepo(root).open("s1")
        assert (await session.get_log())[: len(acknowledged)] == acknowledged
        harness = await ONE_TOOL_SAFE.build(session, world, "automatic")
        for operation in harness.suspended:
            lane = await harness.lane(operation.lane)
            assert lane is not None
            assert (await lane.resume()).ok
        assert await session.verify() == []
        if harness.suspended:
            assert (await last_text(session)) == "Done."
        await harness.close()


async def last_text(session: Session) -> str:
    [entry] = await session.find_entries_on_branch(limit=1)
    assert entry.message is not None
    return text_of(entry.message)


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
async def test_sqlite_files_that_fail_fault_the_session_naming_file_and_cause(for_ever: bool, tmp_path: Path) -> None:
    """The n-th write, truncation, sync or deletion of the library fails, a write by half; n over the whole stream."""
    said, operations, _ = recorded_sqlite(tmp_path / "clean", "power", 1)
    assert said == "done"
    assert operations > 60
    environment = {"FAIL_FOR_EVER": "1"} if for_ever else {}
    faulted = 0
    for number in range(1, operations, operations // 12):
        folder = tmp_path / str(number)
        said, _, events = recorded_sqlite(folder, "power", 1, FAIL_AT=str(number), **environment)
        [*_, last] = [event for event in events if isinstance(event, Acknowledged)]
        if said != "done":  # an error in a checkpoint is nobody's write, and is tried again
            assert "StorageError" in said, said
            assert "s.db" in said, said
            assert "disk I/O error" in said, said
            faulted += 1
        if last.items < 0 and not (folder / "s.db").exists():
            continue
        assert await look_at_sqlite(folder, sqlite_history(1), last.items, f"operation {number}") in (
            "prefix",
            "absent",
        )
    assert faulted >= 6


FORBIDDEN = """
import asyncio, os, sys
from session_backends import open_repo
from agent_harness.errors import StorageError

async def main():
    for url, call in ((sys.argv[1], "open"), (sys.argv[1], "create"), (sys.argv[2], "create")):
        repo = open_repo(url)
        try:
            await (repo.open("s1") if call == "open" else repo.create(id="new"))
        except StorageError as error:
            print(error)
        await repo.close()

async def warm():
    for url in ("jsonl:", "sqlite:"):
        repo = open_repo(url + sys.argv[3] + url[:-1])
        await (await repo.create(id="x")).close()
        await repo.close()

asyncio.run(warm())  # what is imported late is imported while it still can be
if os.geteuid() == 0:
    os.setuid(65534)
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
def test_a_store_that_may_not_be_written_says_so_and_stays_as_it_is(
    backend: str, request: pytest.FixtureRequest
) -> None:
    # Outside of pytest's own folder, which other users may not enter.
    place = Path(tempfile.mkdtemp(prefix="agent-harness-test-"))
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    store, warm = place / "store", place / "warm"
    store.mkdir()
    warm.mkdir()
    repo, url, _ = make(backend, store)

    async def create() -> None:
        session = await repo.create(id="s1")
        await session.append_entry(custom("e1"), "main")
        await session.close()
        await repo.close()

    asyncio.run(create())
    for path in (*store.rglob("*"), store):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    new = store / "new" / "store"
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, url, url.replace(str(store), str(new)), f"{warm}/"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    for line in lines:
        assert str(store) in line, line
        assert any(cause in line for cause in (os.strerror(errno.EACCES), "readonly database", "unable to open")), line
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


REVOKED = """
import asyncio, os, sys
from pathlib import Path
from agent_harness import AgentHarness, AgentTool, AgentToolResult, HarnessFault, TextContent
from agent_harness.providers.base import ModelRegistry
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, answer, call
from agent_harness.types.messages import ToolResultMessage
from session_backends import open_repo

def strike(act, folder):
    if act == "forbid":
        folder.chmod(0)
        return
    [path] = [path for path in folder.rglob("*") if path.name.endswith(("_s1.jsonl", "s.db"))]
    if act == "replace":
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        os.replace(path, path.with_name("kept"))
        os.replace(copy, path)
    else:
        os.replace(path, path.with_name("kept"))

def respond(request):
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("Done.")
    return answer("Working.", calls=[call("measure", {}, id="c1")])

async def main(url, folder, act):
    async def execute(_):
        if act in ("forbid", "replace", "remove"):
            strike(act, folder)
        return AgentToolResult(content=(TextContent(text="ok"),))

    repo = open_repo(url)
    session = await (repo.open("s1") if act == "reopen" else repo.create(id="s1"))
    tool = AgentTool(
        name="measure", description="Measure.", parameters={"type": "object"}, execute=execute, replay="safe"
    )
    models = ModelRegistry([ScriptedProvider(respond=respond)], [SCRIPTED_MODEL])
    async with AgentHarness.open(session=session, models=models, model=SCRIPTED_MODEL, tools=[tool]) as harness:
        try:
            if harness.suspended:
                lane = await harness.lane("main")
                print("done", (await lane.resume()).unwrap().kind)
            else:
                print("done", (await harness.prompt("Measure bed 1.")).unwrap().kind)
        except HarnessFault as fault:
            print("fault", fault)
        print("acknowledged", session.delivered_seq, await session.verify() == [])
    await repo.close()

for act in ("warm", "reopen"):  # what is imported late is imported while it still can be
    asyncio.run(main(sys.argv[4], None, act))
if os.geteuid() == 0:
    os.setuid(65534)
asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
"""


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
@pytest.mark.parametrize("act", ["forbid", "replace", "remove"])
def test_a_store_that_is_taken_away_during_a_run_faults_the_harness_by_name(
    backend: str, act: str, request: pytest.FixtureRequest
) -> None:
    place = Path(tempfile.mkdtemp(prefix="agent-harness-test-"))
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    store = place / "store"
    store.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(store, 65534, 65534)
    _, url, name = make(backend, store)

    warm = place / "warm"

    def run(act: str) -> list[str]:
        (warm / act).mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, "-c", REVOKED, url, store, act, make(backend, warm / act)[1]],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    *_, fault, acknowledged = run(act)
    assert fault.startswith("fault ")
    assert name in fault
    cause = {"forbid": "Permission denied", "replace": "replaced", "remove": "removed|No such file"}[act]
    assert re.search(cause, fault), fault
    written = int(acknowledged.split()[1])
    assert written >= 5  # up to the tool's own intent
    if act == "forbid":
        store.chmod(0o700)
    if act == "remove":
        [kept] = store.rglob("kept")
        kept.rename(kept.with_name(name if backend == "sqlite" else f"2026-01-01T00-00-00-000Z{name}"))
    *_, outcome, later = run("reopen")
    assert outcome == "done completed"
    assert int(later.split()[1]) > written  # nothing lost, the run resumed and ended
    assert later.endswith("True")
