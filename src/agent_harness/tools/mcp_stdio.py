"""A stdio MCP server as a transport of ours: bytes counted before they are parsed, the process ended with its family.

The SDK's own reader has no limit to a line and stops at invalid UTF-8; here a line that is no message is skipped, one
that is too long ends the connection (T13).
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import orjson

from .processes import Watchdog, end_group, has_exited, kill_group
from .shell import ALLOWED_ENVIRONMENT

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

    from .mcp_config import StdioServer

MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""What may wait for a server that does not read; past that the connection ends."""
MAX_GARBAGE_LINES: Final = 1_000
"""Lines that are no message, after which a server is taken to speak something else."""
EXIT_GRACE_S: Final = 1.0
"""How long a server may take to leave after its input closed, and again after TERM."""

_READ_BYTES = 64 * 1024
_TURN_S = 0.02
# Nothing else is of use here, and a flood of them must not become a flood of tasks.
_HEARD: Final = frozenset({"notifications/tools/list_changed"})


def server_environment(source: Mapping[str, str], server: "StdioServer") -> dict[str, str]:
    """What the server sees of `source`: the allow-list, the names it may inherit, and what is set for it (T27)."""
    names = (*ALLOWED_ENVIRONMENT, *server.inherit_env)
    return {**{name: source[name] for name in names if name in source}, **server.env}


class Line:
    """What one line of a server's output is worth."""

    __slots__ = ("garbage", "message")

    def __init__(self, message: "SessionMessage | None", *, garbage: bool = False) -> None:
        self.message = message
        self.garbage = garbage


def parse_line(line: bytes) -> Line:
    """A message of the protocol, one that is not for us, or garbage."""
    from mcp.shared.message import SessionMessage
    from mcp_types.jsonrpc import jsonrpc_message_adapter

    try:
        value: object = orjson.loads(line)
        message = jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:  # invalid UTF-8, no JSON, not finite, no message
        return Line(None, garbage=bool(line.strip()))
    method = getattr(message, "method", None)
    if method is not None and not hasattr(message, "id") and method not in _HEARD:
        return Line(None)
    return Line(SessionMessage(message))


class _Stdin(asyncio.BaseProtocol):
    """The write end of the server's input; writing never waits, too much unsent ends the connection."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@asynccontextmanager
async def stdio_transport(server: "StdioServer", ended: asyncio.Event) -> "AsyncGenerator[TransportStreams]":
    """Start the server and speak to it. `ended` is set when it can answer no more. Leaving ends its process group.

    Raises:
        OSError: the command cannot be started.
    """
    from anyio import create_memory_object_stream

    process = subprocess.Popen(  # noqa: S603, ASYNC220 - a fork, no wait
        [server.command, *server.args],
        cwd=server.cwd,
        env=server_environment(os.environ, server),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    watchdog: Watchdog | None = None
    try:
        watchdog = Watchdog(process.pid)
        read_send, read_receive = create_memory_object_stream["SessionMessage | Exception"](0)
        write_send, write_receive = create_memory_object_stream["SessionMessage"](0)
        tasks = [
            asyncio.create_task(_read(process, read_send, server.max_message_bytes, ended)),
            asyncio.create_task(_write(process, write_receive, ended)),
        ]
        try:
            yield read_receive, write_send
        finally:
            await _settle(tasks)
            for stream in (read_send, read_receive, write_send, write_receive):
                stream.close()  # a task that was cancelled before it began has closed nothing
    finally:
        ended.set()
        await _end(process, watchdog)


async def _settle(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    process: "subprocess.Popen[bytes]",
    out: "MemoryObjectSendStream[SessionMessage | Exception]",
    limit: int,
    ended: asyncio.Event,
) -> None:
    from anyio import BrokenResourceError, ClosedResourceError

    reader = asyncio.StreamReader(limit=_READ_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    waiting = bytearray()
    garbage = 0
    try:
        while (data := await reader.read(_READ_BYTES)) and garbage <= MAX_GARBAGE_LINES:
            searched = len(waiting)
            waiting += data
            while (end := waiting.find(b"\n", searched)) >= 0:
                line = parse_line(bytes(waiting[:end])) if end <= limit else Line(None, garbage=True)
                del waiting[: end + 1]
                searched = 0
                garbage += line.garbage
                if line.message is not None:
                    await out.send(line.message)
            if len(waiting) > limit:
                return
            await asyncio.sleep(0)  # a flood must leave others their turn
    except (BrokenResourceError, ClosedResourceError, OSError):
        pass  # the session let go, or the pipe broke: either way this is the end
    finally:
        ended.set()
        transport.close()
        await out.aclose()


async def _write(
    process: "subprocess.Popen[bytes]", source: "MemoryObjectReceiveStream[SessionMessage]", ended: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(_Stdin, process.stdin)
    try:
        async for message in source:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            transport.write(data.encode() + b"\n")
            if protocol.lost.is_set() or transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                break
    finally:
        if protocol.lost.is_set() or transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            ended.set()
            transport.abort()
        transport.close()
        await source.aclose()


async def _end(process: "subprocess.Popen[bytes]", watchdog: Watchdog | None) -> None:
    """Its input is closed: a good server leaves by itself; then TERM, then KILL, for all it started."""
    try:
        for _ in range(round(EXIT_GRACE_S / _TURN_S)):
            if has_exited(process):
                break
            await asyncio.sleep(_TURN_S)
        await end_group(process, EXIT_GRACE_S)
    except asyncio.CancelledError:  # the event loop is ending: no time for a grace period
        kill_group(process)
        raise
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if watchdog is not None:
            watchdog.dismiss()
