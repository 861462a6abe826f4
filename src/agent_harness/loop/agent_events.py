"""What the in-memory loop reports, in order (harness-v2 §14 "Compatibility wrapper"). Not the harness's events.

agent_start
  turn_start
    message_start message_update* message_end       one answer; also each prompt, steering message and tool result
    tool_execution_start _update* _end              each call of the answer
  turn_end
agent_end
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..providers.base import AssistantMessageEvent
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage, ToolResultMessage
from ..types.tools import AgentToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStartEvent:
    """The loop begins."""

    type: Literal["agent_start"] = "agent_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndEvent:
    """The loop is over; `messages` are those it added, prompts included."""

    type: Literal["agent_end"] = "agent_end"
    messages: tuple[AgentMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStartEvent:
    """One answer and its tool batch begin."""

    type: Literal["turn_start"] = "turn_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEndEvent:
    """A turn is complete; `tool_results` are in the source order of the calls."""

    type: Literal["turn_end"] = "turn_end"
    message: AssistantMessage
    tool_results: tuple[ToolResultMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStartEvent:
    """A message begins; an answer is still "pending"."""

    type: Literal["message_start"] = "message_start"
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUpdateEvent:
    """An answer grew."""

    type: Literal["message_update"] = "message_update"
    message: AssistantMessage
    event: AssistantMessageEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEndEvent:
    """A message is final."""

    type: Literal["message_end"] = "message_end"
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionStartEvent:
    """A call is looked at; `args` are the model's, not yet validated."""

    type: Literal["tool_execution_start"] = "tool_execution_start"
    tool_call_id: str
    tool_name: str
    args: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionUpdateEvent:
    """A running tool reported progress."""

    type: Literal["tool_execution_update"] = "tool_execution_update"
    tool_call_id: str
    tool_name: str
    args: JsonValue
    partial_result: AgentToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecutionEndEvent:
    """A call has its final result; refused calls too."""

    type: Literal["tool_execution_end"] = "tool_execution_end"
    tool_call_id: str
    tool_name: str
    result: AgentToolResult
    is_error: bool


AgentEvent: TypeAlias = (
    AgentStartEvent
    | AgentEndEvent
    | TurnStartEvent
    | TurnEndEvent
    | MessageStartEvent
    | MessageUpdateEvent
    | MessageEndEvent
    | ToolExecutionStartEvent
    | ToolExecutionUpdateEvent
    | ToolExecutionEndEvent
)

AgentEventSink: TypeAlias = Callable[[AgentEvent], Awaitable[None] | None]
"""Receives every event, one after the other. What it raises ends the loop."""
