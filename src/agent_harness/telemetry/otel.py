"""A `TelemetryContext` over any OpenTelemetry tracer; needs the API alone (harness-v2 §18).

The parent of every native span is passed explicitly. The ambient OpenTelemetry context is neither read nor changed,
so that no token can be detached in a context it was not attached in.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import Span as NativeSpan
from opentelemetry.trace import SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue as NativeValue

from .context import NOOP, SpanAttributes, SpanStatus, TelemetrySpan
from .genai import convention_end, convention_start
from .recording import OK_STATUS, RecordedValue, raised_status, read_attributes, read_status

T = TypeVar("T")

_INT64 = range(-(2**63), 2**63)


class OpenTelemetryContext:
    """Spans of `tracer` under `parent`.

    Args:
        tracer: From the application's own provider; flushing and shutting that down is the application's part.
        parent: The native context whose span becomes the parent. Default: new traces, whatever is current around.
        genai: Also set the GenAI semantic-convention attributes, beside the `pi.*` ones and never instead of them.
    """

    def __init__(self, tracer: Tracer, parent: Context | None = None, *, genai: bool = False) -> None:
        self._tracer = tracer
        self._parent = Context() if parent is None else parent
        self._genai = genai

    async def start_span(
        self, name: str, attributes: SpanAttributes, callback: Callable[[TelemetrySpan], Awaitable[T]]
    ) -> T:
        """Run `callback` in a native child span of the parent; with the no-op span when none can be started."""
        span = self._start(name, attributes)
        if span is None:
            return await callback(NOOP)
        try:
            result = await callback(span)
        except BaseException as exception:
            span.settle(raised_status(exception))
            raise
        span.settle(OK_STATUS)
        return result

    def child(self, native: NativeSpan) -> "OpenTelemetryContext":
        """The context of what is started under `native`; the rest of the parent's context (baggage) stays."""
        return OpenTelemetryContext(self._tracer, set_span_in_context(native, self._parent), genai=self._genai)

    def _start(self, name: str, attributes: SpanAttributes) -> "_OpenTelemetrySpan | None":
        read = read_attributes(attributes)
        if read is None:
            return None
        try:
            conventions = convention_start(name, read) if self._genai else {}
            native = self._tracer.start_span(
                name,
                context=self._parent,
                kind=SpanKind.CLIENT if self._genai and name == "pi.ai.request" else SpanKind.INTERNAL,
                attributes=_native({**read, **conventions}),
            )
            return _OpenTelemetrySpan(self.child(native), native, name, genai=self._genai)
        except Exception:
            return None


class _OpenTelemetrySpan:
    __slots__ = ("_children", "_end", "_genai", "_name", "_native", "_settled", "_status")

    def __init__(self, children: OpenTelemetryContext, native: NativeSpan, name: str, *, genai: bool) -> None:
        self._children = children
        self._native = native
        self._name = name
        self._genai = genai
        self._end: dict[str, RecordedValue] = {}
        self._status: SpanStatus | None = None  # kept until the end: a native `ok` could not be taken back
        self._settled = False

    async def start_span(
        self, name: str, attributes: SpanAttributes, callback: Callable[[TelemetrySpan], Awaitable[T]]
    ) -> T:
        if self._settled:
            return await callback(NOOP)
        return await self._children.start_span(name, attributes, callback)

    def add_event(self, name: str, attributes: SpanAttributes | None = None) -> None:
        read = read_attributes({} if attributes is None else attributes)
        if self._settled or read is None:
            return
        try:
            self._native.add_event(name, _native(read))
        except Exception:
            return

    def set_attributes(self, attributes: SpanAttributes) -> None:
        read = read_attributes(attributes)
        if self._settled or read is None:
            return
        try:
            self._native.set_attributes(_native(read))
        except Exception:
            return
        if self._genai:
            self._end.update(read)

    def set_status(self, status: SpanStatus) -> None:
        read = read_status(status)
        if not self._settled and read is not None:
            self._status = read

    def settle(self, automatic: SpanStatus) -> None:
        """Translate, set the status and end the native span; whatever fails of that, the others are still done."""
        self._settled = True
        with suppress(Exception):
            self._settle_conventions()
        with suppress(Exception):
            self._settle_status(automatic)
        with suppress(Exception):
            self._native.end()

    def _settle_conventions(self) -> None:
        if self._genai:
            self._native.set_attributes(_native(convention_end(self._name, self._end)))

    def _settle_status(self, automatic: SpanStatus) -> None:
        status = automatic if self._status is None else self._status
        if status.status == "ok":
            self._native.set_status(StatusCode.OK)
            return
        error = status.error
        self._native.set_status(StatusCode.ERROR, None if error is None else f"{error.name}: {error.message}")


def _native(attributes: dict[str, RecordedValue]) -> dict[str, NativeValue]:
    return {name: _native_value(value) for name, value in attributes.items()}


def _native_value(value: RecordedValue) -> NativeValue:
    """OpenTelemetry's integers have 64 bits and the items of its arrays one type."""
    if isinstance(value, tuple):
        numbers = [item for item in value if isinstance(item, (int, float)) and not isinstance(item, bool)]
        if not all(isinstance(item, int) and item in _INT64 for item in numbers):
            return tuple(float(item) for item in numbers)
        return value
    return float(value) if isinstance(value, int) and value not in _INT64 else value
