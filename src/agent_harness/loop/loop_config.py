"""What the in-memory loop is given: a context, a configuration with its callbacks, and what the callbacks see."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..clock import SystemClock
from ..providers.base import Model, Models, OnPayload, OnResponse, StreamOptions
from ..types.messages import AgentMessage, AssistantMessage, ThinkingLevel, ToolResultMessage
from ..types.tools import AgentTool
from .stream import ConvertMessages, TransformMessages, convert_messages
from .tools import AfterToolCall, BeforeToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """What the model sees besides the prompts. Never changed by the loop."""

    messages: Sequence[AgentMessage] = ()
    system_prompt: str | None = field(default=None, repr=False)
    tools: Sequence[AgentTool] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """A finished turn, as `prepare_next_turn` and `should_stop_after_turn` see it."""

    message: AssistantMessage
    tool_results: tuple[ToolResultMessage, ...]
    context: AgentContext  # the messages of this turn included
    new_messages: tuple[AgentMessage, ...]  # everything the loop added so far


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTurn:
    """What `prepare_next_turn` changes from the next turn on; None keeps."""

    context: AgentContext | None = None
    model: Model | None = None
    thinking_level: ThinkingLevel | None = None


GetMessages: TypeAlias = Callable[[], Awaitable[Sequence[AgentMessage]] | Sequence[AgentMessage]]
PrepareNextTurn: TypeAlias = Callable[[TurnContext], Awaitable[NextTurn | None] | NextTurn | None]
ShouldStop: TypeAlias = Callable[[TurnContext], Awaitable[bool] | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoopConfig:
    """How the loop runs. What a callback raises ends the loop, `before_tool_call` and `after_tool_call` apart: their
    errors become error results of the call."""

    model: Model
    models: Models
    options: StreamOptions = field(default_factory=StreamOptions)
    transform_context: TransformMessages | None = None
    to_provider_messages: ConvertMessages = convert_messages
    on_payload: OnPayload | None = None
    on_response: OnResponse | None = None
    sequential_tools: bool = False
    tool_context: object = field(default=None, repr=False)  # reaches tools as `invocation.context`
    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    get_steering_messages: GetMessages | None = None  # asked before the first turn and after each
    get_follow_up_messages: GetMessages | None = None  # asked when the model would stop
    prepare_next_turn: PrepareNextTurn | None = None  # after each turn, before `should_stop_after_turn`
    should_stop_after_turn: ShouldStop | None = None
    now_ms: Callable[[], int] = field(default_factory=lambda: SystemClock().now_ms)
