"""Traces of harness-v2 §6 in which something comes in while a run works: steering, cancellation, a deferred write, an
abort, a deferred answer. Letter by letter, on three backends."""

import pytest

from agent_harness import AgentHarness, AgentTool, AgentToolResult, Session, TextContent, ToolInvocation
from agent_harness.outcomes import RunAborted, RunCompleted, RunFailed, RunSuspended
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import (
    SCRIPTED_MODEL,
    ManualClock,
    ScriptedProvider,
    answer,
    call,
    check_fixed_point,
    drive_until,
    log_lines,
    start,
)
from agent_harness.types.messages import AssistantMessage, DeferredHandle, Usage, UserMessage

HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1", data={"shard": 3})


async def measure(invocation: ToolInvocation) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text="3.5 m"),))


TOOL = AgentTool(name="measure", description="Measure.", parameters={"type": "object"}, execute=measure)


async def driven(
    repo: SessionRepo, *answers: AssistantMessage, fetches: tuple[AssistantMessage, ...] = ()
) -> tuple[Session, AgentHarness]:
    session = await repo.create(id="trace")
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([ScriptedProvider(answers=answers, fetches=fetches)], [SCRIPTED_MODEL]),
        model=SCRIPTED_MODEL,
        tools=[TOOL],
        clock=ManualClock(),
        drive="manual",
    )
    return session, created.harness


async def finish(harness: AgentHarness) -> None:
    while await harness.peek_action() is not None:
        await harness.execute_action()
        await check_fixed_point(harness)


async def test_steering_while_a_tool_runs(repo: SessionRepo) -> None:
    session, harness = await driven(repo, answer("Working.", calls=[call("measure")]), answer("Done."))
    run = await start(harness.prompt("Fix the bug."))
    await drive_until(harness, "execute_tool")
    (await harness.steer("Focus on the tests.")).unwrap()
    await finish(harness)
    assert isinstance((await run).unwrap(), RunCompleted)
    assert log_lines(await session.get_log()) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "E assistant toolUse",
        "R tool_started",
        "R queue_enqueued",
        "E toolResult",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    await harness.close()


async def test_a_queued_item_is_retracted(repo: SessionRepo) -> None:
    session, harness = await driven(repo, answer("Done."))
    run = await start(harness.prompt("Work."))
    await drive_until(harness, "stream_assistant")
    queued = (await harness.steer("Never mind.")).unwrap()
    assert (await harness.cancel_queued(queued.entry_id)).unwrap().outcome == "cancelled"
    await finish(harness)
    await run
    assert log_lines(await session.get_log()) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R queue_enqueued",
        "R queue_cancelled",
        "E assistant stop",
        "R operation_finished",
    ]
    assert await session.get_entry(queued.entry_id) is None
    await harness.close()


async def test_a_deferred_write_in_mid_turn_lands_behind_the_answer(repo: SessionRepo) -> None:
    session, harness = await driven(repo, answer("A."), answer("B."))
    run = await start(harness.prompt("Work."))
    await drive_until(harness, "stream_assistant")
    await harness.session.append_message(UserMessage(content="M", timestamp=1))
    await finish(harness)
    await run
    assert log_lines(await session.get_log()) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R write_deferred",
        "E assistant stop",
        "E user",
        "R step_attempt",  # a user message asks for an answer, whoever wrote it
        "E assistant stop",
        "R operation_finished",
    ]
    await harness.close()


@pytest.mark.parametrize("when", ["before the tool", "after the tool"])
async def test_an_abort_during_a_tool(when: str, repo: SessionRepo) -> None:
    session, harness = await driven(repo, answer("Working.", calls=[call("measure")]))
    run = await start(harness.prompt("Water all."))
    await drive_until(harness, "execute_tool")
    if when == "after the tool":
        await harness.execute_action()
    (await harness.abort()).unwrap()
    await finish(harness)
    assert isinstance((await run).unwrap(), RunAborted)
    assert log_lines(await session.get_log()) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "E assistant toolUse",
        "R tool_started",
        "R abort_requested",
        "E toolResult",
        "E assistant aborted",
        "R operation_finished",
    ]
    results = [
        e.message for e in await session.find_entries() if e.message is not None and e.message.role == "toolResult"
    ]
    assert [result.is_error for result in results] == [when == "before the tool"]
    await harness.close()


SUSPENDED = ["R operation_started", "E user", "R step_attempt", "R usage", "E assistant deferred"]


@pytest.mark.parametrize(
    ("fetched", "written", "outcome"),
    [
        (answer(deferred=HANDLE, usage=Usage()), [], RunSuspended),
        (answer(deferred=HANDLE), ["R usage"], RunSuspended),
        (answer("Late."), ["R usage", "E assistant stop", "R operation_finished"], RunCompleted),
        (
            answer(error_message="expired", error_code="not_found"),
            ["R usage", "E assistant error", "R operation_finished"],
            RunFailed,
        ),
        (None, ["R usage", "E assistant error", "R operation_finished"], RunFailed),
    ],
    ids=["pending", "pending with usage", "ready", "terminal", "rejected fetch"],
)
async def test_a_deferred_request_and_every_fetch_outcome(
    fetched: AssistantMessage | None, written: list[str], outcome: type, repo: SessionRepo
) -> None:
    fetches = () if fetched is None else (fetched,)
    session, harness = await driven(repo, answer(deferred=HANDLE), fetches=fetches)
    run = await start(harness.prompt("Batch job."))
    await finish(harness)
    assert isinstance((await run).unwrap(), RunSuspended)
    assert log_lines(await session.get_log(), usage=True) == SUSPENDED
    resumed = await start(harness.resume())
    await finish(harness)
    assert isinstance((await resumed).unwrap(), outcome)
    assert log_lines(await session.get_log(), usage=True) == [*SUSPENDED, *written]
    await harness.close()


async def test_an_abort_of_a_suspended_run_keeps_the_deferred_entry(repo: SessionRepo) -> None:
    session, harness = await driven(repo, answer(deferred=HANDLE))
    run = await start(harness.prompt("Batch job."))
    await finish(harness)
    await run
    (await harness.abort()).unwrap()
    await finish(harness)
    await harness.wait_for_idle()
    assert log_lines(await session.get_log(), usage=True) == [
        *SUSPENDED,
        "R abort_requested",
        "E assistant aborted",
        "R operation_finished",
    ]
    await harness.close()
