"""Scenarios whose tools and models act on a world of files, so that a crash copy takes their effects along."""

from collections.abc import Callable

from agent_harness import AgentHarness, AgentTool, AgentToolResult, RetryPolicy, Session, TextContent, ToolInvocation
from agent_harness.hooks.catalog import BeforeTool, ToolDecision
from agent_harness.options import Drive
from agent_harness.providers.base import ModelRegistry
from agent_harness.testing import (
    SCRIPTED_MODEL,
    ManualClock,
    Scenario,
    ScriptedProvider,
    ScriptedRequest,
    World,
    answer,
    call,
)
from agent_harness.types.messages import AssistantMessage, ToolResultMessage, UserMessage
from agent_harness.types.records import Replay

Respond = Callable[[World, ScriptedRequest], AssistantMessage]


def text_of(message: UserMessage | ToolResultMessage | AssistantMessage) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(p.text for p in content if isinstance(p, TextContent))


def counting_tool(world: World, name: str, replay: Replay = "never", result: str = "ok") -> AgentTool:
    """A tool whose only effect is a counter in the world."""

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        world.bump(name)
        return AgentToolResult(content=(TextContent(text=result),))

    return AgentTool(
        name=name, description=f"Counts {name}.", parameters={"type": "object"}, execute=execute, replay=replay
    )


def harness_builder(respond: Respond, *, replay: Replay = "never", block: bool = False, attempts: int = 3):
    """`Scenario.build` for a lane with the tools measure and water."""

    async def build(session: Session, world: World, drive: Drive) -> AgentHarness:
        def answer_once(request: ScriptedRequest) -> AssistantMessage:
            world.bump("requests")
            return respond(world, request)

        created = await AgentHarness.create(
            session=session,
            models=ModelRegistry([ScriptedProvider(respond=answer_once)], [SCRIPTED_MODEL]),
            model=SCRIPTED_MODEL,
            tools=[counting_tool(world, "measure", replay), counting_tool(world, "water", "never")],
            retry=RetryPolicy(max_attempts=attempts, base_delay_ms=100),
            clock=ManualClock(),
            drive=drive,
        )
        if block:
            created.harness.hooks.on("before_tool", refuse)
        return created.harness

    return build


def refuse(event: BeforeTool) -> ToolDecision | None:
    return ToolDecision(block="not allowed") if event.tool_name == "water" else None


async def prompt(harness: AgentHarness) -> object:
    return await harness.prompt("Measure bed 1.")


def measure_then_tell(world: World, request: ScriptedRequest) -> AssistantMessage:
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("Done.")
    return answer("Working.", calls=[call("measure", {"bed": 1}, id="c1")])


def blocked_then_tell(world: World, request: ScriptedRequest) -> AssistantMessage:
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("It was not allowed.")
    return answer(calls=[call("water", {"bed": 1}, id="c1")])


def fail_twice(world: World, request: ScriptedRequest) -> AssistantMessage:
    if world.count("requests") <= 2:
        return answer(error_message="overloaded, try again", error_code="overloaded")
    return answer("At last.")


def always_fail(world: World, request: ScriptedRequest) -> AssistantMessage:
    return answer(error_message="overloaded, try again", error_code="overloaded")


ONE_TOOL_NEVER = Scenario(name="one tool, replay never", build=harness_builder(measure_then_tell), act=prompt)
ONE_TOOL_SAFE = Scenario(
    name="one tool, replay safe", build=harness_builder(measure_then_tell, replay="safe"), act=prompt
)
RETRY = Scenario(name="retry", build=harness_builder(fail_twice, attempts=5), act=prompt)
TERMINAL_FAILURE = Scenario(name="terminal failure", build=harness_builder(always_fail, attempts=3), act=prompt)
BLOCKED = Scenario(name="blocked call", build=harness_builder(blocked_then_tell, block=True), act=prompt)
