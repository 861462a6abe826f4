"""What each span accepts, for the checkers: start, end and combined attributes per span name (harness-v2 §18).

The schemas of `vocabulary.py` say the same as data; a test holds the two together. Keys have dots, hence the
functional syntax. At run time these are plain dicts that nobody looks at. What is optional
may be given as None, which records nothing.
"""

from typing import Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar

from ..types.records import CompactionReason, Replay, StepKind
from .vocabulary import (
    AiOperation,
    CheckpointKind,
    EventType,
    HookName,
    HookOutcome,
    ResponseStopReason,
    RunSpanOutcome,
    SessionMutation,
    SleepOutcome,
    StepOutcome,
    StructuralSpanOutcome,
)

NameT = TypeVar("NameT")
AttributesT = TypeVar("AttributesT")


class NoEnd(TypedDict):
    """A span without end attributes."""


AiRequestStart = TypedDict(
    "AiRequestStart",
    {
        "pi.ai.operation": AiOperation,
        "pi.ai.provider": str,
        "pi.ai.model": str,
        "pi.ai.api": str,
        "pi.ai.streaming": bool,
        "pi.ai.deferred": NotRequired[bool | None],
    },
)
AiRequestEnd = TypedDict(
    "AiRequestEnd",
    {
        "pi.ai.response.model": str | None,
        "pi.ai.response.id": str | None,
        "pi.ai.response.stop_reason": ResponseStopReason | None,
        "pi.ai.http.status_code": float | None,
        "pi.ai.usage.input_tokens": float | None,
        "pi.ai.usage.output_tokens": float | None,
        "pi.ai.usage.cache_read_tokens": float | None,
        "pi.ai.usage.cache_write_tokens": float | None,
        "pi.ai.usage.reasoning_tokens": float | None,
        "pi.ai.usage.total_tokens": float | None,
        "pi.ai.usage.cost": float | None,
        "pi.ai.stream.chunk_count": float | None,
        "pi.ai.stream.time_to_first_chunk_ms": float | None,
        "pi.ai.error.type": str | None,
    },
    total=False,
)

LaneAndOperation = TypedDict("LaneAndOperation", {"pi.lane.name": str, "pi.operation.id": str})
OperationStart = TypedDict("OperationStart", {"pi.session.id": str, "pi.operation.recovery": bool})
OperationEnd = TypedDict("OperationEnd", {"pi.error.code": str | None, "pi.error.type": str | None}, total=False)

RunKind = TypedDict("RunKind", {"pi.operation.kind": Literal["run"]})
CompactionKind = TypedDict("CompactionKind", {"pi.operation.kind": Literal["compaction"]})
NavigationKind = TypedDict("NavigationKind", {"pi.operation.kind": Literal["navigation"]})
RunOutcomeEnd = TypedDict("RunOutcomeEnd", {"pi.operation.outcome": RunSpanOutcome | None}, total=False)
StructuralOutcomeEnd = TypedDict(
    "StructuralOutcomeEnd", {"pi.operation.outcome": StructuralSpanOutcome | None}, total=False
)


class RunStart(OperationStart, LaneAndOperation, RunKind): ...


class CompactionStart(OperationStart, LaneAndOperation, CompactionKind): ...


class NavigationStart(OperationStart, LaneAndOperation, NavigationKind): ...


class RunEnd(OperationEnd, RunOutcomeEnd): ...


class StructuralEnd(OperationEnd, StructuralOutcomeEnd): ...


CheckpointStart = TypedDict(
    "CheckpointStart", {"pi.lane.name": str, "pi.operation.id": str, "pi.checkpoint.kind": CheckpointKind}
)
TurnStart = TypedDict("TurnStart", {"pi.lane.name": str, "pi.operation.id": str, "pi.turn.id": str})
StepStart = TypedDict(
    "StepStart",
    {
        "pi.lane.name": str,
        "pi.operation.id": str,
        "pi.step.kind": StepKind,
        "pi.step.attempt": float,  # 1-based
        "pi.compaction.reason": NotRequired[CompactionReason | None],
    },
)
StepEnd = TypedDict("StepEnd", {"pi.step.outcome": StepOutcome | None}, total=False)
ToolStart = TypedDict(
    "ToolStart",
    {
        "pi.lane.name": str,
        "pi.operation.id": str,
        "pi.turn.id": NotRequired[str | None],
        "pi.tool.name": str,
        "pi.tool.call_id": str,
        "pi.tool.replay": Replay,
        "pi.tool.recovery": bool,
    },
)
ToolEnd = TypedDict("ToolEnd", {"pi.tool.is_error": bool | None}, total=False)
HookStart = TypedDict(
    "HookStart",
    {
        "pi.lane.name": str,
        "pi.operation.id": NotRequired[str | None],
        "pi.hook.name": HookName,
        "pi.hook.registration_id": NotRequired[str | None],
    },
)
HookEnd = TypedDict("HookEnd", {"pi.hook.outcome": HookOutcome | None}, total=False)
SleepStart = TypedDict("SleepStart", {"pi.operation.id": str, "pi.sleep.delay_ms": float})
SleepEnd = TypedDict("SleepEnd", {"pi.sleep.outcome": SleepOutcome | None}, total=False)
EventHandlerStart = TypedDict(
    "EventHandlerStart", {"pi.event.type": EventType, "pi.lane.name": NotRequired[str | None]}
)
WriteStart = TypedDict(
    "WriteStart",
    {
        "pi.lane.name": str,
        "pi.operation.id": NotRequired[str | None],
        "pi.session.mutation": SessionMutation,
        "pi.session.item_type": NotRequired[str | None],
    },
)
WriteEnd = TypedDict("WriteEnd", {"pi.session.seq": float | None}, total=False)


class AiRequestAttributes(AiRequestStart, AiRequestEnd): ...


class RunAttributes(RunStart, RunEnd): ...


class CompactionAttributes(CompactionStart, StructuralEnd): ...


class NavigationAttributes(NavigationStart, StructuralEnd): ...


class StepAttributes(StepStart, StepEnd): ...


class ToolAttributes(ToolStart, ToolEnd): ...


class HookAttributes(HookStart, HookEnd): ...


class SleepAttributes(SleepStart, SleepEnd): ...


class WriteAttributes(WriteStart, WriteEnd): ...


class SpanData(TypedDict, Generic[NameT, AttributesT]):
    """A span of a known name with everything it may have recorded."""

    name: NameT
    attributes: AttributesT


AiSpanData: TypeAlias = SpanData[Literal["pi.ai.request"], AiRequestAttributes]
"""A span of a request to a model."""
HarnessSpanData: TypeAlias = (
    SpanData[Literal["pi.harness.run"], RunAttributes]
    | SpanData[Literal["pi.harness.compaction"], CompactionAttributes]
    | SpanData[Literal["pi.harness.navigation"], NavigationAttributes]
    | SpanData[Literal["pi.harness.checkpoint"], CheckpointStart]
    | SpanData[Literal["pi.harness.turn"], TurnStart]
    | SpanData[Literal["pi.harness.step"], StepAttributes]
    | SpanData[Literal["pi.harness.tool"], ToolAttributes]
    | SpanData[Literal["pi.harness.hook"], HookAttributes]
    | SpanData[Literal["pi.harness.sleep"], SleepAttributes]
    | SpanData[Literal["pi.harness.event_handler"], EventHandlerStart]
    | SpanData[Literal["pi.session.write"], WriteAttributes]
)
"""A span of the harness's own work, told apart by `name`."""
AgentSpanData: TypeAlias = AiSpanData | HarnessSpanData
"""Every span of the agent vocabulary, told apart by `name`."""
