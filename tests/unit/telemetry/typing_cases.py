"""Programs for the type checkers, never run: every `reject_*` must be refused, everything else must pass clean."""

import asyncio
from typing import Literal

from agent_harness.telemetry import (
    AGENT_TELEMETRY_SCHEMAS,
    AI_TELEMETRY_SCHEMA,
    AgentSpanData,
    AgentSpanStarter,
    InMemoryTelemetryContext,
    Span,
    SpanStatus,
    TelemetryContext,
    create_typed_span_starter,
    start_ai_span,
    start_harness_span,
)
from agent_harness.telemetry.attributes import StepEnd, StepStart, ToolEnd, TurnStart
from agent_harness.telemetry.otel import OpenTelemetryContext
from agent_harness.telemetry.vocabulary import HARNESS_TELEMETRY_SCHEMA

TURN: TurnStart = {"pi.lane.name": "main", "pi.operation.id": "r", "pi.turn.id": "t"}
STEP: StepStart = {"pi.lane.name": "main", "pi.operation.id": "r", "pi.step.kind": "assistant", "pi.step.attempt": 1}


async def done(span: object) -> int:
    return 1


async def done_nested(span: object, start: object) -> int:
    return 1


async def accept_the_short_form(parent: TelemetryContext, turn_id: str | None) -> int:
    async def step(span: Span[StepEnd]) -> int:
        span.set_attributes({"pi.step.outcome": "succeeded"})
        span.set_status(SpanStatus(status="error"))
        return await start_ai_span(
            span,
            "pi.ai.request",
            {
                "pi.ai.operation": "stream",
                "pi.ai.provider": "p",
                "pi.ai.model": "m",
                "pi.ai.api": "a",
                "pi.ai.streaming": True,
            },
            done,
        )

    await start_harness_span(
        parent,
        "pi.harness.tool",
        {
            "pi.lane.name": "main",
            "pi.operation.id": "r",
            "pi.turn.id": turn_id,
            "pi.tool.name": "bash",
            "pi.tool.call_id": "c",
            "pi.tool.replay": "never",
            "pi.tool.recovery": False,
        },
        done,
    )
    task = asyncio.create_task(start_harness_span(parent, "pi.harness.turn", TURN, done))
    await task
    return await start_harness_span(parent, "pi.harness.step", STEP, step)


async def accept_the_bound_starter(parent: TelemetryContext) -> int:
    start = create_typed_span_starter(parent, AGENT_TELEMETRY_SCHEMAS)

    async def turn(span: TelemetryContext, start_child: AgentSpanStarter) -> int:
        return await start_child("pi.harness.step", STEP, step)

    async def step(span: Span[StepEnd], start_child: AgentSpanStarter) -> int:
        span.set_attributes({"pi.step.outcome": "retry"})
        return 1

    return await start("pi.harness.turn", TURN, turn)


def accept_any_adapter(memory: InMemoryTelemetryContext, otel: OpenTelemetryContext) -> list[TelemetryContext]:
    return [memory, otel]


def accept_telling_spans_apart(span: AgentSpanData) -> object:
    if span["name"] == "pi.harness.step":
        return span["attributes"]["pi.step.attempt"]
    if span["name"] == "pi.ai.request":
        return span["attributes"]["pi.ai.model"]
    return None


def reject_attributes_of_another_span_kind(span: AgentSpanData) -> object:
    if span["name"] == "pi.harness.step":
        return span["attributes"]["pi.tool.name"]
    return None


async def reject_an_unknown_span_name(parent: TelemetryContext) -> None:
    await start_harness_span(parent, "pi.harness.trun", TURN, done)


async def reject_a_harness_name_for_an_ai_span(parent: TelemetryContext) -> None:
    await start_ai_span(parent, "pi.harness.turn", TURN, done)


async def reject_a_missing_required_attribute(parent: TelemetryContext) -> None:
    await start_harness_span(parent, "pi.harness.turn", {"pi.lane.name": "main", "pi.operation.id": "r"}, done)


async def reject_none_for_a_required_attribute(parent: TelemetryContext) -> None:
    await start_harness_span(
        parent, "pi.harness.turn", {"pi.lane.name": "main", "pi.operation.id": "r", "pi.turn.id": None}, done
    )


async def reject_an_unknown_start_attribute(parent: TelemetryContext) -> None:
    await start_harness_span(
        parent,
        "pi.harness.turn",
        {"pi.lane.name": "main", "pi.operation.id": "r", "pi.turn.id": "t", "pi.prompt": "text"},
        done,
    )


async def reject_an_end_attribute_at_the_start(parent: TelemetryContext) -> None:
    await start_harness_span(
        parent,
        "pi.harness.sleep",
        {"pi.operation.id": "r", "pi.sleep.delay_ms": 1, "pi.sleep.outcome": "elapsed"},
        done,
    )


async def reject_a_wrong_type(parent: TelemetryContext) -> None:
    await start_harness_span(parent, "pi.harness.sleep", {"pi.operation.id": "r", "pi.sleep.delay_ms": "1000"}, done)


async def reject_a_value_outside_of_a_closed_set(parent: TelemetryContext) -> None:
    await start_harness_span(
        parent,
        "pi.harness.step",
        {"pi.lane.name": "main", "pi.operation.id": "r", "pi.step.kind": "tool", "pi.step.attempt": 1},
        done,
    )


async def reject_the_kind_of_another_operation(parent: TelemetryContext) -> None:
    await start_harness_span(
        parent,
        "pi.harness.run",
        {
            "pi.session.id": "s",
            "pi.lane.name": "main",
            "pi.operation.id": "r",
            "pi.operation.recovery": False,
            "pi.operation.kind": "compaction",
        },
        done,
    )


async def reject_attributes_of_another_span(parent: TelemetryContext) -> None:
    await start_harness_span(parent, "pi.harness.step", TURN, done)


async def reject_a_union_valued_name(
    parent: TelemetryContext, name: Literal["pi.harness.turn", "pi.harness.step"]
) -> None:
    await start_harness_span(parent, name, TURN, done)


async def reject_an_unknown_event_type(parent: TelemetryContext) -> None:
    await start_harness_span(parent, "pi.harness.event_handler", {"pi.event.type": "run_finish"}, done)


async def reject_an_unknown_hook_name(parent: TelemetryContext) -> None:
    await start_harness_span(parent, "pi.harness.hook", {"pi.lane.name": "main", "pi.hook.name": "after_run"}, done)


async def reject_declined_as_the_outcome_of_a_run(parent: TelemetryContext) -> None:
    await start_harness_span(
        parent,
        "pi.harness.run",
        {
            "pi.session.id": "s",
            "pi.lane.name": "main",
            "pi.operation.id": "r",
            "pi.operation.recovery": False,
            "pi.operation.kind": "run",
        },
        lambda span: done(span.set_attributes({"pi.operation.outcome": "declined"})),
    )


async def reject_an_undeclared_end_attribute(span: Span[StepEnd]) -> None:
    span.set_attributes({"pi.step.result": "text"})


async def reject_a_start_attribute_at_the_end(span: Span[StepEnd]) -> None:
    span.set_attributes({"pi.step.attempt": 2})


async def reject_a_wrong_end_value(span: Span[StepEnd]) -> None:
    span.set_attributes({"pi.step.outcome": "ok"})


async def reject_any_event(span: Span[StepEnd]) -> None:
    span.add_event("chunk")


async def reject_a_callback_for_another_span(parent: TelemetryContext) -> None:
    async def tool(span: Span[ToolEnd]) -> None:
        span.set_attributes({"pi.tool.is_error": True})

    await start_harness_span(parent, "pi.harness.step", STEP, tool)


async def reject_a_wrong_use_of_the_result(parent: TelemetryContext) -> str:
    return await start_harness_span(parent, "pi.harness.turn", TURN, done)


async def reject_a_starter_over_a_schema_twice(parent: TelemetryContext) -> None:
    create_typed_span_starter(parent, (AI_TELEMETRY_SCHEMA, AI_TELEMETRY_SCHEMA))


async def reject_a_starter_over_no_schema(parent: TelemetryContext) -> None:
    create_typed_span_starter(parent, ())


async def reject_an_unknown_name_by_the_bound_starter(start: AgentSpanStarter) -> None:
    await start("pi.harness.request", TURN, done_nested)


async def reject_a_missing_attribute_by_the_bound_starter(start: AgentSpanStarter) -> None:
    await start("pi.harness.turn", {"pi.lane.name": "main", "pi.operation.id": "r"}, done_nested)


async def reject_attributes_of_another_span_by_the_bound_starter(start: AgentSpanStarter) -> None:
    await start("pi.ai.request", STEP, done_nested)


def reject_a_misspelt_span_of_the_schema() -> object:
    return HARNESS_TELEMETRY_SCHEMA["spans"]["pi.harness.steps"]
