"""Google Gemini, the Developer API (decisions section 7). Extra: `google`."""

import asyncio
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ..errors import MissingExtra
from ..types.clock import SystemWallClock, WallClock
from ..types.json import JsonValue
from .answer import Answer
from .base import AssistantMessageEvent, Model, ProviderContext, RequestContext, StreamOptions
from .credentials import ApiKey, Credential
from .drive import drive
from .exchange import Event, Head
from .failure import Failure, Secrets, response_failure
from .fields import list_of, object_of, text_of
from .google_request import google_payload
from .google_stream import GoogleReader
from .sdk import READ_TIMEOUT_MS, Sending, explain_transport, head_of, shown_url

if TYPE_CHECKING:
    import httpx2

GOOGLE_API = "google-gemini"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
_VERSIONED = re.compile(r"(.+)/(v\d+[a-z]*\d*)/?")
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")


class GoogleProvider:
    """Speaks Gemini to `base_url` (or to a model's own), by default to Google.

    `api_key` may be a function, asked before every request. Without one, `GEMINI_API_KEY` or `GOOGLE_API_KEY` is used
    for Google alone: a key of the environment is never sent to another server. `api_version` ("v1beta") is the last
    part of `base_url` if that looks like one, else the SDK's own.

    Raises:
        MissingExtra: the `google-genai` package is not installed.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: ApiKey | Credential | None = None,
        api_version: str | None = None,
        read_timeout_ms: int = READ_TIMEOUT_MS,
        clock: WallClock | None = None,
    ) -> None:
        try:
            from google import genai
        except ImportError as error:
            raise MissingExtra("google", "the Gemini provider") from error
        del genai  # imported only so that a missing extra is found now and not at the first request
        from .http import HttpClients

        self._base_url = base_url or GOOGLE_URL
        self._api_version = api_version
        self._credential = Credential(api_key) if isinstance(api_key, str) else api_key
        self._http = HttpClients(read_timeout_ms)
        self._clock = clock or SystemWallClock()
        self._keep: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"GoogleProvider({shown_url(self._base_url)!r})"

    @property
    def api(self) -> str:
        """See `Provider`."""
        return GOOGLE_API

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """See `Provider`."""
        base_url = model.base_url or self._base_url
        sending = Sending.of(model, options, request, self._clock)
        payload = await sending.payload(google_payload(model, context, options))
        source = partial(self._events, base_url, model.id, payload, sending)
        asked = sending.request(source, partial(explain, shown_url(base_url)), self._keep)
        async for event in drive(GoogleReader(Answer(model, sending.now_ms()), sending.in_stream), asked):
            yield event

    async def _events(
        self, base_url: str, model_id: str, payload: JsonValue, sending: Sending
    ) -> AsyncGenerator[Head | Event]:
        from google import genai
        from google.genai import errors, types

        own = base_url == GOOGLE_URL
        versioned = _VERSIONED.fullmatch(base_url) if self._api_version is None else None
        credential = Credential.of(self._credential, ("GEMINI_API_KEY", "GOOGLE_API_KEY") if own else (), required=own)
        key = await sending.key(credential)
        seen: list[httpx2.Response] = []
        async with self._http.client(seen) as http:
            # with a client of ours the SDK neither switches to aiohttp nor retries by itself; the payload goes as it is
            options = types.HttpOptions(
                base_url=versioned[1] if versioned else base_url,
                api_version=versioned[2] if versioned else self._api_version,
                headers=dict(sending.headers),
                httpx_async_client=http,
                extra_body=payload if isinstance(payload, dict) else None,
            )
            # building a client reads certificates for 0.1 s
            client = await asyncio.to_thread(genai.Client, api_key=key or "none", vertexai=False, http_options=options)
            models: Any = client.aio.models  # its signature names types of packages that need not be installed
            config = {"automatic_function_calling": {"disable": True}}
            head_sent = False
            try:
                chunks = await models.generate_content_stream(model=model_id, contents=".", config=config)
                async with aclosing(cast("AsyncGenerator[types.GenerateContentResponse]", chunks)) as stream:
                    async for chunk in stream:
                        if not head_sent and seen:
                            yield head_of(seen[-1])
                            head_sent = True
                        yield Event(data=plain(chunk.model_dump(by_alias=True, exclude_none=True)))
            except errors.APIError:
                if not head_sent and seen:
                    yield head_of(seen[-1])
                raise


def plain(value: object) -> object:
    """The SDK's values as JSON. Its own JSON mode would turn an infinite number into null."""
    match value:
        case bytes():
            return urlsafe_b64encode(value).decode()
        case Enum():
            return cast("object", value.value)
        case list():
            return [plain(item) for item in cast("list[object]", value)]
        case dict():
            return {key: plain(item) for key, item in cast("dict[str, object]", value).items()}
        case _:
            return value


def explain(url: str, error: Exception, secrets: Secrets, now_ms: int) -> Failure:
    """An exception of the SDK, or of what lies below it, as a failure."""
    from google.genai import errors

    match error:
        case errors.APIError():
            details = _attribute(error, "details")
            headers = cast("Mapping[object, object]", _attribute(_attribute(error, "response"), "headers") or {})
            known = {str(name).lower(): str(value) for name, value in headers.items()}
            failure = response_failure(details, error.code or None, known, now_ms, secrets)
            return (
                failure if failure.retry_after_ms is not None else replace(failure, retry_after_ms=_delay_ms(details))
            )
        case errors.UnknownApiResponseError() | ValidationError():  # their texts quote what they could not read
            return Failure(code="transport", message=f"malformed chunk: {type(error).__name__}")
        case _:
            return explain_transport(error, url, secrets)


def _attribute(value: object, name: str) -> object:
    """An attribute whose declared type names packages that need not be installed."""
    return getattr(value, name, None)


def _delay_ms(details: object) -> int | None:
    """The wait that Google names in the body (`google.rpc.RetryInfo`) instead of a header."""
    for item in list_of(object_of(object_of(details).get("error")).get("details")):
        found = _DELAY.fullmatch(text_of(object_of(item).get("retryDelay")))
        if found:
            return round(float(found[1]) * 1000)
    return None
