"""Stopping the in-memory loop: by signal in mid-answer and mid-tool, and by leaving its event stream (case 80)."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator

import pytest

from agent_harness import AgentToolResult, ToolInvocation
from agent_harness.abort_signal import AbortSignal
from agent_harness.loop import AgentEventStream, agent_loop, agent_loop_continue, run_agent_loop
from agent_harness.providers.base import AssistantMessageEvent, RequestContext, StreamDelta, StreamEnd, StreamStart
from agent_harness.testing import SCRIPTED_API, SCRIPTED_MODEL, answer, call
from agent_harness.types.messages import AssistantMessage, TextContent
from tests.unit.loop.loop_support import Recorder, config, context, line, result, says, scripted, shown, tool, user


class EndlessProvider:
    """Says one word and then waits for the abort; `open` counts streams that were not left."""

    api = SCRIPTED_API

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.open = 0
        self.opened = 0
        self.talking = asyncio.Event()

    async def stream(
        self, model: object, asked: object, options: object, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        self.open += 1
        self.opened += 1
        try:
            partial = AssistantMessage(
                content=(TextContent(text="Well"),),
                api=SCRIPTED_API,
                provider=SCRIPTED_MODEL.provider,
                model=SCRIPTED_MODEL.id,
                stop_reason="pending",
                timestamp=0,
            )
            yield StreamStart(partial=partial)
            yield StreamDelta(type="text_delta", index=0, delta="Well", partial=partial)
            self.talking.set()
            if self.deaf:
                await asyncio.Event().wait()
            await request.signal.wait()
            yield StreamEnd(message=answer("Well", stop_reason="aborted"))
        finally:
            self.open -= 1


class Hanging:
    """A tool that never returns; `cancelled` counts how often it was stopped."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, invocation: ToolInvocation) -> AgentToolResult:
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        raise AssertionError


async def test_an_abort_in_mid_answer_keeps_what_was_said_and_ends_the_loop() -> None:
    provider, signal, seen = EndlessProvider(), AbortSignal(), Recorder()
    work = asyncio.ensure_future(run_agent_loop([user("go")], context(), config(provider), seen, signal))
    await provider.talking.wait()
    signal.abort()
    added = await work
    assert seen.lines[-4:] == ["message_update", "message_end assistant aborted", "turn_end 0", "agent_end 2"]
    assert added[-1].text == "Well"
    assert (provider.open, provider.opened) == (0, 1)


@pytest.mark.parametrize("sequential", [False, True])
async def test_an_abort_in_mid_tool_gives_every_call_one_true_result(sequential: bool) -> None:
    hanging, signal, seen = Hanging(), AbortSignal(), Recorder()
    calls = [call("first", id="a"), call("hang", id="b"), call("first", id="c")]
    setup, provider = scripted(answer(calls=calls), "never asked", sequential_tools=sequential)
    tools = context(says("first"), tool("hang", hanging))
    work = asyncio.ensure_future(run_agent_loop([user("go")], tools, setup, seen, signal))
    await hanging.running.wait()
    await asyncio.sleep(0)
    signal.abort()
    added = await work
    third = "toolResult! The call was aborted before it started." if sequential else "toolResult first"
    assert [shown(m) for m in added] == [
        "user go",
        "assistant toolUse",
        "toolResult first",
        "toolResult! The call was interrupted. It may have had effects; its result is not known.",
        third,
        "assistant aborted",
    ]
    ends = [line for line in seen.lines if line.startswith("tool_execution_end")]
    assert ends == ["tool_execution_end a", "tool_execution_end b!", f"tool_execution_end c{'!' if sequential else ''}"]
    assert seen.lines.count("turn_start") == sum(line.startswith("turn_end") for line in seen.lines) == 2
    assert hanging.cancelled == 1
    assert len(provider.requests) == 1  # the closing answer is not asked for


async def test_an_abort_between_clearing_and_running_starts_nothing() -> None:
    signal, ran = AbortSignal(), []

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        ran.append(invocation.tool_call_id)
        return result("ran")

    async def abort_at_the_second(asked: object, _args: object) -> None:
        if asked.id == "b":
            signal.abort()

    calls = [call("first", id=name) for name in "abc"]
    setup, _ = scripted(answer(calls=calls), before_tool_call=abort_at_the_second)
    added = await run_agent_loop([user("go")], context(tool("first", execute)), setup, Recorder(), signal)
    assert ran == []
    assert [shown(m) for m in added[2:]] == [
        *["toolResult! The call was aborted before it started."] * 3,
        "assistant aborted",
    ]


async def test_a_signal_that_fired_before_the_loop_sends_no_request() -> None:
    signal = AbortSignal()
    signal.abort()
    setup, provider = scripted("never asked")
    added = await run_agent_loop([user("go")], context(), setup, Recorder(), signal)
    assert [shown(m) for m in added] == ["user go", "assistant aborted"]
    assert provider.requests == []


async def test_an_abort_leaves_the_queues_to_their_owner() -> None:
    signal, asked = AbortSignal(), []

    async def execute(_invocation: ToolInvocation) -> AgentToolResult:
        signal.abort()
        return result("done all the same")

    def steering() -> list[object]:
        asked.append("steering")
        return []

    setup, _ = scripted(
        answer(calls=[call("first")]), get_steering_messages=steering, get_follow_up_messages=lambda: asked.append("f")
    )
    await run_agent_loop([user("go")], context(tool("first", execute)), setup, Recorder(), signal)
    assert asked == ["steering"]


# The event stream ----------------------------------------------------------------------------------------------------


async def test_the_stream_gives_the_same_events_as_the_sink_and_then_the_result() -> None:
    setup, _ = scripted(answer("Working.", calls=[call("first")]), "Done.")
    stream = agent_loop([user("go")], context(says("first")), setup)
    streamed = [line(event) async for event in stream]
    seen = Recorder()
    setup, _ = scripted(answer("Working.", calls=[call("first")]), "Done.")
    added = await run_agent_loop([user("go")], context(says("first")), setup, seen)
    assert streamed == seen.lines
    assert await stream.result() == added
    assert [event async for event in stream] == []


async def test_the_result_needs_no_iteration() -> None:
    setup, _ = scripted("Done.")
    stream = agent_loop_continue(context(messages=(user("go"),)), setup)
    assert [shown(m) for m in await stream.result()] == ["assistant stop"]


async def test_nothing_runs_until_somebody_asks() -> None:
    setup, provider = scripted("never asked")
    stream = agent_loop([user("go")], context(), setup)
    await asyncio.sleep(0)
    assert provider.requests == []
    await stream.aclose()
    with pytest.raises(RuntimeError, match="closed before"):
        await stream.result()


async def settled() -> None:
    """Let everything that can run, run: only the calling task is left."""
    for _ in range(1000):
        if len(asyncio.all_tasks()) == 1:
            return
        await asyncio.sleep(0)
    raise AssertionError(asyncio.all_tasks())


async def test_leaving_after_the_first_event_stops_everything_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    provider = EndlessProvider()
    with caplog.at_level(logging.DEBUG):
        stream = agent_loop([user("go")], context(), config(provider))
        async for event in stream:
            if event.type == "message_update":
                break
        gc.collect()
        await settled()
    assert (provider.opened, provider.open) == (1, 0)
    assert [record for record in caplog.records if record.name != "asyncio" or record.levelno > logging.DEBUG] == []
    assert [shown(m) for m in await stream.result()] == ["user go", "assistant aborted"]


async def test_leaving_in_mid_tool_cancels_the_tool() -> None:
    hanging = Hanging()
    setup, _ = scripted(answer(calls=[call("hang")]))
    stream = agent_loop([user("go")], context(tool("hang", hanging)), setup)
    async with stream:
        async for event in stream:
            if event.type == "tool_execution_start":
                break
        await hanging.running.wait()
    assert hanging.cancelled == 1
    await settled()


async def test_a_provider_that_does_not_hear_the_signal_is_cancelled() -> None:
    provider = EndlessProvider(deaf=True)
    stream = AgentEventStream(
        lambda emit, signal: run_agent_loop([user("go")], context(), config(provider), emit, signal),
        grace_seconds=0.01,
    )
    async with stream:
        async for event in stream:
            if event.type == "message_update":
                break
    assert (provider.opened, provider.open) == (1, 0)
    with pytest.raises(RuntimeError, match="cancelled"):
        await stream.result()


async def test_a_cancelled_consumer_stops_the_loop() -> None:
    provider = EndlessProvider()
    stream = agent_loop([user("go")], context(), config(provider))

    async def consume() -> None:
        async for _ in stream:
            pass

    consumer = asyncio.ensure_future(consume())
    await provider.talking.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    await settled()
    assert (provider.opened, provider.open) == (1, 0)


async def test_leaving_the_stream_does_not_fire_the_callers_signal() -> None:
    signal, provider = AbortSignal(), EndlessProvider()
    stream = agent_loop([user("go")], context(), config(provider), signal)
    async with stream:
        async for event in stream:
            if event.type == "message_update":
                break
    assert not signal.aborted


async def test_the_callers_signal_reaches_the_loop_behind_a_stream() -> None:
    signal, provider = AbortSignal(), EndlessProvider()
    lines = []
    async for event in agent_loop([user("go")], context(), config(provider), signal):
        lines.append(line(event))
        if event.type == "message_update":
            signal.abort()
    assert lines[-1] == "agent_end 2"
    assert lines[-3] == "message_end assistant aborted"


async def test_an_error_of_a_callback_comes_out_of_the_stream() -> None:
    def broken() -> list[object]:
        raise LookupError("no queue")

    setup, _ = scripted("Hello.", get_steering_messages=broken)
    stream = agent_loop([user("go")], context(), setup)
    with pytest.raises(LookupError, match="no queue"):
        [event async for event in stream]
    with pytest.raises(LookupError, match="no queue"):
        await stream.result()
