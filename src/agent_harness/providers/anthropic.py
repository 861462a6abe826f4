"""Anthropic Messages (decisions section 7). Extra: `anthropic`."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from ..errors import MissingExtra
from ..types.clock import SystemWallClock, WallClock
from ..types.json import JsonValue
from .answer import Answer
from .anthropic_request import anthropic_payload
from .anthropic_stream import PAUSED, AnthropicReader, RawBlocks
from .base import AssistantMessageEvent, Model, ProviderContext, RequestContext, StreamOptions
from .credentials import ApiKey, Credential
from .drive import drive
from .exchange import Event, Head
from .sdk import READ_TIMEOUT_MS, SdkConnection, SdkErrors, SdkStream, Sending, has_header

if TYPE_CHECKING:
    import httpx2

ANTHROPIC_API = "anthropic-messages"
ANTHROPIC_URL = "https://api.anthropic.com"
MAX_PAUSES: Final = 10
"""How often a paused turn is resubmitted before the answer counts as failed."""


class AnthropicProvider:
    """Speaks Messages to `base_url` (or to a model's own), by default to Anthropic.

    `api_key` may be a function, asked before every request. Without one, `ANTHROPIC_API_KEY` is used for Anthropic
    alone: a key of the environment is never sent to another server.

    Raises:
        MissingExtra: the `anthropic` package is not installed.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: ApiKey | Credential | None = None,
        read_timeout_ms: int = READ_TIMEOUT_MS,
        clock: WallClock | None = None,
    ) -> None:
        self._base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
        credential = Credential(api_key) if isinstance(api_key, str) else api_key
        self._connection = cache(partial(AnthropicConnection, api_key=credential, read_timeout_ms=read_timeout_ms))
        self._clock = clock or SystemWallClock()
        self._connection(self._base_url)  # a missing extra is found now

    def __repr__(self) -> str:
        return f"AnthropicProvider({self._connection(self._base_url).shown_url!r})"

    @property
    def api(self) -> str:
        """See `Provider`."""
        return ANTHROPIC_API

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """See `Provider`."""
        connection = self._connection(model.base_url or self._base_url)
        sending = Sending.of(model, options, request, self._clock)
        payload = await sending.payload(anthropic_payload(model, context, options))
        asked = sending.request(partial(_events, connection, payload, sending), connection.explain, connection.keep)
        async for event in drive(AnthropicReader(Answer(model, sending.now_ms()), sending.in_stream), asked):
            yield event


async def _events(
    connection: "AnthropicConnection", payload: JsonValue, sending: Sending
) -> AsyncGenerator[Head | Event]:
    """The events of one answer: a turn that the server paused is sent back to it until it is over."""
    for attempt in range(MAX_PAUSES + 1):
        raw = RawBlocks()
        async with aclosing(connection.post(payload, sending)) as items:
            async for item in items:
                if isinstance(item, Event):
                    raw.feed(item.data)
                    yield item
                elif attempt == 0 or item.status >= 400:
                    yield item
        content = raw.content()
        if raw.reason != PAUSED or not content or not isinstance(payload, dict):
            return
        messages = payload.get("messages")
        if isinstance(messages, list):
            payload = {**payload, "messages": [*messages, {"role": "assistant", "content": content}]}


class _Quiet(bytes):
    """A body that shows nothing of itself."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


class AnthropicConnection(SdkConnection):
    """Speaks to Anthropic or a compatible server through the `anthropic` package.

    Raises:
        MissingExtra: it is not installed.
    """

    def __init__(self, base_url: str, *, api_key: ApiKey | Credential | None, read_timeout_ms: int) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise MissingExtra("anthropic", "the Anthropic provider") from error
        from .http import HttpClients

        known = base_url in (ANTHROPIC_URL, os.environ.get("ANTHROPIC_BASE_URL"))
        super().__init__(
            base_url=base_url,
            credential=Credential.of(
                api_key, ("ANTHROPIC_API_KEY",) if known else (), required=base_url == ANTHROPIC_URL
            ),
            errors=SdkErrors(
                status=anthropic.APIStatusError,
                timeout=anthropic.APITimeoutError,
                connection=anthropic.APIConnectionError,
                base=anthropic.APIError,
            ),
            http=HttpClients(read_timeout_ms),
        )

    def post(self, payload: JsonValue, sending: Sending) -> AsyncGenerator[Head | Event]:
        """Send and read a stream; see `SdkConnection.read`."""
        from anthropic import AsyncAnthropic, AsyncStream, Omit

        async def open_stream(http: "httpx2.AsyncClient", key: str | None) -> SdkStream:
            sent = dict(sending.headers)
            if key is not None and self.base_url != ANTHROPIC_URL:
                sent = {"X-Api-Key": key, **sent}  # the SDK sends a bearer token; other servers know the older header
            # the SDK's debug log shows the headers and the body of a request: these are kept out of it
            client = AsyncAnthropic(
                api_key=key or "none", base_url=self.base_url, http_client=http, max_retries=0, default_headers=sent
            )
            plain: dict[str, Any] = {"Content-Type": "application/json"}
            if key is None and not has_header(sent, "authorization"):
                plain["Authorization"] = Omit()
            return await client.post(
                "/v1/messages",
                cast_to=object,
                content=_Quiet(orjson.dumps(payload)),
                options={"headers": plain},
                stream=True,
                stream_cls=AsyncStream[object],
            )

        return self.read(open_stream, sending)

    async def decoded(self, stream: SdkStream) -> AsyncGenerator[object]:
        """Every event. The SDK's own iterator passes over events without a name, broken ones too."""
        from anthropic import AsyncStream

        async for event in AsyncStream.raw_events(stream.response):
            if event.data and not event.data.startswith("[DONE]"):
                yield event.json()
