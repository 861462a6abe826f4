"""Faults that users of such programs reported, as the whole harness answers them (`right` of each case)."""

import pytest

from agent_harness import AgentHarness, AgentToolResult, MessageType, Ok, StreamOptions, TextContent
from agent_harness.errors import InvalidSessionId
from agent_harness.outcomes import InvalidLane, InvalidMessage, NoActiveRun, NothingToResume
from agent_harness.result import Err
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, call, drive_until, start
from agent_harness.types.messages import (
    AssistantMessage,
    DeferredHandle,
    ExtensionMessage,
    Message,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from tests.support.rig import Calls, assert_sound, open_rig, results_of, said

JOB = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")


def pairs(messages: list[Message]) -> list[tuple[list[str], list[str]]]:
    """For every answer with calls, the ids of its calls and of the results that stand directly behind it."""
    found: list[tuple[list[str], list[str]]] = []
    for message in messages:
        match message:
            case AssistantMessage() if message.tool_calls:
                found.append(([c.id for c in message.tool_calls], []))
            case ToolResultMessage(tool_call_id=call_id):
                found[-1][1].append(call_id)
            case _:
                pass
    return found


async def test_a_tool_may_answer_with_a_nul(repo: SessionRepo) -> None:
    """Case 35."""
    text = "a\x00b"
    tool = Calls().tool(result=AgentToolResult(content=(TextContent(text=text),), details={"raw": text}))
    rig = await open_rig(await repo.create(id="s"), answer(calls=[call("measure", id="c1")]), "Done.", tools=[tool])
    assert (await rig.harness.prompt("Go.")).unwrap().kind == "completed"
    await rig.harness.close()
    result = results_of(await (await repo.open("s")).get_log())["c1"]
    assert (said(result), result.details) == (text, {"raw": text})


async def test_empty_names_are_refused_and_never_taken_for_absent_ones(repo: SessionRepo) -> None:
    """Case 41."""
    with pytest.raises(InvalidSessionId):
        await repo.create(id="")
    rig = await open_rig(await repo.create(id="s"), "Done.")
    created = await rig.harness.create_lane("", None)
    assert isinstance(created, Err)
    assert isinstance(created.error, InvalidLane)
    assert await rig.harness.lane("") is None
    assert [info.name for info in await rig.harness.lanes()] == ["main"]
    assert not (await rig.harness.navigate_tree("")).ok  # not the root
    assert not (await rig.harness.cancel_queued("")).ok
    assert await rig.session.get_log() == []


async def test_a_message_whose_type_is_not_registered_any_more_is_kept_whole(repo: SessionRepo) -> None:
    """Case 43."""
    notice = MessageType(
        role="notice",
        validate=lambda _fields: None,
        to_user=lambda message: UserMessage(content="a notice", timestamp=message.timestamp),
    )
    message = ExtensionMessage(role="notice", fields={"level": 3, "timestamp": 1})
    rig = await open_rig(await repo.create(id="s"), "One.", message_types=[notice])
    assert isinstance(await rig.harness.prompt(message), Ok)
    await rig.harness.close()
    again = await open_rig(await repo.open("s"), "Two.")
    (first,) = await again.session.find_entries(order="oldestFirst", limit=1)
    assert first.message == message
    assert (await again.harness.prompt("Go on.")).unwrap().kind == "completed"
    assert [m.role for m in again.provider.requests[0].context.messages] == ["assistant", "user"]
    refused = await again.harness.prompt(message)
    assert isinstance(refused, Err)
    assert isinstance(refused.error, InvalidMessage)


async def test_input_that_comes_after_the_stop_is_refused_or_kept_for_the_next_run(repo: SessionRepo) -> None:
    """Case 53."""
    rig = await open_rig(
        await repo.create(),
        answer(calls=[call("measure", id="c1")]),
        "Done.",
        tools=[Calls().tool()],
        drive="manual",
    )
    run = await start(rig.harness.prompt("Go."))
    await drive_until(rig.harness, "execute_tool")
    (await rig.harness.abort()).unwrap()
    while await rig.harness.peek_action() is not None:  # at every moment up to the settlement
        for queue in (rig.harness.steer, rig.harness.follow_up):
            refused = await queue("later")
            assert isinstance(refused, Err)
            assert isinstance(refused.error, NoActiveRun)
        await rig.harness.execute_action()
    assert (await run).unwrap().kind == "aborted"
    (await rig.harness.next_run("later")).unwrap()
    following = await start(rig.harness.prompt("Next."))
    await rig.harness.run_to_completion()
    assert (await following).unwrap().kind == "completed"
    (request,) = rig.provider.requests[1:]
    assert [m.content for m in request.context.messages if isinstance(m, UserMessage)] == ["Go.", "later", "Next."]


@pytest.mark.parametrize("call_id", ["", "x"])
async def test_calls_of_one_answer_that_share_an_id_all_run_and_are_sent_apart(repo: SessionRepo, call_id: str) -> None:
    """Case 55."""
    tools = Calls()
    both = answer(calls=[call("read", id=call_id), call("write", id=call_id)])
    rig = await open_rig(await repo.create(), both, "Done.", tools=[tools.tool("read"), tools.tool("write")])
    assert (await rig.harness.prompt("Go.")).unwrap().kind == "completed"
    assert tools.made == [call_id, call_id]
    stored = [e.message for e in await rig.session.find_entries(order="oldestFirst")]
    assert [m.tool_name for m in stored if isinstance(m, ToolResultMessage)] == ["read", "write"]
    ((calls, results),) = pairs(rig.provider.requests[-1].context.messages)
    assert calls == results
    assert len(set(calls)) == 2
    assert "" not in calls
    assert await rig.session.verify() == []


async def test_an_id_that_a_server_uses_again_in_each_turn_is_paired_in_its_turn(repo: SessionRepo) -> None:
    """Case 56."""
    tools = Calls()
    turn = answer(calls=[call("measure", id="call_0")])
    rig = await open_rig(await repo.create(), turn, turn, turn, "Done.", tools=[tools.tool()])
    assert (await rig.harness.prompt("Go.")).unwrap().kind == "completed"
    assert tools.made == ["call_0"] * 3
    sent = pairs(rig.provider.requests[-1].context.messages)
    assert all(calls == results for calls, results in sent)
    ids = [call_id for calls, _ in sent for call_id in calls]
    assert len(ids) == len(set(ids)) == 3


async def test_a_call_that_the_output_limit_cut_is_told_so_and_the_run_goes_on_once(repo: SessionRepo) -> None:
    """Case 58: the repaired arguments would validate."""
    tools = Calls()
    cap = Usage(input=10, output=40)  # the intended cap was reached: no overflow
    cut = answer(calls=[call("measure", {"path": "a.txt"}, id="c1")], stop_reason="length", usage=cap)
    options = StreamOptions(max_tokens=40)
    rig = await open_rig(await repo.create(), cut, "Done.", tools=[tools.tool()], stream_options=options)
    assert (await rig.harness.prompt("Go.")).unwrap().kind == "completed"
    assert tools.made == []
    result = results_of(await rig.session.get_log())["c1"]
    assert result.is_error
    assert len(rig.provider.requests) == 2
    await assert_sound(rig.session)


async def test_a_handle_that_never_settles_costs_one_fetch_per_resume_and_writes_nothing(repo: SessionRepo) -> None:
    """Case 70."""
    pending = answer(deferred=JOB, usage=Usage())
    rig = await open_rig(await repo.create(), answer(deferred=JOB), fetches=[pending] * 200)
    await rig.harness.prompt("Go.")
    lines = await rig.lines(usage=True)
    for fetched in range(1, 201):
        assert (await rig.harness.resume()).unwrap().kind == "suspended"
        assert rig.provider.fetched == fetched
    assert await rig.lines(usage=True) == lines
    assert len(rig.provider.requests) == 1


async def test_an_expired_handle_ends_once_and_is_not_asked_for_again(repo: SessionRepo) -> None:
    """Case 71."""
    expired = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1", expires_at=1)
    rig = await open_rig(await repo.create(), answer(deferred=expired), "Never asked for.")
    await rig.harness.prompt("Go.")
    assert (await rig.harness.resume()).unwrap().kind == "failed"
    for _ in range(2):
        refused = await rig.harness.resume()
        assert isinstance(refused, Err)
        assert isinstance(refused.error, NothingToResume)
    assert (len(rig.provider.requests), rig.provider.fetched) == (1, 0)


async def test_one_item_that_many_ask_to_cancel_is_cancelled_once(repo: SessionRepo) -> None:
    """Case 17, from the other side."""
    rig = await open_rig(await repo.create(), "Done.", drive="manual")
    run = await start(rig.harness.prompt("Go."))
    await rig.harness.peek_action()
    entry_id = (await rig.harness.steer("extra")).unwrap().entry_id
    outcomes = [await start(_outcome(rig.harness, entry_id)) for _ in range(5)]
    assert sorted([await outcome for outcome in outcomes]) == ["already_cleared"] * 4 + ["cancelled"]
    assert len(await rig.session.find_records(type="queue_cancelled")) == 1
    await rig.harness.run_to_completion()
    await run


async def _outcome(harness: AgentHarness, entry_id: str) -> str:
    return (await harness.cancel_queued(entry_id)).unwrap().outcome
