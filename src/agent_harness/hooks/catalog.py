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
