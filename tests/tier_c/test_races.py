"""Every row of the race catalogue (harness-v2 §15), both histories constructed, none waited for, on three backends."""

import asyncio

import pytest

from agent_harness import AgentHarness, AgentLane, AgentTool, AgentToolResult, Err, Ok, TextContent, ToolInvocation
from agent_harness.hooks.catalog import BeforeRunEnd, BeforeRunEndResult
from agent_harness.outcomes import LaneBusy, NoActiveOperation, NoActiveRun, RunAborted, RunCompleted
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.session.session import Session
from agent_harness.session.storage import RecordItem
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
from agent_harness.types.messages import AssistantMessage, UserMessage

both_orders = pytest.mark.parametrize("surface_first", [True, False], ids=["call first", "procedure first"])


async def measure(invocation: ToolInvocation) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text="3.5 m"),))


TOOL = AgentTool(name="measure", description="Measure.", parameters={"type": "object"}, execute=measure)


async def driven(repo: SessionRepo, *answers: AssistantMessage) -> tuple[Session, AgentHarness, ScriptedProvider]:
    session = await repo.create(id="race")
    provider = ScriptedProvider(answers=answers or ("Done.", "Done again.", "And again."))
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([provider], [SCRIPTED_MODEL]),
        model=SCRIPTED_MODEL,
        tools=[TOOL],
        clock=ManualClock(),
        drive="manual",
    )
    return session, created.harness, provider


async def finish(lane: AgentLane) -> None:
    """Release everything, with the fixed-point law after each action."""
    while await lane.peek_action() is not None:
        await lane.execute_action()
        await check_fixed_point(lane)


async def texts(session: Session) -> list[str]:
    """User texts on main's path, oldest first."""
    entries = await session.find_entries_on_branch(order="oldestFirst", start=await session.get_leaf_id())
    return [str(e.message.content) for e in entries if isinstance(e.message, UserMessage)]


async def outcomes(session: Session) -> list[str]:
    records = await session.find_records(type="operation_finished", order="oldestFirst")
    return [record.body.outcome for record in records]


@pytest.mark.parametrize(("winner", "loser"), [("one", "two"), ("two", "one")])
async def test_row_1_two_prompts_one_is_accepted(winner: str, loser: str, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    first, second = await start(harness.prompt(winner)), await start(harness.prompt(loser))
    await finish(harness)
    results = [await first, await second]
    assert isinstance(results[0], Ok)
    assert isinstance(results[1], Err)
    assert isinstance(results[1].error, LaneBusy)
    assert await texts(session) == [winner]
    assert len(await session.find_records(type="operation_started")) == 1
    await harness.close()


@both_orders
@pytest.mark.parametrize("queue", ["steer", "follow_up"])
async def test_row_2_queue_against_finish(queue: str, surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    run = await start(harness.prompt("work"))
    await drive_until(harness, "try_finish_run")
    if not surface_first:
        await harness.execute_action()
    result = await getattr(harness, queue)("focus")
    await finish(harness)
    assert isinstance((await run).unwrap(), RunCompleted)
    if surface_first:
        assert isinstance(result, Ok)
        assert await texts(session) == ["work", "focus"]
        assert log_lines(await session.get_log())[-4:] == [
            "E user",
            "R step_attempt",
            "E assistant stop",
            "R operation_finished",
        ]
    else:
        assert isinstance(result, Err)
        assert isinstance(result.error, NoActiveRun)
        assert await texts(session) == ["work"]
        assert await session.find_records(type="queue_enqueued") == []
    await harness.close()


@both_orders
async def test_row_3_deferred_write_against_finish(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    run = await start(harness.prompt("work"))
    await drive_until(harness, "try_finish_run")
    if not surface_first:
        await harness.execute_action()
    entry_id = await harness.session.append_custom_entry("note")
    await finish(harness)
    await run
    lines = log_lines(await session.get_log())
    expected = ["R write_deferred", "E custom", "R operation_finished"]
    assert lines[-3:] == (expected if surface_first else ["E assistant stop", "R operation_finished", "E custom"])
    assert await harness.get_leaf_id() == entry_id
    await harness.close()


@both_orders
async def test_row_4_abort_against_finish(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    run = await start(harness.prompt("work"))
    await drive_until(harness, "try_finish_run")
    if not surface_first:
        await harness.execute_action()
    result = await harness.abort()
    await finish(harness)
    outcome = (await run).unwrap()
    if surface_first:
        assert isinstance(result, Ok)
        assert isinstance(outcome, RunAborted)
        assert await outcomes(session) == ["aborted"]
    else:
        assert isinstance(result, Err)
        assert isinstance(result.error, NoActiveOperation)
        assert await outcomes(session) == ["completed"]
        assert await session.find_records(type="abort_requested") == []
    await harness.close()


@both_orders
@pytest.mark.parametrize("queue", ["steer", "follow_up"])
async def test_row_5_abort_against_consumption(queue: str, surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    run = await start(harness.prompt("work"))
    await drive_until(harness, "stream_assistant")
    await getattr(harness, queue)("extra")
    await drive_until(harness, "consume_queue_item")
    if not surface_first:
        await harness.execute_action()
    accepted = (await harness.abort()).unwrap()
    await finish(harness)
    assert isinstance((await run).unwrap(), RunAborted)
    returned = [str(m.content) for m in (*accepted.steer, *accepted.follow_up) if isinstance(m, UserMessage)]
    consumed = "extra" in await texts(session)
    assert (returned, consumed) == ((["extra"], False) if surface_first else ([], True))
    await harness.close()


@both_orders
async def test_row_6_abort_against_a_follow_up_of_before_run_end(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    asked: list[str] = []

    def once_more(event: BeforeRunEnd) -> BeforeRunEndResult:
        asked.append(event.run_id)
        return BeforeRunEndResult(follow_up="and then" if len(asked) == 1 else None)

    harness.hooks.on("before_run_end", once_more)
    run = await start(harness.prompt("work"))
    await drive_until(harness, "commit_follow_up")
    if not surface_first:
        await harness.execute_action()
    accepted = (await harness.abort()).unwrap()
    await finish(harness)
    assert isinstance((await run).unwrap(), RunAborted)
    log = await session.get_log()
    marker = next(i.seq for i in log if isinstance(i, RecordItem) and i.record.type == "abort_requested")
    behind = [i for i in log if i.seq > marker and isinstance(i, RecordItem) and i.record.type == "queue_enqueued"]
    assert behind == []  # nothing is queued behind the marker, in either history
    payloads = [str(m.content) for m in accepted.follow_up if isinstance(m, UserMessage)]
    assert payloads == ([] if surface_first else ["and then"])
    assert await texts(session) == ["work"]
    await harness.close()


@both_orders
async def test_row_7_next_run_against_acceptance(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    if surface_first:
        await harness.next_run("seed")
    run = await start(harness.prompt("first"))
    await harness.peek_action()
    if not surface_first:
        await harness.next_run("seed")
    await finish(harness)
    await run
    assert await texts(session) == (["seed", "first"] if surface_first else ["first"])
    second = await start(harness.prompt("second"))
    await finish(harness)
    await second
    # Captured once, by one run, wherever it came: never lost and never twice.
    assert sorted(await texts(session)) == ["first", "second", "seed"]
    await harness.close()


@both_orders
async def test_row_8_deferred_write_against_the_abort_close(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo, answer(calls=[call("measure")]))
    run = await start(harness.prompt("work"))
    await drive_until(harness, "execute_tool")
    await harness.abort()
    if surface_first:
        await drive_until(harness, "append_entry")
    else:
        await drive_until(harness, "finish_operation")
    entry_id = await harness.session.append_custom_entry("fact")
    await finish(harness)
    assert isinstance((await run).unwrap(), RunAborted)
    lines = log_lines(await session.get_log())
    assert lines[-1] == "R operation_finished"
    assert lines.index("E custom") < len(lines) - 1  # applied before the close, in both histories
    assert await session.get_entry(entry_id) is not None
    await harness.close()


@both_orders
async def test_row_9_a_tree_write_against_the_acceptance(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, provider = await driven(repo)
    if surface_first:
        await harness.session.append_message(UserMessage(content="before", timestamp=1))
    run = await start(harness.prompt("work"))
    await harness.peek_action()
    if not surface_first:
        await harness.session.append_message(UserMessage(content="after", timestamp=1))
    await finish(harness)
    await run
    first = [str(m.content) for m in provider.requests[0].context.messages]
    assert first == (["before", "work"] if surface_first else ["work", "after"])
    assert ("R write_deferred" in log_lines(await session.get_log())) is not surface_first
    await harness.close()


@both_orders
async def test_row_9_a_setting_against_the_acceptance(surface_first: bool, repo: SessionRepo) -> None:
    """Before the first request either way: appended before the acceptance, or applied at the first checkpoint."""
    session, harness, provider = await driven(repo)
    if surface_first:
        await harness.set_active_tools([])
    run = await start(harness.prompt("work"))
    await harness.peek_action()
    if not surface_first:
        await harness.set_active_tools([])
    await finish(harness)
    await run
    assert [request.context.tools for request in provider.requests] == [[]]
    lines = log_lines(await session.get_log())
    deferred = ["R operation_started", "R write_deferred", "E user", "E active_tools_change", "R step_attempt"]
    direct = ["E active_tools_change", "R operation_started", "E user", "R step_attempt", "E assistant stop"]
    assert lines[:5] == (direct if surface_first else deferred)
    await harness.close()


@both_orders
async def test_row_10_abort_against_a_request(surface_first: bool, repo: SessionRepo) -> None:
    """The answer that is there is kept; without one the closing message says that the run was aborted."""
    session, harness, _ = await driven(repo, answer("Here it is."))
    run = await start(harness.prompt("work"))
    await drive_until(harness, "stream_assistant")
    if surface_first:
        await harness.abort()
    await harness.execute_action()
    if not surface_first:
        await harness.abort()
    await finish(harness)
    outcome = (await run).unwrap()
    assert isinstance(outcome, RunAborted)
    said = [e.message.text for e in await session.find_entries() if isinstance(e.message, AssistantMessage)]
    assert ("Here it is." in said) is not surface_first
    assert outcome.final_message.stop_reason == "aborted"
    usages = await session.find_records(type="usage")
    assert len(usages) == 1  # what the provider was asked is in the ledger, in either history
    await harness.close()


@both_orders
async def test_row_10_abort_against_a_running_tool(surface_first: bool, repo: SessionRepo) -> None:
    """The irreducible race: the effect settles, or it is interrupted; either way exactly one result says which."""
    session, harness, _ = await driven(repo, answer(calls=[call("measure")]))
    run = await start(harness.prompt("work"))
    await drive_until(harness, "execute_tool")
    if surface_first:
        await harness.abort()
    await harness.execute_action()
    if not surface_first:
        await harness.abort()
    await finish(harness)
    assert isinstance((await run).unwrap(), RunAborted)
    results = [
        e.message for e in await session.find_entries() if e.message is not None and e.message.role == "toolResult"
    ]
    assert [result.is_error for result in results] == [surface_first]
    await harness.close()


@both_orders
async def test_row_11_two_lanes_share_nothing_but_the_sequence(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, _ = await driven(repo)
    other = (await harness.create_lane("other", None)).unwrap()
    runs = [await start(harness.prompt("on main")), await start(other.prompt("on other"))]
    lanes: list[AgentLane] = [harness, other] if surface_first else [other, harness]
    while any([await lane.peek_action() is not None for lane in lanes]):
        for lane in lanes:
            await lane.execute_action()
            await check_fixed_point(lane)
    for run in runs:
        assert isinstance((await run).unwrap(), RunCompleted)
    log = await session.get_log()
    assert [item.seq for item in log] == list(range(1, len(log) + 1))
    per_lane = {
        name: [item.record.type for item in log if isinstance(item, RecordItem) and item.record.lane == name]
        for name in ("main", "other")
    }
    assert per_lane["main"] == per_lane["other"]
    assert await session.verify() == []
    await harness.close()


@both_orders
async def test_row_12_cancellation_against_consumption(surface_first: bool, repo: SessionRepo) -> None:
    session, harness, provider = await driven(repo)
    run = await start(harness.prompt("work"))
    await drive_until(harness, "stream_assistant")
    queued = (await harness.steer("extra")).unwrap()
    await drive_until(harness, "consume_queue_item")
    if not surface_first:
        await harness.execute_action()
    cancelled = (await harness.cancel_queued(queued.entry_id)).unwrap()
    await finish(harness)
    await run
    assert cancelled.outcome == ("cancelled" if surface_first else "already_consumed")
    assert ("extra" in await texts(session)) is not surface_first
    seen = [str(m.content) for request in provider.requests for m in request.context.messages]
    assert ("extra" in seen) is not surface_first
    again = (await harness.cancel_queued(queued.entry_id)).unwrap()
    assert again.outcome == ("already_cleared" if surface_first else "already_consumed")
    await harness.close()


async def test_ten_items_consumed_by_ten_calls_enter_once_and_in_order(repo: SessionRepo) -> None:
    """Case 17: concurrent acceptance and consumption of one queue."""
    session, harness, _ = await driven(repo, *[answer("Done.") for _ in range(12)])
    run = await start(harness.prompt("work"))
    await drive_until(harness, "stream_assistant")
    names = [f"item {n}" for n in range(10)]
    await asyncio.gather(*(harness.steer(name) for name in names))
    await finish(harness)
    await run
    assert await texts(session) == ["work", *names]
    await harness.close()
