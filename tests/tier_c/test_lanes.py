"""Lanes: parallel on one session, isolated from each other, facades without identity (harness-v2 §3, §8)."""

import asyncio

import pytest

from agent_harness.errors import HarnessClosed
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import ScriptedRequest, answer, call, check_fixed_point, drive_until, start
from agent_harness.types.entries import ActiveToolsBody, ModelChangeBody, ThinkingLevelBody
from agent_harness.types.messages import AssistantMessage, ToolResultMessage, UserMessage
from tests.support.prefix import Prefix
from tests.support.rig import Calls, Held, assert_sound, open_rig, results_of, turns, until


def first_user(request: ScriptedRequest) -> str:
    return next(str(m.content) for m in request.context.messages if isinstance(m, UserMessage))


def call_then_tell(request: ScriptedRequest) -> AssistantMessage:
    """Each lane calls under its own id."""
    name = first_user(request)
    if any(isinstance(message, ToolResultMessage) for message in request.context.messages):
        return answer(f"done {name}")
    return answer(calls=[call("measure", {"lane": name}, id=f"call-{name}")])


async def test_two_lanes_run_in_parallel_and_share_nothing_but_the_sequence(repo: SessionRepo) -> None:
    session, held = await repo.create(), Held()
    rig = await open_rig(session, respond=call_then_tell, tools=[held.tool()])
    other = (await rig.harness.create_lane("slack:1", None)).unwrap()
    work = [await start(rig.harness.prompt("main")), await start(other.prompt("slack"))]
    await until(lambda: len(held.made) == 2)  # both are in the middle of their batch
    assert not any(task.done() for task in work)
    for call_id in ("call-slack", "call-main"):
        held.gate(call_id).set()
    outcomes = [(await task).unwrap() for task in work]
    assert [outcome.final_message.text for outcome in outcomes] == ["done main", "done slack"]
    log = await session.get_log()
    assert [item.seq for item in log] == list(range(1, len(log) + 1))
    assert set(results_of(log)) == {"call-main", "call-slack"}
    for lane, name in (("main", "main"), ("slack:1", "slack")):
        path = await session.view(lane).find_entries_on_branch(order="oldestFirst")
        assert [str(e.message.content) for e in path if isinstance(e.message, UserMessage)] == [name]
        assert len(path) == 4
        runs = await session.find_records(lane=lane, type="operation_started")
        assert {r.run_id for r in await session.find_records(lane=lane)} == {runs[0].id}
    for lane in (rig.harness, other):
        await check_fixed_point(lane)
    await assert_sound(session)


async def test_every_interleaving_of_two_driven_lanes_is_sound(repo: SessionRepo) -> None:
    """One action of each in turn, with a different head start each time; both begin at the same leaf."""
    for lead in range(0, 16, 3):
        session, tools = await repo.create(id=f"s{lead}"), Calls()
        await session.append_message(UserMessage(content="shared", timestamp=1))
        rig = await open_rig(session, respond=call_then_tell, tools=[tools.tool()], drive="manual")
        leaf = await rig.harness.get_leaf_id()
        other = (await rig.harness.create_lane("other", leaf)).unwrap()
        work = [await start(rig.harness.prompt("one")), await start(other.prompt("two"))]
        for _ in range(lead):
            await rig.harness.execute_action()
        while await rig.harness.peek_action() is not None or await other.peek_action() is not None:
            for lane in (other, rig.harness):
                await lane.execute_action()
                await check_fixed_point(lane)
        assert [(await task).unwrap().kind for task in work] == ["completed", "completed"]
        assert len(tools.made) == 2
        for lane in ("main", "other"):
            path = await session.view(lane).find_entries_on_branch(order="oldestFirst")
            assert len(path) == 5
            assert path[0].id == leaf
        assert await session.verify() == []
        await rig.harness.close()


async def test_lanes_that_crash_together_resume_apart(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    await session.create_lane("other", None)
    await Prefix(session).start("main")
    other = Prefix(session, "other")
    rig = await open_rig(session, respond=call_then_tell, tools=[tools.tool()])
    assert [operation.lane for operation in rig.suspended] == ["main"]
    lane = await rig.harness.lane("other")
    assert lane is not None
    assert (await lane.prompt("other")).unwrap().kind == "completed"  # its sibling's crash is not its own
    assert [info.operation.status for info in await rig.harness.lanes() if info.operation] == ["suspended"]
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert other.count == 0
    await assert_sound(session)


async def test_input_and_abort_reach_their_own_lane_only(repo: SessionRepo) -> None:
    session, held = await repo.create(), Held()
    rig = await open_rig(session, respond=call_then_tell, tools=[held.tool()])
    other = (await rig.harness.create_lane("other", None)).unwrap()
    work = [await start(rig.harness.prompt("one")), await start(other.prompt("two"))]
    await until(lambda: len(held.made) == 2)
    steered = (await other.steer("steered")).unwrap()
    assert not (await rig.harness.cancel_queued(steered.entry_id)).ok
    assert (await rig.harness.abort()).unwrap().steer == ()
    assert (await work[0]).unwrap().kind == "aborted"
    held.gate("call-two").set()
    assert (await work[1]).unwrap().kind == "completed"
    path = await session.view("other").find_entries_on_branch(order="oldestFirst")
    assert [str(e.message.content) for e in path if isinstance(e.message, UserMessage)] == ["two", "steered"]
    await assert_sound(session)


async def test_a_busy_lane_refuses_and_its_sibling_does_not(repo: SessionRepo) -> None:
    session, held = await repo.create(), Held()
    rig = await open_rig(session, respond=call_then_tell, tools=[held.tool()])
    other = (await rig.harness.create_lane("other", None)).unwrap()
    work = await start(rig.harness.prompt("one"))
    await held.began.wait()
    before = len(await session.get_log())
    refused = await rig.harness.prompt("again")
    assert (type(refused.error).__name__, refused.error.lane) == ("LaneBusy", "main")
    assert len(await session.get_log()) == before
    held.gate("call-two").set()
    assert (await other.prompt("two")).unwrap().kind == "completed"
    held.gate("call-one").set()
    assert (await work).unwrap().kind == "completed"


async def test_any_number_of_facades_are_one_lane(repo: SessionRepo) -> None:
    held = Held()
    rig = await open_rig(await repo.create(), respond=call_then_tell, tools=[held.tool()])
    await rig.harness.create_lane("other", None)
    first, second = await rig.harness.lane("other"), await rig.harness.lane("other")
    main = await rig.harness.lane("main")
    assert first is not None
    assert second is not None
    assert main is not None
    work = await start(first.prompt("one"))
    await held.began.wait()
    assert (await second.steer("via another facade")).ok
    assert not (await second.prompt("busy")).ok
    assert await main.get_leaf_id() == await rig.harness.get_leaf_id()
    held.gate("call-one").set()
    await second.wait_for_idle()
    assert (await work).unwrap().leaf_id == await second.get_leaf_id()
    assert (first.name, main.name, rig.harness.name) == ("other", "main", "main")
    assert await rig.harness.lane("nobody") is None


async def test_lanes_that_may_not_be_created(repo: SessionRepo) -> None:
    session = await repo.create()
    rig = await open_rig(session)
    assert (await rig.harness.create_lane("slack:171943.0021", None)).ok
    before = await session.get_log()
    for name, at, expected in (
        ("main", None, "LaneExists"),
        ("slack:171943.0021", None, "LaneExists"),
        ("", None, "InvalidLane"),
        ("x" * 5000, None, "InvalidLane"),
        ("\ud800", None, "InvalidLane"),
        ("new", "nowhere", "UnknownTarget"),
    ):
        refused = await rig.harness.create_lane(name, at)
        assert type(refused.error).__name__ == expected, name
    assert await session.get_log() == before
    assert [info.name for info in await rig.harness.lanes()] == ["main", "slack:171943.0021"]
    await rig.harness.close()
    assert type((await rig.harness.create_lane("late", None)).error).__name__ == "Closed"


async def test_two_creations_of_one_name_have_one_winner(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create())
    results = await asyncio.gather(*(rig.harness.create_lane("twin", None) for _ in range(5)))
    assert [result.ok for result in results].count(True) == 1
    assert [info.name for info in await rig.harness.lanes()] == ["main", "twin"]


@pytest.mark.parametrize("reopen", [False, True])
async def test_each_lane_is_configured_by_its_own_path(repo: SessionRepo, reopen: bool) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.body("e1", ThinkingLevelBody(thinking_level="low"))
    await session.create_lane("branch", "e1")
    await session.create_lane("root", None)
    await prefix.body("e2", ThinkingLevelBody(thinking_level="high"))
    await Prefix(session, "branch").body("b1", ActiveToolsBody(active_tool_names=("water",)))
    await Prefix(session, "branch").body("b2", ModelChangeBody(provider="elsewhere", model_id="other"))
    tools = Calls()
    options = {"tools": [tools.tool("measure"), tools.tool("water")], "thinking_level": "medium"}
    rig = await open_rig(session, **options)
    if reopen:
        await rig.harness.close()
        session = await repo.open(session.id)
        rig = await open_rig(session, **options)
    found = {}
    for name in ("main", "branch", "root"):
        lane = await rig.harness.lane(name)
        assert lane is not None
        configuration = lane._lane.state.effective_configuration
        found[name] = (
            configuration.model.model_id,
            configuration.thinking_level,
            configuration.active_tool_names,
        )
        await check_fixed_point(lane)
    assert found == {
        "main": ("scripted-1", "high", ("measure", "water")),
        "branch": ("other", "low", ("water",)),
        "root": ("scripted-1", "medium", ("measure", "water")),
    }


async def test_a_lane_created_in_mid_run_takes_its_configuration_from_its_anchor(repo: SessionRepo) -> None:
    session, held = await repo.create(), Held()
    await Prefix(session).body("e1", ThinkingLevelBody(thinking_level="low"))
    rig = await open_rig(session, respond=call_then_tell, tools=[held.tool()])
    work = await start(rig.harness.prompt("one"))
    await held.began.wait()
    lane = (await rig.harness.create_lane("late", "e1")).unwrap()
    assert lane._lane.state.effective_configuration.thinking_level == "low"
    held.gate("call-one").set()
    assert (await work).unwrap().kind == "completed"
    await check_fixed_point(lane)


async def test_closing_detaches_every_lane(repo: SessionRepo) -> None:
    session, held = await repo.create(), Held()
    rig = await open_rig(session, respond=call_then_tell, tools=[held.tool()])
    other = (await rig.harness.create_lane("other", None)).unwrap()
    work = [await start(rig.harness.prompt("one")), await start(other.prompt("two"))]
    await until(lambda: len(held.made) == 2)
    await rig.harness.close()
    for task in work:
        with pytest.raises(HarnessClosed):
            await task
    session = await repo.open(session.id)
    again = await open_rig(session, respond=call_then_tell, tools=[held.tool()])
    assert sorted(operation.lane for operation in again.suspended) == ["main", "other"]
    for operation in again.suspended:
        lane = await again.harness.lane(operation.lane)
        assert lane is not None
        assert (await lane.resume()).unwrap().kind == "completed"
    assert len(held.made) == 2
    await assert_sound(session)


async def test_manual_drive_parks_each_lane_at_its_own_gate(repo: SessionRepo) -> None:
    session = await repo.create()
    rig = await open_rig(session, respond=call_then_tell, tools=[Calls().tool()], drive="manual")
    other = (await rig.harness.create_lane("other", None)).unwrap()
    work = [await start(rig.harness.prompt("one")), await start(other.prompt("two"))]
    await drive_until(other, "execute_tool")
    action = await rig.harness.peek_action()
    assert action is not None
    assert action.kind == "append_entry"
    await other.run_to_completion()
    assert (await work[1]).unwrap().kind == "completed"
    await turns()
    assert await rig.harness.peek_action() is action
    await rig.harness.run_to_completion()
    assert (await work[0]).unwrap().kind == "completed"
