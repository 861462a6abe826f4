"""The deterministic reference adapter: records spans in this process, for tests and local capture (harness-v2 §18).

No clock and no random ids: spans are numbered in start order and everything that happens takes the next tick of one
counter, so that equal work gives equal recordings.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from .context import NOOP, SpanAttributes, SpanStatus, TelemetrySpan
from .recording import OK_STATUS, RecordedValue, raised_status, read_attributes, read_status

T = TypeVar("T")
SpanTree: TypeAlias = list["str | tuple[str, SpanTree]"]
"""Span names in start order; a span with children is a pair of its name and their tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """A point in time inside of a span."""

    name: str
    attributes: Mapping[str, RecordedValue]
    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpan:
    """What one span has recorded so far."""

    id: int  # 1-based, in start order
    parent_id: int | None
    name: str
    start_attributes: Mapping[str, RecordedValue]
    end_attributes: Mapping[str, RecordedValue]  # set while running; later values have won
    events: tuple[RecordedEvent, ...]
    status: SpanStatus | None  # None while running, unless it was set
    started_tick: int
    ended_tick: int | None  # None while running

    @property
    def attributes(self) -> Mapping[str, RecordedValue]:
        """Start attributes with the later ones merged over them."""
        return {**self.start_attributes, **self.end_attributes}


class InMemoryTelemetryContext:
    """A root context that keeps what is recorded under it, for as long as it lives."""

    def __init__(self) -> None:
        self._spans: list[_MemorySpan] = []
        self._tick = 0

    async def start_span(
        self, name: str, attributes: SpanAttributes, callback: Callable[[TelemetrySpan], Awaitable[T]]
    ) -> T:
        """Run `callback` in a new root span."""
        return await self.run_span(None, name, attributes, callback)

    async def run_span(
        self,
        parent: "_MemorySpan | None",
        name: str,
        attributes: SpanAttributes,
        callback: Callable[[TelemetrySpan], Awaitable[T]],
    ) -> T:
        """Run `callback` in a new span under `parent`; with the no-op span when the payload cannot be read."""
        read = read_attributes(attributes)
        if read is None or not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return await callback(NOOP)
        span = _MemorySpan(self, parent, len(self._spans) + 1, name, read)
        self._spans.append(span)
        try:
            result = await callback(span)
        except BaseException as exception:
            span.settle(raised_status(exception))
            raise
        span.settle(OK_STATUS)
        return result

    def next_tick(self) -> int:
        """The position of the next thing that happens under this context, 1-based."""
        self._tick += 1
        return self._tick

    def spans(self, name: str | None = None) -> tuple[RecordedSpan, ...]:
        """All spans, or those of one name, running ones included, in start order."""
        return tuple(span.recorded() for span in self._spans if name is None or span.name == name)

    def tree(self, *, hide: frozenset[str] = frozenset()) -> SpanTree:
        """The names as they nest. A span named in `hide` is left out together with everything below it."""
        recorded = self.spans()

        def under(parent_id: int | None) -> SpanTree:
            found: SpanTree = []
            for span in recorded:
                if span.parent_id == parent_id and span.name not in hide:
                    below = under(span.id)
                    found.append((span.name, below) if below else span.name)
            return found

        return under(None)


class _MemorySpan:
    __slots__ = ("_context", "_end", "_ended", "_events", "_start", "_started", "_status", "id", "name", "parent")

    def __init__(
        self,
        context: InMemoryTelemetryContext,
        parent: "_MemorySpan | None",
        id: int,
        name: str,
        attributes: dict[str, RecordedValue],
    ) -> None:
        self._context = context
        self._start = attributes
        self._end: dict[str, RecordedValue] = {}
        self._events: list[RecordedEvent] = []
        self._status: SpanStatus | None = None
        self._started = context.next_tick()
        self._ended: int | None = None
        self.id = id
        self.name = name
        self.parent = parent

    async def start_span(
        self, name: str, attributes: SpanAttributes, callback: Callable[[TelemetrySpan], Awaitable[T]]
    ) -> T:
        if self._ended is not None:
            return await callback(NOOP)
        return await self._context.run_span(self, name, attributes, callback)

    def add_event(self, name: str, attributes: SpanAttributes | None = None) -> None:
        read = read_attributes({} if attributes is None else attributes)
        if self._ended is None and read is not None and isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._events.append(
                RecordedEvent(name=name, attributes=MappingProxyType(read), tick=self._context.next_tick())
            )

    def set_attributes(self, attributes: SpanAttributes) -> None:
        read = read_attributes(attributes)
        if self._ended is None and read is not None:
            self._end.update(read)

    def set_status(self, status: SpanStatus) -> None:
        read = read_status(status)
        if self._ended is None and read is not None:
            self._status = read

    def settle(self, automatic: SpanStatus) -> None:
        if self._status is None:
            self._status = automatic
        self._ended = self._context.next_tick()

    def recorded(self) -> RecordedSpan:
        return RecordedSpan(
            id=self.id,
            parent_id=None if self.parent is None else self.parent.id,
            name=self.name,
            start_attributes=MappingProxyType(dict(self._start)),
            end_attributes=MappingProxyType(dict(self._end)),
            events=tuple(self._events),
            status=self._status,
            started_tick=self._started,
            ended_tick=self._ended,
        )
