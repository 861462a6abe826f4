"""Tools: what a tool is, and the values that pass between the phases of a call (harness-v2 §14)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pydantic import with_config

from .json import JsonValue
from .messages import ToolCall, ToolResultMessage, Usage, UserContent
from .records import Replay
from .wire import WIRE, Absent, Bool, Json

ExecutionMode: TypeAlias = Literal["sequential", "parallel"]


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class AgentToolResult:
    """What a tool returns. `details` is for applications; `content` is what the model sees."""

    content: tuple[UserContent, ...] = ()
    details: Absent[Json] = None
    usage: Absent[Usage] = None
    terminate: Absent[Bool] = None  # ends automatic continuation if every result of the batch says so


class CancelSignal(Protocol):
    """Tells a running effect that its result is no longer wanted. Safe to read from any thread."""

    @property
    def aborted(self) -> bool:
        """Whether cancellation was requested."""
        ...

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once on abort (at once if already aborted); returns the way to unregister it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrigin:
    """Where a durable call stands. (session, assistant entry, index) is its identity, the same in every replay; the
    call's id is the provider's and may repeat from turn to turn."""

    session_id: str
    lane: str
    run_id: str
    assistant_entry_id: str
    tool_index: int  # 0-based among the calls of the assistant message
    billed: Usage | None = None  # what the ledger holds already of an earlier execution of this call


class ToolFailed(Exception):
    """Raised by a tool whose failure is more than a text: the result, usage included, becomes the error result."""

    def __init__(self, result: AgentToolResult) -> None:
        super().__init__("the tool failed")
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvocation:
    """Everything a tool's function is handed."""

    tool_call_id: str
    args: dict[str, JsonValue]  # validated
    signal: CancelSignal
    context: object = field(default=None, repr=False)  # the application's tool_context
    update: Callable[[AgentToolResult], None] = field(default=lambda _partial: None)
    origin: ToolOrigin | None = None  # None outside of a session, in the in-memory loop


ToolFunction: TypeAlias = Callable[[ToolInvocation], Awaitable[AgentToolResult]]
BlockingToolFunction: TypeAlias = Callable[[ToolInvocation], AgentToolResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """A tool the model may call. `@tool` builds one from a typed function.

    Exactly one of `execute` and `execute_blocking` is set; a blocking function runs in a worker thread.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]  # JSON Schema of the arguments
    execute: ToolFunction | None = None
    execute_blocking: BlockingToolFunction | None = None
    validate: Callable[[dict[str, JsonValue]], dict[str, JsonValue]] | None = None  # raises ValueError
    replay: Replay = "never"
    execution_mode: ExecutionMode = "parallel"
    timeout_ms: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if (self.execute is None) == (self.execute_blocking is None):
            raise ValueError(f"tool {self.name!r}: set exactly one of execute and execute_blocking")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedToolCall:
    """Phase 1 cleared this call: nothing has started yet."""

    tool_call: ToolCall
    tool_index: int
    tool: AgentTool
    args: dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImmediateOutcome:
    """Phase 1 refused this call (unknown, invalid, blocked, aborted): no effect starts."""

    tool_call: ToolCall
    tool_index: int
    result: AgentToolResult
    is_error: Literal[True] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedToolCall:
    """Phase 2's raw result. `interrupted` when a cancellation stopped it before it finished."""

    result: AgentToolResult
    is_error: bool
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedToolCall:
    """Phase 3's result: what becomes the entry."""

    tool_call: ToolCall
    tool_index: int
    result: AgentToolResult
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBatchResult:
    """What a batch amounts to: its messages in source order, and whether all of them said terminate."""

    messages: tuple[ToolResultMessage, ...]
    terminate: bool
