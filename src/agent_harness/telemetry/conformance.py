"""What every `TelemetryContext` adapter must do, as cases for any test runner (harness-v2 §18).

`for case in CASES: await case(make_subject())`, a fresh subject for each. A case raises AssertionError with a sentence.
A subject without `recorded` (the no-op, a sampled-out tracer) is judged by what its callers see.

Admission: a Python coroutine does nothing until it is awaited. "Synchronously, exactly once" therefore means: the
first step of awaiting `start_span(...)` creates the span, calls the callback and runs the awaitable it returned up to
that one's own first suspension, with no turn of the event loop before. `start_span(...)` never awaited starts nothing.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Never, Protocol, TypeAlias, TypeVar, cast

from .context import AttributeValue, SpanAttributes, SpanError, SpanStatus, TelemetryContext, TelemetrySpan
from .recording import RecordedValue

T = TypeVar("T")


class SettledEvent(Protocol):
    """An event as an adapter's backend kept it."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, RecordedValue]: ...


class SettledSpan(Protocol):
    """A span as an adapter's backend kept it. `RecordedSpan` is one."""

    @property
    def id(self) -> int: ...
    @property
    def parent_id(self) -> int | None: ...
    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, RecordedValue]: ...
    @property
    def events(self) -> Sequence[SettledEvent]: ...
    @property
    def status(self) -> SpanStatus | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An adapter under test.

    Attributes:
        context: A fresh root context.
        recorded: The settled spans in start order; None when the adapter records nothing. A span that was settled
            twice must be there twice.
    """

    context: TelemetryContext
    recorded: Callable[[], Sequence[SettledSpan]] | None = None

    def spans(self) -> Sequence[SettledSpan] | None:
        """What is recorded, if anything ever is."""
        return None if self.recorded is None else self.recorded()


Case: TypeAlias = Callable[[Subject], Coroutine[object, object, None]]


class Signal(BaseException):
    """Control flow that is no `Exception`, as the harness's own signals are."""


class Unreadable(dict[str, AttributeValue | None]):
    """An attribute bag that gives one attribute and then fails."""

    def items(self) -> Never:
        raise RuntimeError("this payload cannot be read")

    def keys(self) -> Never:
        raise RuntimeError("this payload cannot be read")

    def __iter__(self) -> Generator[str, None, None]:
        yield "half"
        raise RuntimeError("this payload cannot be read")

    def __getitem__(self, key: str) -> Never:
        raise RuntimeError("this payload cannot be read")


class _Pause:
    """Suspends once, so that a case can step a coroutine by hand."""

    def __await__(self) -> Generator[None, None, None]:
        yield


SUSPENDED: Final = object()
"""What `_step` answers while a coroutine waits."""


async def admits_in_the_first_step(subject: Subject) -> None:
    """The first step of awaiting calls the callback once and runs it to its own first suspension."""
    steps: list[str] = []

    async def work(span: TelemetrySpan) -> str:
        steps.append("first")
        await _Pause()
        steps.append("second")
        return "done"

    def callback(span: TelemetrySpan) -> Awaitable[str]:
        steps.append("called")
        return work(span)

    started = cast("Coroutine[object, None, str]", subject.context.start_span("probe", {}, callback))
    assert steps == [], "nothing starts before the first step"
    assert _step(started) is SUSPENDED, "the callback's suspension suspends start_span"
    assert steps == ["called", "first"], f"the first step must admit the callback, saw {steps}"
    assert not subject.spans(), "a span is open until its callback settles"
    assert _step(started) == "done", "start_span settles with its callback, and the result passes through"
    assert steps == ["called", "first", "second"], f"the callback runs exactly once, saw {steps}"


async def returns_the_same_result(subject: Subject) -> None:
    """The result is the callback's own object, and the status is ok."""
    result = object()
    assert await subject.context.start_span("probe", {}, lambda _: _value(result)) is result, "result identity"
    _expect_status(subject, "ok")


async def raises_the_same_exception(subject: Subject) -> None:
    """What an awaited callback raises comes out as the same object, with an automatic error status."""
    error = ValueError("content stays here")
    await _expect_raised(subject, error, lambda _: _raise(error))
    _expect_status(subject, "error")


async def raises_what_the_call_itself_raises(subject: Subject) -> None:
    """A callback that raises before it returns an awaitable is treated alike."""
    error = KeyError("content stays here")

    def callback(span: TelemetrySpan) -> Awaitable[None]:
        raise error

    await _expect_raised(subject, error, callback)
    _expect_status(subject, "error")


async def passes_base_exceptions(subject: Subject) -> None:
    """Signals that are no `Exception` pass through, and end the span."""
    signal = Signal()
    await _expect_raised(subject, signal, lambda _: _raise(signal))
    _expect_status(subject, "error")


async def passes_cancellation(subject: Subject) -> None:
    """Cancellation reaches the callback, comes out as the same object and ends the span once."""
    import asyncio

    cancelled = asyncio.CancelledError()
    seen: list[BaseException] = []

    async def work(span: TelemetrySpan) -> None:
        try:
            await _Pause()
        except BaseException as exception:
            seen.append(exception)
            raise

    started = cast("Coroutine[object, None, None]", subject.context.start_span("probe", {}, work))
    _step(started)
    assert _step(started, cancelled) is cancelled, "the same CancelledError must come out"
    assert seen == [cancelled], "the callback must see the cancellation"
    _expect_status(subject, "error")


async def ends_when_the_coroutine_is_closed(subject: Subject) -> None:
    """Dropping the running coroutine (its loop is gone) ends the span, once, and raises nothing."""

    async def work(span: TelemetrySpan) -> None:
        await _Pause()

    started = cast("Coroutine[object, None, None]", subject.context.start_span("probe", {}, work))
    _step(started)
    started.close()
    _expect_status(subject, "error")


async def keeps_an_explicit_error(subject: Subject) -> None:
    """An expected failure is a returned value and an explicit status; completing normally does not overwrite it."""

    async def work(span: TelemetrySpan) -> str:
        span.set_status(SpanStatus(status="error", error=SpanError(name="StepFailed", message="no answer")))
        return "failed"

    assert await subject.context.start_span("probe", {}, work) == "failed", "the result still passes"
    _expect_status(subject, "error")


async def keeps_an_explicit_ok(subject: Subject) -> None:
    """Raising does not overwrite an explicit ok either."""
    error = Signal()

    async def work(span: TelemetrySpan) -> None:
        span.set_status(SpanStatus(status="ok"))
        raise error

    await _expect_raised(subject, error, work)
    _expect_status(subject, "ok")


async def lets_the_last_status_win(subject: Subject) -> None:
    """Of several explicit statuses the last one holds, in both directions."""

    async def work(span: TelemetrySpan) -> None:
        span.set_status(SpanStatus(status="error"))
        span.set_status(SpanStatus(status="ok"))
        await span.start_span("child", {}, child)

    async def child(span: TelemetrySpan) -> None:
        span.set_status(SpanStatus(status="ok"))
        span.set_status(SpanStatus(status="error"))

    await subject.context.start_span("probe", {}, work)
    _expect_status(subject, "ok", "error")


async def merges_attributes(subject: Subject) -> None:
    """Later values win key by key, None is ignored, and arrays are copied."""
    names = ["a"]

    async def work(span: TelemetrySpan) -> None:
        span.set_attributes({"kept": 2, "added": names, "none": None})
        names.append("b")
        span.set_attributes({"added": None, "last": True})

    await subject.context.start_span("probe", {"kept": 1, "start": "s", "never": None}, work)
    spans = subject.spans()
    if spans is not None:
        expected = {"start": "s", "kept": 2, "added": ("a",), "last": True}
        found = dict(_only(spans).attributes)
        assert found == expected, f"attributes {found}, expected {expected}"


async def keeps_the_order_of_events(subject: Subject) -> None:
    """Events stay in call order, repeated names included, with their own attributes."""

    async def work(span: TelemetrySpan) -> None:
        span.add_event("one", {"n": 1})
        span.add_event("two")
        span.add_event("one", {"n": 3, "none": None})

    await subject.context.start_span("probe", {}, work)
    spans = subject.spans()
    if spans is not None:
        events = [(event.name, dict(event.attributes)) for event in _only(spans).events]
        assert events == [("one", {"n": 1}), ("two", {}), ("one", {"n": 3})], f"events {events}"


async def is_inert_after_settling(subject: Subject) -> None:
    """Calls on a settled span change nothing and raise nothing; work started under it runs, unrecorded."""
    kept: list[TelemetrySpan] = []

    async def work(span: TelemetrySpan) -> None:
        kept.append(span)
        span.set_attributes({"n": 1})

    await subject.context.start_span("probe", {}, work)
    span = kept[0]
    span.set_attributes({"n": 2})
    span.add_event("late")
    span.set_status(SpanStatus(status="error"))
    calls: list[TelemetrySpan] = []

    async def late(child: TelemetrySpan) -> str:
        calls.append(child)
        child.set_attributes({"n": 3})
        child.add_event("late")
        child.set_status(SpanStatus(status="error"))
        return "ran"

    assert await span.start_span("late", {}, late) == "ran", "business work is never dropped"
    assert len(calls) == 1, "the callback runs exactly once"
    spans = subject.spans()
    if spans is not None:
        only = _only(spans)
        assert dict(only.attributes) == {"n": 1}, f"late attributes were recorded: {dict(only.attributes)}"
        assert list(only.events) == [], "late events were recorded"
    _expect_status(subject, "ok")


async def nests_by_argument(subject: Subject) -> None:
    """The parent is the context that was called, in whatever order interleaved siblings run."""

    async def leaf(span: TelemetrySpan) -> None:
        await _Pause()

    async def branch(span: TelemetrySpan) -> None:
        await _Pause()
        await span.start_span("leaf", {"of": "branch"}, leaf)

    async def root(span: TelemetrySpan) -> None:
        left = cast("Coroutine[object, None, None]", span.start_span("left", {}, branch))
        right = cast("Coroutine[object, None, None]", span.start_span("right", {}, branch))
        running = [left, right]
        while running:
            for coroutine in list(running):
                if _step(coroutine) is not SUSPENDED:
                    running.remove(coroutine)
        await subject.context.start_span("other root", {}, lambda _: _value(None))

    await subject.context.start_span("root", {}, root)
    spans = subject.spans()
    if spans is not None:
        names = {span.id: span.name for span in spans}
        edges = [(span.name, None if span.parent_id is None else names.get(span.parent_id)) for span in spans]
        expected = [
            ("root", None),
            ("left", "root"),
            ("right", "root"),
            ("leaf", "left"),
            ("leaf", "right"),
            ("other root", None),
        ]
        assert edges == expected, f"spans {edges}, expected {expected}"


async def survives_unreadable_payloads(subject: Subject) -> None:
    """A payload that cannot be read is dropped as a whole; the work runs once and what else is recorded stays."""
    bad = cast("SpanAttributes", Unreadable())
    wrong = cast("SpanAttributes", {"fine": 1, "nested": {"a": 1}})

    async def work(span: TelemetrySpan) -> str:
        span.set_attributes({"n": 1})
        for payload in (bad, wrong, cast("SpanAttributes", 7)):
            span.set_attributes(payload)
            span.add_event("bad", payload)
        span.set_status(cast("SpanStatus", object()))
        return "done"

    assert await subject.context.start_span("probe", {}, work) == "done", "recording trouble must not reach the work"
    calls: list[TelemetrySpan] = []

    async def counted(span: TelemetrySpan) -> str:
        calls.append(span)
        span.set_attributes({"inside": True})
        return "ran"

    for payload in (bad, wrong):
        assert await subject.context.start_span("unreadable", payload, counted) == "ran", "the work still runs"
    assert len(calls) == 2, "each callback runs exactly once"
    error = ValueError()
    await _expect_raised(subject, error, lambda _: _raise(error), bad)
    spans = subject.spans()
    if spans is not None:
        found = [(dict(span.attributes), len(span.events)) for span in spans if span.name == "probe"][:1]
        assert found == [({"n": 1}, 0)], f"a bad payload was recorded in part: {found}"
        assert all("fine" not in span.attributes for span in spans), "a bad start payload was recorded in part"
        assert spans[0].status == SpanStatus(status="ok"), "an unreadable status is ignored"


async def records_no_text_of_exceptions(subject: Subject) -> None:
    """The automatic error status names the class; what the exception says may be content and is nowhere."""
    canary = "CANARY-0c5f6a52"
    error = ValueError(canary)
    await _expect_raised(subject, error, lambda _: _raise(error))
    spans = subject.spans()
    if spans is not None:
        span = _only(spans)
        kept = repr([dict(span.attributes), [(e.name, dict(e.attributes)) for e in span.events], span.status])
        assert canary not in kept, "the exception's text was recorded"
        assert "ValueError" in kept, "the exception's class was not recorded"


CASES: Final[tuple[Case, ...]] = (
    admits_in_the_first_step,
    returns_the_same_result,
    raises_the_same_exception,
    raises_what_the_call_itself_raises,
    passes_base_exceptions,
    passes_cancellation,
    ends_when_the_coroutine_is_closed,
    keeps_an_explicit_error,
    keeps_an_explicit_ok,
    lets_the_last_status_win,
    merges_attributes,
    keeps_the_order_of_events,
    is_inert_after_settling,
    nests_by_argument,
    survives_unreadable_payloads,
    records_no_text_of_exceptions,
)


def _step(coroutine: Coroutine[object, None, object], thrown: BaseException | None = None) -> object:
    """Run a coroutine to its next suspension: SUSPENDED, what it returned, or the exception that came out of it."""
    try:
        if thrown is None:
            coroutine.send(None)
        else:
            coroutine.throw(thrown)
    except StopIteration as stop:
        return cast("object", stop.value)
    except BaseException as raised:
        return raised
    return SUSPENDED


async def _value(value: T) -> T:
    return value


async def _raise(error: BaseException) -> None:
    raise error


async def _expect_raised(
    subject: Subject,
    error: BaseException,
    callback: Callable[[TelemetrySpan], Awaitable[object]],
    attributes: SpanAttributes | None = None,
) -> None:
    try:
        await subject.context.start_span("probe", {} if attributes is None else attributes, callback)
    except BaseException as raised:
        if raised is not error:
            raise AssertionError(
                f"{type(raised).__name__} came out instead of the callback's own exception"
            ) from raised
    else:
        raise AssertionError("the callback's exception was swallowed")


def _only(spans: Sequence[SettledSpan]) -> SettledSpan:
    assert len(spans) == 1, f"{len(spans)} spans were recorded, expected one"
    return spans[0]


def _expect_status(subject: Subject, *expected: str) -> None:
    spans = subject.spans()
    if spans is not None:
        found = [span.status.status if span.status else None for span in spans]
        assert found == list(expected), f"statuses {found}, expected {list(expected)}"
