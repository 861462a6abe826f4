"""The audit finds each way in which recorded spans can leave the schema."""

from typing import Any

import pytest

from agent_harness.telemetry import InMemoryTelemetryContext, TelemetrySpan
from agent_harness.telemetry.audit import agent_span_definitions, schema_violations
from agent_harness.telemetry.schema import SpanDefinition

RUN: dict[str, Any] = {
    "pi.session.id": "s",
    "pi.lane.name": "main",
    "pi.operation.id": "r",
    "pi.operation.recovery": False,
    "pi.operation.kind": "run",
}
TURN: dict[str, Any] = {"pi.lane.name": "main", "pi.operation.id": "r", "pi.turn.id": "t"}
SLEEP: dict[str, Any] = {"pi.operation.id": "r", "pi.sleep.delay_ms": 1000}


async def recorded(*chain: tuple[str, dict[str, Any]], end: dict[str, Any] | None = None, event: str = "") -> list[str]:
    """Violations of spans nested as given, the innermost of which gets `end` and `event`."""
    root = InMemoryTelemetryContext()

    async def nest(context: Any, rest: tuple[tuple[str, dict[str, Any]], ...]) -> None:
        async def work(span: TelemetrySpan) -> None:
            if rest[1:]:
                await nest(span, rest[1:])
                return
            span.set_attributes(end or {})
            if event:
                span.add_event(event)

        await context.start_span(rest[0][0], rest[0][1], work)

    await nest(root, chain)
    return schema_violations(root.spans())


async def test_conforming_spans_have_no_violations() -> None:
    app = ("GET /chat", {"http.route": "/chat"})
    assert await recorded(app, ("pi.harness.run", RUN), ("pi.harness.turn", TURN)) == []
    assert await recorded(("pi.harness.run", RUN), end={"pi.operation.outcome": "suspended"}) == []


@pytest.mark.parametrize(
    ("chain", "end", "found"),
    [
        ([("pi.harness.other", {})], {}, "pi.harness.other #1: undeclared span"),
        ([("pi.harness.turn", TURN)], {}, "pi.harness.turn #1: must not stand at the root"),
        (
            [("pi.harness.run", RUN), ("pi.harness.run", RUN)],
            {},
            "pi.harness.run #2: must not stand under pi.harness.run",
        ),
        (
            [("pi.harness.run", RUN), ("app", {}), ("pi.harness.turn", TURN)],
            {},
            "pi.harness.turn #3: must not stand under app",
        ),
        (
            [("pi.harness.run", {k: v for k, v in RUN.items() if k != "pi.session.id"})],
            {},
            "pi.harness.run #1: missing start attribute pi.session.id",
        ),
        (
            [("pi.harness.run", RUN | {"pi.prompt": "text"})],
            {},
            "pi.harness.run #1: undeclared start attribute pi.prompt",
        ),
        (
            [("pi.harness.run", RUN | {"pi.operation.kind": "compaction"})],
            {},
            "pi.harness.run #1: start attribute pi.operation.kind has a value outside of its type or set",
        ),
        (
            [("pi.harness.run", RUN), ("pi.harness.sleep", SLEEP | {"pi.sleep.delay_ms": True})],
            {},
            "pi.harness.sleep #2: start attribute pi.sleep.delay_ms has a value outside of its type or set",
        ),
        (
            [("pi.harness.run", RUN)],
            {"pi.operation.outcome": "declined"},
            "pi.harness.run #1: end attribute pi.operation.outcome has a value outside of its type or set",
        ),
        ([("pi.harness.run", RUN)], TURN, "pi.harness.run #1: undeclared end attribute pi.lane.name"),
        (
            [("pi.harness.run", RUN)],
            {"pi.error.code": ["a"]},
            "pi.harness.run #1: end attribute pi.error.code has a value outside of its type or set",
        ),
    ],
)
async def test_a_violation_is_found_and_named(chain: Any, end: dict[str, Any], found: str) -> None:
    violations = await recorded(*chain, end=end)
    assert found in violations
    assert "text" not in "".join(violations)


async def test_an_undeclared_event_is_found() -> None:
    assert await recorded(("pi.harness.run", RUN), event="chunk") == ["pi.harness.run #1: undeclared event chunk"]


async def test_declared_events_and_array_sets_of_another_schema_are_judged() -> None:
    definition: SpanDefinition = {
        "description": "An integration's own span.",
        "parents": {"kind": "any"},
        "startAttributes": {
            "my.tags": {
                "type": "string[]",
                "description": "Tags.",
                "elementValues": ["a", "b"],
                "required": True,
                "sensitive": False,
            }
        },
        "endAttributes": {},
        "events": {
            "tick": {
                "description": "Something.",
                "attributes": {"n": {"type": "number", "description": "Count.", "required": True}},
            }
        },
        "status": {"default": "ok", "errorWhen": "the work raises"},
    }
    root = InMemoryTelemetryContext()

    async def work(span: TelemetrySpan) -> None:
        span.add_event("tick", {"n": 1})
        span.add_event("tick")

    for tags in (["a", "b"], ["a", "c"], "a"):
        await root.start_span("mine", {"my.tags": tags}, work)
    missing = "missing attribute of event tick: n"
    outside = "start attribute my.tags has a value outside of its type or set"
    assert schema_violations(root.spans(), {"mine": definition}) == [
        f"mine #1: {missing}",
        f"mine #2: {outside}",
        f"mine #2: {missing}",
        f"mine #3: {outside}",
        f"mine #3: {missing}",
    ]
    assert "mine" not in agent_span_definitions()
