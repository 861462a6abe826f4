"""Every adapter passes every case, and for each rule an adapter that breaks it is found out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracer
from otel_support import Backend

from agent_harness.telemetry import NOOP, InMemoryTelemetryContext, RecordedSpan, SpanStatus, TelemetrySpan
from agent_harness.telemetry import conformance as cases
from agent_harness.telemetry.conformance import CASES, Case, Subject
from agent_harness.telemetry.otel import OpenTelemetryContext

T = TypeVar("T")


def memory() -> Subject:
    context = InMemoryTelemetryContext()
    return Subject(context=context, recorded=lambda: settled(context))


def settled(context: InMemoryTelemetryContext) -> list[RecordedSpan]:
    return [span for span in context.spans() if span.ended_tick is not None]


def otel() -> Subject:
    backend = Backend()
    return Subject(context=OpenTelemetryContext(backend.tracer), recorded=backend.recorded)


def otel_genai() -> Subject:
    backend = Backend()
    return Subject(context=OpenTelemetryContext(backend.tracer, genai=True), recorded=backend.recorded)


def otel_sampled_out() -> Subject:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    return Subject(context=OpenTelemetryContext(provider.get_tracer("test")))


def otel_without_sdk() -> Subject:
    return Subject(context=OpenTelemetryContext(NoOpTracer()))


class BrokenTracer(NoOpTracer):
    """A backend that cannot start a span."""

    def start_span(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no backend")


def otel_broken() -> Subject:
    return Subject(context=OpenTelemetryContext(BrokenTracer()))


def noop() -> Subject:
    return Subject(context=NOOP)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("make", [noop, memory, otel, otel_genai, otel_sampled_out, otel_without_sdk, otel_broken])
async def test_the_adapter_conforms(make: Callable[[], Subject], case: Case, caplog: pytest.LogCaptureFixture) -> None:
    await case(make())
    assert caplog.records == []


class Late(InMemoryTelemetryContext):
    """Calls back a turn of the loop later."""

    async def start_span(self, name: str, attributes: Any, callback: Callable[[TelemetrySpan], Awaitable[T]]) -> T:
        await asyncio.sleep(0)
        return await super().start_span(name, attributes, callback)


class Twice(InMemoryTelemetryContext):
    """Calls back twice."""

    async def start_span(self, name: str, attributes: Any, callback: Callable[[TelemetrySpan], Awaitable[T]]) -> T:
        await super().start_span(name, attributes, callback)
        return await super().start_span(name, attributes, callback)


class Swallowing(InMemoryTelemetryContext):
    """Answers None where the work raised an `Exception`."""

    async def start_span(self, name: str, attributes: Any, callback: Callable[[TelemetrySpan], Awaitable[T]]) -> T:
        try:
            return await super().start_span(name, attributes, callback)
        except Exception:
            return cast("T", None)


class Wrapping(InMemoryTelemetryContext):
    """Raises its own exception for signals and cancellation."""

    async def start_span(self, name: str, attributes: Any, callback: Callable[[TelemetrySpan], Awaitable[T]]) -> T:
        try:
            return await super().start_span(name, attributes, callback)
        except BaseException as raised:
            raise RuntimeError("span failed") from raised


class Flat(InMemoryTelemetryContext):
    """Forgets the parent."""

    async def run_span(self, parent: Any, name: str, attributes: Any, callback: Any) -> Any:
        return await super().run_span(None, name, attributes, callback)


class Overwriting(InMemoryTelemetryContext):
    """Lets the automatic status overwrite the explicit one."""

    async def run_span(self, parent: Any, name: str, attributes: Any, callback: Any) -> Any:
        async def work(span: Any) -> Any:
            try:
                result = await callback(span)
            except BaseException:
                span.set_status(SpanStatus(status="error"))
                raise
            span.set_status(SpanStatus(status="ok"))
            return result

        return await super().run_span(parent, name, attributes, work)


class Edited:
    """A span whose calls are changed by a subclass."""

    def __init__(self, span: TelemetrySpan) -> None:
        self.span = span

    async def start_span(self, name: str, attributes: Any, callback: Any) -> Any:
        return await self.span.start_span(name, attributes, lambda span: callback(type(self)(span)))

    def add_event(self, name: str, attributes: Any = None) -> None:
        self.span.add_event(name, attributes)

    def set_attributes(self, attributes: Any) -> None:
        self.span.set_attributes(attributes)

    def set_status(self, status: Any) -> None:
        self.span.set_status(status)


class Partial(Edited):
    """Records an unreadable payload as far as it can be read, and lets its exception out."""

    def set_attributes(self, attributes: Any) -> None:
        for name in attributes:
            self.span.set_attributes({name: attributes[name]})


class RecordsHalf(Edited):
    """Records the good half of a bad payload."""

    def set_attributes(self, attributes: Any) -> None:
        if isinstance(attributes, dict) and "nested" in attributes:
            attributes = {"fine": 1}
        self.span.set_attributes(attributes)


class NoneDeletes(Edited):
    """Takes None for a value."""

    def set_attributes(self, attributes: Any) -> None:
        if type(attributes) is dict:
            attributes = {name: "" if value is None else value for name, value in attributes.items()}
        self.span.set_attributes(attributes)


class FirstStatus(Edited):
    """Lets the first status win."""

    seen = False

    def set_status(self, status: Any) -> None:
        if not self.seen:
            self.seen = True
            self.span.set_status(status)


class Backwards(Edited):
    """Keeps events in another order."""

    def __init__(self, span: TelemetrySpan) -> None:
        super().__init__(span)
        self.kept: list[tuple[str, Any]] = []

    def add_event(self, name: str, attributes: Any = None) -> None:
        self.kept.insert(0, (name, attributes))
        if len(self.kept) == 3:
            for event in self.kept:
                self.span.add_event(*event)


class RaisesLate(Edited):
    """Raises when it is used after its end."""

    def set_attributes(self, attributes: Any) -> None:
        if attributes == {"n": 2}:
            raise RuntimeError("span has ended")
        self.span.set_attributes(attributes)


class Telling(Edited):
    """Records what exceptions say."""

    async def start_span(self, name: str, attributes: Any, callback: Any) -> Any:
        async def work(span: TelemetrySpan) -> Any:
            try:
                return await callback(type(self)(span))
            except Exception as raised:
                span.add_event("exception", {"text": str(raised)})
                raise

        return await self.span.start_span(name, attributes, work)


def editing(kind: type[Edited]) -> Callable[[], Subject]:
    def make() -> Subject:
        inner = InMemoryTelemetryContext()
        return Subject(context=kind(cast("TelemetrySpan", inner)), recorded=lambda: settled(inner))

    return make


def broken(kind: type[InMemoryTelemetryContext]) -> Callable[[], Subject]:
    def make() -> Subject:
        context = kind()
        return Subject(context=context, recorded=lambda: settled(context))

    return make


@pytest.mark.parametrize(
    ("make", "case"),
    [
        (broken(Late), cases.admits_in_the_first_step),
        (broken(Twice), cases.admits_in_the_first_step),
        (broken(Twice), cases.returns_the_same_result),
        (broken(Swallowing), cases.raises_the_same_exception),
        (broken(Swallowing), cases.raises_what_the_call_itself_raises),
        (broken(Wrapping), cases.passes_base_exceptions),
        (broken(Wrapping), cases.passes_cancellation),
        (broken(Flat), cases.nests_by_argument),
        (broken(Overwriting), cases.keeps_an_explicit_error),
        (broken(Overwriting), cases.keeps_an_explicit_ok),
        (editing(FirstStatus), cases.lets_the_last_status_win),
        (editing(NoneDeletes), cases.merges_attributes),
        (editing(Backwards), cases.keeps_the_order_of_events),
        (editing(RecordsHalf), cases.survives_unreadable_payloads),
        (editing(Telling), cases.records_no_text_of_exceptions),
    ],
)
async def test_an_adapter_that_breaks_a_rule_fails_its_case(make: Callable[[], Subject], case: Case) -> None:
    with pytest.raises(AssertionError):
        await case(make())


@pytest.mark.parametrize(
    ("make", "case"),
    [
        (editing(Partial), cases.survives_unreadable_payloads),
        (editing(RaisesLate), cases.is_inert_after_settling),
    ],
)
async def test_an_adapter_that_lets_its_own_trouble_out_fails_its_case(make: Callable[[], Subject], case: Case) -> None:
    with pytest.raises(RuntimeError):
        await case(make())
