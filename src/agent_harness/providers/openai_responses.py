"""OpenAI Responses; background mode is a deferred request (decisions section 7, harness-v2 §16). Extra: `openai`."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import cache, partial
from typing import Final, Literal
from urllib.parse import quote

from ..types.clock import SystemWallClock, WallClock
from ..types.messages import AssistantMessage, DeferredHandle
from .answer import Answer
from .base import (
    AssistantMessageEvent,
    Model,
    ProviderContext,
    RequestContext,
    StreamEnd,
    StreamOptions,
    is_retryable,
)
from .credentials import ApiKey, Credential
from .drive import drive
from .exchange import Event, Head, Source
from .fields import count_of, text_of
from .openai_common import OPENAI_URL, OpenAIConnection
from .openai_responses_request import responses_payload
from .openai_responses_stream import ResponsesReader
from .sdk import READ_TIMEOUT_MS, Sending

OPENAI_RESPONSES_API = "openai-responses"
DEFERRED_WINDOW_MS: Final = 10 * 60 * 1000
"""How long OpenAI keeps a background response for fetching."""
POLL_AFTER_MS: Final = 2_000
FETCH_TIMEOUT_MS: Final = 60_000
CANCEL_TIMEOUT_MS: Final = 10_000


class OpenAIResponsesProvider:
    """Speaks Responses to `base_url` (or to a model's own), by default to OpenAI. See `DeferredProvider`.

    Nothing is stored at the provider but background answers: reasoning travels encrypted in the messages. Keys are as
    in `OpenAIChatProvider`. `deferred_window_ms` is how long a background answer can be fetched.

    Raises:
        MissingExtra: the `openai` package is not installed.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: ApiKey | Credential | None = None,
        read_timeout_ms: int = READ_TIMEOUT_MS,
        deferred_window_ms: int = DEFERRED_WINDOW_MS,
        clock: WallClock | None = None,
    ) -> None:
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        credential = Credential(api_key) if isinstance(api_key, str) else api_key
        self._connection = cache(partial(OpenAIConnection, api_key=credential, read_timeout_ms=read_timeout_ms))
        self._deferred_window_ms = deferred_window_ms
        self._clock = clock or SystemWallClock()
        self._connection(self._base_url)  # a missing extra is found now

    def __repr__(self) -> str:
        return f"OpenAIResponsesProvider({self._connection(self._base_url).shown_url!r})"

    @property
    def api(self) -> str:
        """See `Provider`."""
        return OPENAI_RESPONSES_API

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """See `Provider`. With `options.deferred` the answer is a handle, if the model can answer later."""
        connection = self._connection(model.base_url or self._base_url)
        sending = Sending.of(model, options, request, self._clock)
        payload = await sending.payload(responses_payload(model, context, options, own_server=connection.is_openai))
        source = partial(connection.post, "/responses", payload, sending)
        handle = partial(self._handle, model) if options.deferred and model.deferred else None
        async for event in _run(connection, model, sending, source, handle):
            yield event

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> AssistantMessage:
        """See `DeferredProvider`. A failure that may pass leaves the answer pending: it is there for the next fetch."""
        path = f"/responses/{quote(handle.id, safe='')}"
        sending = Sending.of(model, StreamOptions(timeout_ms=FETCH_TIMEOUT_MS), request, self._clock)
        message = await self._ask(model, handle, sending, "GET", path)
        if is_retryable(message) and message.raw_stop_reason is None:  # asking failed, not the answer
            return Answer(model, sending.now_ms()).settle("deferred", deferred=handle)
        return message

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> None:
        """See `DeferredProvider`. Best effort: a response that is over, or a server that does not answer, is let be."""
        path = f"/responses/{quote(handle.id, safe='')}/cancel"
        sending = Sending.of(model, StreamOptions(timeout_ms=CANCEL_TIMEOUT_MS), request, self._clock)
        await self._ask(model, handle, sending, "POST", path)

    async def _ask(
        self, model: Model, handle: DeferredHandle, sending: Sending, method: Literal["GET", "POST"], path: str
    ) -> AssistantMessage:
        """What the server says about a background answer."""
        connection = self._connection(model.base_url or self._base_url)

        async def once() -> AsyncGenerator[Head | Event]:
            head, body = await connection.call(method, path, sending)
            yield head
            yield Event(data=body)

        message: AssistantMessage | None = None
        async for event in _run(connection, model, sending, once, lambda response: handle):
            if isinstance(event, StreamEnd):
                message = event.message
        assert message is not None
        return message

    def _handle(self, model: Model, response: dict[str, object]) -> DeferredHandle:
        created_ms = count_of(response.get("created_at")) * 1000 or self._clock.now_ms()
        return DeferredHandle(
            provider=model.provider,
            model_id=model.id,
            api=OPENAI_RESPONSES_API,
            id=text_of(response.get("id")),
            expires_at=created_ms + self._deferred_window_ms,
            poll_after_ms=POLL_AFTER_MS,
        )


def _run(
    connection: OpenAIConnection,
    model: Model,
    sending: Sending,
    source: Source,
    handle: Callable[[dict[str, object]], DeferredHandle] | None,
) -> AsyncIterator[AssistantMessageEvent]:
    reader = ResponsesReader(Answer(model, sending.now_ms()), sending.in_stream, handle)
    return drive(reader, sending.request(source, connection.explain, connection.keep))
