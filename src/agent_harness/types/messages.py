"""Agent messages, their content parts, usage and stop reasons (harness-v2 §8 "Type provenance", §16).

Everything here comes from outside (users, providers, tools), so unknown keys are kept in `extra`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, GetCoreSchemaHandler, Tag, with_config
from pydantic_core import core_schema

from .json import JsonValue
from .wire import WIRE, Absent, Bool, Int, Json, JsonMark, JsonObject, Number, Open

StopReason: TypeAlias = Literal["pending", "stop", "length", "toolUse", "error", "aborted", "deferred"]
TerminalStopReason: TypeAlias = Literal["stop", "length", "toolUse", "error", "aborted", "deferred"]
ThinkingLevel: TypeAlias = str
"""`off`, `minimal`, `low`, `medium`, `high`, `xhigh`; open, since providers add levels."""

Extra: TypeAlias = Annotated[Mapping[str, JsonValue], JsonMark()]


def no_extra() -> dict[str, JsonValue]:
    """No unknown keys."""
    return {}


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class TextContent(Open):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str
    text_signature: Absent[str] = None
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingContent(Open):
    """Model reasoning; the signature is what its provider needs to accept it again."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    thinking_signature: Absent[str] = None
    redacted: Absent[Bool] = None
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageContent(Open):
    """An image, base64 in `data`."""

    type: Literal["image"] = "image"
    data: str
    mime_type: str
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(Open):
    """A call the model asks for. `id` is the provider's and may repeat or be empty; identity is (entry, index)."""

    type: Literal["toolCall"] = "toolCall"
    id: str
    name: str
    arguments: JsonObject
    thought_signature: Absent[str] = None
    extra: Extra = field(default_factory=no_extra)


AgentToolCall: TypeAlias = ToolCall


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Open):
    """Money, in the currency of the price list (US dollars)."""

    input: Number = 0
    output: Number = 0
    cache_read: Number = 0
    cache_write: Number = 0
    total: Number = 0
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Open):
    """Tokens and cost. `input` excludes cached tokens, `output` includes reasoning (decisions section 7)."""

    input: Number = 0
    output: Number = 0
    cache_read: Number = 0
    cache_write: Number = 0
    total_tokens: Number = 0
    cost: Cost = field(default_factory=Cost)
    reasoning: Absent[Number] = None  # the part of `output` that was reasoning
    extra: Extra = field(default_factory=no_extra)


UserContent: TypeAlias = Annotated[TextContent | ImageContent, Discriminator("type")]
AssistantContent: TypeAlias = Annotated[TextContent | ThinkingContent | ToolCall, Discriminator("type")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredHandle(Open):
    """The durable fact a deferred request leaves: enough to redeem it in another process (harness-v2 §16)."""

    provider: str
    model_id: str
    api: str
    id: str
    expires_at: Absent[Int] = None  # Unix ms
    poll_after_ms: Absent[Int] = None
    data: Absent[Json] = None
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage(Open):
    """What a person, a queue or an application says to the model."""

    role: Literal["user"] = "user"
    content: str | tuple[UserContent, ...]
    timestamp: Int  # Unix ms
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage(Open):
    """One answer of a model. Provider errors are in-band: `stop_reason` "error" with `error_message`."""

    role: Literal["assistant"] = "assistant"
    content: tuple[AssistantContent, ...]
    api: str
    provider: str
    model: str
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason
    timestamp: Int  # Unix ms
    error_message: Absent[str] = None
    deferred: Absent[DeferredHandle] = None  # present iff stop_reason is "deferred"
    error_code: Absent[str] = None  # ours: overflow, rate_limit, transport, auth, invalid_request, ...
    retry_after_ms: Absent[Int] = None  # what the provider asked to wait
    response_id: Absent[str] = None
    response_model: Absent[str] = None
    raw_stop_reason: Absent[str] = None  # for diagnostics; core logic never reads it
    extra: Extra = field(default_factory=no_extra)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of this message in source order; the index in this tuple is `toolIndex` (A-3)."""
        return tuple(part for part in self.content if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, TextContent))


SettledAssistantMessage: TypeAlias = AssistantMessage
"""An assistant message whose stop reason is not "pending"; appends check it (harness-v2 §12)."""


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultMessage(Open):
    """The outcome of one call, as the model sees it."""

    role: Literal["toolResult"] = "toolResult"
    tool_call_id: str
    tool_name: str
    content: tuple[UserContent, ...]
    is_error: Bool
    timestamp: Int  # Unix ms
    details: Absent[Json] = None
    usage: Absent[Usage] = None
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class BashExecutionMessage(Open):
    """A command that the user ran beside the conversation."""

    role: Literal["bashExecution"] = "bashExecution"
    command: str
    output: str
    exit_code: Absent[Int] = None
    cancelled: Bool = False
    truncated: Bool = False
    full_output_path: Absent[str] = None
    exclude_from_context: Absent[Bool] = None
    timestamp: Int  # Unix ms
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMessage(Open):
    """A message an extension puts into context; `display` says whether a UI shows it."""

    role: Literal["custom"] = "custom"
    custom_type: str
    content: str | tuple[UserContent, ...]
    display: Bool = True
    details: Absent[Json] = None
    timestamp: Int  # Unix ms
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSummaryMessage(Open):
    """What a branch summary entry looks like in context."""

    role: Literal["branchSummary"] = "branchSummary"
    summary: str
    from_id: str
    timestamp: Int  # Unix ms
    extra: Extra = field(default_factory=no_extra)


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSummaryMessage(Open):
    """What a compaction entry looks like in context, before its retained tail."""

    role: Literal["compactionSummary"] = "compactionSummary"
    summary: str
    tokens_before: Number
    timestamp: Int  # Unix ms
    extra: Extra = field(default_factory=no_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionMessage:
    """A message of a role the application registered; without the registration it is kept and shown as it is.

    `fields` holds the whole message but its role. Never dropped, never `None` (case 43).
    """

    role: str
    fields: Extra

    @property
    def timestamp(self) -> int:
        """Unix ms, 0 when the message carries none."""
        value = self.fields.get("timestamp")
        return value if type(value) is int else 0

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def build(value: dict[str, JsonValue]) -> "ExtensionMessage":
            role = value["role"]
            assert isinstance(role, str)
            return cls(role=role, fields={k: v for k, v in value.items() if k != "role"})

        return core_schema.no_info_after_validator_function(build, handler.generate_schema(dict[str, JsonValue]))


KNOWN_ROLES = frozenset(
    {"user", "assistant", "toolResult", "bashExecution", "custom", "branchSummary", "compactionSummary"}
)


def _role(value: object) -> str | None:
    role: object = value.get("role") if isinstance(value, dict) else getattr(value, "role", None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(role, str) or not role or role != role.strip():
        return None
    return role if role in KNOWN_ROLES else "extension"


AgentMessage: TypeAlias = Annotated[
    Annotated[UserMessage, Tag("user")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolResultMessage, Tag("toolResult")]
    | Annotated[BashExecutionMessage, Tag("bashExecution")]
    | Annotated[CustomMessage, Tag("custom")]
    | Annotated[BranchSummaryMessage, Tag("branchSummary")]
    | Annotated[CompactionSummaryMessage, Tag("compactionSummary")]
    | Annotated[ExtensionMessage, Tag("extension")],
    Discriminator(_role),
]
"""Everything that may stand in the tree as a message, by `role`; an unknown role is an `ExtensionMessage`."""

Message: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage
"""What a provider is sent: the projection's output."""
