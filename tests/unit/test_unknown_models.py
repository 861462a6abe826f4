"""A message written in mid-run may name a model that nobody knows here: the run ends and says so, the harness lives."""

from dataclasses import replace

import pytest

from agent_harness import AgentTool
from agent_harness.outcomes import MissingIdentities, RunCompleted, RunFailed
from agent_harness.result import Err, Ok
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, answer, call, check_fixed_point, drive_until, log_lines, start
from agent_harness.types.messages import AssistantMessage
from tests.support.rig import Calls, Rig, open_rig

FOREIGN = replace(answer("Said elsewhere."), provider="elsewhere", model="unheard-of")


def measure() -> AgentTool:
    return Calls().tool()


def calling() -> AssistantMessage:
    return answer(calls=[call("measure", id="c1")])


async def rig_with_a_foreign_message(repo: SessionRepo) -> tuple[Rig, object]:
    """A run that stands before its second request, with an imported answer accepted as a deferred write."""
    rig = await open_rig(await repo.create(id="s"), calling(), "Done.", "And again.", tools=[measure()], drive="manual")
    run = await start(rig.harness.prompt("Go."))
    await drive_until(rig.harness, "execute_tool")
    await rig.harness.session.append_message(FOREIGN)
    return rig, run


async def finish(rig: Rig) -> None:
    while await rig.harness.peek_action() is not None:
        await rig.harness.execute_action()
        await check_fixed_point(rig.harness)


async def test_the_run_fails_by_the_name_of_the_model_and_keeps_what_was_written(repo: SessionRepo) -> None:
    rig, run = await rig_with_a_foreign_message(repo)
    await rig.harness.steer("Look again.")  # so that a request is needed behind the foreign answer
    await finish(rig)
    outcome = (await run).unwrap()
    assert isinstance(outcome, RunFailed)
    assert outcome.error.code == "unknown_model"
    assert "elsewhere/unheard-of" in outcome.error.message
    assert await rig.lines() == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "E assistant toolUse",
        "R tool_started",
        "R write_deferred",
        "R queue_enqueued",
        "E toolResult",
        "E assistant stop",
        "E user",
        "R operation_finished",
    ]
    assert len(rig.provider.requests) == 1


async def test_the_lane_works_again_with_a_model_that_is_known(repo: SessionRepo) -> None:
    rig, run = await rig_with_a_foreign_message(repo)
    await finish(rig)
    assert isinstance((await run).unwrap(), RunFailed)
    refused = await rig.harness.prompt("Go on.")
    assert isinstance(refused, Err)
    assert isinstance(refused.error, MissingIdentities)
    await rig.harness.set_model(SCRIPTED_MODEL)
    again = await start(rig.harness.prompt("Go on."))
    await finish(rig)
    assert isinstance((await again).unwrap(), RunCompleted)


@pytest.mark.parametrize("queue", ["steer", "follow_up"])
async def test_a_model_set_before_queued_input_is_consumed_lets_the_run_go_on(repo: SessionRepo, queue: str) -> None:
    rig, run = await rig_with_a_foreign_message(repo)
    (await getattr(rig.harness, queue)("Look again.")).unwrap()
    await rig.harness.set_model(SCRIPTED_MODEL)
    await finish(rig)
    assert isinstance((await run).unwrap(), RunCompleted)


async def test_a_crash_before_the_close_leaves_a_run_that_names_what_it_needs(repo: SessionRepo) -> None:
    rig, run = await rig_with_a_foreign_message(repo)
    await drive_until(rig.harness, "try_finish_run")
    await rig.harness.close()
    with pytest.raises(Exception, match="closed"):
        await run
    session = await repo.open("s")
    again = await open_rig(session, "Done.", tools=[measure()])
    (suspended,) = again.suspended
    assert suspended.missing.models == ("elsewhere/unheard-of",)
    resumed = await again.harness.resume()
    assert isinstance(resumed, Err)
    assert isinstance(resumed.error, MissingIdentities)
    assert isinstance(await again.harness.abort(), Ok)
    await again.harness.wait_for_idle()
    assert log_lines(await session.get_log())[-1] == "R operation_finished"
    assert await session.verify() == []
