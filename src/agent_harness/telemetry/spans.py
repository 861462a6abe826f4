"""Starters whose span name selects the attributes (harness-v2 §18): what is not in the vocabulary is a type error.

`await start_harness_span(parent, "pi.harness.turn", {"pi.lane.name": ..., ...}, work)` runs `work(span)` in a child of
`parent`. A missing, unknown or mistyped attribute, a value outside of a closed set and a misspelt name are rejected by
mypy and pyright; nothing of that is checked again at run time.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast, overload

from .attributes import (
    AiRequestEnd,
    AiRequestStart,
    CheckpointStart,
    CompactionStart,
    EventHandlerStart,
    HookEnd,
    HookStart,
    NavigationStart,
    NoEnd,
    RunEnd,
    RunStart,
    SleepEnd,
    SleepStart,
    StepEnd,
    StepStart,
    StructuralEnd,
    ToolEnd,
    ToolStart,
    TurnStart,
    WriteEnd,
    WriteStart,
)
from .context import TelemetryContext
from .schema import BoundSpanStarter, Span, Starting, Work, start_typed_span
from .vocabulary import AiTelemetrySchema, HarnessTelemetrySchema

T = TypeVar("T")
EndT = TypeVar("EndT")
Parent: TypeAlias = TelemetryContext


def start_ai_span(
    parent: Parent, name: Literal["pi.ai.request"], attributes: AiRequestStart, callback: Work[AiRequestEnd, T]
) -> Starting[T]:
    """Run `callback` in a model-request span under `parent`; its result or exception passes through unchanged."""
    return start_typed_span(parent, name, attributes, callback)


@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.run"], attributes: RunStart, callback: Work[RunEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent,
    name: Literal["pi.harness.compaction"],
    attributes: CompactionStart,
    callback: Work[StructuralEnd, T],
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent,
    name: Literal["pi.harness.navigation"],
    attributes: NavigationStart,
    callback: Work[StructuralEnd, T],
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.checkpoint"], attributes: CheckpointStart, callback: Work[NoEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.turn"], attributes: TurnStart, callback: Work[NoEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.step"], attributes: StepStart, callback: Work[StepEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.tool"], attributes: ToolStart, callback: Work[ToolEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.hook"], attributes: HookStart, callback: Work[HookEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.sleep"], attributes: SleepStart, callback: Work[SleepEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.harness.event_handler"], attributes: EventHandlerStart, callback: Work[NoEnd, T]
) -> Starting[T]: ...
@overload
def start_harness_span(
    parent: Parent, name: Literal["pi.session.write"], attributes: WriteStart, callback: Work[WriteEnd, T]
) -> Starting[T]: ...
def start_harness_span(
    parent: Parent, name: str, attributes: object, callback: Callable[[Any], Awaitable[T]]
) -> Starting[T]:
    """Run `callback` in a span `name` under `parent`; its result or exception passes through unchanged."""
    return start_typed_span(parent, name, attributes, callback)


class AgentSpanStarter(Protocol):
    """Starts any agent span under the context it was bound to.

    The callback receives the span and a starter bound to it, so that nesting needs no parent argument:
    `await start("pi.harness.step", {...}, work)` with `async def work(span, start_child)`.
    """

    @overload
    def __call__(
        self, name: Literal["pi.ai.request"], attributes: AiRequestStart, callback: "NestedWork[AiRequestEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.harness.run"], attributes: RunStart, callback: "NestedWork[RunEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self,
        name: Literal["pi.harness.compaction"],
        attributes: CompactionStart,
        callback: "NestedWork[StructuralEnd, T]",
        /,
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self,
        name: Literal["pi.harness.navigation"],
        attributes: NavigationStart,
        callback: "NestedWork[StructuralEnd, T]",
        /,
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.harness.checkpoint"], attributes: CheckpointStart, callback: "NestedWork[NoEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.harness.turn"], attributes: TurnStart, callback: "NestedWork[NoEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.harness.step"], attributes: StepStart, callback: "NestedWork[StepEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.harness.tool"], attributes: ToolStart, callback: "NestedWork[ToolEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.harness.hook"], attributes: HookStart, callback: "NestedWork[HookEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.harness.sleep"], attributes: SleepStart, callback: "NestedWork[SleepEnd, T]", /
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self,
        name: Literal["pi.harness.event_handler"],
        attributes: EventHandlerStart,
        callback: "NestedWork[NoEnd, T]",
        /,
    ) -> Starting[T]: ...
    @overload
    def __call__(
        self, name: Literal["pi.session.write"], attributes: WriteStart, callback: "NestedWork[WriteEnd, T]", /
    ) -> Starting[T]: ...


NestedWork: TypeAlias = Callable[[Span[EndT], AgentSpanStarter], Awaitable[T]]


def create_typed_span_starter(
    context: TelemetryContext, schemas: tuple[AiTelemetrySchema, HarnessTelemetrySchema]
) -> AgentSpanStarter:
    """Bind `context` as the parent of whatever the starter starts.

    `schemas` is `AGENT_TELEMETRY_SCHEMAS`, for its type alone: it is neither read nor kept.
    """
    return cast("AgentSpanStarter", BoundSpanStarter(context))
