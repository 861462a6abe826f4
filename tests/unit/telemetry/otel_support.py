"""The real OpenTelemetry SDK as the backend under the adapter."""

from collections.abc import Mapping
from typing import cast

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from agent_harness.telemetry import RecordedEvent, RecordedSpan, SpanError, SpanStatus
from agent_harness.telemetry.recording import RecordedValue


class StartOrder(SpanProcessor):
    """Span ids in start order; clock readings may tie."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Note the id."""
        self.ids.append(_id(span))


class Backend:
    """A tracer and the spans that it exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._order = StartOrder()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self._order)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = self.provider.get_tracer("test")

    def exported(self, name: str | None = None) -> list[ReadableSpan]:
        """Native spans in start order."""
        spans = [span for span in self._exporter.get_finished_spans() if name is None or span.name == name]
        return sorted(spans, key=lambda span: self._order.ids.index(_id(span)))

    def recorded(self) -> list[RecordedSpan]:
        """The same in the terms of the conformance cases."""
        spans = self.exported()
        ids = {_id(span): number for number, span in enumerate(spans, start=1)}
        return [
            RecordedSpan(
                id=ids[_id(span)],
                parent_id=None if span.parent is None else ids.get(span.parent.span_id, 0),
                name=span.name,
                start_attributes=_bag(span.attributes),
                end_attributes={},
                events=tuple(
                    RecordedEvent(name=event.name, attributes=_bag(event.attributes), tick=tick)
                    for tick, event in enumerate(span.events)
                ),
                status=_status(span),
                started_tick=0,
                ended_tick=1,
            )
            for span in spans
        ]


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def _bag(attributes: object) -> dict[str, RecordedValue]:
    return dict(cast("Mapping[str, RecordedValue]", attributes or {}))


def _status(span: ReadableSpan) -> SpanStatus | None:
    match span.status.status_code:
        case StatusCode.UNSET:
            return None
        case StatusCode.OK:
            return SpanStatus(status="ok")
        case StatusCode.ERROR:
            name, _, message = (span.status.description or "").partition(": ")
            return SpanStatus(status="error", error=SpanError(name=name, message=message) if name else None)
