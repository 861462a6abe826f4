"""Abort before and after each durable point, and its reconciliation in recovery (harness-v2 §6, A-4)."""

import pytest

from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, check_fixed_point, start
from agent_harness.types.messages import ToolResultMessage
from agent_harness.types.records import QueueName
from tests.support.prefix import Prefix, calls, errored, real
from tests.support.rig import Calls, assert_sound, open_rig, results_of, said

END = ["E assistant aborted", "R operation_finished"]


async def test_each_call_of_an_aborting_batch_is_closed_at_its_own_site(repo: SessionRepo) -> None:
    """A result is kept, a settled effect keeps its result, a started one is interrupted, the rest never started."""
    session, tools = await repo.create(), Calls()
    prefix = Prefix(session)
    await prefix.batch(4)
    for number in (1, 2, 3):
        await prefix.tool_started(number, "safe")
    await prefix.tool_settled(2, real("settled"))
    await prefix.result(1)
    await prefix.aborted()
    rig = await open_rig(session, tools=[tools.tool(replay="safe")])
    seen: list[str] = []
    rig.harness.hooks.on("before_tool", lambda event: seen.append("before_tool"))
    assert (await rig.harness.resume()).unwrap().kind == "aborted"
    texts = {call_id: said(message) for call_id, message in results_of(await session.get_log()).items()}
    assert texts["c1"] == "kept"
    assert texts["c2"] == "settled"
    assert "interrupted" in texts["c3"]
    assert "aborted before it started" in texts["c4"]
    assert (tools.made, seen, rig.provider.requests) == ([], [], [])
    assert (await rig.lines())[-2:] == END
    await assert_sound(session)


async def test_deferred_writes_are_applied_even_here_and_queued_items_are_not(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.queued("steer", "q1", "never")
    await prefix.write("w1")
    await prefix.aborted()
    rig = await open_rig(session)
    assert (await rig.harness.resume()).unwrap().kind == "aborted"
    assert (await rig.lines())[-3:] == ["E custom", *END]
    assert await session.get_entry("q1") is None


@pytest.mark.parametrize("closed", [False, True])
async def test_the_closing_message_is_appended_once(repo: SessionRepo, closed: bool) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.aborted()
    if closed:
        await prefix.entry("z1", answer(stop_reason="aborted"))
    rig = await open_rig(session)
    outcome = (await rig.harness.resume()).unwrap()
    assert outcome.kind == "aborted"
    assert (await rig.lines()).count("E assistant aborted") == 1


async def test_an_abort_of_a_suspended_run_needs_no_resume(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.queued("steer", "q1", "payload")
    rig = await open_rig(session, tools=[Calls().tool()])
    accepted = (await rig.harness.abort()).unwrap()
    assert [m.content for m in accepted.steer] == ["payload"]
    await rig.harness.wait_for_idle()
    assert (await rig.lines())[-4:] == ["R abort_requested", "E toolResult", *END]
    again = await rig.harness.abort()
    assert not again.ok
    assert type(again.error).__name__ == "NoActiveOperation"
    await assert_sound(session)


async def test_a_failed_run_that_is_aborted_ends_aborted(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.entry("a1", errored())
    rig = await open_rig(session)
    assert (await rig.harness.abort()).ok
    await rig.harness.wait_for_idle()
    assert (await rig.lines())[-3:] == ["R abort_requested", *END]


async def test_a_run_aborted_before_and_after_each_of_its_actions_is_closed(repo: SessionRepo) -> None:
    """One tool call, a steer and an answer: abort after k released actions, live."""
    kinds: set[str] = set()
    for k in range(40):
        session, tools = await repo.create(id=f"s{k}"), Calls()
        rig = await open_rig(session, answer(calls=calls(2)), "done", tools=[tools.tool()], drive="manual")
        work = await start(rig.harness.prompt("go"))
        action = await rig.harness.peek_action()
        for _ in range(k):
            if action is not None:
                action = await rig.harness.execute_action()
        accepted = await rig.harness.abort()
        if action is None:
            assert not accepted.ok
            assert (await work).unwrap().kind == "completed"
            await rig.harness.close()
            break
        kinds.add(action.kind)
        assert accepted.ok
        while await rig.harness.execute_action() is not None:
            await check_fixed_point(rig.harness)
        assert (await work).unwrap().kind == "aborted"
        await assert_sound(session)
        assert (await rig.lines())[-1] == "R operation_finished"
        for message in results_of(await session.get_log()).values():
            assert isinstance(message, ToolResultMessage)
            assert message.is_error is (message.tool_call_id not in tools.made)
        await rig.harness.close()
    else:
        raise AssertionError("the run never ended")
    assert kinds >= {"append_entry", "append_record", "stream_assistant", "execute_tool", "try_finish_run"}


@pytest.mark.parametrize("queue", ["steer", "followUp"])
async def test_an_answer_that_its_provider_cut_loses_no_accepted_input(repo: SessionRepo, queue: QueueName) -> None:
    """Nobody asked for an abort, so no marker cleared the queue."""
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.queued(queue, "q1", "and this")
    await prefix.entry("a1", answer("half", stop_reason="aborted"))
    rig = await open_rig(session, "done")
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert (await rig.lines())[-4:] == ["E user", "R step_attempt", "E assistant stop", "R operation_finished"]
    await assert_sound(session)


async def test_input_at_any_moment_of_a_cut_answer_is_consumed_or_refused(repo: SessionRepo) -> None:
    accepted = 0  # behind the cut answer
    for k in range(20):
        session = await repo.create(id=f"s{k}")
        cut = answer("half", calls=calls(1), stop_reason="aborted")
        rig = await open_rig(session, cut, "done", tools=[Calls().tool()], drive="manual")
        work = await start(rig.harness.prompt("go"))
        action = await rig.harness.peek_action()
        for _ in range(k):
            action = await rig.harness.execute_action() if action is not None else None
        steered = await rig.harness.steer("and this")
        await rig.harness.run_to_completion()
        lines = await rig.lines()
        assert lines.count("E user") == 1 + steered.ok
        answered = "E user" in lines[lines.index("E assistant aborted") :]
        assert (await work).unwrap().kind == ("completed" if answered else "aborted")
        accepted += answered
        await assert_sound(session)
        await rig.harness.close()
        if action is None:
            break
    assert accepted > 3
