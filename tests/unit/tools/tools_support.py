"""Calls a tool as the batch driver does: validate, then execute; a `def` tool in a thread."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from agent_harness.abort_signal import AbortSignal
from agent_harness.tools import coding_tools
from agent_harness.types.messages import TextContent
from agent_harness.types.tools import AgentTool, AgentToolResult, ToolInvocation


def named(root: Path, name: str, **options: bool) -> AgentTool:
    return next(tool for tool in coding_tools(root, **options) if tool.name == name)


async def invoke(
    tool: AgentTool,
    args: dict[str, Any],
    *,
    signal: AbortSignal | None = None,
    update: Callable[[AgentToolResult], None] | None = None,
    context: object = None,
) -> AgentToolResult:
    assert tool.validate is not None
    invocation = ToolInvocation(
        tool_call_id="call-1",
        args=tool.validate(args),
        signal=signal or AbortSignal(),
        context=context,
        update=update or (lambda _partial: None),
    )
    if tool.execute is not None:
        return await tool.execute(invocation)
    assert tool.execute_blocking is not None
    return await asyncio.to_thread(tool.execute_blocking, invocation)


def text_of(result: AgentToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


def details_of(result: AgentToolResult) -> dict[str, Any]:
    assert isinstance(result.details, dict)
    return result.details


def is_running(pid: int) -> bool:
    """Whether a process runs: neither gone nor a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def poll(condition: Callable[[], bool], within_s: float = 10) -> None:
    deadline = monotonic() + within_s
    while not condition():
        assert monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)
