"""The fixed-point check in production: after every `resume()` the live state equals the reduction of what is stored
(harness-v2 §15 "Fixed-point self-check"). Where writer and reducer drifted apart, the harness stops."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent_harness.errors import HarnessFault
from agent_harness.lanes.lane import LaneRuntime
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, call, check_fixed_point, drive_until, start
from agent_harness.types.entries import MessageBody, ProvisionedEntry
from agent_harness.types.messages import DeferredHandle, Usage, UserMessage
from agent_harness.types.state import LaneReductionResult
from tests.support.rig import Calls, Rig, open_rig, turns

HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")
STRAY = ProvisionedEntry(id="stray", body=MessageBody(message=UserMessage(content="never stored", timestamp=1)))


def another_thinking_level(state: LaneReductionResult) -> LaneReductionResult:
    changed = replace(state.effective_configuration, thinking_level="high")
    return replace(state, effective_configuration=changed)


def an_item_that_was_never_queued(state: LaneReductionResult) -> LaneReductionResult:
    return replace(state, lane_state=replace(state.lane_state, pending_next_run=(STRAY,)))


def an_attempt_too_many(state: LaneReductionResult) -> LaneReductionResult:
    op = state.lane_state.operation
    assert op is not None
    changed = replace(op, attempt_ids=op.attempt_ids | {"stray"})
    return replace(state, lane_state=replace(state.lane_state, operation=changed))


DRIFTS = {
    "effective_configuration": another_thinking_level,
    "lane_state": an_item_that_was_never_queued,
    "operation": an_attempt_too_many,
}


def drift(lane: LaneRuntime, how: Callable[[LaneReductionResult], LaneReductionResult]) -> None:
    """What a defect of the writer or of the fold would do: memory says what the log does not."""
    lane.state = how(lane.state)


async def suspended(repo: SessionRepo) -> Rig:
    rig = await open_rig(
        await repo.create(id="s"),
        answer(deferred=HANDLE),
        "Done.",
        fetches=[answer(deferred=HANDLE, usage=Usage()), answer("Late.")],
    )
    await rig.harness.prompt("Go.")
    return rig


async def test_a_resume_that_finds_no_drift_goes_on(repo: SessionRepo) -> None:
    rig = await suspended(repo)
    assert (await rig.harness.resume()).unwrap().kind == "suspended"
    assert (await rig.harness.resume()).unwrap().kind == "completed"


@pytest.mark.parametrize("where", DRIFTS)
async def test_a_drift_stops_the_harness_at_the_resume_that_finds_it(where: str, repo: SessionRepo) -> None:
    rig = await suspended(repo)
    drift(rig.harness._lane, DRIFTS[where])
    before = await rig.session.get_log()
    with pytest.raises(HarnessFault, match=f"live state differs in {where}") as caught:
        await rig.harness.resume()
    with pytest.raises(HarnessFault) as again:
        await rig.harness.steer("Is anybody there?")
    assert again.value is caught.value
    assert await rig.session.get_log() == before
    await rig.harness.close()
    reopened = await open_rig(await repo.open("s"), fetches=[answer("Late.")])  # what is stored was right
    assert (await reopened.harness.resume()).unwrap().kind == "completed"


async def test_an_abort_of_a_suspended_run_is_checked_as_a_resume_is(repo: SessionRepo) -> None:
    rig = await suspended(repo)
    drift(rig.harness._lane, an_item_that_was_never_queued)
    (await rig.harness.abort()).unwrap()
    await turns()
    with pytest.raises(HarnessFault, match="live state differs in lane_state"):
        await rig.harness.wait_for_idle()


async def test_the_helper_of_the_tests_finds_a_drift_in_mid_run(repo: SessionRepo) -> None:
    rig = await open_rig(
        await repo.create(id="s"),
        answer(calls=[call("measure", id="c1")]),
        "Done.",
        tools=[Calls().tool()],
        drive="manual",
    )
    run = await start(rig.harness.prompt("Go."))
    await drive_until(rig.harness, "execute_tool")
    await check_fixed_point(rig.harness)
    drift(rig.harness._lane, an_attempt_too_many)
    with pytest.raises(HarnessFault, match="live state differs in operation"):
        await check_fixed_point(rig.harness)
    with pytest.raises(HarnessFault):
        await run
