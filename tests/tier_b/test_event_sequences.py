"""What watchers are told of each trace of harness-v2 §6: exact sequences, balanced brackets, valid on the wire."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from agent_harness import AgentTool, HarnessEvent, HarnessFault, Ok, StreamOptions, ToolInvocation
from agent_harness.events.catalog import (
    CompactionEnd,
    CompactionStart,
    ConfigUpdate,
    EventType,
    HandlerError,
    LaneCreated,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    NavigationEnd,
    RetryEnd,
    RetryScheduled,
    RunAbort,
    RunEnd,
    RunStart,
    RunSuspend,
    ToolEnd,
    ToolStart,
    ToolUpdate,
    TurnEnd,
    TurnStart,
    UsageEvent,
)
from agent_harness.hooks.catalog import BeforeTool, CompactionDecision, NavigationDecision, ToolDecision
from agent_harness.outcomes import RunSuspended
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, answer, call, drive_until, start
from agent_harness.types.messages import AssistantMessage, DeferredHandle, TextContent, Usage
from agent_harness.types.structural import NavigateOptions
from agent_harness.types.tools import AgentToolResult
from session_backends.faults import Faults, FaultyRepo
from tests.support.event_schema import assert_balanced, assert_on_the_wire, assert_snapshot_on_the_wire
from tests.support.prefix import Prefix
from tests.support.rig import Calls, Held, Rig, open_rig, turns, until

OVERLOADED = answer(error_message="overloaded", error_code="overloaded")
HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")


class Told:
    """Everything a session watch is told."""

    def __init__(self) -> None:
        self.events: list[HarnessEvent] = []

    def __call__(self, event: HarnessEvent) -> None:
        self.events.append(event)

    def lines(self) -> list[str]:
        return [line(event) for event in self.events]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def line(event: HarnessEvent) -> str:
    """An event as one line; first the type, then what tells it from its like."""
    match event:
        case MessageStart(message=message) | MessageUpdate(message=message) | MessageEnd(message=message):
            return f"{event.type} {message.role}"
        case ToolStart() | ToolUpdate() | ToolEnd():
            return f"{event.type} {event.tool_call_id}"
        case RetryScheduled() | RetryEnd():
            return f"{event.type} {event.attempt}"
        case RunEnd():
            return f"{event.type} {event.outcome}"
        case CompactionStart():
            return f"{event.type} {event.reason}"
        case CompactionEnd() | NavigationEnd():
            return f"{event.type} {event.outcome}"
        case UsageEvent():
            return f"usage {event.record.body.cause}"
        case ConfigUpdate():
            return f"config_update {event.property}"
        case _:
            return event.type


async def told_rig(repo: SessionRepo, *answers: AssistantMessage, **options: Any) -> tuple[Rig, Told]:
    rig = await open_rig(await repo.create(), *answers, **options)
    told = Told()
    (await rig.harness.watch_session()).start(told)
    return rig, told


async def finish(rig: Rig, told: Told, *, balanced: bool = True) -> list[dict[str, Any]]:
    await rig.harness.events.flush()
    await rig.harness.close()
    if balanced:
        assert_balanced(told.events)
    return assert_on_the_wire(told.events)


USER = ["message_start user", "message_end user"]
STREAMED = ["message_start assistant", "message_update assistant"]
COMMITTED = ["message_start assistant", "message_end assistant"]
RESULT = ["message_start toolResult", "message_end toolResult"]


async def test_one_tool(repo: SessionRepo) -> None:
    tool = Calls().tool()
    rig, told = await told_rig(
        repo, answer("Working.", calls=[call("measure", {"bed": 1}, id="c1")]), answer("Done."), tools=[tool]
    )
    await rig.harness.prompt("Fix the bug.")
    wires = await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "tool_start c1",
        "tool_end c1",
        *RESULT,
        "turn_end",
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "turn_end",
        "run_end completed",
    ]
    first, second = told.of(TurnEnd)
    entries = list(told.of(MessageEnd))
    assert first.message == entries[1].message
    assert first.tool_results == (entries[2].message,)
    assert second.message == entries[3].message
    assert second.tool_results == ()
    assert [t.turn_id for t in told.of(TurnStart)] == [first.turn_id, second.turn_id]
    (begun,), (over,) = told.of(ToolStart), told.of(ToolEnd)
    assert (begun.args, begun.turn_id, begun.tool_index) == ({"bed": 1}, first.turn_id, 0)
    assert (over.is_error, over.terminate, over.result.content) == (False, False, entries[2].message.content)
    (run,) = told.of(RunEnd)
    assert (run.final_entry_id, run.final_message, run.leaf_id) == (
        entries[3].entry_id,
        entries[3].message,
        entries[3].entry_id,
    )
    assert not any("recovery" in wire for wire in wires)


async def test_what_an_event_announces_can_be_read(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo, answer(calls=[call("measure")]), answer("Done."), tools=[Calls().tool()])
    missing: list[str] = []

    async def look(event: HarnessEvent) -> None:
        if isinstance(event, MessageEnd):
            entry = await rig.session.get_entry(event.entry_id)
            if entry != event.entry:
                missing.append(event.entry_id)

    rig.harness.events.on("message_end", look)
    await rig.harness.prompt("Go.")
    await finish(rig, told)
    assert len(told.of(MessageEnd)) == 4
    assert missing == []


async def test_retry(repo: SessionRepo) -> None:
    rig, told = await told_rig(
        repo, answer("half", error_message="overloaded", error_code="overloaded"), OVERLOADED, answer("At last.")
    )
    await rig.harness.prompt("Try.")
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        *STREAMED,  # stays open: the message that is committed in the end closes it
        "usage assistant",
        "retry_scheduled 1",
        "retry_start",
        "usage assistant",
        "retry_scheduled 2",
        "retry_start",
        "message_update assistant",
        "usage assistant",
        "retry_end 3",
        "message_end assistant",
        "turn_end",
        "run_end completed",
    ]
    first, second = told.of(RetryScheduled)
    assert (first.delay_ms, second.delay_ms) == tuple(rig.clock.slept_ms)
    assert first.next_attempt_at == 1_700_000_000_000 + first.delay_ms
    assert (first.max_attempts, first.error_message) == (3, "overloaded")
    (resolved,) = told.of(RetryEnd)
    assert (resolved.success, resolved.final_error) == (True, None)


async def test_a_first_try_tells_of_no_retry_and_a_final_error_neither(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo, answer(error_message="bad key", error_code="auth"))
    await rig.harness.prompt("Try.")
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        "usage assistant",
        *COMMITTED,
        "turn_end",
        "run_end failed",
    ]
    (turn,) = told.of(TurnEnd)
    assert turn.message.error_message == "bad key"


async def test_failure(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo, OVERLOADED, OVERLOADED, OVERLOADED)
    await rig.harness.prompt("Try.")
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        "usage assistant",
        "retry_scheduled 1",
        "retry_start",
        "usage assistant",
        "retry_scheduled 2",
        "retry_start",
        "usage assistant",
        "retry_end 3",
        *COMMITTED,
        "turn_end",
        "run_end failed",
    ]
    (resolved,), (ended,), (turn,) = told.of(RetryEnd), told.of(RunEnd), told.of(TurnEnd)
    assert (resolved.success, resolved.final_error) == (False, "overloaded")
    assert ended.error.code == "overloaded"
    assert turn.message == ended.final_message


async def test_a_blocked_call_has_its_bracket_too(repo: SessionRepo) -> None:
    rig, told = await told_rig(
        repo, answer(calls=[call("measure", {"bed": 1}, id="c1")]), answer("Then not."), tools=[Calls().tool()]
    )

    def refuse(event: BeforeTool) -> ToolDecision:
        return ToolDecision(block="not allowed")

    rig.harness.hooks.on("before_tool", refuse)
    await rig.harness.prompt("Measure.")
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        "usage assistant",
        *COMMITTED,
        "tool_start c1",
        "tool_end c1",
        *RESULT,
        "turn_end",
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "turn_end",
        "run_end completed",
    ]
    (over,) = told.of(ToolEnd)
    assert over.is_error
    assert over.result.content == (TextContent(text="not allowed"),)


async def test_a_parallel_batch_ends_in_source_order(repo: SessionRepo) -> None:
    held = Held()
    calls = [call("measure", id=name) for name in ("c1", "c2", "c3")]
    rig, told = await told_rig(repo, answer(calls=calls), answer("Done."), tools=[held.tool()])
    run = await start(rig.harness.prompt("All three."))
    await until(lambda: len(held.made) == 3, 200_000)
    for name in ("c3", "c1", "c2"):
        held.gate(name).set()
        await turns()
    await run
    await finish(rig, told)
    assert [entry for entry in told.lines() if "tool" in entry] == [
        "tool_start c1",
        "tool_start c2",
        "tool_start c3",
        "tool_end c1",
        *RESULT,
        "tool_end c2",
        *RESULT,
        "tool_end c3",
        *RESULT,
    ]
    assert [message.tool_call_id for message in told.of(TurnEnd)[0].tool_results] == ["c1", "c2", "c3"]


async def test_suspend_and_resume(repo: SessionRepo) -> None:
    rig, told = await told_rig(
        repo, answer(deferred=HANDLE), fetches=[answer(deferred=HANDLE, usage=None), answer("Ready.")]
    )
    suspended = await rig.harness.prompt("Think long.")
    assert isinstance(suspended, Ok)
    assert isinstance(suspended.value, RunSuspended)
    await rig.harness.events.flush()
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        "usage assistant",
        *COMMITTED,
        "turn_end",
        "run_suspend",  # ends the event flow of the parked lane
    ]
    (parked,) = told.of(RunSuspend)
    assert (parked.deferred, parked.recovery) == (HANDLE, False)
    assert (parked.suspended.reason, parked.suspended.id) == ("deferred", parked.run_id)
    assert told.of(TurnEnd)[0].message.stop_reason == "deferred"
    before = len(told.events)
    await rig.harness.resume()
    await rig.harness.resume()
    wires = await finish(rig, told)
    assert told.lines()[before:] == [
        "run_resume",
        "usage deferred_fetch",
        "run_suspend",
        "run_resume",
        "usage deferred_fetch",
        *COMMITTED,
        "run_end completed",
    ]
    resumed = [wire for wire in wires[before:] if wire["type"] in {"run_resume", "run_suspend", "run_end"}]
    assert all(wire["recovery"] is True for wire in resumed)


async def test_abort_while_a_tool_runs(repo: SessionRepo) -> None:
    held = Held()
    calls = [call("measure", id="c1"), call("measure", id="c2")]
    rig, told = await told_rig(repo, answer("Two.", calls=calls), tools=[held.tool()], tool_execution="sequential")
    run = await start(rig.harness.prompt("Go."))
    await until(lambda: held.made == ["c1"], 200_000)
    await rig.harness.steer("Never read.")
    await rig.harness.abort()
    await run
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "tool_start c1",
        "queue_update",
        "run_abort",
        "queue_update",
        "tool_end c1",
        *RESULT,
        "tool_start c2",
        "tool_end c2",
        *RESULT,
        "turn_end",
        *COMMITTED,
        "run_end aborted",
    ]
    (aborted,) = told.of(RunAbort)
    assert [message.content for message in aborted.steer] == ["Never read."]
    (turn,) = told.of(TurnEnd)
    assert [message.tool_call_id for message in turn.tool_results] == ["c1", "c2"]


async def test_abort_in_a_back_off_closes_the_retry(repo: SessionRepo) -> None:
    rig, told = await told_rig(
        repo, answer("half", error_message="overloaded", error_code="overloaded"), drive="manual"
    )
    run = await start(rig.harness.prompt("Go."))
    while (action := await rig.harness.peek_action()) is not None and action.kind != "sleep":
        await rig.harness.execute_action()
    await rig.harness.abort()
    await rig.harness.run_to_completion()
    await run
    await finish(rig, told)
    assert told.lines()[-6:] == [
        "retry_scheduled 1",
        "run_abort",
        "retry_end 1",
        "turn_end",
        "message_end assistant",  # the closing message ends what the lost attempt began
        "run_end aborted",
    ]
    (resolved,) = told.of(RetryEnd)
    assert (resolved.success, resolved.final_error) == (False, "aborted")


async def test_a_recovered_batch_says_so(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch(2)
    await prefix.tool_started(1)
    rig = await open_rig(session, answer("Went on."), tools=[Calls().tool()])
    told = Told()
    (await rig.harness.watch_session()).start(told)
    await rig.harness.resume()
    wires = await finish(rig, told, balanced=False)
    assert told.lines() == [
        "run_resume",
        "tool_start c1",  # interrupted: nothing runs, and its bracket is whole all the same
        "tool_end c1",
        *RESULT,
        "tool_start c2",
        "tool_end c2",
        *RESULT,
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "turn_end",
        "run_end completed",
    ]
    recovered = {"run_resume", "tool_start", "tool_end", "turn_start", "turn_end", "run_end"}
    assert all(wire.get("recovery") is True for wire in wires if wire["type"] in recovered)
    assert [event.turn_id for event in told.of(ToolStart)] == [None, None]


async def test_steering_follow_ups_and_deferred_writes(repo: SessionRepo) -> None:
    held = Held()
    rig, told = await told_rig(
        repo, answer(calls=[call("measure", id="c1")]), answer("Steered."), answer("End."), tools=[held.tool()]
    )
    await rig.harness.next_run("From yesterday.")
    run = await start(rig.harness.prompt("Go."))
    await until(lambda: held.made == ["c1"], 200_000)
    await rig.harness.steer("Hurry.")
    await rig.harness.follow_up("Then stop.")
    noted = await rig.harness.session.append_custom_entry("note", {"a": 1})
    await rig.harness.set_thinking_level("high")
    held.gate("c1").set()
    await run
    wires = await finish(rig, told)
    assert told.lines() == [
        "queue_update",
        "run_start",
        "queue_update",  # the run captured it
        *USER,
        *USER,
        "turn_start",
        "usage assistant",
        *COMMITTED,
        "tool_start c1",
        "queue_update",
        "queue_update",
        "write_pending",
        "write_pending",
        "tool_end c1",
        *RESULT,
        "turn_end",
        "entry_added",
        "entry_added",
        "config_update thinkingLevel",
        *USER,
        "queue_update",
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "turn_end",
        *USER,
        "queue_update",
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "turn_end",
        "run_end completed",
    ]
    pending = [wire for wire in wires if wire["type"] == "write_pending"]
    added = [wire for wire in wires if wire["type"] == "entry_added"]
    assert [wire["entryId"] for wire in pending] == [wire["entry"]["id"] for wire in added]
    assert added[0]["entry"]["id"] == noted
    (changed,) = told.of(ConfigUpdate)
    assert (changed.value, changed.previous) == ("high", "off")


# Structural work, truncation, aborts ---------------------------------------------------------------------------------

FULL = Usage(input=90_000, output=10)  # of a window of 100,000 with 16,384 reserved
TOO_LARGE = answer(error_message="prompt is too long", error_code="overflow")
ANSWERED = [*STREAMED, "usage assistant", "message_end assistant"]


async def talked_rig(repo: SessionRepo, *answers: Any, **options: Any) -> tuple[Rig, Told]:
    """A lane with two finished turns; told from there on."""
    rig = await open_rig(
        await repo.create(), "First answer.", "Second answer.", *answers, tools=[Calls().tool()], **options
    )
    assert isinstance(await rig.harness.prompt("First question."), Ok)
    assert isinstance(await rig.harness.prompt("Second question."), Ok)
    told = Told()
    (await rig.harness.watch_session()).start(told)
    return rig, told


async def first_answer(rig: Rig) -> str:
    return (await rig.session.find_entries(type="message", order="oldestFirst"))[1].id


async def test_manual_compaction(repo: SessionRepo) -> None:
    rig, told = await talked_rig(repo, OVERLOADED, "Summary.")
    await rig.harness.compact()
    await finish(rig, told)
    assert told.lines() == [
        "compaction_start manual",
        "usage compaction",
        "retry_scheduled 1",
        "retry_start",
        "usage compaction",
        "retry_end 2",
        "entry_added",
        "compaction_end completed",
    ]


@pytest.mark.parametrize(("where", "attempt"), [("sleep", 1), ("stream_assistant", 2)])
async def test_abort_of_a_summary_that_is_retried_closes_the_retry(repo: SessionRepo, where: str, attempt: int) -> None:
    rig = await open_rig(await repo.create(), "First answer.", "Second answer.", OVERLOADED, "Never.")
    for question in ("First question.", "Second question."):
        assert isinstance(await rig.harness.prompt(question), Ok)
    await rig.harness.close()
    session = await repo.open(rig.session.id)
    rig = await open_rig(session, OVERLOADED, "Never.", drive="manual")
    told = Told()
    (await rig.harness.watch_session()).start(told)
    work = await start(rig.harness.compact())
    await drive_until(rig.harness, where)
    if attempt == 2:
        await rig.harness.execute_action()
        await drive_until(rig.harness, where)
    await rig.harness.abort()
    await rig.harness.run_to_completion()
    await work
    await finish(rig, told)
    assert told.lines() == [
        "compaction_start manual",
        "usage compaction",
        "retry_scheduled 1",
        *["retry_start"] * (attempt - 1),
        "run_abort",
        *["usage compaction"] * (attempt - 1),  # the request that was cut short
        f"retry_end {attempt}",
        "compaction_end aborted",
    ]
    (resolved,) = told.of(RetryEnd)
    assert (resolved.success, resolved.final_error) == (False, "aborted")


async def test_compaction_at_a_checkpoint_and_overflow(repo: SessionRepo) -> None:
    full = answer("On it.", calls=[call("measure", id="c1")], usage=FULL)
    rig, told = await talked_rig(repo, full, "Summary.", TOO_LARGE, "Shorter.", "Done.")
    await rig.harness.prompt("Measure.")
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        *ANSWERED,
        "tool_start c1",
        "tool_end c1",
        *RESULT,
        "turn_end",
        "compaction_start threshold",
        "usage compaction",
        "entry_added",
        "compaction_end completed",
        "turn_start",
        "usage assistant",  # of the response that is discarded: no message is told of
        "turn_end",
        "compaction_start overflow",
        "usage compaction",
        "entry_added",
        "compaction_end completed",
        "turn_start",
        *ANSWERED,
        "turn_end",
        "run_end completed",
    ]


async def test_overflow_again_gives_up(repo: SessionRepo) -> None:
    rig, told = await talked_rig(repo, TOO_LARGE, "Summary.", TOO_LARGE)
    await rig.harness.prompt("Measure.")
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        "usage assistant",
        "turn_end",
        "compaction_start overflow",
        "usage compaction",
        "entry_added",
        "compaction_end completed",
        "turn_start",
        "usage assistant",
        "turn_end",
        *COMMITTED,  # the give-up error answers no request: it belongs to no turn
        "run_end failed",
    ]


async def test_navigation_with_a_summary_and_a_label(repo: SessionRepo) -> None:
    rig, told = await talked_rig(repo, "What was left.")
    await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True, label="mark"))
    await finish(rig, told)
    assert told.lines() == [
        "navigation_start",
        "usage branch_summary",
        "entry_added",
        "fact_update",
        "navigation_end completed",
    ]


async def test_navigation_alone(repo: SessionRepo) -> None:
    rig, told = await talked_rig(repo)
    await rig.harness.navigate_tree(None)
    await finish(rig, told)
    assert told.lines() == ["navigation_start", "navigation_end completed"]


@pytest.mark.parametrize("kind", ["compaction", "navigation"])
async def test_a_declined_operation(repo: SessionRepo, kind: str) -> None:
    rig, told = await talked_rig(repo)
    rig.harness.hooks.on("before_compaction", lambda _: CompactionDecision(decline=True))
    rig.harness.hooks.on("before_navigation", lambda _: NavigationDecision(decline=True))
    if kind == "compaction":
        await rig.harness.compact()
    else:
        await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True, label="mark"))
    await finish(rig, told)
    assert (
        told.lines()
        == {
            "compaction": ["compaction_start manual", "compaction_end declined"],
            "navigation": ["navigation_start", "navigation_end declined"],
        }[kind]
    )


async def test_a_truncated_batch_is_not_executed(repo: SessionRepo) -> None:
    cut = answer(
        "Two.",
        calls=[call("measure", id="c1"), call("measure", id="c2")],
        stop_reason="length",
        usage=Usage(output=8_000, total_tokens=8_000),
    )
    tool = Calls()
    rig, told = await told_rig(repo, cut, answer("Done."), tools=[tool.tool()])
    await rig.harness.prompt("Go.")
    await finish(rig, told)
    assert tool.made == []
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        *ANSWERED,
        "tool_start c1",
        "tool_end c1",
        *RESULT,
        "tool_start c2",
        "tool_end c2",
        *RESULT,
        "turn_end",
        "turn_start",
        *ANSWERED,
        "turn_end",
        "run_end completed",
    ]
    assert [event.is_error for event in told.of(ToolEnd)] == [True, True]


async def test_abort_in_a_request(repo: SessionRepo) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(_request: object) -> AssistantMessage:
        asked.set()
        await never.wait()
        return answer("Never.")

    rig, told = await told_rig(repo, respond=hang)
    run = await start(rig.harness.prompt("Go."))
    await asked.wait()
    await rig.harness.abort()
    await run
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        "run_abort",
        "usage assistant",
        *COMMITTED,
        "turn_end",
        "run_end aborted",
    ]
    assert told.of(MessageEnd)[-1].message.stop_reason == "aborted"


async def test_abort_of_a_suspended_run(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo, answer(deferred=HANDLE))
    suspended = await rig.harness.prompt("Think long.")
    assert isinstance(suspended, Ok)
    assert isinstance(suspended.value, RunSuspended)
    await rig.harness.abort()
    await rig.harness.wait_for_idle()
    await finish(rig, told)
    assert told.lines() == [
        "run_start",
        *USER,
        "turn_start",
        "usage assistant",
        *COMMITTED,
        "turn_end",
        "run_suspend",
        "run_abort",
        *COMMITTED,  # the marker that closes the run
        "run_end aborted",
    ]
    assert rig.provider.cancelled == [HANDLE]


# Whatever the trace --------------------------------------------------------------------------------------------------


async def test_lanes_facts_and_settings(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo)
    entry = await rig.harness.session.append_custom_entry("note")
    await rig.harness.session.set_name("Beds")
    await rig.harness.session.set_label(entry, "start")
    await rig.harness.session.set_label(entry, None)
    await rig.harness.create_lane("side", entry)
    await rig.harness.set_steering_mode("all")
    wires = await finish(rig, told)
    assert told.lines() == [
        "entry_added",
        "fact_update",
        "fact_update",
        "fact_update",
        "lane_created",
        "config_update steeringMode",
    ]
    assert wires[1:5] == [
        {"type": "fact_update", "fact": "name", "name": "Beds"},
        {"type": "fact_update", "fact": "label", "targetId": entry, "label": "start"},
        {"type": "fact_update", "fact": "label", "targetId": entry},
        {"type": "lane_created", "lane": "side", "at": entry},
    ]


async def test_a_progress_report_that_is_no_json_is_not_shown(repo: SessionRepo) -> None:
    async def execute(invocation: Any) -> AgentToolResult:
        invocation.update(AgentToolResult(content=(TextContent(text="fine \ud800"),)))
        invocation.update(AgentToolResult(details=object()))
        return AgentToolResult(content=(TextContent(text="done"),))

    tool = replace(Calls().tool(), execute=execute)
    rig, told = await told_rig(repo, answer(calls=[call("measure", id="c1")]), answer("Done."), tools=[tool])
    await rig.harness.prompt("Go.")
    await finish(rig, told)
    (report,) = told.of(ToolUpdate)
    assert report.partial_result.content == (TextContent(text="fine \ufffd"),)


async def test_a_stream_with_half_a_character_can_be_sent(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo, answer("half \ud83d"))
    await rig.harness.prompt("Go.")
    wires = await finish(rig, told)
    (update,) = [wire for wire in wires if wire["type"] == "message_update"]
    assert update["event"] == {"type": "text_delta", "index": 0, "delta": "half \ufffd"}
    assert update["message"]["content"] == [{"type": "text", "text": "half \ufffd"}]


SECRET = "sk-very-secret"


async def test_no_event_holds_a_secret_or_a_live_object(repo: SessionRepo) -> None:
    model = replace(SCRIPTED_MODEL, headers={"authorization": SECRET})
    provider = ScriptedProvider(answers=[answer("Working.", calls=[call("measure", id="c1")]), OVERLOADED, answer("!")])
    rig, told = await told_rig(
        repo,
        models=ModelRegistry([provider], [model]),
        model=model,
        tools=[Calls().tool(error=ValueError("no"))],
        tool_context={"key": SECRET},
        stream_options=StreamOptions(headers={"x-key": SECRET}, metadata={"key": SECRET}),
    )

    def throwing(event: object) -> None:
        raise RuntimeError(SECRET)

    rig.harness.hooks.on("after_response", throwing)
    rig.harness.events.on("run_start", throwing)
    await rig.harness.prompt("Go.")
    await rig.harness.set_stream_options(StreamOptions(headers={"x-key": SECRET}))
    wires = await finish(rig, told)
    assert len(told.of(HandlerError)) >= 2
    assert {wire.get("hook") or wire.get("event") for wire in wires if wire["type"] == "handler_error"} == {
        "after_response",
        "run_start",
    }
    assert SECRET not in json.dumps(wires)


async def test_every_type_of_the_catalogue_is_emitted(repo: SessionRepo) -> None:
    faults = Faults()
    session = await FaultyRepo(repo, faults).create()
    held = Held()
    rig = await open_rig(
        session,
        answer("Half.", error_message="overloaded", error_code="overloaded"),
        answer("Working.", calls=[call("report", id="c1"), call("measure", id="c2")]),
        answer("Noted. " * 3_000),
        answer("A summary."),
        answer(deferred=HANDLE),
        tools=[held.tool(), reporter()],
        fetches=[answer(deferred=HANDLE)],
    )
    told = Told()
    (await rig.harness.watch_session()).start(told)
    rig.harness.events.on("run_start", lambda event: 1 / 0)
    run = await start(rig.harness.prompt("Go."))
    await until(lambda: held.made == ["c2"], 200_000)
    await rig.harness.set_thinking_level("high")
    await rig.harness.next_run("Later.")
    held.gate("c2").set()
    await run
    first = (await rig.harness.session.find_entries(order="oldestFirst", limit=1))[0]
    await rig.harness.compact()
    await rig.harness.navigate_tree(first.id, NavigateOptions(label="mark"))
    await rig.harness.create_lane("side", first.id)
    await rig.harness.prompt("Think long.")
    await rig.harness.resume()
    await rig.harness.abort()
    await rig.harness.wait_for_idle()
    faults.at = faults.writes + 1
    with pytest.raises(HarnessFault):
        await rig.harness.next_run("Never stored.")
    wires = await finish(rig, told)
    missing = set(get_args(EventType)) - {wire["type"] for wire in wires}
    assert missing == set()


def reporter() -> AgentTool:
    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        invocation.update(AgentToolResult(content=(TextContent(text="half"),)))
        return AgentToolResult(content=(TextContent(text="done"),))

    return AgentTool(name="report", description="reports", parameters={"type": "object"}, execute=execute)


async def test_two_lanes_keep_their_own_order(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo, answer("One."), answer("Two."))
    created = await rig.harness.create_lane("side", None)
    assert isinstance(created, Ok)
    await asyncio.gather(rig.harness.prompt("Go."), created.value.prompt("Go."))
    await finish(rig, told)
    assert isinstance(told.events[0], LaneCreated)
    expected = [
        "run_start",
        *USER,
        "turn_start",
        *STREAMED,
        "usage assistant",
        "message_end assistant",
        "turn_end",
        "run_end completed",
    ]
    for lane in ("main", "side"):
        own: Sequence[HarnessEvent] = [e for e in told.events[1:] if getattr(e, "lane", None) == lane]
        assert [line(event) for event in own] == expected
    totals = [event.totals.total_tokens for event in told.of(UsageEvent)]
    assert totals == [15, 30]


async def test_a_run_start_carries_the_time_of_its_record(repo: SessionRepo) -> None:
    rig, told = await told_rig(repo, answer("Done."))
    await rig.harness.prompt("Go.")
    (record,) = await rig.session.find_records(type="operation_started")
    assert_snapshot_on_the_wire((await rig.harness.watch()).snapshot)
    assert_snapshot_on_the_wire((await rig.harness.watch_session()).snapshot)
    await finish(rig, told)
    (begun,) = told.of(RunStart)
    assert (begun.run_id, begun.started_at) == (record.id, record.timestamp)
