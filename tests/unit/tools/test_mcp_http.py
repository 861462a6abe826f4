"""Streamable-HTTP MCP servers on localhost: a real one of the SDK, and a raw one that misbehaves (T13, T25)."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from agent_harness.tools.mcp import HttpServer, McpError, McpServers, McpUnavailable
from agent_harness.tools.mcp_connection import Connection


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    yield
    gc.collect()


@asynccontextmanager
async def real_server(port: int = 0) -> AsyncIterator[int]:
    """The SDK's own server; gives its port."""
    mcp = MCPServer("real")

    @mcp.tool(annotations=ToolAnnotations(idempotent_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @mcp.tool()
    def broken() -> str:
        """Fail."""
        raise RuntimeError("on purpose")

    config = uvicorn.Config(mcp.streamable_http_app(), port=port, log_level="error", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    work = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        server.force_exit = True
        await work


class RawServer:
    """Answers the handshake; `tools/call` as `behave` says."""

    def __init__(self, behave: str) -> None:
        self.behave = behave
        self.headers: list[dict[str, str]] = []
        self.calls = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "RawServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        self.headers.append(headers)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if not head[0].startswith("POST"):
            writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            return True
        message = json.loads(body)
        id, method = message.get("id"), message.get("method")
        if id is None:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        elif method == "initialize":
            server = {"name": "raw", "version": "1"}
            version = message["params"]["protocolVersion"]
            self._json(writer, id, {"protocolVersion": version, "capabilities": {}, "serverInfo": server})
        elif method == "tools/list":
            self._json(writer, id, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        elif method == "tools/call":
            self.calls += 1
            return await self._call(writer, id)
        else:
            self._reply(writer, {"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}})
        return True

    async def _call(self, writer: asyncio.StreamWriter, id: object) -> bool:
        fine: dict[str, Any] = {"content": [{"type": "text", "text": "fine"}]}
        behave, self.behave = self.behave, self.behave if self.behave in ("never", "trickle") else "fine"
        match behave:
            case "never":
                await asyncio.sleep(3600)
            case "trickle":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                while True:
                    writer.write(b": still here\n\n")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            case "large":
                self._json(writer, id, {"content": [{"type": "text", "text": "x" * 3_000_000}]})
            case "large event":
                event = json.dumps({"jsonrpc": "2.0", "id": id, "result": fine, "x": "y" * 3_000_000}).encode()
                self._events(writer, b"data: " + event + b"\n\n")
            case "compressed":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n")
                writer.write(b"content-length: 4\r\n\r\nzzzz")
            case "500":
                writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
            case "404":
                writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
            case "html":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<hi>")
            case "cut":
                self._events(writer, b"data: {")
                return False
            case "reset":
                return False
            case "no json":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n\xff{{}")
            case "event":
                event = json.dumps({"jsonrpc": "2.0", "id": id, "result": fine}).encode()
                self._events(writer, b"data: " + event + b"\n\n")
            case _:
                self._json(writer, id, fine)
        return behave not in ("event", "large event")

    def _events(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + data)

    def _json(self, writer: asyncio.StreamWriter, id: object, result: dict[str, Any]) -> None:
        self._reply(writer, {"jsonrpc": "2.0", "id": id, "result": result})

    def _reply(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


@asynccontextmanager
async def connected(port: int, **options: Any) -> AsyncIterator[Connection]:
    settings: dict[str, Any] = {"call_timeout_s": 5.0, "max_message_bytes": 1_000_000, **options}
    connection = Connection(HttpServer(name="h", url=f"http://127.0.0.1:{port}/mcp", **settings))
    try:
        yield connection
    finally:
        began = monotonic()
        await connection.close()
        assert monotonic() - began < 5


async def text(connection: Connection, tool: str = "t", **args: Any) -> str:
    result = await connection.call(tool, args)
    return "".join(part.text for part in result.content if part.type == "text")


async def test_tools_of_the_sdks_own_server_are_listed_and_called() -> None:
    async with real_server() as port:
        server = HttpServer(name="math", url=f"http://127.0.0.1:{port}/mcp", trust_hints=True)
        async with McpServers([server]) as servers:
            assert [(tool.name, tool.description, tool.replay) for tool in servers.tools] == [
                ("math__add", "Add two numbers.", "safe"),
                ("math__broken", "Fail.", "never"),
            ]
        async with connected(port) as connection:
            assert await text(connection, "add", a=2, b=40) == "42"
            failed = await connection.call("broken", {})
            assert failed.is_error
            refused = await connection.call("add", {"a": "two"})
            assert refused.is_error


async def test_a_server_that_was_restarted_is_found_again_at_the_next_call() -> None:
    async with real_server() as port, connected(port) as connection:
        assert await text(connection, "add", a=1, b=1) == "2"
        first = connection
    async with connected(port, call_timeout_s=2.0) as connection:
        with pytest.raises(McpUnavailable, match="could not be started"):
            await connection.call("add", {"a": 1, "b": 1})
        async with real_server(port):
            assert await text(connection, "add", a=1, b=2) == "3"
    with pytest.raises(McpUnavailable, match="was closed"):
        await first.call("add", {})


@pytest.mark.parametrize("behave", ["never", "trickle"])
async def test_a_server_that_does_not_answer_is_given_up_at_the_deadline(behave: str) -> None:
    async with RawServer(behave) as server, connected(server.port, call_timeout_s=0.4) as connection:
        await connection.list_tools()
        began = monotonic()
        with pytest.raises(McpUnavailable, match=r"took longer than 0\.4 s"):
            await connection.call("t", {})
        assert monotonic() - began < 1.5
        assert server.calls == 1


@pytest.mark.parametrize(
    "behave", ["large", "large event", "compressed", "500", "404", "html", "cut", "reset", "no json"]
)
async def test_a_bad_answer_is_an_error_and_the_next_call_works(behave: str) -> None:
    async with RawServer(behave) as server, connected(server.port) as connection:
        began = monotonic()
        with pytest.raises(McpError):
            await connection.call("t", {})
        assert monotonic() - began < 4
        assert server.calls == 1  # nothing is asked twice
        assert await text(connection) == "fine"


async def test_an_answer_as_events_is_read() -> None:
    async with RawServer("event") as server, connected(server.port) as connection:
        assert await text(connection) == "fine"


async def test_headers_are_asked_for_before_every_request() -> None:
    asked: list[int] = []

    async def headers() -> dict[str, str]:
        asked.append(1)
        return {"authorization": f"Bearer {len(asked)}"}

    async with RawServer("fine") as server, connected(server.port, headers=headers) as connection:
        await text(connection)
        await text(connection)
        sent = [seen["authorization"] for seen in server.headers]
        assert len(set(sent)) == len(sent) >= 4
        assert {seen["accept-encoding"] for seen in server.headers} == {"identity"}


async def test_nobody_at_the_address_is_an_error_at_once() -> None:
    async with RawServer("fine") as server:
        port = server.port
    async with connected(port) as connection:
        began = monotonic()
        with pytest.raises(McpUnavailable, match="could not be started"):
            await connection.call("t", {})
        assert monotonic() - began < 3
