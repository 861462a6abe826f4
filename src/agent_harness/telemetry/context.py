"""The explicit telemetry context (harness-v2 §18): a parent is always an argument, never ambient state."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar

AttributeValue: TypeAlias = str | float | bool | Sequence[str] | Sequence[float] | Sequence[bool]
"""What an attribute may hold: a scalar, or a list of one kind of them."""
SpanAttributes: TypeAlias = Mapping[str, AttributeValue | None]
"""Attributes by name; None records nothing."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanError:
    """What went wrong, by class and diagnostic sentence; never content."""

    name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanStatus:
    """How a span ended."""

    status: Literal["ok", "error"]
    error: SpanError | None = None


class TelemetryContext(Protocol):
    """A place under which spans are started."""

    async def start_span(
        self,
        name: str,
        attributes: SpanAttributes,
        callback: Callable[["TelemetrySpan"], Awaitable[T]],
    ) -> T:
        """Start a child span, run `callback` with it exactly once, end it when the callback settles.

        The first step of awaiting this creates the span and calls `callback`, before the event loop takes a turn. The
        callback's result or exception, `BaseException` included, passes through unchanged; returning ends the span
        `ok` and raising ends it `error`, unless a status was set. An adapter never raises on its own account: what it
        cannot read or record it drops, whole call by whole call. `conformance.py` holds adapters to this.
        """
        ...


class TelemetrySpan(TelemetryContext, Protocol):
    """A running span. All calls are inert after it settled."""

    def add_event(self, name: str, attributes: SpanAttributes | None = None) -> None:
        """Record a point in time."""
        ...

    def set_attributes(self, attributes: SpanAttributes) -> None:
        """Merge attributes; a later value wins, None is ignored."""
        ...

    def set_status(self, status: SpanStatus) -> None:
        """Set the status; the last call wins over the automatic one."""
        ...


class NoopSpan:
    """Invokes callbacks and records nothing; one shared instance, no object per span, no look at any attribute."""

    async def start_span(
        self, name: str, attributes: SpanAttributes, callback: Callable[[TelemetrySpan], Awaitable[T]]
    ) -> T:
        """Run the callback with this same inert span."""
        return await callback(self)

    def add_event(self, name: str, attributes: SpanAttributes | None = None) -> None:
        """Nothing."""

    def set_attributes(self, attributes: SpanAttributes) -> None:
        """Nothing."""

    def set_status(self, status: SpanStatus) -> None:
        """Nothing."""


NOOP: TelemetrySpan = NoopSpan()
"""The default context."""
