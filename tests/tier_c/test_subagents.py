"""Subagents: the parent dies at every point, of its own work and of its children's. Each child exists once, and what
was paid for and kept is never paid for again."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_harness import Session
from agent_harness.session.storage import EntryItem, RecordItem
from agent_harness.testing import World, crash_points
from agent_harness.testing.crash import SESSION_ID
from agent_harness.types.messages import AssistantMessage, ToolResultMessage
from agent_harness.types.records import ToolUsage
from agent_harness.types.usage import sum_usage
from tests.support.backends import make_repo
from tests.support.children import Copies, family, resume_all
from tests.support.scenarios import text_of

TWO_TURNS = (("bed 1", "bed 2"), ("bed 3",))
ONE = (("bed 1",),)
DEATHS = [
    pytest.param("memory", TWO_TURNS, 1, id="two turns, memory"),
    pytest.param("sqlite", TWO_TURNS, 1, id="two turns, sqlite"),
    pytest.param("memory", ONE, 2, id="one call, dying twice, memory"),
]


async def children_of(world: World) -> list[Session]:
    """Every session of the store but the parent, read-only."""
    found = [m.id for m in await world.repo.list() if m.id != SESSION_ID]
    return [await world.repo.open(id, read_only=True) for id in sorted(found)]


async def answers_in(session: Session) -> int:
    return sum(isinstance(e.message, AssistantMessage) for e in await session.find_entries())


async def recovered(
    backend: str, tmp_path: Path, batches: tuple[tuple[str, ...], ...], *, depth: int, on_lane: bool
) -> AsyncIterator[tuple[str, Session, World, int]]:
    """Each crash point, parent's and children's, with how many answers it lost; resumed when it is yielded."""
    copies = Copies(tmp_path / "children")
    scenario = family("family", batches, copies, on_lane=on_lane)
    parents = 0
    async for point in crash_points(scenario, lambda path: make_repo(backend, path), tmp_path / "parent", depth=depth):
        copies.taking = False
        lost = await lost_answers(point.session, point.world)
        await resume_all(point.harness)
        yield point.label, point.session, point.world, lost
        parents += 1
    assert parents > 15
    assert len(copies.worlds) > 10 * sum(map(len, batches))
    for label, world in copies.worlds:
        session = await world.repo.open(SESSION_ID)
        lost = await lost_answers(session, world)
        harness = await scenario.build(session, world, "automatic")
        await resume_all(harness)
        yield label, session, world, lost
        await harness.close()
        await world.repo.close()


async def lost_answers(session: Session, world: World) -> int:
    """How many answers were asked for, and so paid for, but not yet durable when the crash came."""
    kept = await answers_in(session) + sum([await answers_in(child) for child in await children_of(world)])
    return world.count("child requests") + world.count("parent requests") - kept


async def is_untouched(session: Session) -> bool:
    return await session.find_records(type="operation_started") == []


async def assert_child_is_whole(child: Session, lane: str, label: str) -> str:
    """One run with one task, one measurement and one answer; returns the task."""
    starts = await child.find_records(lane=lane, type="operation_started")
    ends = await child.find_records(lane=lane, type="operation_finished")
    assert [len(starts), len(ends)] == [1, 1], label
    messages = [e.message for e in await child.view(lane).find_entries_on_branch(order="oldestFirst")]
    assert [m.role for m in messages] == ["user", "assistant", "toolResult", "assistant"], label
    assert await child.verify() == [], label
    return text_of(messages[0])


def results_of(log: list[object]) -> list[ToolResultMessage]:
    messages = [item.entry.message for item in log if isinstance(item, EntryItem)]
    return [m for m in messages if isinstance(m, ToolResultMessage) and m.tool_name == "research"]


@pytest.mark.parametrize(("backend", "batches", "depth"), DEATHS)
async def test_every_call_has_one_child_session_however_often_the_parent_dies(
    backend: str, tmp_path: Path, batches: tuple[tuple[str, ...], ...], depth: int
) -> None:
    tasks = [task for batch in batches for task in batch]
    reattached = 0
    async for label, session, world, lost in recovered(backend, tmp_path, batches, depth=depth, on_lane=False):
        if await is_untouched(session):
            assert await children_of(world) == []
            continue
        children = await children_of(world)
        assert {child.metadata.parent_session_id for child in children} == {SESSION_ID}, label
        assert sorted([await assert_child_is_whole(c, "main", label) for c in children]) == tasks, label
        log = await session.get_log()
        results = results_of(log)
        assert [(text_of(r), r.is_error) for r in results] == [(f"{task} is dry", False) for task in tasks], label
        # An answer that was durable when the parent died is not asked for again.
        paid = world.count("child requests") + world.count("parent requests")
        assert paid == len(tasks) * 2 + len(batches) + 1 + lost, label
        # The parent's ledger holds its own requests and each child's whole ledger, once.
        billed = sum_usage(
            item.record.body.usage
            for item in log
            if isinstance(item, RecordItem) and isinstance(item.record.body, ToolUsage)
        )
        assert billed == sum_usage([(await child.get_stats()).usage for child in children]), label
        assert await session.verify() == [], label
        reattached += len(results) > 0
    assert reattached > 30


@pytest.mark.parametrize(("backend", "batches", "depth"), DEATHS)
async def test_every_call_has_one_child_lane_however_often_the_parent_dies(
    backend: str, tmp_path: Path, batches: tuple[tuple[str, ...], ...], depth: int
) -> None:
    tasks = [task for batch in batches for task in batch]
    async for label, session, world, lost in recovered(backend, tmp_path, batches, depth=depth, on_lane=True):
        if await is_untouched(session):
            continue
        lanes = [info.lane for info in await session.get_lanes() if info.lane != "main"]
        assert sorted([await assert_child_is_whole(session, lane, label) for lane in lanes]) == tasks, label
        log = await session.get_log()
        assert [text_of(r) for r in results_of(log)] == [f"{task} is dry" for task in tasks], label
        paid = world.count("child requests") + world.count("parent requests")
        assert paid == len(tasks) * 2 + len(batches) + 1 + lost, label
        # One ledger: a child's cost stands in it once, under its own lane.
        usage = [item.record for item in log if isinstance(item, RecordItem) and item.record.type == "usage"]
        assert not [record for record in usage if isinstance(record.body, ToolUsage)], label
        assert await children_of(world) == []
