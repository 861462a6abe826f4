"""The event and result type of each hook (harness-v2 §11). Every event carries the lane it happens on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..providers.base import Model, StreamOptions
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage, Usage, UserContent
from ..types.records import CompactionReason, OperationKind, StepKind
from ..types.structural import (
    CompactionPreparation,
    CompactResult,
    NavigationPreparation,
    Resources,
    SummaryResult,
)

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
"""The hooks that a handler can be registered for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookReplay:
    """When a hook runs: for fresh work, when a step is retried, and when an operation is resumed."""

    fresh: str
    retry: str
    resume: str


_PER_REQUEST = HookReplay(fresh="per request", retry="yes", resume="yes")
_STRUCTURAL = HookReplay(
    fresh="once per operation",
    retry="no",
    resume="not when the result entry or a `step_attempt` of this work exists",
)

REPLAY: Mapping[HookName, HookReplay] = {
    "before_run": HookReplay(fresh="once", retry="no", resume="no: its output is in `operation_started`"),
    "before_resume": HookReplay(fresh="no", retry="no", resume="yes: must be idempotent"),
    "before_run_end": HookReplay(
        fresh="at a normal finish boundary",
        retry="no",
        resume="at the boundary that recovery reaches, so it may repeat; never for abort or failure",
    ),
    "transform_context": _PER_REQUEST,
    "before_request": _PER_REQUEST,
    "before_payload": _PER_REQUEST,
    "after_response": HookReplay(fresh="per response", retry="per response", resume="per response"),
    "before_tool": HookReplay(fresh="once per call", retry="no", resume="not when `tool_started` exists"),
    "after_tool": HookReplay(
        fresh="once per executed result",
        retry="no",
        resume="on safe replay, and for a settled call whose entry is missing",
    ),
    "before_compaction": _STRUCTURAL,
    "before_navigation": _STRUCTURAL,
}
"""Hooks run again only where the work itself runs again; what a hook decided and was stored is never asked for twice
(harness-v2 §11, A-4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRun:
    """Once per run, before acceptance, on the caller's normalised prompt."""

    lane: str
    prompt: tuple[AgentMessage, ...]
    system_prompt: str
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRunResult:
    """Messages are appended after the prompt; a system prompt is fixed for the whole run."""

    messages: tuple[AgentMessage, ...] = ()
    system_prompt: str | None = None
    resume_data: JsonValue = None  # stored under the handler's registration id


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRunOutcome:
    """What all `before_run` handlers together decided."""

    messages: tuple[AgentMessage, ...] = ()
    system_prompt: str | None = None
    resume_data: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeResume:
    """On `resume()`, before any effect. Must be idempotent: a crash can run it again."""

    lane: str
    run_id: str
    kind: OperationKind
    prompt: tuple[AgentMessage, ...] = ()
    system_prompt_override: str | None = None
    resume_data: JsonValue = None  # only what this registration id stored


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRunEnd:
    """At a normal finish boundary. May fire again after a crash at the same boundary."""

    lane: str
    run_id: str
    messages: tuple[AgentMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRunEndResult:
    """A follow-up continues the same run."""

    follow_up: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformContext:
    """Per request, before the conversion to provider messages. Ephemeral."""

    lane: str
    messages: tuple[AgentMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformContextResult:
    """What is sent instead."""

    messages: tuple[AgentMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRequest:
    """Per request: provider-neutral options."""

    lane: str
    model: Model
    step: StepKind
    attempt: int
    stream_options: StreamOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRequestResult:
    """Fields that are set replace the current ones."""

    stream_options: StreamOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforePayload:
    """Per request: the provider's own wire payload. Last stop."""

    lane: str
    model: Model
    payload: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforePayloadResult:
    """The payload that is sent instead."""

    payload: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterResponse:
    """Per response, before the message is committed."""

    lane: str
    status: int
    headers: Mapping[str, str] = field(repr=False)
    message: AssistantMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterResponseResult:
    """The message that is committed instead; it must be settled."""

    message: AssistantMessage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeTool:
    """After validation, before execution."""

    lane: str
    run_id: str
    tool_call_id: str
    tool_name: str
    args: dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDecision:
    """`block` is the reason the model reads; `args` replace the arguments and are validated again."""

    args: dict[str, JsonValue] | None = None
    block: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterTool:
    """After execution, before the result is committed; on safe replay too, never on synthetic results."""

    lane: str
    run_id: str
    tool_call_id: str
    tool_name: str
    args: dict[str, JsonValue]
    content: tuple[UserContent, ...]
    details: JsonValue
    is_error: bool
    usage: Usage | None = None
    terminate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultPatch:
    """Field by field; None keeps what is there."""

    content: tuple[UserContent, ...] | None = None
    details: JsonValue = None
    is_error: bool | None = None
    usage: Usage | None = None
    terminate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeCompaction:
    """Decline or supply the summary."""

    lane: str
    run_id: str
    reason: CompactionReason
    preparation: CompactionPreparation
    custom_instructions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionDecision:
    """What to do with a compaction."""

    decline: bool = False
    compaction: CompactResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeNavigation:
    """Decline or supply the summary of the branch that is left."""

    lane: str
    run_id: str
    target_id: str | None
    preparation: NavigationPreparation


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationDecision:
    """What to do with a navigation."""

    decline: bool = False
    summary: SummaryResult | None = None
