"""Environment: what the lanes of one harness share: session, registries, settings, clock, and the fault (§8, §15)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable

from ..clock import Clock
from ..errors import CorruptLog, HarnessClosed, HarnessFault, SessionError
from ..events.bus import Events
from ..events.catalog import Fault
from ..hooks.runner import Hooks
from ..loop.provider_stream import Abandoned
from ..options import (
    CompactionSettings,
    Drive,
    EntryProjectors,
    MessageType,
    RetryPolicy,
    SystemPrompt,
    SystemPromptContext,
    ToolExecution,
    ToProviderMessages,
)
from ..providers.base import Model, Models, StreamOptions
from ..reducer.predicates import QueueMode
from ..session.context import to_provider_messages
from ..session.session import Session
from ..telemetry.context import TelemetryContext
from ..types.messages import AgentMessage, ExtensionMessage, Message, Usage, UserMessage
from ..types.state import EffectiveLaneConfiguration
from ..types.structural import Resources
from ..types.tools import AgentTool


@dataclass(slots=True, kw_only=True)
class Environment:
    """Harness-global state. Settings may change at any time and are read anew for every request."""

    session: Session
    models: Models
    model: Model  # used where a lane's path names none
    thinking_level: str
    default_tool_names: tuple[str, ...] | None  # None: every registered tool
    tools: dict[str, AgentTool]
    tool_context: object = field(repr=False)
    system_prompt: SystemPrompt | None = field(repr=False)
    resources: Resources
    stream_options: StreamOptions
    retry: RetryPolicy
    compaction: CompactionSettings
    steering_mode: QueueMode
    follow_up_mode: QueueMode
    tool_execution: ToolExecution
    drive: Drive
    to_provider_messages: ToProviderMessages | None
    entry_projectors: EntryProjectors
    message_types: Mapping[str, MessageType]
    hooks: Hooks
    events: Events
    clock: Clock
    telemetry: TelemetryContext
    totals: Usage = field(default_factory=Usage)  # the session's ledger sum as of the last commit
    abandoned: Abandoned = field(default_factory=Abandoned)  # providers that did not listen to an abort
    fault: HarnessFault | None = None
    closed: bool = False
    on_fault: list[Callable[[HarnessFault], None]] = field(default_factory=list[Callable[[HarnessFault], None]])

    @property
    def defaults(self) -> EffectiveLaneConfiguration:
        """What applies where a lane's path says nothing."""
        names = tuple(self.tools) if self.default_tool_names is None else self.default_tool_names
        return EffectiveLaneConfiguration(
            model=self.model.ref, thinking_level=self.thinking_level, active_tool_names=names
        )

    def fail(self, cause: BaseException) -> HarnessFault:
        """Fault the whole harness, once; every later call gets the same instance."""
        if self.fault is None:
            if isinstance(cause, HarnessFault):
                self.fault = cause
            else:
                self.fault = HarnessFault(_told(cause), cause)
                self.fault.__cause__ = cause
            self.session.refuse_writes(str(self.fault))
            self.events.publish(Fault(code=type(cause).__name__, message=_told(cause)))
            for callback in self.on_fault:
                callback(self.fault)
        return self.fault

    def require_alive(self) -> None:
        """Refuse work on a dead harness.

        Raises:
            HarnessFault, HarnessClosed.
        """
        if self.fault is not None:
            raise self.fault
        if self.closed:
            raise HarnessClosed("the harness is closed")

    # What requests are made of ---------------------------------------------

    async def resolve_system_prompt(
        self, lane: str, model: Model, configuration: EffectiveLaneConfiguration
    ) -> str | None:
        """The system prompt as of now; a callback runs per request."""
        prompt = self.system_prompt
        if prompt is None or isinstance(prompt, str):
            return prompt
        context = SystemPromptContext(
            lane=lane,
            model=model,
            thinking_level=configuration.thinking_level,
            active_tool_names=configuration.active_tool_names,
            resources=self.resources,
        )
        resolved = prompt(context)
        return await resolved if isawaitable(resolved) else resolved

    async def resolve_tool_context(self) -> object:
        """The value tools receive; a callable is asked per call."""
        context = self.tool_context
        if not callable(context):
            return context
        resolved: object = context()
        return await _awaited(resolved) if isawaitable(resolved) else resolved

    async def convert(self, messages: Sequence[AgentMessage]) -> Sequence[Message]:
        """Agent messages -> provider messages; registered custom messages first say what they tell the model."""
        if self.to_provider_messages is not None:
            converted = self.to_provider_messages(messages)
            return await converted if isawaitable(converted) else converted
        return to_provider_messages(self.as_said(messages))

    def as_said(self, messages: Sequence[AgentMessage]) -> list[AgentMessage]:
        """`messages`, each registered custom one as the user message it tells the model."""
        return [self._told(message) for message in messages]

    def _told(self, message: AgentMessage) -> AgentMessage:
        return self.user_message_of(message) or message if isinstance(message, ExtensionMessage) else message

    def user_message_of(self, message: ExtensionMessage) -> UserMessage | None:
        """What a registered custom message tells the model."""
        registered = self.message_types.get(message.role)
        return registered.to_user(message) if registered is not None else None


def _told(cause: BaseException) -> str:
    """What a fault says: our own errors carry no content, the text of any other exception may."""
    ours = isinstance(cause, HarnessFault | CorruptLog | SessionError)
    return f"the harness stopped: {type(cause).__name__}" + (f": {cause}" if ours else "")


async def _awaited(value: Awaitable[object]) -> object:
    return await value
