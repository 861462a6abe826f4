"""The OpenTelemetry adapter against the real SDK: explicit parents, no content, conventions beside our names."""

import contextvars
import json
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode
from otel_support import Backend

from agent_harness.telemetry import Span, SpanError, SpanStatus, TelemetrySpan, start_ai_span, start_harness_span
from agent_harness.telemetry.attributes import AiRequestEnd, AiRequestStart, ToolEnd, ToolStart
from agent_harness.telemetry.genai import convention_end, convention_start
from agent_harness.telemetry.otel import OpenTelemetryContext

REQUEST: AiRequestStart = {
    "pi.ai.operation": "stream",
    "pi.ai.provider": "google",
    "pi.ai.model": "gemini-x",
    "pi.ai.api": "google-generative-ai",
    "pi.ai.streaming": True,
}
TOOL: ToolStart = {
    "pi.lane.name": "main",
    "pi.operation.id": "r",
    "pi.tool.name": "bash",
    "pi.tool.call_id": "c1",
    "pi.tool.replay": "never",
    "pi.tool.recovery": False,
}
CANARY = "CANARY-7d1c9a44"


async def nothing(span: object) -> None:
    pass


async def test_the_ambient_span_is_neither_a_parent_nor_changed() -> None:
    backend = Backend()
    seen: list[object] = []

    async def work(span: TelemetrySpan) -> None:
        seen.append(trace.get_current_span())
        await span.start_span("child", {}, nothing)

    with backend.tracer.start_as_current_span("ambient") as ambient:
        await OpenTelemetryContext(backend.tracer).start_span("root", {}, work)
        assert seen == [ambient]
    parents = {span.name: span.parent for span in backend.exported()}
    assert parents["root"] is None
    child = parents["child"]
    assert child is not None
    assert child.span_id == cast("Any", backend.exported("root")[0].context).span_id


async def test_the_given_context_is_the_parent_and_its_baggage_reaches_the_processors() -> None:
    backend = Backend()
    seen: list[object] = []

    class Watch(SpanProcessor):
        def on_start(self, span: object, parent_context: Context | None = None) -> None:
            seen.append(baggage.get_baggage("tenant", parent_context))

    backend.provider.add_span_processor(Watch())
    outside = backend.tracer.start_span("application")
    parent = trace.set_span_in_context(outside, baggage.set_baggage("tenant", "t1", Context()))
    context = OpenTelemetryContext(backend.tracer, parent)
    await context.start_span("root", {}, lambda span: span.start_span("child", {}, nothing))
    outside.end()
    assert seen == [None, "t1", "t1"]
    (root,) = backend.exported("root")
    assert root.parent == outside.get_span_context()
    assert {cast("Any", span.context).trace_id for span in backend.exported()} == {outside.get_span_context().trace_id}


async def test_an_abandoned_span_ends_once_and_logs_nothing_when_closed_from_another_context(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Backend()

    class Pause:
        def __await__(self) -> Any:
            yield

    async def work(span: TelemetrySpan) -> None:
        await Pause()

    with caplog.at_level(logging.DEBUG):
        running = cast("Coroutine[Any, Any, None]", OpenTelemetryContext(backend.tracer).start_span("work", {}, work))
        contextvars.Context().run(running.send, None)
        contextvars.Context().run(running.close)
    assert [span.status.status_code for span in backend.exported("work")] == [StatusCode.ERROR]
    assert caplog.records == []


@pytest.mark.parametrize("genai", [False, True])
async def test_no_content_of_an_exception_reaches_the_backend(genai: bool) -> None:
    backend = Backend()
    payload = '{"prompt": "' + CANARY

    async def work(span: Span[ToolEnd]) -> None:
        api_key = f"{CANARY}-key"
        try:
            json.loads(payload)
        except json.JSONDecodeError as error:
            raise RuntimeError(f"{CANARY} {api_key}") from error

    with pytest.raises(RuntimeError):
        await start_harness_span(OpenTelemetryContext(backend.tracer, genai=genai), "pi.harness.tool", TOOL, work)
    (span,) = backend.exported()
    assert CANARY not in span.to_json()
    assert list(span.events) == []
    assert span.status.description == "RuntimeError: raised"


async def test_an_explicit_error_reaches_the_backend_with_its_description() -> None:
    backend = Backend()

    async def work(span: TelemetrySpan) -> None:
        span.set_status(SpanStatus(status="ok"))
        span.set_status(SpanStatus(status="error", error=SpanError(name="overloaded", message="status 529")))

    await OpenTelemetryContext(backend.tracer).start_span("work", {}, work)
    (span,) = backend.exported()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "overloaded: status 529")


async def test_numbers_that_opentelemetry_cannot_hold_become_floats(caplog: pytest.LogCaptureFixture) -> None:
    backend = Backend()
    bag = {"big": 2**63, "small": -(2**63), "mixed": [1, 0.5], "huge": [2**80, 1], "ints": [1, 2], "flag": True}
    await OpenTelemetryContext(backend.tracer).start_span("work", bag, nothing)
    (span,) = backend.exported()
    expected = {"big": 2.0**63, "small": -(2**63), "mixed": (1.0, 0.5), "huge": (2.0**80, 1.0), "ints": (1, 2)}
    found = dict(span.attributes or {})
    assert found == expected | {"flag": True}
    assert [type(found[name]) for name in ("big", "small", "flag")] == [float, int, bool]
    items = {name: [type(item) for item in cast("Sequence[object]", found[name])] for name in ("mixed", "huge", "ints")}
    assert items == {"mixed": [float, float], "huge": [float, float], "ints": [int, int]}
    assert caplog.records == []


async def test_without_the_option_only_our_own_names_are_set() -> None:
    backend = Backend()
    await start_ai_span(OpenTelemetryContext(backend.tracer), "pi.ai.request", REQUEST, nothing)
    (span,) = backend.exported()
    assert dict(span.attributes or {}) == dict(REQUEST)
    assert (span.name, span.kind) == ("pi.ai.request", SpanKind.INTERNAL)


async def test_the_conventions_stand_beside_our_names() -> None:
    backend = Backend()

    async def work(span: Span[AiRequestEnd]) -> None:
        span.set_attributes({"pi.ai.usage.cache_read_tokens": 100, "pi.ai.usage.cache_write_tokens": 20})
        span.set_attributes({"pi.ai.usage.input_tokens": 3, "pi.ai.usage.output_tokens": 7})
        span.set_attributes({"pi.ai.response.stop_reason": "tool_use", "pi.ai.stream.time_to_first_chunk_ms": 250})
        span.set_attributes({"pi.ai.response.model": "gemini-x-1", "pi.ai.response.id": "resp-1"})

    await start_ai_span(OpenTelemetryContext(backend.tracer, genai=True), "pi.ai.request", REQUEST, work)
    (span,) = backend.exported()
    found = dict(span.attributes or {})
    assert {name: value for name, value in found.items() if not name.startswith("pi.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "gemini-x",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "gemini-x-1",
        "gen_ai.response.id": "resp-1",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 123,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.cache_creation.input_tokens": 20,
    }
    assert found["pi.ai.usage.input_tokens"] == 3
    assert (span.name, span.kind) == ("pi.ai.request", SpanKind.CLIENT)


async def test_a_tool_span_gets_the_conventions_of_tool_execution() -> None:
    backend = Backend()
    await start_harness_span(OpenTelemetryContext(backend.tracer, genai=True), "pi.harness.tool", TOOL, nothing)
    (span,) = backend.exported()
    assert {name: value for name, value in (span.attributes or {}).items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "bash",
        "gen_ai.tool.call.id": "c1",
    }


def test_the_convention_names_are_those_of_the_published_registry() -> None:
    published = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    start = convention_start("pi.ai.request", dict.fromkeys(REQUEST, "x"))
    names = [f"pi.ai.usage.{name}_tokens" for name in ("input", "output", "cache_read", "cache_write", "reasoning")]
    names += ["pi.ai.stream.time_to_first_chunk_ms"]
    end = convention_end("pi.ai.request", dict.fromkeys(names, 1))
    end |= convention_end("pi.ai.request", {f"pi.ai.response.{name}": "x" for name in ("model", "id", "stop_reason")})
    tool = convention_start("pi.harness.tool", dict.fromkeys(TOOL, "x"))
    assert len(start | end | tool) == 15
    assert set(start | end | tool) <= published
    assert convention_start("pi.harness.turn", {"pi.ai.model": "m"}) == {}
    assert convention_end("pi.harness.tool", {"pi.ai.usage.input_tokens": 1}) == {}


async def test_a_backend_that_fails_at_every_call_does_not_reach_the_work() -> None:
    class Failing(trace.NonRecordingSpan):
        def _fail(self, *args: object, **kwargs: object) -> None:
            calls.append(args)
            raise RuntimeError("backend")

        set_attributes = add_event = set_status = end = _fail

    class Tracer(trace.NoOpTracer):
        def start_span(self, *args: Any, **kwargs: Any) -> trace.Span:
            return Failing(trace.INVALID_SPAN_CONTEXT)

    calls: list[object] = []

    async def work(span: TelemetrySpan) -> str:
        span.set_attributes({"n": 1})
        span.add_event("e")
        return "done"

    assert await OpenTelemetryContext(Tracer(), genai=True).start_span("pi.ai.request", {}, work) == "done"
    assert len(calls) == 5, "attributes, event, conventions, status and end were all tried"


async def test_an_exporter_that_fails_does_not_reach_the_work(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            exported.append(spans)
            raise RuntimeError("exporter")

    exported: list[object] = []
    backend = Backend()
    backend.provider.add_span_processor(SimpleSpanProcessor(Failing()))

    async def work(span: TelemetrySpan) -> str:
        return "done"

    assert await OpenTelemetryContext(backend.tracer).start_span("work", {}, work) == "done"
    assert len(exported) == 1
