"""A model, tools and a recorder for the in-memory loop."""

from collections.abc import Awaitable, Callable

from agent_harness import AgentTool, AgentToolResult, ModelRegistry, TextContent, ToolInvocation, UserMessage
from agent_harness.loop import AgentContext, AgentEvent, AgentLoopConfig
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider
from agent_harness.types.messages import AgentMessage, AssistantMessage, ToolResultMessage

NO_ARGUMENTS = {"type": "object"}


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=0)


def config(provider: object, **options: object) -> AgentLoopConfig:
    models = ModelRegistry([provider], [SCRIPTED_MODEL])
    return AgentLoopConfig(model=SCRIPTED_MODEL, models=models, now_ms=lambda: 7, **options)


def scripted(*answers: AssistantMessage | str, **options: object) -> tuple[AgentLoopConfig, ScriptedProvider]:
    provider = ScriptedProvider(answers=answers)
    return config(provider, **options), provider


def tool(name: str, execute: Callable[[ToolInvocation], Awaitable[AgentToolResult]], **options: object) -> AgentTool:
    return AgentTool(name=name, description=name, parameters=NO_ARGUMENTS, execute=execute, **options)


def says(name: str, **options: object) -> AgentTool:
    """A tool that returns its own name."""

    async def execute(_invocation: ToolInvocation) -> AgentToolResult:
        return result(name)

    return tool(name, execute, **options)


def result(text: str, terminate: bool | None = None) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text=text),), terminate=terminate)


def context(*tools: AgentTool, messages: tuple[AgentMessage, ...] = ()) -> AgentContext:
    return AgentContext(messages=messages, system_prompt="Be brief.", tools=tools)


def shown(message: AgentMessage) -> str:
    """`user hi`, `assistant toolUse`, `toolResult text`, `toolResult! text` for an error."""
    match message:
        case UserMessage(content=str() as text):
            return f"user {text}"
        case AssistantMessage():
            return f"assistant {message.stop_reason}"
        case ToolResultMessage():
            text = "".join(part.text for part in message.content if isinstance(part, TextContent))
            return f"toolResult{'!' if message.is_error else ''} {text}"
        case _:
            raise AssertionError(message)


class Recorder:
    """A sink; `lines` is what it was told, one line per event."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def __call__(self, event: AgentEvent) -> None:
        self.events.append(event)

    @property
    def lines(self) -> list[str]:
        return [line(event) for event in self.events]


def line(event: AgentEvent) -> str:
    match event.type:
        case "message_start" | "message_end":
            return f"{event.type} {shown(event.message)}"
        case "tool_execution_start":
            return f"{event.type} {event.tool_call_id}"
        case "tool_execution_update":
            return f"{event.type} {event.tool_call_id} {event.partial_result.content[0].text}"
        case "tool_execution_end":
            return f"{event.type} {event.tool_call_id}{'!' if event.is_error else ''}"
        case "turn_end":
            return f"turn_end {len(event.tool_results)}"
        case "agent_end":
            return f"agent_end {len(event.messages)}"
        case _:
            return event.type
