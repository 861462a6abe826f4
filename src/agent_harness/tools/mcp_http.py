"""A streamable-HTTP MCP server: our own client around the SDK's transport, with a limit to what an answer may hold."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

    from .mcp_config import HttpServer

CONNECT_TIMEOUT_S = 15.0


@asynccontextmanager
async def http_transport(server: "HttpServer") -> "AsyncGenerator[TransportStreams]":
    """Streams of messages to and from the server. Leaving ends the server's session and closes every connection."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def asked(request: httpx2.Request) -> None:
        # Compressed answers would pass the limit small and grow behind it (T25).
        request.headers["accept-encoding"] = "identity"
        headers = server.headers() if callable(server.headers) else server.headers
        request.headers.update(await headers if inspect.isawaitable(headers) else headers)

    async def answered(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise httpx2.DecodingError("the server sent a compressed answer that was not asked for")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _capped(response.stream, server.max_message_bytes)

    client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(server.call_timeout_s, connect=CONNECT_TIMEOUT_S),
        event_hooks={"request": [asked], "response": [answered]},
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=server.max_message_bytes) as streams,
    ):
        yield streams


def _capped(inner: "httpx2.AsyncByteStream", limit: int) -> "httpx2.AsyncByteStream":
    """The stream, refusing to go on past `limit` bytes."""
    import httpx2

    class Capped(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            seen = 0
            async for chunk in inner:
                seen += len(chunk)
                if seen > limit:
                    raise httpx2.StreamError(f"the answer is larger than {limit} bytes")
                yield chunk

        async def aclose(self) -> None:
            await inner.aclose()

    return Capped()
