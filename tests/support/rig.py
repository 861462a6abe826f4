"""One harness over a scripted provider, and the small tools that tests of the core share."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_harness import AgentHarness, AgentTool, AgentToolResult, RetryPolicy, Session, TextContent, ToolInvocation
from agent_harness.outcomes import SuspendedOperation
from agent_harness.providers.base import ModelRegistry
from agent_harness.providers.faux import ScriptedAnswer
from agent_harness.session.storage import EntryItem, RecordItem
from agent_harness.testing import SCRIPTED_MODEL, ManualClock, ScriptedProvider, log_lines
from agent_harness.types.messages import AssistantMessage, ToolResultMessage
from agent_harness.types.records import Replay

OPENED: list[AgentHarness] = []
"""Every harness that `open_rig` opened; the fixture below closes them after each test."""


@dataclass
class Rig:
    """A harness, the session under it and the provider behind it."""

    session: Session
    harness: AgentHarness
    provider: ScriptedProvider
    suspended: list[SuspendedOperation]
    clock: ManualClock

    async def lines(self, *, usage: bool = False) -> list[str]:
        """The whole log as letters."""
        return log_lines(await self.session.get_log(), usage=usage)


async def open_rig(
    session: Session,
    *answers: ScriptedAnswer,
    respond: Callable[..., Any] | None = None,
    fetches: Sequence[AssistantMessage] = (),
    tools: Sequence[AgentTool] = (),
    attempts: int = 3,
    clock: ManualClock | None = None,
    **options: Any,
) -> Rig:
    """Open a harness on `session` whose provider plays `answers`."""
    provider = ScriptedProvider(answers=answers, respond=respond, fetches=fetches)
    clock = clock or ManualClock()
    options.setdefault("models", ModelRegistry([provider], [SCRIPTED_MODEL]))
    created = await AgentHarness.create(
        session=session,
        model=options.pop("model", SCRIPTED_MODEL),
        tools=tools,
        retry=RetryPolicy(max_attempts=attempts, base_delay_ms=100),
        clock=clock,
        **options,
    )
    OPENED.append(created.harness)
    return Rig(session, created.harness, provider, created.suspended, clock)


async def close_rigs() -> None:
    """Close what the test left open."""
    while OPENED:
        await OPENED.pop().close()


class Calls:
    """Tools that count what they were asked to do."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def tool(
        self,
        name: str = "measure",
        *,
        replay: Replay = "never",
        result: AgentToolResult | None = None,
        error: Exception | None = None,
        **options: Any,
    ) -> AgentTool:
        """A tool named `name`; each execution is noted in `made` by its call id."""

        async def execute(invocation: ToolInvocation) -> AgentToolResult:
            self.made.append(invocation.tool_call_id)
            if error is not None:
                raise error
            return result or AgentToolResult(content=(TextContent(text=f"real {invocation.tool_call_id}"),))

        return AgentTool(
            name=name,
            description=name,
            parameters={"type": "object"},
            execute=execute,
            replay=replay,
            **options,
        )


class Held:
    """A tool whose calls wait until the test lets each go, by call id."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.began = asyncio.Event()

    def gate(self, call_id: str) -> asyncio.Event:
        return self.gates.setdefault(call_id, asyncio.Event())

    def tool(self, name: str = "measure", **options: Any) -> AgentTool:
        async def execute(invocation: ToolInvocation) -> AgentToolResult:
            self.made.append(invocation.tool_call_id)
            self.began.set()
            await self.gate(invocation.tool_call_id).wait()
            return AgentToolResult(content=(TextContent(text=f"real {invocation.tool_call_id}"),))

        return AgentTool(name=name, description=name, parameters={"type": "object"}, execute=execute, **options)


async def turns(count: int = 50) -> None:
    """Let the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], limit_seconds: float = 20) -> None:
    """Let the loop run until `condition` holds, which may take other threads; fails when it never does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_seconds
    while not condition():
        assert loop.time() < end, "the condition never held"
        await asyncio.sleep(0)


def results_of(session_log: Sequence[object]) -> dict[str, ToolResultMessage]:
    """Tool results in a log, by call id; a second result of one call fails the test."""
    found: dict[str, ToolResultMessage] = {}
    for item in session_log:
        if isinstance(item, EntryItem) and isinstance(item.entry.message, ToolResultMessage):
            message = item.entry.message
            assert message.tool_call_id not in found, f"two results for {message.tool_call_id}"
            found[message.tool_call_id] = message
    return found


def said(message: ToolResultMessage) -> str:
    """The text of a tool result."""
    return "".join(part.text for part in message.content if isinstance(part, TextContent))


async def assert_sound(session: Session, *, open_operations: int = 0) -> None:
    """No broken rule; every finish has one start; each call has one result, in source order (closed runs only)."""
    assert await session.verify() == []
    log = await session.get_log()
    started = [i.record.id for i in log if isinstance(i, RecordItem) and i.record.type == "operation_started"]
    finished = [i.record.run_id for i in log if isinstance(i, RecordItem) and i.record.type == "operation_finished"]
    assert len(finished) == len(set(finished))
    assert len(started) - len(finished) == open_operations
    if open_operations == 0:
        assert set(finished) == set(started)
        entries = [i.entry for i in log if isinstance(i, EntryItem)]
        calls = [c.id for e in entries if isinstance(e.message, AssistantMessage) for c in e.message.tool_calls]
        assert sorted(results_of(log)) == sorted(calls)
