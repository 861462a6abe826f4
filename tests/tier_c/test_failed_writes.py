"""A storage write that fails, at every write of a run, before and after its commit (decisions section 5)."""

from pathlib import Path

import pytest

from agent_harness.errors import HarnessFault
from agent_harness.session.storage import RecordItem
from agent_harness.testing import answer, log_lines, start
from agent_harness.types.messages import Usage
from session_backends.faults import FaultKind, Faults, FaultyRepo
from tests.support.backends import make_repo
from tests.support.prefix import calls
from tests.support.rig import Calls, Held, Rig, assert_sound, open_rig, results_of, said, until

ONE_TOOL = [
    "R operation_started",
    "E user",
    "R step_attempt",
    "R usage",
    "E assistant toolUse",
    "R tool_started",
    "E toolResult",
    "R step_attempt",
    "R usage",
    "E assistant stop",
    "R operation_finished",
]


async def assert_dead(rig: Rig, fault: HarnessFault) -> None:
    """Every call raises the one fault."""
    harness = rig.harness
    for attempt in (
        lambda: harness.prompt("again"),
        harness.resume,
        harness.abort,
        lambda: harness.steer("x"),
        lambda: harness.follow_up("x"),
        lambda: harness.next_run("x"),
        lambda: harness.cancel_queued("x"),
        lambda: harness.record_usage(Usage(input=1)),
        lambda: harness.create_lane("other", None),
        harness.wait_for_idle,
        harness.lanes,
        lambda: harness.lane("main"),
        harness.get_leaf_id,
    ):
        with pytest.raises(HarnessFault) as caught:
            await attempt()
        assert caught.value is fault


@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("at", range(1, len(ONE_TOOL) + 1))
async def test_a_failed_write_faults_the_harness_and_the_next_opening_recovers(
    backend: str, tmp_path: Path, kind: FaultKind, at: int
) -> None:
    faults, inner, tools = Faults(at=at, kind=kind), make_repo(backend, tmp_path), Calls()
    session = await FaultyRepo(inner, faults).create(id="s")
    rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[tools.tool()])
    reports: list[object] = []
    rig.harness.events.on("fault", reports.append)
    with pytest.raises(HarnessFault) as caught:
        await rig.harness.prompt("go")
    await assert_dead(rig, caught.value)
    assert faults.writes == at
    await until(lambda: bool(reports))
    assert len(reports) == 1
    requests = len(rig.provider.requests)
    await rig.harness.close()
    assert faults.writes == at
    assert len(rig.provider.requests) == requests

    session = await inner.open("s")
    stored = log_lines(await session.get_log(), usage=True)
    assert stored == ONE_TOOL[: at - 1 if kind == "before" else at]
    last = "done" if "E assistant toolUse" in stored else answer(calls=calls(1))
    again = await open_rig(session, last, "done", tools=[tools.tool()])
    assert len(again.suspended) == (0 if stored in ([], ONE_TOOL) else 1)
    if again.suspended:
        assert (await again.harness.resume()).unwrap().kind == "completed"
        result = results_of(await session.get_log())["c1"]
        assert len(tools.made) <= 1
        assert result.is_error is ("R tool_started" in stored and "E toolResult" not in stored)
        if result.is_error:
            assert "interrupted" in said(result)
    await assert_sound(session)
    await again.harness.close()
    await inner.close()


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_a_failed_surface_write_stops_a_running_run_at_once(
    backend: str, tmp_path: Path, kind: FaultKind
) -> None:
    faults, inner, held = Faults(kind=kind), make_repo(backend, tmp_path), Held()
    session = await FaultyRepo(inner, faults).create(id="s")
    rig = await open_rig(session, answer(calls=calls(2)), "done", tools=[held.tool()])
    work = await start(rig.harness.prompt("go"))
    await until(lambda: len(held.made) == 2)
    faults.at = faults.writes + 1
    with pytest.raises(HarnessFault) as caught:
        await rig.harness.steer("lost or not")
    with pytest.raises(HarnessFault) as run:
        await work
    assert run.value is caught.value
    await assert_dead(rig, caught.value)
    assert faults.writes == faults.at
    await rig.harness.close()

    session = await inner.open("s")
    steers = [i for i in await session.get_log() if isinstance(i, RecordItem) and i.record.type == "queue_enqueued"]
    assert len(steers) == (kind == "after")
    again = await open_rig(session, "done", "done", tools=[held.tool()])
    assert (await again.harness.resume()).unwrap().kind == "completed"
    assert (await again.lines()).count("E user") == 1 + len(steers)
    assert len(held.made) == 2
    await assert_sound(session)
    await again.harness.close()
    await inner.close()


async def test_a_failure_on_one_lane_stops_the_others(backend: str, tmp_path: Path) -> None:
    faults, inner, held = Faults(), make_repo(backend, tmp_path), Held()
    session = await FaultyRepo(inner, faults).create(id="s")
    rig = await open_rig(session, respond=lambda request: answer(calls=calls(1)), tools=[held.tool()])
    other = (await rig.harness.create_lane("other", None)).unwrap()
    work = [await start(rig.harness.prompt("go")), await start(other.prompt("go"))]
    await until(lambda: len(held.made) == 2)
    faults.at, faults.forever = faults.writes + 1, True
    with pytest.raises(HarnessFault) as caught:
        await other.follow_up("x")
    for task in work:
        with pytest.raises(HarnessFault) as stopped:
            await task
        assert stopped.value is caught.value
    assert faults.writes == faults.at
    await rig.harness.close()
    session = await inner.open("s")
    assert await session.verify() == []
    again = await open_rig(session, respond=lambda request: answer("done"), tools=[held.tool()])
    assert sorted(operation.lane for operation in again.suspended) == ["main", "other"]
    await again.harness.close()
    await inner.close()


async def test_manual_drive_ends_on_a_fault(backend: str, tmp_path: Path) -> None:
    faults, inner = Faults(at=3), make_repo(backend, tmp_path)
    session = await FaultyRepo(inner, faults).create(id="s")
    rig = await open_rig(session, "done", drive="manual")
    work = await start(rig.harness.prompt("go"))
    await rig.harness.run_to_completion()
    with pytest.raises(HarnessFault):
        await rig.harness.peek_action()
    with pytest.raises(HarnessFault):
        await work
    await rig.harness.close()
    await inner.close()
