"""OpenAI Chat Completions, and any compatible server by base URL (decisions section 7). Extra: `openai`."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from functools import cache, partial

from ..types.clock import SystemWallClock, WallClock
from ..types.json import JsonValue
from .answer import Answer
from .base import AssistantMessageEvent, Model, ProviderContext, RequestContext, StreamOptions
from .credentials import ApiKey, Credential
from .drive import drive
from .exchange import Event, Head
from .openai_chat_request import Dialect, MaxTokensField, chat_payload, without_stream_options
from .openai_chat_stream import ChatReader
from .openai_common import OPENAI_URL, OpenAIConnection
from .sdk import READ_TIMEOUT_MS, Sending

OPENAI_CHAT_API = "openai-chat"


class OpenAIChatProvider:
    """Speaks Chat Completions to `base_url` (or to a model's own), by default to OpenAI.

    `api_key` may be a function, asked before every request. Without one, `OPENAI_API_KEY` is used for OpenAI alone: a
    key of the environment is never sent to another server. `needs_finish_reason=False` accepts servers that end an
    answer without a finish reason; the default takes such an answer for a cut stream.

    Raises:
        MissingExtra: the `openai` package is not installed.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: ApiKey | Credential | None = None,
        read_timeout_ms: int = READ_TIMEOUT_MS,
        max_tokens_field: MaxTokensField | None = None,
        needs_finish_reason: bool = True,
        clock: WallClock | None = None,
    ) -> None:
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        credential = Credential(api_key) if isinstance(api_key, str) else api_key
        self._connection = cache(partial(OpenAIConnection, api_key=credential, read_timeout_ms=read_timeout_ms))
        self._max_tokens_field: MaxTokensField | None = max_tokens_field
        self._needs_finish_reason = needs_finish_reason
        self._clock = clock or SystemWallClock()
        self._no_stream_usage: set[str] = set()  # base URLs that refused stream_options
        self._connection(self._base_url)  # a missing extra is found now

    def __repr__(self) -> str:
        return f"OpenAIChatProvider({self._connection(self._base_url).shown_url!r})"

    @property
    def api(self) -> str:
        """See `Provider`."""
        return OPENAI_CHAT_API

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """See `Provider`. A price that the server reports is kept in `usage.cost.total`; others stay 0."""
        connection = self._connection(model.base_url or self._base_url)
        sending = Sending.of(model, options, request, self._clock)
        payload = await sending.payload(chat_payload(model, context, options, self._dialect(connection)))
        answer = Answer(model, sending.now_ms())
        reader = ChatReader(answer, sending.in_stream, needs_finish_reason=self._needs_finish_reason)
        source = partial(self._source, connection, payload, sending)
        asked = sending.request(source, connection.explain, connection.keep)
        async for event in drive(reader, asked):
            yield event

    async def _source(
        self, connection: OpenAIConnection, payload: JsonValue, sending: Sending
    ) -> AsyncGenerator[Head | Event]:
        from openai import APIStatusError

        refusal: Head | None = None
        try:
            async with aclosing(connection.post("/chat/completions", payload, sending)) as items:
                async for item in items:
                    if isinstance(item, Head) and item.status in (400, 422):
                        refusal = item
                    else:
                        yield item
            return
        except APIStatusError as error:
            told = isinstance(payload, dict) and "stream_options" in payload and "stream_options" in str(error.body)
            if not told:
                if refusal is not None:
                    yield refusal
                raise
        assert isinstance(payload, dict)
        self._no_stream_usage.add(connection.base_url)
        again = connection.post("/chat/completions", without_stream_options(payload), sending)
        async with aclosing(again) as items:
            async for item in items:
                yield item

    def _dialect(self, connection: OpenAIConnection) -> Dialect:
        own = connection.is_openai
        dialect = Dialect(
            max_tokens_field="max_completion_tokens" if own else "max_tokens",
            stream_usage=connection.base_url not in self._no_stream_usage,
            fixed_temperature=own,
        )
        return replace(dialect, max_tokens_field=self._max_tokens_field) if self._max_tokens_field else dialect
