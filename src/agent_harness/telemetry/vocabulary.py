"""The pi-owned span vocabulary (harness-v2 §18): `pi.ai.*`, `pi.harness.*`, `pi.session.*` as serialisable data.

These schemas are everything our instrumentation may emit, and the source of `docs/telemetry-schema.md`. Identifiers
and names that vary are attribute values, never span names; no attribute carries content of a conversation.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, TypedDict, cast, get_args

from ..types.messages import TerminalStopReason
from ..types.records import CompactionReason, OperationKind, Replay, StepKind
from .schema import AttributeDefinition, AttributeType, ParentDefinition, RequirableAttributeDefinition, SpanDefinition

HookName: TypeAlias = Literal[
    "before_run",
    "before_resume",
    "before_run_end",
    "transform_context",
    "before_request",
    "before_payload",
    "after_response",
    "before_tool",
    "after_tool",
    "before_compaction",
    "before_navigation",
]
HOOK_NAMES: Final[tuple[HookName, ...]] = get_args(HookName)
"""Equal to the hook catalogue (`hooks/catalog.py`, harness-v2 §11), in its order."""

EventType: TypeAlias = Literal[
    "run_start",
    "run_resume",
    "run_suspend",
    "run_abort",
    "run_end",
    "fault",
    "handler_error",
    "turn_start",
    "turn_end",
    "retry_scheduled",
    "retry_start",
    "retry_end",
    "message_start",
    "message_update",
    "message_end",
    "tool_start",
    "tool_update",
    "tool_end",
    "entry_added",
    "write_pending",
    "queue_update",
    "fact_update",
    "config_update",
    "compaction_start",
    "compaction_end",
    "navigation_start",
    "navigation_end",
    "lane_created",
    "usage",
]
EVENT_TYPES: Final[tuple[EventType, ...]] = get_args(EventType)
"""Equal to the event catalogue (`events/catalog.py`, harness-v2 §10), in its order."""

AiOperation: TypeAlias = Literal["stream", "fetch_deferred", "cancel_deferred", "generate_images"]
ResponseStopReason: TypeAlias = Literal["stop", "length", "tool_use", "error", "aborted", "deferred"]
RunSpanOutcome: TypeAlias = Literal["completed", "aborted", "failed", "suspended"]
StructuralSpanOutcome: TypeAlias = Literal["completed", "declined", "aborted", "failed"]
CheckpointKind: TypeAlias = Literal["normal", "failure_drain", "abort_reconcile"]
StepOutcome: TypeAlias = Literal["succeeded", "retry", "failed", "aborted", "deferred", "overflow"]
HookOutcome: TypeAlias = Literal["completed", "skipped", "blocked", "failed"]
SleepOutcome: TypeAlias = Literal["elapsed", "aborted"]
SessionMutation: TypeAlias = Literal["entry", "record", "lane", "fact"]

AiSpanName: TypeAlias = Literal["pi.ai.request"]
"""Every span of model requests, which `start_ai_span` starts."""
HarnessSpanName: TypeAlias = Literal[
    "pi.harness.run",
    "pi.harness.compaction",
    "pi.harness.navigation",
    "pi.harness.checkpoint",
    "pi.harness.turn",
    "pi.harness.step",
    "pi.harness.tool",
    "pi.harness.hook",
    "pi.harness.sleep",
    "pi.harness.event_handler",
    "pi.session.write",
]
"""Every span of the harness, which `start_harness_span` starts."""
AgentSpanName: TypeAlias = AiSpanName | HarnessSpanName
"""Every span name there is."""

AiSpans = TypedDict("AiSpans", {"pi.ai.request": SpanDefinition})
HarnessSpans = TypedDict(
    "HarnessSpans",
    {
        "pi.harness.run": SpanDefinition,
        "pi.harness.compaction": SpanDefinition,
        "pi.harness.navigation": SpanDefinition,
        "pi.harness.checkpoint": SpanDefinition,
        "pi.harness.turn": SpanDefinition,
        "pi.harness.step": SpanDefinition,
        "pi.harness.tool": SpanDefinition,
        "pi.harness.hook": SpanDefinition,
        "pi.harness.sleep": SpanDefinition,
        "pi.harness.event_handler": SpanDefinition,
        "pi.session.write": SpanDefinition,
    },
)


class AiTelemetrySchema(TypedDict):
    """The shape of `AI_TELEMETRY_SCHEMA`: a `TelemetrySchema` whose span names are known to the checkers."""

    version: int
    spans: AiSpans


class HarnessTelemetrySchema(TypedDict):
    """The shape of `HARNESS_TELEMETRY_SCHEMA`."""

    version: int
    spans: HarnessSpans


def telemetry_stop_reason(reason: TerminalStopReason) -> ResponseStopReason:
    """The stop reason as telemetry spells it: `toolUse` is `tool_use`. A pending message has no span end to tell it."""
    return "tool_use" if reason == "toolUse" else reason


def _attribute(
    type: AttributeType, description: str, values: object = None, *, high: bool = False, low: bool = False
) -> AttributeDefinition:
    definition: AttributeDefinition = {"type": type, "description": description}
    if values is not None:
        definition["values"] = cast("Sequence[str]", list(get_args(values)))
    if high or low:
        definition["cardinality"] = "high" if high else "low"
    return definition


def _required(
    type: AttributeType, description: str, values: object = None, *, high: bool = False, low: bool = False
) -> RequirableAttributeDefinition:
    return {**_attribute(type, description, values, high=high, low=low), "required": True}


def _optional(
    type: AttributeType, description: str, values: object = None, *, high: bool = False, low: bool = False
) -> RequirableAttributeDefinition:
    return {**_attribute(type, description, values, high=high, low=low), "required": False}


def _under(*spans: HarnessSpanName) -> ParentDefinition:
    return {"kind": "spans", "spans": list(spans)}


_ONLY_RAISED: Final = "the work raises"
_LANE: Final = _required("string", "Lane name.", high=True)
_OPERATION_ID: Final = _required("string", "Durable operation id.", high=True)
_MAYBE_OPERATION_ID: Final = _optional("string", "Durable operation id, inside of an operation.", high=True)
_LANE_AND_OPERATION: Final = {"pi.lane.name": _LANE, "pi.operation.id": _OPERATION_ID}


def _operation(kind: OperationKind, description: str, outcome: object) -> SpanDefinition:
    return {
        "description": description,
        "parents": {"kind": "root_or_external"},
        "startAttributes": {
            "pi.session.id": _required("string", "Session id.", high=True),
            **_LANE_AND_OPERATION,
            "pi.operation.recovery": _required("boolean", "Whether resume() admitted this invocation."),
            "pi.operation.kind": {**_required("string", "The operation's kind."), "values": [kind]},
        },
        "endAttributes": {
            "pi.operation.outcome": _attribute("string", "How the invocation ended.", outcome),
            "pi.error.code": _attribute("string", "Error code, with error status.", low=True),
            "pi.error.type": _attribute("string", "Error class, with error status.", low=True),
        },
        "status": {"default": "ok", "errorWhen": f"outcome is failed, or {_ONLY_RAISED}"},
    }


AI_TELEMETRY_SCHEMA: Final[AiTelemetrySchema] = {
    "version": 1,
    "spans": {
        "pi.ai.request": {
            "description": "One logical model request, as the request wrapper sees it.",
            "parents": {"kind": "any"},
            "startAttributes": {
                "pi.ai.operation": _required("string", "What is asked of the provider.", AiOperation),
                "pi.ai.provider": _required("string", "Selected provider id."),
                "pi.ai.model": _required("string", "Requested model id."),
                "pi.ai.api": _required("string", "Provider API id."),
                "pi.ai.streaming": _required("boolean", "Whether this operation returns a stream."),
                "pi.ai.deferred": _optional(
                    "boolean", "Whether the operation requests or takes part in deferred execution."
                ),
            },
            "endAttributes": {
                "pi.ai.response.model": _attribute("string", "Concrete response model, when reported."),
                "pi.ai.response.id": _attribute("string", "Provider response id.", high=True),
                "pi.ai.response.stop_reason": _attribute("string", "Terminal stop reason.", ResponseStopReason),
                "pi.ai.http.status_code": _attribute("number", "Final HTTP status, when the provider path has one."),
                "pi.ai.usage.input_tokens": _attribute("number", "Reported input tokens, cached ones excluded."),
                "pi.ai.usage.output_tokens": _attribute("number", "Reported output tokens."),
                "pi.ai.usage.cache_read_tokens": _attribute("number", "Reported cache-read tokens."),
                "pi.ai.usage.cache_write_tokens": _attribute("number", "Reported cache-write tokens."),
                "pi.ai.usage.reasoning_tokens": _attribute("number", "Reported reasoning part of the output tokens."),
                "pi.ai.usage.total_tokens": _attribute("number", "Reported total tokens."),
                "pi.ai.usage.cost": _attribute("number", "Reported total cost."),
                "pi.ai.stream.chunk_count": _attribute("number", "Streamed update chunks, without their content."),
                "pi.ai.stream.time_to_first_chunk_ms": _attribute("number", "Milliseconds to the first update chunk."),
                "pi.ai.error.type": _attribute("string", "Provider or transport error class.", low=True),
            },
            "status": {
                "default": "ok",
                "errorWhen": f"the result's stop reason is error (aborted and deferred are normal), or {_ONLY_RAISED}",
            },
        }
    },
}
"""The model-request vocabulary, as serialisable data: one span."""

HARNESS_TELEMETRY_SCHEMA: Final[HarnessTelemetrySchema] = {
    "version": 1,
    "spans": {
        "pi.harness.run": _operation("run", "One admitted invocation of a run: a prompt or a resume.", RunSpanOutcome),
        "pi.harness.compaction": _operation(
            "compaction", "One admitted invocation of a manual compaction.", StructuralSpanOutcome
        ),
        "pi.harness.navigation": _operation(
            "navigation", "One admitted invocation of a navigation.", StructuralSpanOutcome
        ),
        "pi.harness.checkpoint": {
            "description": "The work between two turns: drains, reconciliation, automatic compaction.",
            "parents": _under("pi.harness.run"),
            "startAttributes": {
                **_LANE_AND_OPERATION,
                "pi.checkpoint.kind": _required("string", "Why the checkpoint runs.", CheckpointKind),
            },
            "endAttributes": {},
            "status": {"default": "ok", "errorWhen": _ONLY_RAISED},
        },
        "pi.harness.turn": {
            "description": "One turn: an assistant step and its tool batch.",
            "parents": _under("pi.harness.run"),
            "startAttributes": {**_LANE_AND_OPERATION, "pi.turn.id": _required("string", "Turn id.", high=True)},
            "endAttributes": {},
            "status": {"default": "ok", "errorWhen": _ONLY_RAISED},
        },
        "pi.harness.step": {
            "description": "One attempt at a retryable step.",
            "parents": _under(
                "pi.harness.turn", "pi.harness.checkpoint", "pi.harness.compaction", "pi.harness.navigation"
            ),
            "startAttributes": {
                **_LANE_AND_OPERATION,
                "pi.step.kind": _required("string", "What the step produces.", StepKind),
                "pi.step.attempt": _required("number", "Attempt, 1-based within the step."),
                "pi.compaction.reason": _optional("string", "Why a compaction step runs.", CompactionReason),
            },
            "endAttributes": {"pi.step.outcome": _attribute("string", "How the attempt ended.", StepOutcome)},
            "status": {"default": "ok", "errorWhen": f"outcome is retry or failed, or {_ONLY_RAISED}"},
        },
        "pi.harness.tool": {
            "description": "The execution of one tool call, before after_tool; blocked and invalid calls have none.",
            "parents": _under("pi.harness.turn", "pi.harness.run"),
            "startAttributes": {
                **_LANE_AND_OPERATION,
                "pi.turn.id": _optional("string", "Turn id; reconciliation has none.", high=True),
                "pi.tool.name": _required("string", "Tool name."),
                "pi.tool.call_id": _required("string", "Tool call id.", high=True),
                "pi.tool.replay": _required("string", "The tool's replay declaration.", Replay),
                "pi.tool.recovery": _required(
                    "boolean", "Whether a resumed run makes the call itself, outside of a turn."
                ),
            },
            "endAttributes": {"pi.tool.is_error": _attribute("boolean", "Whether the raw result is an error.")},
            "status": {"default": "ok", "errorWhen": f"pi.tool.is_error is true, or {_ONLY_RAISED}"},
        },
        "pi.harness.hook": {
            "description": "One invocation of one registered hook handler.",
            "parents": {"kind": "any"},
            "startAttributes": {
                "pi.lane.name": _LANE,
                "pi.operation.id": _MAYBE_OPERATION_ID,
                "pi.hook.name": _required("string", "The hook.", HookName),
                "pi.hook.registration_id": _optional("string", "The handler's registration id."),
            },
            "endAttributes": {
                "pi.hook.outcome": _attribute(
                    "string", "What became of the handler; skipped: one before it decided.", HookOutcome
                )
            },
            "status": {"default": "ok", "errorWhen": "the handler raises, a fail-closed before_tool handler included"},
        },
        "pi.harness.sleep": {
            "description": "A retry delay.",
            "parents": _under("pi.harness.step", "pi.harness.run"),
            "startAttributes": {
                "pi.operation.id": _OPERATION_ID,
                "pi.sleep.delay_ms": _required("number", "Requested delay in milliseconds."),
            },
            "endAttributes": {"pi.sleep.outcome": _attribute("string", "How the delay ended.", SleepOutcome)},
            "status": {"default": "ok", "errorWhen": _ONLY_RAISED},
        },
        "pi.harness.event_handler": {
            "description": "One delivery of one event to one passive listener.",
            "parents": {"kind": "any"},
            "startAttributes": {
                "pi.event.type": _required("string", "The event's type.", EventType, low=True),
                "pi.lane.name": _optional("string", "Lane name, for an event of a lane.", high=True),
            },
            "endAttributes": {},
            "status": {"default": "ok", "errorWhen": "the listener raises; event delivery catches it after the span"},
        },
        "pi.session.write": {
            "description": "One committed mutation of the session; a conditional commit that writes nothing has none.",
            "parents": {"kind": "any"},
            "startAttributes": {
                "pi.lane.name": _LANE,
                "pi.operation.id": _MAYBE_OPERATION_ID,
                "pi.session.mutation": _required("string", "What is written.", SessionMutation),
                "pi.session.item_type": _optional("string", "Type of the entry, record or fact."),
            },
            "endAttributes": {"pi.session.seq": _attribute("number", "Committed sequence number, when known.")},
            "status": {"default": "ok", "errorWhen": "storage refuses"},
        },
    },
}
"""The vocabulary of operations, tools, hooks, listeners and writes, as serialisable data."""

AGENT_TELEMETRY_SCHEMAS: Final[tuple[AiTelemetrySchema, HarnessTelemetrySchema]] = (
    AI_TELEMETRY_SCHEMA,
    HARNESS_TELEMETRY_SCHEMA,
)
"""Both vocabularies side by side: their data and versions stay separate, their span names are disjoint."""
