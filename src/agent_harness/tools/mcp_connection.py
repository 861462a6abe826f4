"""One MCP server, kept reachable: opened when needed, opened again after its death, closed from any task.

The SDK's cancel scopes must be entered and left in one task. So a task of ours owns the connection; every request is
a task of its own, and callers wait beside it under a deadline that no behaviour of the server can move.
"""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ..errors import MissingExtra
from ..types.json import JsonValue
from .mcp_config import HttpServer, Server, StdioServer

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.session import IncomingMessage
    from mcp_types import CallToolResult, Tool

T = TypeVar("T")

MAX_TOOLS: Final = 512
MAX_PAGES: Final = 100
CLOSE_TIMEOUT_S: Final = 4.0
"""Longest `close()`; the harness gives an extension a little more."""
RELIST_PAUSE_S: Final = 1.0
"""Shortest time between two looks at a tool list that a server says has changed."""


class McpError(Exception):
    """A server did not do what it was asked. The text is ours, apart from what the server said of its own error."""


class McpUnavailable(McpError):
    """The server is not there: not started, died, or did not answer in time. The next call tries again."""


def require_mcp() -> None:
    """Raises:
    MissingExtra: the SDK is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtra("mcp", "an MCP server")


@dataclass(slots=True, eq=False)
class _Live:
    """A connection that has been asked for. Only its owner task enters and leaves what the SDK made."""

    ready: "asyncio.Future[Client]"
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # it can answer no more
    leave: asyncio.Event = field(default_factory=asyncio.Event)  # it shall end
    owner: "asyncio.Task[None] | None" = None


class Connection:
    """Calls from any task; at most one server process or session at a time."""

    def __init__(self, server: Server, changed: Callable[[], Awaitable[None]] | None = None) -> None:
        """`changed` is awaited after the server said that its tools changed, not more often than once a second."""
        require_mcp()
        self.server = server
        self._changed = changed
        self._live: _Live | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()  # requests, of results of any kind
        self._owners: set[asyncio.Task[None]] = set()  # those of former connections may still be leaving
        self._stale = asyncio.Event()
        self._relisting: asyncio.Task[None] | None = None

    async def list_tools(self) -> "list[Tool]":
        """What the server offers now.

        Raises:
            McpError: it cannot be reached, refused, or its list is too long.
        """
        return await self._ask(_all_tools, self.server.start_timeout_s, "listing its tools")

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> "CallToolResult":
        """Call a tool once. A call that may have reached a server is never sent a second time.

        Raises:
            McpError: see there.
        """

        async def ask(client: "Client") -> "CallToolResult":
            return await client.call_tool(tool, arguments)

        return await self._ask(ask, self.server.call_timeout_s, f"the call of {tool!r}")

    async def close(self) -> None:
        """Let go of the server and end its process. Idempotent, bounded, safe from any task."""
        self._closed = True
        if self._live is not None:
            self._forget(self._live)
        own = asyncio.current_task()
        for task in (*self._tasks,):
            if task is not own:
                task.cancel()
        leaving = {owner for owner in self._owners if owner is not own}
        if not leaving:
            return
        _, late = await asyncio.wait(leaving, timeout=CLOSE_TIMEOUT_S)
        for owner in late:
            owner.cancel()  # what it holds is killed without a grace period
        if late:
            await asyncio.wait(late, timeout=0.5)

    # Asking ----------------------------------------------------------------

    async def _ask(self, ask: "Callable[[Client], Coroutine[object, object, T]]", timeout_s: float, what: str) -> T:
        deadline = monotonic() + timeout_s
        live = self._current()
        client = await self._opened(live, min(deadline, monotonic() + self.server.start_timeout_s))
        work = self._spawn(ask(client))
        ended = self._spawn(live.ended.wait())
        try:
            await asyncio.wait({work, ended}, timeout=deadline - monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and live.ended.is_set():
                await asyncio.wait({work}, timeout=0.1)  # an answer that came just before the end counts
            if not work.done():
                died = live.ended.is_set()
                if died:
                    self._forget(live)
                    raise McpUnavailable(f"{self._name}: the connection closed during {what}")
                raise McpUnavailable(f"{self._name}: {what} took longer than {timeout_s:g} s and was given up")
        finally:
            # Not awaited: taking the request back writes to a server that may not read.
            work.cancel()
            ended.cancel()
        try:
            return work.result()
        except (Exception, asyncio.CancelledError) as error:
            raise self._explained(error, live, what) from None

    def _explained(self, error: BaseException, live: _Live, what: str) -> McpError:
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED
        from pydantic import ValidationError

        if self._closed:
            return McpUnavailable(f"{self._name}: the connection was closed")
        if isinstance(error, MCPError):
            gone = error.code == CONNECTION_CLOSED or error.message == "Session terminated"
            if gone:
                self._forget(live)
                return McpUnavailable(f"{self._name}: the connection closed during {what}")
            return McpError(f"{self._name} refused: {error.message[:1000]}")
        if isinstance(error, ValidationError):
            return McpError(f"{self._name}: the answer to {what} does not follow the protocol")
        if isinstance(error, asyncio.CancelledError):
            self._forget(live)
            return McpUnavailable(f"{self._name}: the connection closed during {what}")
        return McpError(f"{self._name}: {what} failed ({type(error).__name__}: {str(error)[:500]})")

    async def _opened(self, live: _Live, deadline: float) -> "Client":
        await asyncio.wait({live.ready}, timeout=max(0.0, deadline - monotonic()))
        if not live.ready.done():
            self._forget(live)
            raise McpUnavailable(f"{self._name} did not start within {self.server.start_timeout_s:g} s")
        if live.ready.cancelled():
            raise McpUnavailable(f"{self._name}: the connection was closed")
        error = live.ready.exception()
        if error is not None:
            self._forget(live)
            raise McpUnavailable(f"{self._name} could not be started: {_reason(error)}")
        return live.ready.result()

    @property
    def _name(self) -> str:
        return f"MCP server {self.server.name!r}"

    # Owning ----------------------------------------------------------------

    def _current(self) -> _Live:
        if self._closed:
            raise McpUnavailable(f"{self._name}: the connection was closed")
        if self._live is not None and self._live.ended.is_set():
            self._forget(self._live)
        if self._live is None:
            live = self._live = _Live(ready=asyncio.get_running_loop().create_future())
            live.owner = asyncio.get_running_loop().create_task(self._own(live))
            self._owners.add(live.owner)
            live.owner.add_done_callback(self._owners.discard)
        return self._live

    def _forget(self, live: _Live) -> None:
        """Let the next call open anew; this one's owner ends behind us."""
        if self._live is live:
            self._live = None
        live.leave.set()
        if live.owner is not None and not live.ready.done():
            live.owner.cancel()

    async def _own(self, live: _Live) -> None:
        """Enter, serve and leave, all in this task."""
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(self._client(live))
                if live.ready.done():
                    return
                live.ready.set_result(client)
                leave, ended = asyncio.ensure_future(live.leave.wait()), asyncio.ensure_future(live.ended.wait())
                try:
                    await asyncio.wait({leave, ended}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    leave.cancel()
                    ended.cancel()
        except asyncio.CancelledError:
            live.ready.cancel()
        except BaseException as error:  # an exception group of the SDK's task groups, mostly
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            if not live.ready.done():
                live.ready.set_exception(error)
                live.ready.exception()  # looked at here, in case nobody waits any more
        finally:
            live.ended.set()

    def _client(self, live: _Live) -> "Client":
        from mcp import Client

        match self.server:
            case StdioServer():
                from .mcp_stdio import stdio_transport

                transport = stdio_transport(self.server, live.ended)
            case HttpServer():
                from .mcp_http import http_transport

                transport = http_transport(self.server)
        return Client(transport, message_handler=self._heard, cache=None)

    def _spawn(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # one that was given up may still fail

    # Hearing ---------------------------------------------------------------

    async def _heard(self, message: "IncomingMessage") -> None:
        from mcp_types import ToolListChangedNotification

        if not isinstance(message, ToolListChangedNotification) or self._changed is None or self._closed:
            return
        self._stale.set()
        if self._relisting is None or self._relisting.done():
            self._relisting = self._spawn(self._relist())

    async def _relist(self) -> None:
        assert self._changed is not None
        while self._stale.is_set():
            self._stale.clear()
            with suppress(McpError):
                await self._changed()
            await asyncio.sleep(RELIST_PAUSE_S)


async def _all_tools(client: "Client") -> "list[Tool]":
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if len(found) > MAX_TOOLS:
            raise ValueError(f"more than {MAX_TOOLS} tools")
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise ValueError(f"more than {MAX_PAGES} pages of tools")


def _reason(error: BaseException) -> str:
    """The first cause inside of exception groups, in a line."""
    while isinstance(error, BaseExceptionGroup):
        causes: tuple[BaseException, ...] = cast("BaseExceptionGroup[BaseException]", error).exceptions
        error = causes[0]
    return f"{type(error).__name__}: {str(error)[:500]}" if str(error) else type(error).__name__
