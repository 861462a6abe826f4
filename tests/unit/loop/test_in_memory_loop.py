"""The in-memory loop: what is asked, in which order it is told, and what ends it."""

import asyncio
from collections.abc import Sequence

import pytest

from agent_harness import AgentToolResult, ToolInvocation
from agent_harness.loop import (
    AgentContext,
    AgentEvent,
    Clearance,
    NextTurn,
    ResultPatch,
    TurnContext,
    run_agent_loop,
    run_agent_loop_continue,
)
from agent_harness.testing import answer, call
from agent_harness.types.messages import AgentMessage
from tests.unit.loop.loop_support import Recorder, context, result, says, scripted, shown, tool, user


async def test_a_plain_answer_is_one_turn() -> None:
    config, provider = scripted("Hello.")
    seen = Recorder()
    added = await run_agent_loop([user("hi")], context(), config, seen)
    assert seen.lines == [
        "agent_start",
        "turn_start",
        "message_start user hi",
        "message_end user hi",
        "message_start assistant pending",
        "message_update",
        "message_end assistant stop",
        "turn_end 0",
        "agent_end 2",
    ]
    assert [shown(message) for message in added] == ["user hi", "assistant stop"]
    assert provider.requests[0].context.system_prompt == "Be brief."


async def test_a_tool_call_is_reported_between_its_answer_and_its_result() -> None:
    async def measure(invocation: ToolInvocation) -> AgentToolResult:
        invocation.update(result("half"))
        return result("ok")

    config, provider = scripted(answer(calls=[call("measure", {"bed": 1}, id="c1")]), "Done.")
    seen = Recorder()
    added = await run_agent_loop([user("go")], context(tool("measure", measure)), config, seen)
    assert seen.lines[4:] == [
        "message_start assistant pending",
        "message_end assistant toolUse",
        "tool_execution_start c1",
        "tool_execution_update c1 half",
        "tool_execution_end c1",
        "message_start toolResult ok",
        "message_end toolResult ok",
        "turn_end 1",
        "turn_start",
        "message_start assistant pending",
        "message_update",
        "message_end assistant stop",
        "turn_end 0",
        "agent_end 4",
    ]
    assert seen.events[6].args == {"bed": 1}
    assert [shown(m) for m in added] == ["user go", "assistant toolUse", "toolResult ok", "assistant stop"]
    assert len(provider.requests[1].context.messages) == 3


async def test_the_context_given_stays_as_it_was() -> None:
    messages = [user("before")]
    given = AgentContext(messages=messages)
    config, _ = scripted("Yes.")
    await run_agent_loop([user("now")], given, config, Recorder())
    assert [shown(message) for message in messages] == ["user before"]


async def test_parallel_calls_run_together_and_report_in_source_order() -> None:
    second_ran = asyncio.Event()

    async def first(_invocation: ToolInvocation) -> AgentToolResult:
        await second_ran.wait()  # only a concurrent second call lets this one end
        return result("first")

    async def second(_invocation: ToolInvocation) -> AgentToolResult:
        second_ran.set()
        return result("second")

    config, _ = scripted(answer(calls=[call("first", id="a"), call("second", id="b")]), "Done.")
    seen = Recorder()
    await run_agent_loop([user("go")], context(tool("first", first), tool("second", second)), config, seen)
    tools = [line for line in seen.lines if line.startswith(("tool_", "message_end toolResult"))]
    assert tools == [
        "tool_execution_start a",
        "tool_execution_start b",
        "tool_execution_end a",
        "message_end toolResult first",
        "tool_execution_end b",
        "message_end toolResult second",
    ]


@pytest.mark.parametrize("by", ["configuration", "declaration"])
async def test_sequential_calls_start_only_after_the_one_before(by: str) -> None:
    mode = "sequential" if by == "declaration" else "parallel"
    tools = [says("first", execution_mode=mode), says("second")]
    config, _ = scripted(
        answer(calls=[call("first", id="a"), call("second", id="b")]), "Done.", sequential_tools=by == "configuration"
    )
    seen = Recorder()
    await run_agent_loop([user("go")], context(*tools), config, seen)
    assert [line for line in seen.lines if line.startswith("tool_")] == [
        "tool_execution_start a",
        "tool_execution_end a",
        "tool_execution_start b",
        "tool_execution_end b",
    ]


async def test_calls_of_one_id_each_get_their_result() -> None:
    config, _ = scripted(answer(calls=[call("first", id="x"), call("second", id="x")]), "Done.")
    seen = Recorder()
    added = await run_agent_loop([user("go")], context(says("first"), says("second")), config, seen)
    assert [shown(m) for m in added][2:4] == ["toolResult first", "toolResult second"]


async def test_refused_calls_are_reported_from_start_to_end() -> None:
    async def no_water(asked: object, _args: object) -> Clearance | None:
        return Clearance(block="not allowed") if asked.name == "water" else None

    calls = [call("missing", id="a"), call("water", id="b"), call("first", id="c")]
    config, _ = scripted(answer(calls=calls), "Done.", before_tool_call=no_water)
    seen = Recorder()
    added = await run_agent_loop([user("go")], context(says("first"), says("water")), config, seen)
    assert [shown(m) for m in added][2:5] == [
        "toolResult! There is no tool 'missing'. Available tools: first, water.",
        "toolResult! not allowed",
        "toolResult first",
    ]
    starts = [line for line in seen.lines if line.startswith("tool_execution_start")]
    assert starts == ["tool_execution_start a", "tool_execution_start b", "tool_execution_start c"]
    ends = [line for line in seen.lines if line.startswith("tool_execution_end")]
    assert ends == ["tool_execution_end a!", "tool_execution_end b!", "tool_execution_end c"]


async def test_callbacks_around_a_call_change_its_arguments_and_its_result() -> None:
    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        return result(f"bed {invocation.args['bed']} {invocation.context}")

    async def second_bed(_call: object, _args: object) -> Clearance:
        return Clearance(args={"bed": 2})

    async def shout(_prepared: object, executed: object) -> ResultPatch:
        return ResultPatch(content=result(executed.result.content[0].text.upper()).content)

    config, _ = scripted(
        answer(calls=[call("measure", {"bed": 1})]),
        "Done.",
        before_tool_call=second_bed,
        after_tool_call=shout,
        tool_context="garden",
    )
    added = await run_agent_loop([user("go")], context(tool("measure", execute)), config, Recorder())
    assert shown(added[2]) == "toolResult BED 2 GARDEN"


async def test_a_callback_around_a_call_that_throws_becomes_its_error_result() -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("broken")

    for callback in ("before_tool_call", "after_tool_call"):
        config, provider = scripted(answer(calls=[call("first")]), "Done.", **{callback: broken})
        added = await run_agent_loop([user("go")], context(says("first")), config, Recorder())
        assert shown(added[2]) == "toolResult! RuntimeError: broken"
        assert len(provider.requests) == 2


async def test_a_batch_cut_by_length_runs_nothing_and_goes_on() -> None:
    ran: list[str] = []

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        ran.append(invocation.tool_call_id)
        return result("ran")

    calls = [call("first", id="a"), call("first", id="b")]
    config, provider = scripted(answer(calls=calls, stop_reason="length"), "Done.")
    seen = Recorder()
    added = await run_agent_loop([user("go")], context(tool("first", execute)), config, seen)
    assert ran == []
    assert [shown(m)[:40] for m in added[2:4]] == ["toolResult! The response was truncated b"] * 2
    assert [line for line in seen.lines if line.startswith("tool_execution")] == [
        "tool_execution_start a",
        "tool_execution_end a!",
        "tool_execution_start b",
        "tool_execution_end b!",
    ]
    assert shown(added[-1]) == "assistant stop"
    assert len(provider.requests) == 2


async def test_the_loop_ends_when_every_result_says_terminate() -> None:
    async def last(_invocation: ToolInvocation) -> AgentToolResult:
        return result("enough", terminate=True)

    config, provider = scripted(answer(calls=[call("last", id="a"), call("last", id="b")]), "never asked")
    await run_agent_loop([user("go")], context(tool("last", last)), config, Recorder())
    assert len(provider.requests) == 1
    config, provider = scripted(answer(calls=[call("last", id="a"), call("first", id="b")]), "asked")
    await run_agent_loop([user("go")], context(tool("last", last), says("first")), config, Recorder())
    assert len(provider.requests) == 2


class Queue:
    """Hands out one batch per question."""

    def __init__(self, *batches: Sequence[AgentMessage]) -> None:
        self.batches = list(batches)
        self.asked = 0

    async def __call__(self) -> Sequence[AgentMessage]:
        self.asked += 1
        return self.batches.pop(0) if self.batches else []


async def test_steering_enters_between_turns_and_keeps_the_loop_going() -> None:
    steering = Queue([], [user("not bed 2")], [])
    config, provider = scripted(answer(calls=[call("first")]), "Understood.", get_steering_messages=steering)
    seen = Recorder()
    added = await run_agent_loop([user("go")], context(says("first")), config, seen)
    assert [shown(m) for m in added] == [
        "user go",
        "assistant toolUse",
        "toolResult first",
        "user not bed 2",
        "assistant stop",
    ]
    turn = seen.lines.index("turn_start", 2)
    assert seen.lines[turn : turn + 3] == ["turn_start", "message_start user not bed 2", "message_end user not bed 2"]
    assert shown(provider.requests[1].context.messages[-1]) == "user not bed 2"
    assert steering.asked == 3


async def test_steering_after_the_last_answer_gets_an_answer_too() -> None:
    config, _ = scripted("One.", "Two.", get_steering_messages=Queue([], [user("and?")]))
    added = await run_agent_loop([user("go")], context(), config, Recorder())
    assert [shown(m) for m in added] == ["user go", "assistant stop", "user and?", "assistant stop"]


async def test_steering_that_waits_already_goes_into_the_first_request() -> None:
    config, provider = scripted("One.", get_steering_messages=Queue([user("by the way")]))
    await run_agent_loop([user("go")], context(), config, Recorder())
    assert [shown(m) for m in provider.requests[0].context.messages] == ["user go", "user by the way"]
    assert len(provider.requests) == 1


async def test_follow_ups_are_asked_for_only_when_the_model_would_stop() -> None:
    follow_ups = Queue([user("next")], [])
    config, provider = scripted(answer(calls=[call("first")]), "One.", "Two.", get_follow_up_messages=follow_ups)
    added = await run_agent_loop([user("go")], context(says("first")), config, Recorder())
    assert [shown(m) for m in added][-3:] == ["assistant stop", "user next", "assistant stop"]
    assert follow_ups.asked == 2
    assert len(provider.requests) == 3


async def test_should_stop_after_turn_ends_the_loop_and_leaves_the_queues() -> None:
    turns: list[TurnContext] = []

    def stop(turn: TurnContext) -> bool:
        turns.append(turn)
        return True

    steering, follow_ups = Queue([], [user("unread")]), Queue([user("unread")])
    config, provider = scripted(
        answer(calls=[call("first")]),
        "never asked",
        should_stop_after_turn=stop,
        get_steering_messages=steering,
        get_follow_up_messages=follow_ups,
    )
    seen = Recorder()
    await run_agent_loop([user("go")], context(says("first")), config, seen)
    assert seen.lines[-2:] == ["turn_end 1", "agent_end 3"]
    assert len(provider.requests) == 1
    assert (steering.asked, follow_ups.asked) == (1, 0)
    assert [shown(m) for m in turns[0].new_messages] == ["user go", "assistant toolUse", "toolResult first"]
    assert turns[0].context.messages == turns[0].new_messages
    assert [shown(m) for m in turns[0].tool_results] == ["toolResult first"]


async def test_prepare_next_turn_changes_what_the_next_request_sends() -> None:
    async def prepare(turn: TurnContext) -> NextTurn | None:
        if turn.message.stop_reason == "stop":
            return None
        shorter = AgentContext(messages=turn.context.messages[-3:], system_prompt="Be quick.")
        model = type(turn_model)(provider="scripted", id="second", api="scripted", thinking_levels=("high",))
        return NextTurn(context=shorter, model=model, thinking_level="high")

    config, provider = scripted(answer(calls=[call("first")]), "Done.", prepare_next_turn=prepare)
    turn_model = config.model
    given = context(says("first"), messages=(user("long ago"),))
    added = await run_agent_loop([user("go")], given, config, Recorder())
    first, second = provider.requests
    assert (first.model.id, first.options.thinking_level) == ("scripted-1", None)
    assert (second.model.id, second.options.thinking_level) == ("second", "high")
    assert second.context.system_prompt == "Be quick."
    assert len(first.context.messages) == 2
    assert len(second.context.messages) == 3
    assert len(added) == 4


async def test_a_provider_error_ends_the_loop_with_a_whole_turn() -> None:
    follow_ups = Queue([user("unread")])
    config, provider = scripted(
        answer(error_message="no key", error_code="auth"), "never asked", get_follow_up_messages=follow_ups
    )
    seen = Recorder()
    added = await run_agent_loop([user("go")], context(), config, seen)
    assert seen.lines[-3:] == ["message_end assistant error", "turn_end 0", "agent_end 2"]
    assert added[-1].error_message == "no key"
    assert (len(provider.requests), follow_ups.asked) == (1, 0)


async def test_calls_of_a_failed_answer_never_run() -> None:
    config, _ = scripted(answer(calls=[call("first")], error_message="cut", stop_reason="error"))
    seen = Recorder()
    added = await run_agent_loop([user("go")], context(says("first")), config, seen)
    assert not [line for line in seen.lines if line.startswith("tool_")]
    assert shown(added[-1]) == "assistant error"


async def test_an_async_sink_sees_every_event_in_order_one_at_a_time() -> None:
    inside = 0
    seen = Recorder()

    async def sink(event: AgentEvent) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        seen(event)
        inside -= 1

    plain = Recorder()
    for target in (sink, plain):
        config, _ = scripted(answer("Working.", calls=[call("first")]), "Done.")
        await run_agent_loop([user("go")], context(says("first")), config, target)
    assert seen.lines == plain.lines


@pytest.mark.parametrize("bad", ["agent_start", "message_update", "tool_execution_end", "agent_end"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_sink_that_raises_ends_the_loop_with_its_own_error(bad: str, kind: str) -> None:
    seen: list[str] = []

    def sink(event: AgentEvent) -> None:
        seen.append(event.type)
        if event.type == bad:
            raise OSError("disk full")

    async def later(event: AgentEvent) -> None:
        await asyncio.sleep(0)
        sink(event)

    config, _ = scripted(answer("Working.", calls=[call("first")]), "Done.")
    with pytest.raises(OSError, match="disk full"):
        await run_agent_loop([user("go")], context(says("first")), config, sink if kind == "sync" else later)
    assert seen[-1] == bad


async def test_continue_answers_what_the_context_holds() -> None:
    config, provider = scripted("Here.")
    seen = Recorder()
    added = await run_agent_loop_continue(context(messages=(user("asked before"),)), config, seen)
    assert [shown(m) for m in added] == ["assistant stop"]
    assert seen.lines[:3] == ["agent_start", "turn_start", "message_start assistant pending"]
    assert [shown(m) for m in provider.requests[0].context.messages] == ["user asked before"]


async def test_continue_refuses_what_needs_no_answer() -> None:
    config, _ = scripted("Here.")
    with pytest.raises(ValueError, match="no messages"):
        await run_agent_loop_continue(context(), config, Recorder())
    with pytest.raises(ValueError, match="is an answer"):
        await run_agent_loop_continue(context(messages=(answer("told"),)), config, Recorder())
    with pytest.raises(ValueError, match="no prompt"):
        await run_agent_loop([], context(), config, Recorder())
