"""Telemetry schemas as plain serialisable data, and the one typed hand-off to an open context (harness-v2 §18).

A schema documents and types what instrumentation may emit. Nothing here reads one while spans are started.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, Never, NotRequired, Protocol, TypeAlias, TypedDict, TypeVar, cast

from .context import SpanAttributes, SpanStatus, TelemetryContext, TelemetrySpan

T = TypeVar("T")
EndT_contra = TypeVar("EndT_contra", contravariant=True)
EndT = TypeVar("EndT")

AttributeType: TypeAlias = Literal["string", "number", "boolean", "string[]", "number[]", "boolean[]"]
Cardinality: TypeAlias = Literal["low", "high"]


class AttributeDefinition(TypedDict):
    """One attribute. `values` closes a scalar's set, `elementValues` closes the set of an array's elements."""

    type: AttributeType
    description: str
    sensitive: NotRequired[bool]
    cardinality: NotRequired[Cardinality]
    values: NotRequired[Sequence[str | float | bool]]
    elementValues: NotRequired[Sequence[str | float | bool]]
    examples: NotRequired[Sequence[object]]


class RequirableAttributeDefinition(AttributeDefinition):
    """An attribute of a span's start or of an event: it is there always, or sometimes."""

    required: bool


class EventDefinition(TypedDict):
    """A point in time that a span may record."""

    description: str
    attributes: Mapping[str, RequirableAttributeDefinition]


class AnyParent(TypedDict):
    """The span may be a root, or stand under any span."""

    kind: Literal["any"]


class RootOrExternalParent(TypedDict):
    """The span is a root, or its parent is the application's own span, outside of the pi schemas."""

    kind: Literal["root_or_external"]


class SpansParent(TypedDict):
    """The span stands directly under one of these spans, and nowhere else."""

    kind: Literal["spans"]
    spans: Sequence[str]


ParentDefinition: TypeAlias = AnyParent | RootOrExternalParent | SpansParent


class StatusDefinition(TypedDict):
    """A span ends `ok` unless it raises or `errorWhen` holds."""

    default: Literal["ok"]
    errorWhen: str


class SpanDefinition(TypedDict):
    """One span. End attributes are enrichment: each is optional, and none of them ends the span."""

    description: str
    parents: ParentDefinition
    startAttributes: Mapping[str, RequirableAttributeDefinition]
    endAttributes: Mapping[str, AttributeDefinition]
    events: NotRequired[Mapping[str, EventDefinition]]
    status: StatusDefinition


class TelemetrySchema(TypedDict):
    """A versioned vocabulary. The version starts at 1; the changelog records what changed with it."""

    version: int
    spans: Mapping[str, SpanDefinition]


class Span(TelemetryContext, Protocol[EndT_contra]):
    """A running span as its schema allows to use it; at run time it is the adapter's own `TelemetrySpan`.

    It is a `TelemetryContext` too: pass it on as the parent of the work below.
    """

    def set_attributes(self, attributes: EndT_contra) -> None:
        """Merge end attributes; a later value wins."""
        ...

    def set_status(self, status: SpanStatus) -> None:
        """Set the status of an expected failure; the last call wins over the automatic one."""
        ...

    def add_event(self, name: Never) -> None:
        """No schema declares an event yet, so that no name is accepted."""
        ...


Work: TypeAlias = Callable[[Span[EndT]], Awaitable[T]]
"""What happens inside of a span whose end attributes are `EndT`."""

Starting: TypeAlias = Coroutine[Any, Any, T]
"""What an `async def` returns. The two `Any` are what a coroutine yields and is sent: the event loop's affair."""


def start_typed_span(
    parent: TelemetryContext, name: str, attributes: object, callback: Callable[[Any], Awaitable[T]]
) -> Starting[T]:
    """Start `name` under `parent`. The typed starters end here; a vocabulary of one's own may use it likewise.

    The coroutine is the parent's own and no object stands between: `attributes` is not looked at, and the span that
    `callback` receives is the adapter's. `Any` is erasure: the caller's overload has tied both to the name.
    """
    return parent.start_span(name, cast("SpanAttributes", attributes), callback)


class BoundSpanStarter:
    """A starter bound to one explicit parent. Its callbacks receive a starter bound to the child beside the child.

    There is no ambient state: callbacks that run at the same time hold independent starters. Under a context that
    hands itself out as the span, as the no-op does, the starter hands itself out too.
    """

    __slots__ = ("_context",)

    def __init__(self, context: TelemetryContext) -> None:
        self._context = context

    def __call__(self, name: str, attributes: object, callback: Callable[[Any, Any], Awaitable[T]], /) -> Starting[T]:
        """Start a child span of the bound parent."""
        context = self._context

        def work(span: TelemetrySpan) -> Awaitable[T]:
            return callback(span, self if span is context else BoundSpanStarter(span))

        return start_typed_span(context, name, attributes, work)
