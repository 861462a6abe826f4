"""HTTP clients that live for one request and leave no socket behind. Imported only where an SDK is installed."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, cast

import httpx2

CONNECT_TIMEOUT_S = 15.0


class _Closable(Protocol):
    async def aclose(self) -> None: ...


class HttpClients:
    """Makes clients that share one TLS context, which is slow to build, and nothing else.

    One client per request: a pooled connection would outlive its event loop, and the pause between two requests of an
    agent is mostly longer than servers keep a connection.
    """

    def __init__(self, read_timeout_ms: int) -> None:
        self._timeout = httpx2.Timeout(read_timeout_ms / 1000, connect=CONNECT_TIMEOUT_S)
        self._tls = httpx2.create_ssl_context()

    @asynccontextmanager
    async def client(self, seen: list[httpx2.Response] | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
        """A client; leaving closes every socket it opened. `seen` receives the responses as their heads arrive.

        httpcore2 2.16 forgets the socket when it is cancelled inside a TLS handshake, so the sockets are noted as they
        open (its documented `trace` extension) and closed here.
        """
        opened: list[_Closable] = []

        async def trace(name: str, info: Mapping[str, object]) -> None:
            if name.endswith("connect_tcp.complete"):
                opened.append(cast("_Closable", info["return_value"]))

        async def watch(request: httpx2.Request) -> None:
            request.extensions["trace"] = trace
            request.extensions["timeout"] = self._timeout.as_dict()  # google-genai sets its own: none at all

        async def arrived(response: httpx2.Response) -> None:
            if seen is not None:
                seen.append(response)

        try:
            async with httpx2.AsyncClient(
                timeout=self._timeout,
                verify=self._tls,
                follow_redirects=True,
                limits=httpx2.Limits(max_keepalive_connections=0),
                event_hooks={"request": [watch], "response": [arrived]},
            ) as client:
                yield client
        finally:
            for socket in opened:
                await socket.aclose()
