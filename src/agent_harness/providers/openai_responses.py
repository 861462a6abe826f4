"""OpenAI Responses; background mode is a deferred request (decisions section 7, harness-v2 §16). Extra: `openai`."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from functools import partial
from typing import Final, Literal
from urllib.parse import quote

from ..types.clock import SystemWallClock, WallClock
from ..types.json import JsonValue
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
from .drive import Request, drive
from .exchange import Event, Head
from .failure import Failure, Secrets, response_failure
from .fields import count_of, text_of
from .openai_common import OPENAI_URL, OpenAIConnection
from .openai_responses_request import responses_payload
from .openai_responses_stream import ResponsesReader
from .sdk import READ_TIMEOUT_MS

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
        self._credential = Credential(api_key) if isinstance(api_key, str) else api_key
        self._read_timeout_ms = read_timeout_ms
        self._deferred_window_ms = deferred_window_ms
        self._clock = clock or SystemWallClock()
        self._connections: dict[str, OpenAIConnection] = {}
        self._connection(self._base_url)

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
        headers = {**model.headers, **(options.headers or {})}
        payload: JsonValue = responses_payload(model, context, options, own_server=connection.is_openai)
        if request.on_payload is not None and not request.signal.aborted:
            payload = await request.on_payload(payload)
        keys: list[str] = []
        source = partial(connection.post, "/responses", payload, headers, keys)
        handle = partial(self._handle, model) if options.deferred and model.deferred else None
        events = self._run(
            connection,
            model,
            request,
            headers=headers,
            keys=keys,
            source=source,
            timeout_ms=options.timeout_ms,
            handle=handle,
        )
        async for event in events:
            yield event

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> AssistantMessage:
        """See `DeferredProvider`. A failure that may pass leaves the answer pending: it is there for the next fetch."""
        connection = self._connection(model.base_url or self._base_url)
        keys: list[str] = []
        path = f"/responses/{quote(handle.id, safe='')}"
        source = partial(_once, connection, "GET", path, model.headers, keys)
        events = self._run(
            connection,
            model,
            request,
            headers=model.headers,
            keys=keys,
            source=source,
            timeout_ms=FETCH_TIMEOUT_MS,
            handle=lambda response: handle,
        )
        message: AssistantMessage | None = None
        async for event in events:
            if isinstance(event, StreamEnd):
                message = event.message
        assert message is not None
        if is_retryable(message) and message.raw_stop_reason is None:  # asking failed, not the answer
            now_ms = request.now_ms or self._clock.now_ms
            return Answer(model, now_ms()).settle("deferred", deferred=handle)
        return message

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> None:
        """See `DeferredProvider`. Best effort: a response that is over, or a server that does not answer, is let be."""
        connection = self._connection(model.base_url or self._base_url)
        keys: list[str] = []
        path = f"/responses/{quote(handle.id, safe='')}/cancel"
        source = partial(_once, connection, "POST", path, model.headers, keys)
        events = self._run(
            connection,
            model,
            request,
            headers=model.headers,
            keys=keys,
            source=source,
            timeout_ms=CANCEL_TIMEOUT_MS,
            handle=lambda response: handle,
        )
        async for _ in events:
            pass

    def _run(
        self,
        connection: OpenAIConnection,
        model: Model,
        request: RequestContext,
        *,
        headers: Mapping[str, str],
        keys: list[str],
        source: Callable[[], AsyncGenerator[Head | Event]],
        timeout_ms: int | None,
        handle: Callable[[dict[str, object]], DeferredHandle] | None,
    ) -> AsyncIterator[AssistantMessageEvent]:
        now_ms = request.now_ms or self._clock.now_ms

        def secrets() -> Secrets:
            return Secrets.of(keys, headers.values())

        def in_stream(body: object) -> Failure:
            return response_failure(body, None, {}, now_ms(), secrets())

        asked = Request(
            source=source,
            context=request,
            timeout_ms=timeout_ms,
            explain=lambda error: connection.explain(error, secrets(), now_ms()),
            keep=connection.keep,
        )
        return drive(ResponsesReader(Answer(model, now_ms()), in_stream, handle), asked)

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

    def _connection(self, base_url: str) -> OpenAIConnection:
        found = self._connections.get(base_url)
        if found is None:
            found = self._connections[base_url] = OpenAIConnection(
                base_url=base_url, api_key=self._credential, read_timeout_ms=self._read_timeout_ms
            )
        return found


async def _once(
    connection: OpenAIConnection, method: Literal["GET", "POST"], path: str, headers: Mapping[str, str], keys: list[str]
) -> AsyncGenerator[Head | Event]:
    head, body = await connection.call(method, path, headers, keys)
    yield head
    yield Event(data=body)
