"""The typed starters add nothing at run time but the explicit parent, and the no-op costs nothing."""

import asyncio
import sys
import tracemalloc
from typing import Any, Never, cast

from agent_harness.telemetry import (
    AGENT_TELEMETRY_SCHEMAS,
    NOOP,
    AgentSpanStarter,
    InMemoryTelemetryContext,
    Span,
    TelemetryContext,
    TelemetrySpan,
    create_typed_span_starter,
    start_ai_span,
    start_harness_span,
)
from agent_harness.telemetry.attributes import (
    AiRequestEnd,
    AiRequestStart,
    RunEnd,
    RunStart,
    StepEnd,
    StepStart,
    ToolEnd,
    ToolStart,
    TurnStart,
)
from agent_harness.telemetry.audit import schema_violations

RUN: RunStart = {
    "pi.session.id": "s",
    "pi.lane.name": "main",
    "pi.operation.id": "r",
    "pi.operation.recovery": False,
    "pi.operation.kind": "run",
}
TURN: TurnStart = {"pi.lane.name": "main", "pi.operation.id": "r", "pi.turn.id": "t"}
STEP: StepStart = {"pi.lane.name": "main", "pi.operation.id": "r", "pi.step.kind": "assistant", "pi.step.attempt": 1}
REQUEST: AiRequestStart = {
    "pi.ai.operation": "stream",
    "pi.ai.provider": "faux",
    "pi.ai.model": "m",
    "pi.ai.api": "faux",
    "pi.ai.streaming": True,
}


def tool(name: str, call_id: str) -> ToolStart:
    return {
        "pi.lane.name": "main",
        "pi.operation.id": "r",
        "pi.tool.name": name,
        "pi.tool.call_id": call_id,
        "pi.tool.replay": "never",
        "pi.tool.recovery": False,
    }


async def test_the_span_passed_on_is_the_parent_of_what_is_started_under_it() -> None:
    root = InMemoryTelemetryContext()

    async def run(span: Span[RunEnd]) -> str:
        answer = await start_harness_span(span, "pi.harness.turn", TURN, turn)
        span.set_attributes({"pi.operation.outcome": "completed"})
        return answer

    async def turn(span: TelemetryContext) -> str:
        answer = await start_harness_span(span, "pi.harness.step", STEP, step)
        await asyncio.gather(
            *(start_harness_span(span, "pi.harness.tool", tool("bash", call), execute) for call in ("a", "b"))
        )
        return answer

    async def step(span: Span[StepEnd]) -> str:
        span.set_attributes({"pi.step.outcome": "succeeded"})
        return await start_ai_span(span, "pi.ai.request", REQUEST, request)

    async def request(span: Span[AiRequestEnd]) -> str:
        span.set_attributes({"pi.ai.response.stop_reason": "stop", "pi.ai.usage.cost": None})
        return "hi"

    async def execute(span: Span[ToolEnd]) -> None:
        await asyncio.sleep(0)
        span.set_attributes({"pi.tool.is_error": False})

    assert await start_harness_span(root, "pi.harness.run", RUN, run) == "hi"
    assert root.tree() == [
        (
            "pi.harness.run",
            [
                (
                    "pi.harness.turn",
                    [("pi.harness.step", ["pi.ai.request"]), "pi.harness.tool", "pi.harness.tool"],
                )
            ],
        )
    ]
    assert schema_violations(root.spans()) == []
    assert root.spans("pi.ai.request")[0].end_attributes == {"pi.ai.response.stop_reason": "stop"}


async def test_a_bound_starter_hands_its_callbacks_starters_bound_to_their_own_spans() -> None:
    root = InMemoryTelemetryContext()
    start = create_typed_span_starter(root, AGENT_TELEMETRY_SCHEMAS)
    gate = asyncio.Event()

    async def turn(span: TelemetryContext, start_child: AgentSpanStarter) -> None:
        await gate.wait()
        await start_child("pi.harness.step", STEP, step)

    async def step(span: Span[StepEnd], start_child: AgentSpanStarter) -> None:
        gate.set()
        await start_child("pi.ai.request", REQUEST, request)

    async def request(span: Span[AiRequestEnd], start_child: AgentSpanStarter) -> None:
        await asyncio.sleep(0)

    async def second(span: TelemetryContext, start_child: AgentSpanStarter) -> None:
        await start_child("pi.harness.step", STEP, step)

    await asyncio.gather(start("pi.harness.turn", TURN, turn), start("pi.harness.turn", TURN, second))
    branch = ("pi.harness.turn", [("pi.harness.step", ["pi.ai.request"])])
    assert root.tree() == [branch, branch]


async def test_a_bound_starter_passes_results_and_exceptions() -> None:
    start = create_typed_span_starter(InMemoryTelemetryContext(), AGENT_TELEMETRY_SCHEMAS)
    error = KeyboardInterrupt()

    async def fine(span: object, start_child: object) -> object:
        return error

    async def failing(span: object, start_child: object) -> None:
        raise error

    assert await start("pi.harness.turn", TURN, fine) is error
    try:
        await start("pi.harness.turn", TURN, failing)
    except KeyboardInterrupt as raised:
        assert raised is error
    else:
        raise AssertionError("the exception was lost")


class Untouchable(dict[str, Any]):
    """Attributes that nobody may look at."""

    def __getattribute__(self, name: str) -> Never:
        raise AssertionError(f"the no-op looked at {name}")

    def __iter__(self) -> Never:
        raise AssertionError("the no-op iterated")

    def __len__(self) -> Never:
        raise AssertionError("the no-op measured")


async def test_the_noop_inspects_nothing_and_hands_out_itself() -> None:
    attributes = cast("TurnStart", Untouchable())
    spans: list[object] = []
    starters: list[object] = []

    async def inner(span: Span[StepEnd]) -> None:
        spans.append(span)
        span.set_attributes(cast("StepEnd", attributes))
        cast("TelemetrySpan", span).add_event("e", cast("Any", attributes))

    async def outer(span: TelemetryContext) -> None:
        spans.append(span)
        await start_harness_span(span, "pi.harness.step", cast("StepStart", attributes), inner)

    async def nested(span: object, start_child: object) -> None:
        starters.append(start_child)

    await start_harness_span(NOOP, "pi.harness.turn", attributes, outer)
    start = create_typed_span_starter(NOOP, AGENT_TELEMETRY_SCHEMAS)
    await start("pi.harness.turn", attributes, nested)
    assert [span is NOOP for span in spans] == [True, True]
    assert starters == [start]


async def test_the_noop_leaves_nothing_behind_and_allocates_only_the_coroutine_that_is_awaited() -> None:
    async def work(span: object) -> None:
        if measuring:
            blocks.append(sys.getallocatedblocks())

    async def bare() -> None:
        await work(NOOP)

    async def measured(times: int, starting: bool) -> int:
        """The most blocks alive inside of the work, above those before."""
        blocks.clear()
        before = sys.getallocatedblocks()
        for _ in range(times):
            await (start_harness_span(NOOP, "pi.harness.turn", TURN, work) if starting else bare())
        return min(blocks) - before

    blocks: list[int] = []
    measuring = True
    await measured(10, True)
    with_span, without = await measured(50, True), await measured(50, False)
    assert with_span - without <= 1, "beside the coroutine of start_span nothing is alive during the work"

    measuring = False
    tracemalloc.start()
    try:
        for _ in range(10):
            await start_harness_span(NOOP, "pi.harness.turn", TURN, work)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1000):
            await start_harness_span(NOOP, "pi.harness.turn", TURN, work)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000, "bytes that stay of 1000 spans"
