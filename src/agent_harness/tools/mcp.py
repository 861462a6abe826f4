"""Tools of MCP servers as tools of an agent (extra `mcp`; decisions section 8).

    harness = await AgentHarness.create(..., extensions=[McpServers([StdioServer(name="files", command="...")])])

A server that is slow, talks nonsense or dies costs its own call, as an error result within the call's deadline.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from ..types.tools import AgentTool, AgentToolResult, ToolFailed, ToolInvocation
from .failure import ToolError
from .mcp_config import HttpServer as HttpServer
from .mcp_config import Server
from .mcp_config import StdioServer as StdioServer
from .mcp_connection import Connection, require_mcp
from .mcp_connection import McpError as McpError
from .mcp_connection import McpUnavailable as McpUnavailable
from .mcp_results import MAX_DESCRIPTION, parameters_of, replay_of, result_of, tool_name

if TYPE_CHECKING:
    from mcp_types import Tool


class ToolHost(Protocol):
    """What of a harness this needs."""

    async def get_tools(self) -> list[AgentTool]:
        """The registered tools."""
        ...

    async def set_tools(self, tools: Sequence[AgentTool], active_names: Sequence[str] | None = None) -> None:
        """Replace the registered tools."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A tool of a server that agents are not offered, and why."""

    server: str
    tool: str
    reason: str


class McpServers:
    """An extension: connects on `setup`, adds the servers' tools, follows their changes, closes on `teardown`.

    Without a harness it is a context manager, and `tools` is what it offers.

    Raises:
        MissingExtra: the SDK is not installed.
        ValueError: two servers of one name.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        require_mcp()
        names = [server.name for server in servers]
        if len(set(names)) != len(names):
            raise ValueError("two MCP servers have one name")
        self._servers = {server.name: server for server in servers}
        self._connections = {server.name: Connection(server, self._follow(server.name)) for server in servers}
        self._tools: dict[str, list[AgentTool]] = {}
        self._host: ToolHost | None = None
        self._placing = asyncio.Lock()
        self.unavailable: dict[str, str] = {}
        """Optional servers that did not start, and why."""
        self.left_out: list[LeftOut] = []

    @property
    def tools(self) -> list[AgentTool]:
        """The tools of all servers, in the order of the servers."""
        return [tool for name in self._servers for tool in self._tools.get(name, [])]

    async def setup(self, harness: ToolHost) -> None:
        """Start every server, all at once, and add its tools.

        Raises:
            McpError: a server that is not optional did not start; every other one is closed again.
        """
        try:
            await self.start()
            await self._place(harness, {})
        except BaseException:
            await self.close()
            raise
        self._host = harness

    async def teardown(self) -> None:
        """Close every server."""
        await self.close()

    async def start(self) -> None:
        """Connect to every server and read its tools; see `setup`."""
        outcomes = await asyncio.gather(*(self._load(name) for name in self._servers), return_exceptions=True)
        for name, outcome in zip(self._servers, outcomes, strict=True):
            if isinstance(outcome, McpError) and self._servers[name].optional:
                self.unavailable[name] = str(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def close(self) -> None:
        """Close every server. Idempotent, bounded, safe from any task."""
        self._host = None
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # Lists -----------------------------------------------------------------

    async def _load(self, name: str) -> None:
        offered = await self._connections[name].list_tools()
        self.left_out = [one for one in self.left_out if one.server != name]
        self._tools[name] = self._adopted(name, offered)

    def _adopted(self, name: str, offered: "list[Tool]") -> list[AgentTool]:
        server, found = self._servers[name], dict[str, AgentTool]()
        for tool in offered:
            full, parameters = tool_name(name, tool.name), parameters_of(tool)
            if parameters is None:
                self.left_out.append(LeftOut(server=name, tool=tool.name, reason="its schema is no schema of objects"))
            elif full in found:
                self.left_out.append(LeftOut(server=name, tool=tool.name, reason="the server lists it twice"))
            else:
                found[full] = AgentTool(
                    name=full,
                    description=(tool.description or tool.name)[:MAX_DESCRIPTION],
                    parameters=parameters,
                    execute=_Call(self._connections[name], server, tool.name),
                    replay=replay_of(tool, trusted=server.trust_hints),
                    label=tool.title or tool.name,
                )
        return list(found.values())

    def _follow(self, name: str) -> "_Follow":
        return _Follow(self, name)

    async def refresh(self, name: str) -> None:
        """Read a server's tools again and offer what it has now.

        Raises:
            McpError: it cannot be reached; what was offered stays.
        """
        before = {tool.name: tool for tool in self.tools}
        await self._load(name)
        if self._host is not None:
            await self._place(self._host, before)

    async def _place(self, host: ToolHost, before: dict[str, AgentTool]) -> None:
        """Put our tools in place of those that we put there before; a name of somebody else's stays theirs."""
        async with self._placing:
            others = [tool for tool in await host.get_tools() if before.get(tool.name) is not tool]
            taken = {tool.name for tool in others}
            for name, tools in self._tools.items():
                for tool in [tool for tool in tools if tool.name in taken]:
                    tools.remove(tool)
                    self.left_out.append(LeftOut(server=name, tool=tool.name, reason="the name is taken"))
            await host.set_tools([*others, *self.tools])


@dataclass(frozen=True, slots=True)
class _Follow:
    servers: McpServers
    name: str

    async def __call__(self) -> None:
        await self.servers.refresh(self.name)


@dataclass(frozen=True, slots=True)
class _Call:
    connection: Connection
    server: Server
    tool: str

    async def __call__(self, invocation: ToolInvocation) -> AgentToolResult:
        try:
            answer = await self.connection.call(self.tool, invocation.args)
        except McpError as error:
            raise ToolError(str(error)) from None
        result = result_of(self.server.name, self.tool, answer, self.server.max_text_bytes)
        if answer.is_error:
            raise ToolFailed(result)
        return result
