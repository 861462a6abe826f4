"""Tool calls in three phases and the batch driver (harness-v2 §14, decisions sections 3 and 4)."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from agent_harness import AgentTool, AgentToolResult, TextContent, ToolInvocation
from agent_harness.abort_signal import AbortSignal
from agent_harness.loop import tools as phases
from agent_harness.loop.tools import (
    Clearance,
    ResultPatch,
    ToolCallbacks,
    execute_tool_batch,
    execute_tool_call,
    finalize_tool_call,
    prepare_tool_call,
)
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, call, start
from agent_harness.types.messages import ImageContent, ToolCall, Usage
from agent_harness.types.tools import (
    ExecutedToolCall,
    FinalizedToolCall,
    ImmediateOutcome,
    PreparedToolCall,
    ToolBatchResult,
)
from session_backends import MemorySessionRepo
from tests.support.prefix import calls, real
from tests.support.rig import Calls, Held, assert_sound, close_rigs, open_rig, results_of, said, turns, until


@pytest.fixture(autouse=True)
async def closed():
    yield
    await close_rigs()


def text(result: AgentToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


def tool_of(execute: Callable[[ToolInvocation], Any], **options: Any) -> AgentTool:
    return AgentTool(name="measure", description="", parameters={}, execute=execute, **options)


def blocking(execute: Callable[[ToolInvocation], Any], **options: Any) -> AgentTool:
    return AgentTool(name="measure", description="", parameters={}, execute_blocking=execute, **options)


def prepared(tool: AgentTool) -> PreparedToolCall:
    return PreparedToolCall(tool_call=call("measure", id="c1"), tool_index=0, tool=tool, args={})


# Phase 1 -------------------------------------------------------------------------------------------------------------


async def cleared(wanted: ToolCall, tool: AgentTool, clearance: Clearance | None = None) -> Any:
    async def decide(call: ToolCall, args: dict[str, Any]) -> Clearance | None:
        return clearance

    return await prepare_tool_call(wanted, 0, {tool.name: tool}, ToolCallbacks(before_tool_call=decide))


async def test_an_unknown_tool_is_refused_by_naming_those_that_exist() -> None:
    outcome = await cleared(call("mesure"), Calls().tool())
    assert isinstance(outcome, ImmediateOutcome)
    assert "'mesure'" in text(outcome.result)
    assert "measure" in text(outcome.result)


def _validator(error: Exception | None = None, value: Any = None) -> Callable[[Any], Any]:
    def validate(args: Any) -> Any:
        if error is not None:
            raise error
        return args if value is None else value

    return validate


@pytest.mark.parametrize("error", [ValueError("bed is missing"), TypeError("x"), KeyError("bed"), RecursionError()])
async def test_a_validator_that_raises_refuses_the_call(error: Exception) -> None:
    outcome = await cleared(call("measure"), Calls().tool(validate=_validator(error)))
    assert isinstance(outcome, ImmediateOutcome)
    assert outcome.is_error


@pytest.mark.parametrize("value", [{"n": object()}, {"n": 2**70}, {"n": float("nan")}, ["list"], "text"])
async def test_validated_arguments_that_cannot_be_recorded_refuse_the_call(value: Any) -> None:
    outcome = await cleared(call("measure"), Calls().tool(validate=_validator(value=value)))
    assert isinstance(outcome, ImmediateOutcome)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1])
async def test_64_bit_integers_keep_every_digit(number: int) -> None:
    outcome = await cleared(call("measure", {"n": number}), Calls().tool())
    assert isinstance(outcome, PreparedToolCall)
    assert outcome.args == {"n": number}
    assert type(outcome.args["n"]) is int


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**70, float("inf")])
async def test_numbers_out_of_range_are_error_results_and_no_fault(repo: SessionRepo, number: Any) -> None:
    session, tools = await repo.create(), Calls()
    rig = await open_rig(session, answer(calls=[call("measure", {"n": number}, id="c1")]), "done", tools=[tools.tool()])
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    assert tools.made == []
    result = results_of(await session.get_log())["c1"]
    assert result.is_error
    assert "$.n" in said(result)
    await assert_sound(session)


async def test_64_bit_arguments_reach_the_tool_and_the_log_whole(repo: SessionRepo) -> None:
    seen: list[Any] = []

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        seen.append(invocation.args)
        return real("ok")

    session = await repo.create()
    wanted = {"n": 2**64 - 1, "m": -(2**63), "t": "\u2028\U0001f600"}
    rig = await open_rig(session, answer(calls=[call("measure", wanted, id="c1")]), "done", tools=[tool_of(execute)])
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    assert seen == [wanted]
    assert (await session.find_records(type="tool_started"))[0].body.effective_args == wanted


async def test_text_of_a_provider_with_lone_surrogates_is_kept_with_replacement_characters(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    broken = answer("half \ud83d", calls=[call("measure", {"t": "x\udc00"}, id="c1")])
    rig = await open_rig(session, broken, "done", tools=[tools.tool()])
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    entry = (await session.find_entries(type="message", order="oldestFirst"))[1]
    assert entry.message.text == "half \ufffd"
    assert (await session.find_records(type="tool_started"))[0].body.effective_args == {"t": "x\ufffd"}


async def test_replaced_arguments_are_validated_and_copied() -> None:
    def odd(args: Any) -> Any:
        if args.get("bed") == 2:
            raise ValueError("even")
        return args

    tool = Calls().tool(validate=odd)
    assert isinstance(await cleared(call("measure", {"bed": 1}), tool, Clearance(args={"bed": 2})), ImmediateOutcome)
    replacement: dict[str, Any] = {"bed": {"n": 3}}
    outcome = await cleared(call("measure", {"bed": 1}), tool, Clearance(args=replacement))
    assert isinstance(outcome, PreparedToolCall)
    replacement["bed"]["n"] = 4
    assert outcome.args == {"bed": {"n": 3}}


async def test_a_blocked_call_gives_the_reason() -> None:
    outcome = await cleared(call("measure"), Calls().tool(), Clearance(block="ask a person"))
    assert isinstance(outcome, ImmediateOutcome)
    assert text(outcome.result) == "ask a person"


# Phase 2 -------------------------------------------------------------------------------------------------------------


async def executed(tool: AgentTool, signal: AbortSignal | None = None, **options: Any) -> ExecutedToolCall:
    return await execute_tool_call(prepared(tool), signal or AbortSignal(), **options)


class Odd(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [ValueError("no bed"), Odd("odd"), SystemExit(3), asyncio.CancelledError(), TimeoutError(), RecursionError()],
)
@pytest.mark.parametrize("kind", ["async", "def"])
async def test_whatever_a_tool_raises_is_an_error_result(error: BaseException, kind: str) -> None:
    async def fail(invocation: ToolInvocation) -> AgentToolResult:
        raise error

    def fail_blocking(invocation: ToolInvocation) -> AgentToolResult:
        raise error

    outcome = await executed(tool_of(fail) if kind == "async" else blocking(fail_blocking))
    assert (outcome.is_error, outcome.interrupted) == (True, False)
    assert type(error).__name__ in text(outcome.result)


async def test_a_run_goes_on_after_a_tool_that_was_cancelled_from_inside(repo: SessionRepo) -> None:
    """No abort was asked for: the call has a result and the model is asked again."""

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        task = asyncio.ensure_future(asyncio.sleep(0))
        task.cancel()
        await task
        return real("never")

    session = await repo.create()
    rig = await open_rig(session, answer(calls=calls(2)), "done", tools=[tool_of(execute)])
    assert (await rig.harness.prompt("go")).unwrap().final_message.text == "done"
    results = results_of(await session.get_log())
    assert list(results) == ["c1", "c2"]
    assert all(message.is_error for message in results.values())
    await assert_sound(session)


RESULTS: list[tuple[Any, bool, str]] = [
    (AgentToolResult(content=(TextContent(text="a\ud800b"),)), False, "a\ufffdb"),
    (AgentToolResult(content=[TextContent(text="list")]), False, "list"),
    (AgentToolResult(content=None), False, ""),
    (AgentToolResult(content="text"), True, "cannot be kept"),
    (AgentToolResult(content=(5,)), True, "cannot be kept"),
    (AgentToolResult(content=(ImageContent(data="\ud800", mime_type="image/png"),)), True, "cannot be kept"),
    (AgentToolResult(details={"when": object()}), True, "$.details.when"),
    (AgentToolResult(details={"n": 2**70}), True, "$.details.n"),
    (AgentToolResult(details={1: "x"}), True, "cannot be kept"),
    (AgentToolResult(usage=Usage(input=float("nan"))), True, "cannot be kept"),
    (AgentToolResult(terminate="yes"), True, "cannot be kept"),
    ({"content": []}, True, "dict"),
    (None, True, "NoneType"),
]


@pytest.mark.parametrize(("result", "is_error", "expected"), RESULTS, ids=range(len(RESULTS)))
async def test_a_result_that_cannot_be_kept_is_an_error_result_and_no_fault(
    result: Any, is_error: bool, expected: str
) -> None:
    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        return result

    session = await MemorySessionRepo().create()
    rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[tool_of(execute)])
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    message = results_of(await session.get_log())["c1"]
    assert message.is_error is is_error
    assert expected in said(message)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [100, 112, 120, 128, 129, 5000])
async def test_details_nested_deeper_than_an_entry_holds_are_an_error_result(depth: int) -> None:
    session = await MemorySessionRepo().create()
    tool = Calls().tool(result=AgentToolResult(details=nested(depth)))
    rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[tool])
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    assert results_of(await session.get_log())["c1"].is_error is (depth > 110)


async def test_a_result_larger_than_a_line_may_be_is_an_error_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "MAX_RESULT_BYTES", 1000)
    assert not (await executed(Calls().tool(result=real("x" * 900)))).is_error
    assert (await executed(Calls().tool(result=real("x" * 1000)))).is_error


async def test_a_kept_result_no_longer_changes_with_the_tools_objects() -> None:
    details: dict[str, Any] = {"paths": ["a"]}
    outcome = await executed(Calls().tool(result=AgentToolResult(details=details)))
    details["paths"].append("b")
    assert outcome.result.details == {"paths": ["a"]}


async def test_a_failing_tool_context_is_an_error_result(repo: SessionRepo) -> None:
    def context() -> object:
        raise RuntimeError("no database")

    tools = Calls()
    rig = await open_rig(
        await repo.create(), answer(calls=calls(1)), "done", tools=[tools.tool()], tool_context=context
    )
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    assert tools.made == []
    assert results_of(await rig.session.get_log())["c1"].is_error


async def test_a_blocking_tool_runs_off_the_loop_and_reports_in_order() -> None:
    loop_thread, updates, seen = threading.get_ident(), [], []

    def execute(invocation: ToolInvocation) -> AgentToolResult:
        seen.append(threading.get_ident())
        for n in range(3):
            invocation.update(real(str(n)))
        return real("done")

    session = await MemorySessionRepo().create()
    rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[blocking(execute)])
    order: list[str] = []
    rig.harness.events.on("tool_update", lambda event: order.append(text(event.partial_result)))
    rig.harness.events.on("tool_end", lambda event: updates.append(list(order)))
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    await turns()
    assert seen != [loop_thread]
    assert order == ["0", "1", "2"]


async def test_an_async_tool_that_takes_too_long_is_cut_off() -> None:
    cleaned: list[str] = []

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("cleaned")
        return real("never")

    outcome = await executed(tool_of(execute, timeout_ms=1))
    assert (outcome.is_error, outcome.interrupted) == (True, False)
    assert "timed out after 1 ms" in text(outcome.result)
    assert cleaned == ["cleaned"]


async def test_a_blocking_tool_that_takes_too_long_is_left_behind_and_its_result_dropped() -> None:
    began, let_go, over = threading.Event(), threading.Event(), threading.Event()

    def execute(invocation: ToolInvocation) -> AgentToolResult:
        began.set()
        let_go.wait(30)
        invocation.update(real("late"))
        over.set()
        return real("late")

    session = await MemorySessionRepo().create()
    rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[blocking(execute, timeout_ms=1)])
    updates: list[Any] = []
    rig.harness.events.on("tool_update", updates.append)
    try:
        assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
        log = await session.get_log()
        assert "timed out" in said(results_of(log)["c1"])
    finally:
        let_go.set()
    if began.is_set():  # on a busy machine the thread may not have begun at all
        await asyncio.to_thread(over.wait, 30)
    await turns()
    assert updates == []
    assert await session.get_log() == log


async def test_an_abort_interrupts_an_async_tool_and_abandons_a_blocking_one(repo: SessionRepo) -> None:
    let_go, began = threading.Event(), threading.Event()

    def execute(invocation: ToolInvocation) -> AgentToolResult:
        began.set()
        let_go.wait(30)
        return real("late")

    held = Held()
    session = await repo.create()
    tools = [held.tool("slow"), blocking(execute)]
    asked = answer(calls=[call("slow", id="c1"), call("measure", id="c2")])
    rig = await open_rig(session, asked, tools=tools)
    try:
        work = await start(rig.harness.prompt("go"))
        await held.began.wait()
        await asyncio.to_thread(began.wait, 30)
        assert (await rig.harness.abort()).ok
        assert (await asyncio.wait_for(work, 4)).unwrap().kind == "aborted"
    finally:
        let_go.set()
    results = results_of(await session.get_log())
    assert all("interrupted" in said(result) for result in results.values())
    await assert_sound(session)


async def test_a_tool_that_ignores_an_abort_keeps_its_real_result(repo: SessionRepo) -> None:
    began = asyncio.Event()

    async def stubborn(invocation: ToolInvocation) -> AgentToolResult:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert invocation.signal.aborted
        return real("finished all the same")

    session = await repo.create()
    rig = await open_rig(session, answer(calls=calls(1)), tools=[tool_of(stubborn)])
    work = await start(rig.harness.prompt("go"))
    await began.wait()
    assert (await rig.harness.abort()).ok
    assert (await work).unwrap().kind == "aborted"
    result = results_of(await session.get_log())["c1"]
    assert (said(result), result.is_error) == ("finished all the same", False)


async def test_a_tool_that_never_lets_go_is_given_up_after_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "CANCEL_GRACE_SECONDS", 0.01)
    signal, began, end = AbortSignal(), asyncio.Event(), asyncio.Event()

    async def deaf(invocation: ToolInvocation) -> AgentToolResult:
        began.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                pass
        raise ValueError("nobody listens any more")

    work = await start(executed(tool_of(deaf), signal))
    await began.wait()
    signal.abort()
    assert (await work).interrupted
    end.set()
    await turns()  # its late failure is nobody's error


async def test_an_aborted_signal_starts_nothing() -> None:
    signal, tools = AbortSignal(), Calls()
    signal.abort()
    assert (await executed(tools.tool(), signal)).interrupted
    assert tools.made == []


async def test_updates_after_the_result_are_dropped(repo: SessionRepo) -> None:
    kept: list[ToolInvocation] = []

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        kept.append(invocation)
        invocation.update(real("in time"))
        return real("done")

    rig = await open_rig(await repo.create(), answer(calls=calls(1)), "done", tools=[tool_of(execute)])
    updates: list[Any] = []
    rig.harness.events.on("tool_update", lambda event: updates.append(text(event.partial_result)))
    assert (await rig.harness.prompt("go")).ok
    kept[0].update(real("late"))
    await turns()
    assert updates == ["in time"]


# Phase 3 -------------------------------------------------------------------------------------------------------------


async def test_a_patch_replaces_the_fields_it_names() -> None:
    before = ExecutedToolCall(result=AgentToolResult(content=(TextContent(text="a"),), details=1), is_error=False)

    async def finalized(patch: ResultPatch | None) -> FinalizedToolCall:
        async def after(call: PreparedToolCall, executed: ExecutedToolCall) -> ResultPatch | None:
            return patch

        return await finalize_tool_call(prepared(Calls().tool()), before, ToolCallbacks(after_tool_call=after))

    assert (await finalized(None)).result == before.result
    assert (await finalized(ResultPatch(details=2))).result == replace(before.result, details=2)
    assert (await finalized(ResultPatch(is_error=True))).is_error
    assert text((await finalized(ResultPatch(content=(TextContent(text="b"),)))).result) == "b"


# The batch -----------------------------------------------------------------------------------------------------------


class Batch:
    """Drives a batch whose tools settle when the test says so; `lines` is what the callbacks were told."""

    def __init__(self, sequential: bool = False, blocked: Sequence[str] = ()) -> None:
        self.held = Held()
        self.lines: list[str] = []
        self.sequential = sequential
        self.blocked = blocked
        self.signal = AbortSignal()

    async def run(self, wanted: Sequence[ToolCall], *tools: AgentTool, stop_reason: str | None = None) -> Any:
        async def before(call: ToolCall, args: dict[str, Any]) -> Clearance | None:
            self.lines.append(f"clear {call.id}")
            return Clearance(block="no") if call.id in self.blocked else None

        async def started(item: PreparedToolCall) -> None:
            self.lines.append(f"start {item.tool_call.id}")

        async def settled(item: PreparedToolCall, executed: ExecutedToolCall, waits: bool) -> None:
            self.lines.append(f"settle {item.tool_call.id}{' waits' if waits else ''}")

        async def result(item: FinalizedToolCall) -> None:
            self.lines.append(f"result {item.tool_call.id}")

        callbacks = ToolCallbacks(
            before_tool_call=before,
            on_tool_start=started,
            on_tool_settled=settled,
            on_tool_result=result,
            execute_tool=lambda item: execute_tool_call(item, self.signal),
        )
        return await execute_tool_batch(
            answer(calls=wanted, stop_reason=stop_reason),
            tools or (self.held.tool(),),
            callbacks,
            sequential=self.sequential,
            signal=self.signal,
        )


@pytest.mark.parametrize("order", list(permutations(("c1", "c2", "c3"))), ids="-".join)
async def test_results_come_in_source_order_each_as_soon_as_those_before_it(order: tuple[str, ...]) -> None:
    batch = Batch()
    work = await start(batch.run(calls(3)))
    await until(lambda: len(batch.held.made) == 3)
    assert batch.lines == [f"{what} {c}" for c in ("c1", "c2", "c3") for what in ("clear", "start")]
    batch.lines.clear()
    expected: list[str] = []
    delivered: list[str] = []
    done: set[str] = set()
    for call_id in order:
        batch.held.gate(call_id).set()
        await turns()
        done.add(call_id)
        in_turn = call_id == f"c{len(delivered) + 1}"
        expected.append(f"settle {call_id}{'' if in_turn else ' waits'}")
        while f"c{len(delivered) + 1}" in done:
            delivered.append(f"c{len(delivered) + 1}")
            expected.append(f"result {delivered[-1]}")
        assert batch.lines == expected
    outcome: ToolBatchResult = await work
    assert [message.tool_call_id for message in outcome.messages] == ["c1", "c2", "c3"]


@pytest.mark.parametrize("how", ["option", "tool"])
async def test_a_sequential_batch_runs_one_call_at_a_time(how: str) -> None:
    batch = Batch(sequential=how == "option")
    tool = batch.held.tool(execution_mode="parallel" if how == "option" else "sequential")
    for call_id in ("c3", "c2"):
        batch.held.gate(call_id).set()
    work = await start(batch.run(calls(3), tool))
    await turns()
    assert batch.held.made == ["c1"]
    batch.held.gate("c1").set()
    await work
    assert batch.lines == [f"{what} {c}" for c in ("c1", "c2", "c3") for what in ("clear", "start", "settle", "result")]


async def test_a_called_tool_alone_decides_the_mode() -> None:
    batch = Batch()
    work = await start(batch.run(calls(2), batch.held.tool(), batch.held.tool("other", execution_mode="sequential")))
    await until(lambda: len(batch.held.made) == 2)
    assert batch.lines == [f"{what} {c}" for c in ("c1", "c2") for what in ("clear", "start")]  # both, none settled
    for call_id in ("c1", "c2"):
        batch.held.gate(call_id).set()
    outcome: ToolBatchResult = await work
    assert [(message.tool_call_id, message.is_error) for message in outcome.messages] == [("c1", False), ("c2", False)]


async def test_refused_calls_take_their_place_and_the_others_run() -> None:
    batch = Batch(blocked=("c2",))
    wanted = [*calls(2), call("nowhere", id="c3"), call("measure", id="c4")]
    for call_id in ("c1", "c4"):
        batch.held.gate(call_id).set()
    outcome = await batch.run(wanted)
    assert [(m.tool_call_id, m.is_error) for m in outcome.messages] == [
        ("c1", False),
        ("c2", True),
        ("c3", True),
        ("c4", False),
    ]
    assert "start c2" not in batch.lines
    assert [line for line in batch.lines if line.startswith("result")] == [f"result c{n}" for n in (1, 2, 3, 4)]


async def test_a_truncated_batch_clears_and_starts_nothing() -> None:
    batch = Batch()
    outcome = await batch.run(calls(2), stop_reason="length")
    assert batch.lines == ["result c1", "result c2"]
    assert all(message.is_error for message in outcome.messages)
    assert batch.held.made == []


async def test_after_an_abort_no_call_is_prepared_and_running_ones_settle() -> None:
    batch = Batch(sequential=True)
    work = await start(batch.run(calls(3)))
    await batch.held.began.wait()
    batch.signal.abort()
    outcome = await work
    assert batch.lines == ["clear c1", "start c1"]
    assert (outcome.messages, outcome.terminate) == ((), False)


async def test_an_abort_keeps_what_finished_and_delivers_nothing_past_a_gap() -> None:
    batch = Batch()
    work = await start(batch.run(calls(3)))
    await until(lambda: len(batch.held.made) == 3)
    batch.held.gate("c2").set()
    await turns()
    batch.signal.abort()
    outcome = await work
    assert batch.lines[6:] == ["settle c2 waits"]
    assert outcome.messages == ()


TERMINATE = [((True, True), True), ((True, False), False), ((True, None), False), ((None, None), False)]


@pytest.mark.parametrize(("says", "expected"), TERMINATE)
async def test_a_batch_terminates_only_if_every_result_says_so(says: tuple[Any, ...], expected: bool) -> None:
    results = iter(says)

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        return AgentToolResult(terminate=next(results))

    assert (await Batch().run(calls(2), tool_of(execute))).terminate is expected


async def test_a_refused_call_keeps_a_batch_from_terminating() -> None:
    batch = Batch(blocked=("c2",))
    tool = Calls().tool(result=AgentToolResult(terminate=True))
    assert not (await batch.run(calls(2), tool)).terminate


async def test_a_batch_that_is_cancelled_takes_its_tools_along() -> None:
    before = asyncio.all_tasks()
    batch = Batch()
    work = await start(batch.run(calls(3)))
    await until(lambda: len(batch.held.made) == 3)
    work.cancel()
    await asyncio.wait({work})
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_turn_end_carries_the_results(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(), answer(calls=calls(2)), "done", tools=[Calls().tool()])
    ends: list[Any] = []
    rig.harness.events.on("turn_end", ends.append)
    assert (await rig.harness.prompt("go")).ok
    await until(lambda: len(ends) == 2)
    assert [[message.tool_call_id for message in end.tool_results] for end in ends] == [["c1", "c2"], []]
