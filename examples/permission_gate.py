"""Permission gate: every tool call is allowed, refused or asked about before it starts.

A call that was cleared is not asked about again: its `tool_started` record is the durable
answer. A call that was asked about and had not started when the process died is asked about
again.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias

from agent_harness import AgentHarness
from agent_harness.hooks.catalog import BeforeTool, ToolDecision

Permission: TypeAlias = Literal["allow", "ask", "refuse"]
Ask: TypeAlias = Callable[[BeforeTool], Awaitable[bool]]


class PermissionGate:
    """`rules` maps tool names to permissions; a tool without a rule gets `otherwise`.

    `ask` is awaited for "ask". Without an answer within `timeout_ms`, or when it raises,
    the call is refused: the `before_tool` hook fails closed.
    """

    def __init__(
        self,
        rules: Mapping[str, Permission],
        *,
        ask: Ask,
        otherwise: Permission = "ask",
        timeout_ms: int | None = 300_000,
    ) -> None:
        self._rules = dict(rules)
        self._ask = ask
        self._otherwise: Permission = otherwise
        self._timeout_ms = timeout_ms

    async def setup(self, harness: AgentHarness) -> None:
        """Register the hook."""
        harness.hooks.on(
            "before_tool",
            self._decide,
            id="examples.permission-gate",
            timeout_ms=self._timeout_ms,
        )

    async def _decide(self, event: BeforeTool) -> ToolDecision | None:
        permission = self._rules.get(event.tool_name, self._otherwise)
        if permission == "allow":
            return None
        if permission == "ask" and await self._ask(event):
            return None
        return ToolDecision(block=f"The user does not allow {event.tool_name} here.")
