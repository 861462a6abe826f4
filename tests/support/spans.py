"""Recorded spans as text: one line per span, indented as they nest, with what tells a span from its like."""

from collections.abc import Mapping

from agent_harness.telemetry import InMemoryTelemetryContext
from agent_harness.telemetry.audit import schema_violations
from agent_harness.telemetry.memory import RecordedSpan
from agent_harness.telemetry.recording import RecordedValue

SHOWN: Mapping[str, tuple[str, ...]] = {
    "pi.harness.run": ("pi.operation.outcome", "pi.error.code"),
    "pi.harness.compaction": ("pi.operation.outcome", "pi.error.code"),
    "pi.harness.navigation": ("pi.operation.outcome", "pi.error.code"),
    "pi.harness.checkpoint": ("pi.checkpoint.kind",),
    "pi.harness.turn": (),
    "pi.harness.step": ("pi.step.kind", "pi.compaction.reason", "pi.step.attempt", "pi.step.outcome"),
    "pi.harness.tool": ("pi.tool.name", "pi.tool.call_id"),
    "pi.harness.hook": ("pi.hook.name", "pi.hook.registration_id", "pi.hook.outcome"),
    "pi.harness.sleep": ("pi.sleep.delay_ms", "pi.sleep.outcome"),
    "pi.harness.event_handler": ("pi.event.type",),
    "pi.session.write": ("pi.session.mutation", "pi.session.item_type"),
    "pi.ai.request": ("pi.ai.operation", "pi.ai.response.stop_reason"),
}


def tree(context: InMemoryTelemetryContext, *, listeners: bool = False) -> list[str]:
    """Every span, in start order under its parent; `!` marks error status. Fails for a span outside of the schema.

    A resumed operation says so. Listeners' spans are left out unless asked for.
    """
    spans = context.spans()
    assert schema_violations(spans) == []
    assert [span.name for span in spans if span.ended_tick is None or span.status is None] == []
    lines: list[str] = []

    def draw(parent_id: int | None, depth: int) -> None:
        for span in spans:
            if span.parent_id == parent_id and (listeners or span.name != "pi.harness.event_handler"):
                lines.append("  " * depth + line(span))
                draw(span.id, depth + 1)

    draw(None, 0)
    return lines


def line(span: RecordedSpan) -> str:
    """The last part of the name, its telling attributes, and `!` for error status."""
    bag = span.attributes
    parts = [span.name.rpartition(".")[2]]
    if bag.get("pi.operation.recovery") is True:
        parts.append("again")
    parts += [_text(bag[name]) for name in SHOWN[span.name] if name in bag]
    failed = span.status is not None and span.status.status == "error"
    return " ".join(parts) + (" !" if failed else "")


def _text(value: RecordedValue) -> str:
    return str(value).replace(" ", "_")


def one(context: InMemoryTelemetryContext, name: str) -> RecordedSpan:
    """The only span of this name."""
    (span,) = context.spans(name)
    return span
