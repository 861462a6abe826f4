"""The span tree of each way an operation can go, exactly (harness-v2 §18): nesting, outcomes, status, ids."""

from dataclasses import replace
from typing import Any

import pytest

from agent_harness import Err, HarnessClosed, HarnessFault, InvalidPayload, StreamOptions
from agent_harness.hooks.catalog import (
    BeforeRequest,
    BeforeRunResult,
    BeforeTool,
    CompactionDecision,
    ToolDecision,
    TransformContext,
    TransformContextResult,
)
from agent_harness.options import Drive
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.telemetry import NOOP, InMemoryTelemetryContext
from agent_harness.testing import (
    SCRIPTED_MODEL,
    ManualClock,
    ScriptedProvider,
    ScriptedRequest,
    answer,
    call,
    drive_until,
    start,
)
from agent_harness.types.messages import AssistantMessage, DeferredHandle, Usage
from agent_harness.types.structural import NavigateOptions
from session_backends.faults import Faults, FaultyRepo
from tests.support.prefix import RUN, Prefix
from tests.support.rig import Calls, Held, Rig, open_rig, turns, until
from tests.support.spans import one, tree

OVERLOADED = answer(error_message="overloaded", error_code="overloaded")
REFUSED = answer(error_message="bad key", error_code="auth")
TOO_LARGE = answer(error_message="prompt is too long", error_code="overflow", usage=Usage(input=3))
FULL = Usage(input=90_000, output=10)  # of a window of 100,000 with 16,384 reserved
HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")


async def spanned(repo: SessionRepo, *answers: Any, **options: Any) -> tuple[Rig, InMemoryTelemetryContext]:
    context = InMemoryTelemetryContext()
    return await open_rig(await repo.create(), *answers, telemetry_context=context, **options), context


def assistant(outcome: str, stop_reason: str, *, attempt: int = 1, appended: bool = True) -> list[str]:
    """A step as it stands in a turn: request, ledger, and the answer's entry unless it was discarded."""
    failed = " !" if outcome in ("retry", "failed") else ""
    return [
        f"    step assistant {attempt} {outcome}{failed}",
        "      write record step_attempt",
        f"      request stream {stop_reason}{' !' if stop_reason == 'error' else ''}",
        "      write record usage",
        *(["      write entry message"] if appended else []),
    ]


BEGUN = ["write record operation_started"]
PROMPT = ["  write entry message", "  checkpoint normal"]
ENDED = ["  checkpoint normal", "  write record operation_finished"]
ANSWERED = ["  turn", *assistant("succeeded", "stop"), *ENDED]


@pytest.mark.parametrize("drive", ["automatic", "manual"])
async def test_success_with_one_tool(repo: SessionRepo, drive: Drive) -> None:
    working = answer("Working.", calls=[call("measure", {"bed": 1}, id="c1")])
    rig, context = await spanned(repo, working, answer("Done."), tools=[Calls().tool()], drive=drive)
    run = await start(rig.harness.prompt("Measure."))
    if drive == "manual":
        await rig.harness.run_to_completion()
    outcome = (await run).unwrap()
    assert tree(context) == [
        *BEGUN,
        "run completed",
        *PROMPT,
        "  turn",
        *assistant("succeeded", "tool_use"),
        "    write record tool_started",
        "    tool measure c1",
        "    write entry message",
        "  checkpoint normal",
        *ANSWERED,
    ]
    run_span = one(context, "pi.harness.run")
    assert dict(run_span.start_attributes) == {
        "pi.session.id": rig.session.id,
        "pi.lane.name": "main",
        "pi.operation.id": outcome.run_id,
        "pi.operation.kind": "run",
        "pi.operation.recovery": False,
    }
    inside = [s for s in context.spans() if s.name not in {"pi.ai.request", "pi.harness.event_handler"}]
    assert {span.attributes["pi.operation.id"] for span in inside} == {outcome.run_id}
    # The log and the spans of its writes agree, position by position.
    log = await rig.session.get_log()
    assert [span.attributes["pi.session.seq"] for span in context.spans("pi.session.write")] == [i.seq for i in log]
    tool = one(context, "pi.harness.tool")
    turn, _ = context.spans("pi.harness.turn")
    assert tool.parent_id == turn.id
    assert dict(tool.attributes) == {
        "pi.lane.name": "main",
        "pi.operation.id": outcome.run_id,
        "pi.turn.id": turn.attributes["pi.turn.id"],
        "pi.tool.name": "measure",
        "pi.tool.call_id": "c1",
        "pi.tool.replay": "never",
        "pi.tool.recovery": False,
        "pi.tool.is_error": False,
    }


async def test_a_request_tells_aggregates_of_its_answer(repo: SessionRepo) -> None:
    clock = ManualClock()

    def slow(request: ScriptedRequest) -> AssistantMessage:
        clock.advance(250)
        usage = Usage(input=10, output=5, cache_read=3, cache_write=2, reasoning=4, total_tokens=20)
        usage = replace(usage, cost=replace(usage.cost, total=0.25))
        return replace(answer("Done.", usage=usage), response_id="resp-1", response_model="scripted-1-dated")

    rig, context = await spanned(repo, respond=slow, clock=clock)
    await rig.harness.prompt("Go.")
    assert dict(one(context, "pi.ai.request").attributes) == {
        "pi.ai.operation": "stream",
        "pi.ai.provider": "scripted",
        "pi.ai.model": "scripted-1",
        "pi.ai.api": "scripted",
        "pi.ai.streaming": True,
        "pi.ai.deferred": False,
        "pi.ai.http.status_code": 200,
        "pi.ai.response.model": "scripted-1-dated",
        "pi.ai.response.id": "resp-1",
        "pi.ai.response.stop_reason": "stop",
        "pi.ai.usage.input_tokens": 10,
        "pi.ai.usage.output_tokens": 5,
        "pi.ai.usage.cache_read_tokens": 3,
        "pi.ai.usage.cache_write_tokens": 2,
        "pi.ai.usage.reasoning_tokens": 4,
        "pi.ai.usage.total_tokens": 20,
        "pi.ai.usage.cost": 0.25,
        "pi.ai.stream.chunk_count": 1,
        "pi.ai.stream.time_to_first_chunk_ms": 250,
    }


async def test_failure(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, REFUSED)
    await rig.harness.prompt("Try.")
    assert tree(context) == [
        *BEGUN,
        "run failed auth !",
        *PROMPT,
        "  turn",
        *assistant("failed", "error"),
        "  checkpoint failure_drain",
        "  write record operation_finished",
    ]
    assert one(context, "pi.ai.request").attributes["pi.ai.error.type"] == "auth"


async def test_a_failure_drain_that_finds_input_goes_on(repo: SessionRepo) -> None:
    rig, context = await spanned(repo)
    first = True

    async def respond(request: ScriptedRequest) -> AssistantMessage:
        nonlocal first
        if not first:
            return answer("Now it works.")
        first = False
        await rig.harness.session.append_custom_entry("note")
        await rig.harness.steer("Try the other key.")
        return REFUSED

    rig.provider.respond = respond
    await rig.harness.prompt("Try.")
    assert tree(context) == [
        *BEGUN,
        "run completed",
        *PROMPT,
        "  turn",
        *assistant("failed", "error"),
        "  checkpoint failure_drain",
        "    write entry custom",
        "    write entry message",
        "  checkpoint normal",
        *ANSWERED,
        "write record write_deferred",
        "write record queue_enqueued",
    ]


async def test_retry_with_sleep(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, OVERLOADED, answer("At last."))
    await rig.harness.prompt("Try.")
    assert tree(context) == [
        *BEGUN,
        "run completed",
        *PROMPT,
        "  turn",
        *assistant("retry", "error", appended=False),
        "      sleep 100 elapsed",
        *assistant("succeeded", "stop", attempt=2),
        *ENDED,
    ]


async def test_exhausted_retries(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, OVERLOADED, OVERLOADED, attempts=2)
    await rig.harness.prompt("Try.")
    assert tree(context) == [
        *BEGUN,
        "run failed overloaded !",
        *PROMPT,
        "  turn",
        *assistant("retry", "error", appended=False),
        "      sleep 100 elapsed",
        *assistant("failed", "error", attempt=2),
        "  checkpoint failure_drain",
        "  write record operation_finished",
    ]


async def test_abort_in_a_tool(repo: SessionRepo) -> None:
    held = Held()
    calls = [call("measure", id="c1"), call("measure", id="c2")]
    rig, context = await spanned(repo, answer("Two.", calls=calls), tools=[held.tool()], tool_execution="sequential")
    run = await start(rig.harness.prompt("Go."))
    await until(lambda: held.made == ["c1"])
    await rig.harness.abort()
    await run
    assert tree(context) == [
        *BEGUN,
        "run aborted",
        *PROMPT,
        "  turn",
        *assistant("succeeded", "tool_use"),
        "    write record tool_started",
        "    tool measure c1 !",  # interrupted; c2 never began
        "    write entry message",
        "    write entry message",
        "  checkpoint abort_reconcile",
        "    write entry message",
        "  write record operation_finished",
        "write record abort_requested",
    ]


async def test_a_call_that_an_abort_overtakes_has_no_tool_span(repo: SessionRepo) -> None:
    calls = Calls()
    rig, context = await spanned(repo, answer(calls=[call("measure", id="c1")]), tools=[calls.tool()], drive="manual")
    run = await start(rig.harness.prompt("Go."))
    await drive_until(rig.harness, "execute_tool")
    await rig.harness.abort()
    await rig.harness.run_to_completion()
    await run
    assert calls.made == []
    assert tree(context)[10:] == [
        "    write record tool_started",
        "    write entry message",
        "  checkpoint abort_reconcile",
        "    write entry message",
        "  write record operation_finished",
        "write record abort_requested",
    ]


async def test_abort_in_a_request_and_in_a_back_off(repo: SessionRepo) -> None:
    clock = ManualClock(auto_advance=False)
    rig, context = await spanned(repo, OVERLOADED, clock=clock)
    run = await start(rig.harness.prompt("Go."))
    await until(lambda: clock.slept_ms == [100])
    await rig.harness.abort()
    await run
    assert tree(context) == [
        *BEGUN,
        "run aborted",
        *PROMPT,
        "  turn",
        *assistant("retry", "error", appended=False),
        "      sleep 100 aborted",
        "  checkpoint abort_reconcile",
        "    write entry message",
        "  write record operation_finished",
        "write record abort_requested",
    ]

    async def respond(request: ScriptedRequest) -> AssistantMessage:
        await rig.harness.abort()
        return answer("Too late.")

    rig.provider.respond = respond
    before = len(tree(context))
    await rig.harness.prompt("Again.")
    assert tree(context)[before:] == [
        *BEGUN,
        "run aborted",
        *PROMPT,
        "  turn",
        *assistant("aborted", "aborted"),
        "  checkpoint abort_reconcile",
        "  write record operation_finished",
        "write record abort_requested",
    ]


async def test_suspend_and_resume(repo: SessionRepo) -> None:
    fetches = [answer(deferred=HANDLE, usage=Usage()), answer(calls=[call("measure", id="c1")])]
    rig, context = await spanned(
        repo, answer(deferred=HANDLE), answer("Done."), fetches=fetches, tools=[Calls().tool()]
    )
    await rig.harness.prompt("Think long.")
    await rig.harness.resume()
    await rig.harness.resume()
    assert tree(context) == [
        *BEGUN,
        "run suspended",
        *PROMPT,
        "  turn",
        *assistant("deferred", "deferred"),
        "run again suspended",
        "  request fetch_deferred deferred",
        "run again completed",
        "  request fetch_deferred tool_use",
        "  write record usage",
        "  write entry message",
        "  write record tool_started",
        "  tool measure c1",
        "  write entry message",
        "  checkpoint normal",
        *ANSWERED,
    ]
    assert len({span.attributes["pi.operation.id"] for span in context.spans("pi.harness.run")}) == 1
    fetch = context.spans("pi.ai.request")[1]
    assert (fetch.attributes["pi.ai.streaming"], fetch.attributes["pi.ai.deferred"]) == (False, True)
    tool = one(context, "pi.harness.tool")
    assert tool.attributes["pi.tool.recovery"] is True
    assert "pi.turn.id" not in tool.attributes


async def test_a_deferred_run_is_cancelled_by_an_abort(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, answer(deferred=HANDLE))
    await rig.harness.prompt("Think long.")
    before = len(tree(context))
    await rig.harness.abort()
    await rig.harness.wait_for_idle()
    assert tree(context)[before:] == [
        "write record abort_requested",
        "run again aborted",
        "  checkpoint abort_reconcile",
        "    request cancel_deferred",
        "    write entry message",
        "  write record operation_finished",
    ]


async def test_a_fetch_and_a_cancel_that_fail_are_errors_of_their_request_alone(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, answer(deferred=HANDLE))
    await rig.harness.prompt("Think long.")
    before = len(tree(context))
    await rig.harness.resume()
    assert tree(context)[before:] == [
        "run again failed transport !",
        "  request fetch_deferred error !",
        "  write record usage",
        "  write entry message",
        "  checkpoint failure_drain",
        "  write record operation_finished",
    ]

    class Refusing(ScriptedProvider):
        async def cancel_deferred(self, model: object, handle: DeferredHandle, request: object) -> None:
            raise ConnectionError("gone")

    provider = Refusing(answers=[answer(deferred=HANDLE)])
    rig, context = await spanned(repo, models=ModelRegistry([provider], [SCRIPTED_MODEL]))
    await rig.harness.prompt("Think long.")
    await rig.harness.abort()
    await rig.harness.wait_for_idle()
    cancel = context.spans("pi.ai.request")[1]
    assert tree(context)[-3] == "    request cancel_deferred !"
    assert cancel.attributes["pi.ai.error.type"] == "ConnectionError"


async def test_parallel_tools(repo: SessionRepo) -> None:
    held = Held()
    calls = [call("measure", id=name) for name in ("c1", "c2", "c3")]
    rig, context = await spanned(repo, answer(calls=calls), answer("Done."), tools=[held.tool()])
    run = await start(rig.harness.prompt("All three."))
    await until(lambda: len(held.made) == 3)
    for name in ("c3", "c1", "c2"):
        held.gate(name).set()
        await turns()
    await run
    assert tree(context) == [
        *BEGUN,
        "run completed",
        *PROMPT,
        "  turn",
        *assistant("succeeded", "tool_use"),
        "    write record tool_started",
        "    write record tool_started",
        "    write record tool_started",
        "    tool measure c1",
        "    tool measure c2",
        "    tool measure c3",
        "    write record tool_settled",  # c3, while c1 runs
        "    write entry message",
        "    write entry message",
        "    write entry message",
        "  checkpoint normal",
        *ANSWERED,
    ]
    tools = context.spans("pi.harness.tool")
    assert max(span.started_tick for span in tools) < min(span.ended_tick or 0 for span in tools)
    ended = sorted(tools, key=lambda span: span.ended_tick or 0)
    assert [span.attributes["pi.tool.call_id"] for span in ended] == ["c3", "c1", "c2"]


async def test_a_tool_that_fails_is_an_error_of_its_span_alone(repo: SessionRepo) -> None:
    tool = Calls().tool(error=ValueError("no"))
    rig, context = await spanned(repo, answer(calls=[call("measure", id="c1")]), answer("Done."), tools=[tool])
    # What after_tool makes of it comes later: the span tells the raw result.
    rig.harness.hooks.on("after_tool", lambda event: None)
    await rig.harness.prompt("Go.")
    assert tree(context)[10:15] == [
        "    write record tool_started",
        "    tool measure c1 !",
        "    write record tool_settled",
        "    hook after_tool completed",
        "    write entry message",
    ]
    assert tree(context)[1] == "run completed"


async def test_blocked_unknown_and_invalid_calls_have_no_tool_span(repo: SessionRepo) -> None:
    calls = [call("measure", id="c1"), call("nothing", id="c2")]
    rig, context = await spanned(repo, answer(calls=calls), answer("Then not."), tools=[Calls().tool()])

    def refuse(event: BeforeTool) -> ToolDecision:
        return ToolDecision(block="not allowed")

    rig.harness.hooks.on("before_tool", lambda event: None, id="first")
    rig.harness.hooks.on("before_tool", refuse, id="policy")
    rig.harness.hooks.on("before_tool", refuse)
    await rig.harness.prompt("Measure.")
    assert tree(context) == [
        *BEGUN,
        "run completed",
        *PROMPT,
        "  turn",
        *assistant("succeeded", "tool_use"),
        "    hook before_tool first completed",
        "    hook before_tool policy blocked",
        "    hook before_tool skipped",
        "    write entry message",
        "    write entry message",
        "  checkpoint normal",
        *ANSWERED,
    ]


async def test_hooks_stand_under_the_scope_that_asks_them(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, answer("Done."))
    hooks = rig.harness.hooks

    def throwing(event: object) -> None:
        raise LookupError("not found")

    def patched(event: TransformContext) -> TransformContextResult:
        return TransformContextResult(messages=event.messages)

    hooks.on("before_run", lambda event: BeforeRunResult(resume_data=1), id="extension.one")
    hooks.on("before_request", throwing)
    hooks.on("transform_context", patched)
    hooks.on("before_payload", lambda event: None)
    hooks.on("after_response", lambda event: None)
    hooks.on("before_run_end", lambda event: None)
    await rig.harness.prompt("Go.")
    assert tree(context) == [
        "hook before_run extension.one completed",
        *BEGUN,
        "run completed",
        *PROMPT,
        "  turn",
        "    step assistant 1 succeeded",
        "      hook before_request failed !",
        "      write record step_attempt",
        "      hook transform_context completed",
        "      request stream stop",
        "        hook before_payload completed",
        "      hook after_response completed",
        "      write record usage",
        "      write entry message",
        "  checkpoint normal",
        "  hook before_run_end completed",
        "  write record operation_finished",
    ]
    failed = context.spans("pi.harness.hook")[1]
    assert failed.status is not None
    assert failed.status.error is not None
    assert failed.status.error.name == "LookupError"
    operation_ids = [span.attributes.get("pi.operation.id") for span in context.spans("pi.harness.hook")]
    run_id = one(context, "pi.harness.run").attributes["pi.operation.id"]
    assert operation_ids == [None, run_id, run_id, run_id, run_id, run_id]


async def test_a_policy_that_fails_closed_is_a_failed_handler(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, answer(calls=[call("measure")]), answer("Then not."), tools=[Calls().tool()])

    def broken(event: BeforeTool) -> ToolDecision:
        raise LookupError("not found")

    rig.harness.hooks.on("before_tool", broken)
    await rig.harness.prompt("Measure.")
    assert [entry for entry in tree(context) if "hook" in entry or "tool " in entry] == [
        "    hook before_tool failed !"
    ]


async def test_resume_after_a_crash_reconciles_under_the_run(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch(2)
    await prefix.tool_started(1, "safe")
    context = InMemoryTelemetryContext()
    rig = await open_rig(session, answer("Went on."), tools=[Calls().tool(replay="safe")], telemetry_context=context)
    rig.harness.hooks.on("before_resume", lambda event: None, id="extension.one")
    await rig.harness.resume()
    assert tree(context) == [
        "run again completed",
        "  hook before_resume extension.one completed",
        "  tool measure c1",
        "  write entry message",
        "  write record tool_started",
        "  tool measure c2",
        "  write entry message",
        "  checkpoint normal",
        *ANSWERED,
    ]
    assert one(context, "pi.harness.run").attributes["pi.operation.id"] == RUN
    tools = context.spans("pi.harness.tool")
    assert [(t.attributes["pi.tool.recovery"], t.attributes.get("pi.turn.id")) for t in tools] == [(True, None)] * 2


# Structural ----------------------------------------------------------------------------------------------------------


async def talked(repo: SessionRepo, *answers: Any) -> tuple[Rig, InMemoryTelemetryContext, int]:
    """A lane with two finished turns; also how many lines its spans take."""
    rig, context = await spanned(repo, "First answer.", "Second answer.", *answers)
    await rig.harness.prompt("First question.")
    await rig.harness.prompt("Second question.")
    return rig, context, len(tree(context))


async def test_compaction(repo: SessionRepo) -> None:
    rig, context, before = await talked(repo, OVERLOADED, "A summary.")
    await rig.harness.compact()
    assert tree(context)[before:] == [
        *BEGUN,
        "compaction completed",
        "  step compaction manual 1 retry !",
        "    write record step_attempt",
        "    request stream error !",
        "    write record usage",
        "    sleep 100 elapsed",
        "  step compaction manual 2 succeeded",
        "    write record step_attempt",
        "    request stream stop",
        "    write record usage",
        "  write entry compaction",
        "  write record operation_finished",
    ]


async def test_a_failed_and_a_declined_compaction(repo: SessionRepo) -> None:
    rig, context, before = await talked(repo, REFUSED)
    await rig.harness.compact()
    assert tree(context)[before:] == [
        *BEGUN,
        "compaction failed auth !",
        "  step compaction manual 1 failed !",
        "    write record step_attempt",
        "    request stream error !",
        "    write record usage",
        "  write record operation_finished",
    ]
    before = len(tree(context))
    rig.harness.hooks.on("before_compaction", lambda event: CompactionDecision(decline=True), id="cost")
    await rig.harness.compact()
    assert tree(context)[before:] == [
        *BEGUN,
        "compaction declined",
        "  hook before_compaction cost blocked",
        "  write record operation_finished",
    ]


async def test_a_threshold_compaction_is_work_of_the_checkpoint(repo: SessionRepo) -> None:
    working = answer("On it.", calls=[call("measure", id="c1")], usage=FULL)
    rig, context = await spanned(repo, working, "Summary.", "Done.", tools=[Calls().tool()])
    await rig.harness.prompt("Measure.")
    assert tree(context)[13:] == [
        "  checkpoint normal",
        "    step compaction threshold 1 succeeded",
        "      write record step_attempt",
        "      request stream stop",
        "      write record usage",
        "    write entry compaction",
        "  checkpoint normal",
        *ANSWERED,
    ]


async def test_an_overflow_is_compacted_in_a_checkpoint_of_its_own(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, "First.", TOO_LARGE, "Summary.", "Fits now.")
    await rig.harness.prompt("Hello.")
    before = len(tree(context))
    await rig.harness.prompt("More.")
    assert tree(context)[before:] == [
        *BEGUN,
        "run completed",
        *PROMPT,
        "  turn",
        *assistant("overflow", "error", appended=False),
        "  checkpoint normal",
        "    step compaction overflow 1 succeeded",
        "      write record step_attempt",
        "      request stream stop",
        "      write record usage",
        "    write entry compaction",
        "  checkpoint normal",
        *ANSWERED,
    ]


async def test_navigation(repo: SessionRepo) -> None:
    rig, context, before = await talked(repo, "What was said.")
    first = (await rig.session.view("main").find_entries(order="oldestFirst"))[1]
    await rig.harness.navigate_tree(first.id, NavigateOptions(summarize=True, label="start"))
    assert tree(context)[before:] == [
        *BEGUN,
        "navigation completed",
        "  step branch_summary 1 succeeded",
        "    write record step_attempt",
        "    request stream stop",
        "    write record usage",
        "  write lane",
        "  write entry branch_summary",
        "  write fact label",
        "  write record operation_finished",
    ]


# What is no operation ------------------------------------------------------------------------------------------------


async def test_a_refused_admission_has_no_span(repo: SessionRepo) -> None:
    held = Held()
    rig, context = await spanned(repo, answer(calls=[call("measure", id="c1")]), answer("Done."), tools=[held.tool()])
    harness = rig.harness
    refused = [
        await harness.prompt(""),
        await harness.compact(),
        await harness.navigate_tree("nowhere"),
        await harness.resume(),
        await harness.abort(),
        await harness.steer("Too early."),
    ]
    run = await start(harness.prompt("Go."))
    await until(lambda: held.made == ["c1"])
    spans = len(context.spans())
    refused += [await harness.prompt("Me too."), await harness.compact(), await harness.navigate_tree(None)]
    refused += [await harness.resume()]
    assert len(context.spans()) == spans
    held.gate("c1").set()
    await run
    assert [type(result) for result in refused] == [Err] * 10
    roots = [span.name for span in context.spans() if span.parent_id is None]
    assert roots == ["pi.session.write", "pi.harness.run"]


async def test_a_write_outside_of_an_operation_is_a_root_and_one_that_is_not_needed_has_none(
    repo: SessionRepo,
) -> None:
    rig, context = await spanned(repo)
    harness = rig.harness
    entry_id = await harness.session.append_custom_entry("note")
    await harness.session.set_name("Garden")
    await harness.session.set_label(entry_id, "start")
    (await harness.create_lane("side", entry_id)).unwrap()
    await harness.set_thinking_level("high")
    await harness.set_thinking_level("high")
    await harness.next_run("Later.")
    await harness.record_usage(Usage(input=1))
    assert tree(context) == [
        "write entry custom",
        "write fact name",
        "write fact label",
        "write lane",
        "write entry thinking_level_change",
        "write record queue_enqueued",
        "write record usage",
    ]
    assert all("pi.operation.id" not in span.attributes for span in context.spans())
    assert [span.attributes["pi.lane.name"] for span in context.spans()] == [*["main"] * 3, "side", *["main"] * 3]


async def test_listeners_have_a_span_per_delivery_at_the_root(repo: SessionRepo) -> None:
    rig, context = await spanned(repo, answer("Done."))

    async def fine(event: object) -> None:
        await turns(3)

    def throwing(event: object) -> None:
        raise LookupError("not found")

    rig.harness.events.on("run_end", fine)
    rig.harness.events.on("run_end", throwing)
    rig.harness.events.on("lane_created", fine)
    await rig.harness.prompt("Go.")
    await rig.harness.events.flush()
    shown = [entry for entry in tree(context, listeners=True) if "event_handler" in entry]
    assert shown == ["event_handler run_end", "event_handler run_end !"]
    first, second = context.spans("pi.harness.event_handler")
    assert dict(first.attributes) == {"pi.event.type": "run_end", "pi.lane.name": "main"}
    assert second.status is not None
    assert second.status.error is not None
    assert second.status.error.name == "LookupError"


# The harness ends ----------------------------------------------------------------------------------------------------


async def test_close_ends_the_running_spans_as_errors(repo: SessionRepo) -> None:
    held = Held()
    rig, context = await spanned(repo, answer(calls=[call("measure", id="c1")]), tools=[held.tool()])
    run = await start(rig.harness.prompt("Go."))
    await until(lambda: held.made == ["c1"])
    await rig.harness.close()
    with pytest.raises(HarnessClosed):
        await run
    assert tree(context) == [
        *BEGUN,
        "run closed !",
        *PROMPT,
        "  turn !",
        *assistant("succeeded", "tool_use"),
        "    write record tool_started",
        "    tool measure c1 !",
    ]
    assert one(context, "pi.harness.run").attributes["pi.error.type"] == "HarnessClosed"


async def test_a_fault_ends_the_running_spans_as_errors(repo: SessionRepo) -> None:
    faults = Faults()
    rig, context = await spanned(FaultyRepo(repo, faults), answer("Never stored."))
    faults.at = faults.writes + 4
    with pytest.raises(HarnessFault):
        await rig.harness.prompt("Go.")
    assert tree(context) == [
        *BEGUN,
        "run fault !",
        *PROMPT,
        "  turn !",
        "    step assistant 1 !",
        "      write record step_attempt",
        "      request stream stop",
        "      write record usage !",
    ]
    assert one(context, "pi.harness.run").attributes["pi.error.type"] == "StorageError"


async def test_a_write_that_was_refused_is_an_error_of_its_span(repo: SessionRepo) -> None:
    rig, context = await spanned(repo)
    with pytest.raises(InvalidPayload):
        await rig.harness.session.append_custom_entry("note", 2**70)
    assert tree(context) == ["write entry custom !"]


async def test_telemetry_changes_nothing_that_is_written(repo: SessionRepo) -> None:
    lines: list[list[str]] = []
    for telemetry in (NOOP, InMemoryTelemetryContext()):
        script = [OVERLOADED, answer(calls=[call("measure", id="c1")]), answer("Done.")]
        rig = await open_rig(await repo.create(), *script, tools=[Calls().tool()], telemetry_context=telemetry)
        await rig.harness.prompt("Go.")
        lines.append(await rig.lines(usage=True))
    assert lines[0] == lines[1]


async def test_the_application_may_hand_in_its_own_span(repo: SessionRepo) -> None:
    context = InMemoryTelemetryContext()

    async def request(span: Any) -> None:
        rig = await open_rig(await repo.create(), answer("Done."), telemetry_context=span)
        rig.harness.hooks.on("before_request", options_of)
        await rig.harness.prompt("Go.")
        await rig.harness.close()

    def options_of(event: BeforeRequest) -> None:
        assert isinstance(event.stream_options, StreamOptions)

    await context.start_span("GET /answer", {}, request)
    assert [span.name for span in context.spans() if span.parent_id is None] == ["GET /answer"]
    run = one(context, "pi.harness.run")
    assert (run.parent_id, run.status is not None and run.status.status) == (1, "ok")
