"""The options of `AgentHarness.create` and its settings (harness-v2 §8 "Options", ADR 0001)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from .providers.base import Model
from .reducer.predicates import QueueMode as QueueMode
from .session.context import EntryProjector
from .session.core import MessageValidator
from .types.messages import AgentMessage, ExtensionMessage, Message, ThinkingLevel, UserMessage
from .types.structural import Resources

Drive: TypeAlias = Literal["automatic", "manual"]
ToolExecution: TypeAlias = Literal["sequential", "parallel"]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RetryPolicy(_Settings):
    """How often a step is attempted and how long to wait between attempts; the count is durable.

    The n-th wait is `base_delay_ms * factor ** (n - 1)`, at most `max_delay_ms`; a provider that asks to wait longer is
    obeyed up to `max_retry_after_ms`.
    """

    max_attempts: int = Field(default=4, ge=1)
    base_delay_ms: int = Field(default=1_000, ge=0)
    factor: float = Field(default=2.0, ge=1)
    max_delay_ms: int = Field(default=60_000, ge=0)
    max_retry_after_ms: int = Field(default=600_000, ge=0)

    def delay_ms(self, attempt: int, retry_after_ms: int | None = None) -> int:
        """Milliseconds to wait after the failed `attempt` (1-based)."""
        own = min(self.max_delay_ms, round(self.base_delay_ms * self.factor ** (attempt - 1)))
        return max(own, min(retry_after_ms or 0, self.max_retry_after_ms))


class CompactionSettings(_Settings):
    """When to compact on its own, and how much of the newest conversation stays beside the summary."""

    enabled: bool = True
    reserve_tokens: int = Field(default=16_384, ge=0)  # left free in the window for the answer
    keep_recent_tokens: int = Field(default=20_000, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPromptContext:
    """What a system prompt callback is told, per request."""

    lane: str
    model: Model
    thinking_level: ThinkingLevel
    active_tool_names: tuple[str, ...]
    resources: Resources


SystemPrompt: TypeAlias = str | Callable[[SystemPromptContext], str | Awaitable[str]]
ToProviderMessages: TypeAlias = Callable[[Sequence[AgentMessage]], Sequence[Message] | Awaitable[Sequence[Message]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageType:
    """A custom message role of the application.

    `validate` raises ValueError for fields that do not fit; `to_user` says what the message tells the model, None for
    nothing.
    """

    role: str
    validate: MessageValidator
    to_user: Callable[[ExtensionMessage], UserMessage | None] = field(default=lambda _message: None)


EntryProjectors: TypeAlias = Mapping[str, EntryProjector]
