"""A small HTTP server for wire shapes and faults: each request runs one scripted coroutine over a real socket."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

DEADLINE_S = 10.0
"""Bound of every wait: reached only when the code under test hangs."""


@dataclass(kw_only=True)
class Connection:
    """One request and the ways to answer it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def head(
        self, status: int = 200, headers: Mapping[str, str] | None = None, content_type: str = "text/event-stream"
    ) -> None:
        fields = {"content-type": content_type, "transfer-encoding": "chunked", **(headers or {})}
        lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in fields.items())]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self.writer.drain()

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if piece:
                self.writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await self.writer.drain()

    async def end(self) -> None:
        """End the body in order."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        await self.head(status, headers, "application/json")
        await self.send(body)
        await self.end()

    def drop(self) -> None:
        """Break the connection inside the body."""
        self.writer.transport.abort()

    async def until_closed(self) -> None:
        """Return when the client closed its side."""
        await self.closed.wait()


Script = Callable[[Connection], Awaitable[None]]


class FakeServer:
    """Serves `script`, one run per request; keeps the requests."""

    def __init__(self, script: Script, *, silent: bool = False) -> None:
        self._script = script
        self._silent = silent
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Connection] = []
        self.connected = asyncio.Event()
        self.answering = asyncio.Event()
        self.closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connected.set()
        connection = Connection(reader=reader, writer=writer)
        try:
            if self._silent:
                await self._watch(connection)
                return
            await self._read(connection)
            self.requests.append(connection)
            watch = asyncio.create_task(self._watch(connection))
            try:
                await self._script(connection)
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed.set()
        except asyncio.CancelledError:
            pass  # the server stops
        finally:
            writer.close()

    async def _read(self, connection: Connection) -> None:
        raw = await connection.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode().split("\r\n")
        connection.target = first.split(" ")[1]
        connection.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
        }
        connection.body = await connection.reader.readexactly(int(connection.headers.get("content-length", "0")))

    async def _watch(self, connection: Connection) -> None:
        try:
            while await connection.reader.read(65536):
                pass
        except ConnectionError:
            pass
        connection.closed.set()
        self.closed.set()
