"""What the two OpenAI adapters share: one client per request, plain JSON in and out, errors explained."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ..errors import MissingExtra
from ..types.json import JsonValue
from .credentials import ApiKey, Credential, MissingKey
from .exchange import Event, Head
from .failure import Failure, Secrets, response_failure

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

OPENAI_URL = "https://api.openai.com/v1"
READ_TIMEOUT_MS = 300_000
"""Longest silence within an answer; reasoning models are quiet for minutes."""


def is_openai(base_url: str) -> bool:
    """Whether this is OpenAI itself (or its Azure form), not a compatible server."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.openai.com" or host.endswith((".api.openai.com", ".openai.azure.com"))


def credential_for(base_url: str, given: ApiKey | Credential | None) -> Credential:
    """A given key goes to any server; `OPENAI_API_KEY` to OpenAI and to `OPENAI_BASE_URL` alone."""
    known = base_url in (OPENAI_URL, os.environ.get("OPENAI_BASE_URL"))
    return Credential.of(given, ("OPENAI_API_KEY",) if known else (), required=is_openai(base_url))


class OpenAIConnection:
    """Speaks to one base URL. Nothing is left open between requests."""

    def __init__(
        self,
        *,
        credential: Credential,
        base_url: str,
        read_timeout_ms: int,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtra("openai", "the OpenAI provider") from error
        del openai  # imported only so that a missing extra is found now and not at the first request
        from .http import HttpClients

        self.base_url = base_url
        self.credential = credential
        self.keep: set[asyncio.Task[None]] = set()
        self._http = HttpClients(read_timeout_ms)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown_url!r})"

    @property
    def shown_url(self) -> str:
        """The base URL without what may be secret in it."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"

    @property
    def is_openai(self) -> bool:
        """See `is_openai`."""
        return is_openai(self.base_url)

    async def post(
        self, path: str, payload: JsonValue, headers: Mapping[str, str], secrets: list[str]
    ) -> AsyncGenerator[Head | Event]:
        """Send and read the events of the answer; a server that does not stream gives one event.

        `secrets` receives the key, for the error text. Raises what the SDK raises.
        """
        from openai import APIStatusError, AsyncStream

        key = await self.credential.resolve()
        secrets.extend([key] if key else [])
        async with self._http.client() as http:
            client = self._client(key, http)
            try:
                stream = await client.post(
                    path,
                    cast_to=object,
                    body=payload,
                    options={"headers": self._headers(key, headers)},
                    stream=True,
                    stream_cls=AsyncStream[object],
                )
            except APIStatusError as error:
                yield Head(status=error.status_code, headers=dict(error.response.headers))
                raise
            async with stream:
                response = stream.response
                yield Head(status=response.status_code, headers=dict(response.headers))
                if response.headers.get("content-type", "").startswith("application/json"):
                    yield Event(data=json.loads(await response.aread()))
                else:
                    async for data in stream:
                        yield Event(data=data)

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], secrets: list[str]
    ) -> tuple[Head, JsonValue]:
        """A plain request without a body. Raises what the SDK raises."""
        import httpx2

        key = await self.credential.resolve()
        secrets.extend([key] if key else [])
        async with self._http.client() as http:
            client, options = self._client(key, http), cast("Any", {"headers": self._headers(key, headers)})
            if method == "GET":
                response = await client.get(path, cast_to=httpx2.Response, options=options)
            else:
                response = await client.post(path, cast_to=httpx2.Response, options=options)
            return Head(status=response.status_code, headers=dict(response.headers)), json.loads(response.content)

    def explain(self, error: Exception, secrets: Secrets, now_ms: int) -> Failure:
        """An exception of the SDK, or of what lies below it, as a failure."""
        import httpx2
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        match error:
            case MissingKey():
                return Failure(code="auth", message=str(error))
            case APIStatusError():
                return response_failure(error.body, error.status_code, error.response.headers, now_ms, secrets)
            case APITimeoutError() | httpx2.TimeoutException():
                return Failure(code="timeout", message=f"{self.shown_url} did not answer in time")
            case APIConnectionError():
                cause = error.__cause__
                said = f" ({type(cause).__name__})" if cause is not None else ""
                return Failure(code="transport", message=f"the connection to {self.shown_url} failed{said}")
            case APIError():  # an error object inside the stream: the status was 200
                given: object = error.body
                body = cast("object", given) if isinstance(given, dict) else {"message": error.message}
                return response_failure(body, None, {}, now_ms, secrets)
            case httpx2.RequestError():
                return Failure(
                    code="transport", message=f"the connection to {self.shown_url} failed ({type(error).__name__})"
                )
            case json.JSONDecodeError():  # its text would quote the document
                return Failure(code="transport", message=f"malformed chunk: {error.msg} at character {error.pos}")
            case UnicodeDecodeError() | RecursionError():
                return Failure(code="transport", message=f"malformed chunk: {type(error).__name__}")
            case _:
                return Failure(code="invalid_request", message=secrets.hide(f"{type(error).__name__}: {error}"))

    def _client(self, key: str | None, http: "httpx2.AsyncClient") -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        return AsyncOpenAI(api_key=key or "none", base_url=self.base_url, http_client=http, max_retries=0)

    def _headers(self, key: str | None, headers: Mapping[str, str]) -> "dict[str, Any]":
        from openai import Omit

        out: dict[str, Any] = dict(headers)
        if key is None and not any(name.lower() == "authorization" for name in out):
            out["Authorization"] = Omit()
        if not self.is_openai:  # an organisation of the environment is nobody else's business
            out.setdefault("OpenAI-Organization", Omit())
            out.setdefault("OpenAI-Project", Omit())
        return out
