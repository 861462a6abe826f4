"""A fault at every write of a history and of a run: what is left is a prefix, and a reopening goes on from it.

Writes are numbered over the whole history. A fault strikes once or for ever, before the commit, after it, or half-way
through the bytes. Nothing here lists the writes: they are counted on a clean run first.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_harness import AgentHarness, HarnessFault
from agent_harness.errors import StorageError
from agent_harness.session.repo import SessionRepo
from agent_harness.session.session import Session
from agent_harness.session.storage import EntryItem, LogItem, RecordItem
from agent_harness.testing import DeterministicIds, ManualClock, Scenario, World
from agent_harness.types.messages import AssistantMessage, ToolResultMessage
from session_backends import JsonlSessionRepo, MemorySessionRepo
from session_backends.conformance.busy import Answers, answers, every_write, fill
from session_backends.conformance.samples import message
from session_backends.faults import FaultKind, Faults, FaultyFiles, FaultyRepo
from session_backends.jsonl.files import FileOps
from tests.support.backends import make_repo
from tests.support.scenarios import ONE_TOOL_NEVER, ONE_TOOL_SAFE, RETRY, text_of

KINDS: tuple[FaultKind, ...] = ("before", "after")


async def clean_history() -> list[LogItem]:
    """The log of the whole history, by the reference backend."""
    async with await reference().create(id="s1") as session:
        await fill(session)
        return await session.get_log()


def reference() -> MemorySessionRepo:
    return MemorySessionRepo(clock=ManualClock(), id_generator=DeterministicIds())


async def answers_of_prefix(length: int) -> Answers:
    """Everything a session tells that holds the first `length` writes, by the reference backend."""
    repo = FaultyRepo(reference(), Faults(at=length + 1, forever=True))
    session = await repo.create(id="s1")
    with pytest.raises(StorageError):
        await fill(session)
        await session.set_name("one write more, so that the whole history ends in a fault, too")
    assert session.delivered_seq == length
    return await answers(session)


async def assert_takes_nothing_more(session: Session) -> None:
    """A faulted opening refuses every kind of write, and still shows what was acknowledged."""
    acknowledged = session.delivered_seq
    before = await session.get_log()
    assert [item.seq for item in before] == list(range(1, acknowledged + 1))
    for write in every_write(session):
        with pytest.raises(StorageError):
            await write()
    assert session.delivered_seq == acknowledged
    assert await session.get_log() == before


async def assert_goes_on(repo: SessionRepo, expected: Answers) -> None:
    """A healthy reopening holds exactly `expected`, for readers and for the writer, which writes the next item."""
    async with await repo.open("s1", read_only=True) as reader:
        assert await answers(reader) == expected
    async with await repo.open("s1") as session:
        assert await answers(session) == expected
        entry = await session.append_entry(message("goes-on"), "main")
        assert entry.seq == len(expected.log) + 1
        assert entry.parent_id == next(lane.leaf_id for lane in expected.lanes if lane.lane == "main")
    async with await repo.open("s1") as session:
        assert len(await session.get_log()) == entry.seq


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_fault_at_any_write_leaves_a_prefix(
    backend: str, kind: FaultKind, forever: bool, tmp_path: Path
) -> None:
    history = await clean_history()
    assert len(history) > 40
    for number in range(1, len(history) + 1):
        folder = tmp_path / str(number)
        folder.mkdir(mode=0o700)
        inner = make_repo(backend, folder)
        repo = FaultyRepo(inner, Faults(at=number, kind=kind, forever=forever))
        session = await repo.create(id="s1")
        with pytest.raises(StorageError, match=f"write {number}"):
            await fill(session)
        assert session.delivered_seq == number - 1  # what was acknowledged
        await assert_takes_nothing_more(session)
        await session.close()
        stored = number if kind == "after" else number - 1
        if forever:
            again = await repo.open("s1")
            assert len(await again.get_log()) == stored
            with pytest.raises(StorageError):
                await again.set_name("again")
            await again.close()
            if kind == "after":  # stored it was, and is one item more
                async with await inner.open("s1", read_only=True) as reader:
                    assert [item.seq for item in await reader.get_log()] == list(range(1, stored + 2))
                    assert (await reader.get_log())[:stored] == history[:stored]
                    assert await reader.get_name() == "again"
                continue
        expected = await answers_of_prefix(stored)
        assert expected.log == history[:stored]
        await assert_goes_on(inner, expected)
        await inner.close()


# Half-written lines -------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TornDisk(FaultyFiles):
    """Half of a line is written, and it cannot be cut back either: the disk went away."""

    gone: bool = field(default=False)

    def write(self, fd: int, data: bytes) -> int:
        if self.gone:
            raise OSError(5, "injected: the disk is gone")
        written = FaultyFiles.write(self, fd, data)
        self.gone = written != len(data)
        return written

    def truncate(self, fd: int, size: int) -> None:
        if self.gone:
            raise OSError(5, "injected: the disk is gone")
        FaultyFiles.truncate(self, fd, size)


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("disk", [FaultyFiles, TornDisk], ids=["cut back", "left torn"])
async def test_a_line_written_half_at_any_write_is_no_line(
    disk: type[FaultyFiles], durability: str, tmp_path: Path
) -> None:
    history = await clean_history()
    for number in range(1, len(history) + 1):
        folder = tmp_path / str(number)
        files = disk(short_write=number + 1)  # the first write is the header
        repo = JsonlSessionRepo(folder, ManualClock(), DeterministicIds(), durability, files)
        session = await repo.create(id="s1")
        with pytest.raises(StorageError, match=r"outcome is unknown|cut back"):
            await fill(session)
        assert session.delivered_seq == number - 1
        await assert_takes_nothing_more(session)
        await session.close()
        healthy = JsonlSessionRepo(folder, ManualClock(), DeterministicIds(), file_ops=FileOps())
        async with await healthy.open("s1", read_only=True) as reader:
            torn = [found.code for found in reader.diagnostics]
        assert torn == (["torn_tail"] if disk is TornDisk else []), number
        await assert_goes_on(healthy, await answers_of_prefix(number - 1))


# Under a harness ------------------------------------------------------------------


async def run_until_settled(scenario: Scenario, session: Session, world: World) -> tuple[AgentHarness, object]:
    harness = await scenario.build(session, world, "automatic")
    try:
        return harness, await scenario.act(harness)
    except HarnessFault as fault:
        return harness, fault


async def recover(scenario: Scenario, session: Session, world: World) -> AgentHarness:
    """As an application does on start: open, resume what was interrupted."""
    harness = await scenario.build(session, world, "automatic")
    for operation in harness.suspended:
        lane = await harness.lane(operation.lane)
        assert lane is not None
        assert (await lane.resume()).ok
    return harness


async def assert_sound(session: Session, where: str) -> None:
    assert await session.verify() == [], where
    log = await session.get_log()
    started = [i.record.id for i in log if isinstance(i, RecordItem) and i.record.type == "operation_started"]
    finished = [i.record.run_id for i in log if isinstance(i, RecordItem) and i.record.type == "operation_finished"]
    assert finished == started, where
    entries = [i.entry.message for i in log if isinstance(i, EntryItem)]
    calls = [call.id for e in entries if isinstance(e, AssistantMessage) for call in e.tool_calls]
    assert [e.tool_call_id for e in entries if isinstance(e, ToolResultMessage)] == calls, where


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", [ONE_TOOL_NEVER, ONE_TOOL_SAFE, RETRY], ids=lambda scenario: scenario.name)
async def test_a_fault_at_any_write_of_a_run_faults_the_harness_and_a_reopening_ends_the_run(
    scenario: Scenario, kind: FaultKind, forever: bool, backend: str, tmp_path: Path
) -> None:
    counted = Faults()
    session = await FaultyRepo(reference(), counted).create(id="s1")
    harness, outcome = await run_until_settled(scenario, session, World(tmp_path / "clean"))
    assert not isinstance(outcome, HarnessFault)
    assert counted.writes >= 6
    clean = await session_shape(session)
    await harness.close()

    for number in range(1, counted.writes + 1):
        where = f"{scenario.name}, write {number}, {kind}"
        folder = tmp_path / str(number)
        folder.mkdir(mode=0o700)
        world = World(folder / "world")
        inner = make_repo(backend, folder)
        faults = Faults(at=number, kind=kind, forever=forever)
        repo = FaultyRepo(inner, faults)
        session = await repo.create(id="s1")
        harness, fault = await run_until_settled(scenario, session, world)
        assert isinstance(fault, HarnessFault), where
        assert isinstance(fault.cause, StorageError), where
        assert f"write {number}" in str(fault)
        effects = {name: world.count(name) for name in ("requests", "measure")}
        for _ in range(2):
            with pytest.raises(HarnessFault) as later:
                await scenario.act(harness)
            assert later.value is fault, where
        assert faults.writes == number, f"{where}: a dead harness wrote"
        assert {name: world.count(name) for name in effects} == effects, f"{where}: a dead harness acted"
        await harness.close()

        async with await inner.open("s1", read_only=True) as reader:
            log = await reader.get_log()
        assert len(log) == (number if kind == "after" else number - 1), where
        if forever:
            again = await repo.open("s1")
            sick = await scenario.build(again, world, "automatic")
            for operation in sick.suspended:
                lane = await sick.lane(operation.lane)
                assert lane is not None
                with pytest.raises(HarnessFault):
                    await lane.resume()
            await sick.close()
            faults.at = None  # the disk is healed

        session = await inner.open("s1")
        harness = await recover(scenario, session, world)
        shape = await session_shape(session)
        accepted = number > 1 or kind == "after"
        assert shape.roles == (clean.roles if accepted else []), where
        await assert_sound(session, where)
        if scenario is ONE_TOOL_NEVER:
            assert world.count("measure") <= 1, where
            assert shape.real_results <= world.count("measure"), where
        if scenario is ONE_TOOL_SAFE and accepted:
            assert shape.real_results == 1, where
        await harness.close()
        await inner.close()


@dataclass(frozen=True)
class Shape:
    roles: list[str]  # with stop reasons, in path order
    real_results: int


async def session_shape(session: Session) -> Shape:
    roles: list[str] = []
    real = 0
    for entry in await session.find_entries_on_branch(order="oldestFirst"):
        found = entry.message
        assert found is not None
        roles.append(f"{found.role} {found.stop_reason}" if isinstance(found, AssistantMessage) else found.role)
        real += isinstance(found, ToolResultMessage) and text_of(found) == "ok"
    return Shape(roles, real)
