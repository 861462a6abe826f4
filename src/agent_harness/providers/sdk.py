"""What the adapters over an official SDK share: one client per request, plain JSON in and out, errors explained."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, cast
from urllib.parse import urlsplit

from ..types.clock import WallClock
from ..types.json import JsonValue
from .base import Model, RequestContext, StreamOptions
from .credentials import Credential, MissingKey
from .drive import Request
from .exchange import Event, Head, Source
from .failure import Failure, Secrets, response_failure

if TYPE_CHECKING:
    import httpx2

    from .http import HttpClients

READ_TIMEOUT_MS = 300_000
"""Longest silence within an answer; reasoning models are quiet for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkErrors:
    """The exception classes of an SDK, by what they mean."""

    status: type[Exception]
    timeout: type[Exception]
    connection: type[Exception]
    base: type[Exception]


class SdkStream(Protocol):
    """The SDKs' stream of events, parsed from JSON and nothing more."""

    @property
    def response(self) -> "httpx2.Response": ...
    def __aiter__(self) -> AsyncIterator[object]: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, exc_tb: TracebackType | None
    ) -> None: ...


Open: TypeAlias = "Callable[[httpx2.AsyncClient, str | None], Awaitable[SdkStream]]"
Explain: TypeAlias = Callable[[Exception, Secrets, int], Failure]
"""An exception, what its text must not show, and the time (Unix ms) -> the failure."""


class _StatusError(Protocol):
    status_code: int
    body: object

    @property
    def response(self) -> "httpx2.Response": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One request: what it is sent with, and so what the texts of its failures must not show."""

    context: RequestContext
    headers: Mapping[str, str] = field(repr=False)
    timeout_ms: int | None
    now_ms: Callable[[], int]
    keys: list[str] = field(default_factory=list[str], repr=False)  # the key, once it is resolved

    @classmethod
    def of(cls, model: Model, options: StreamOptions, context: RequestContext, clock: WallClock) -> "Sending":
        """A request of `model` and `options`; a header of the request wins over the model's."""
        return cls(
            context=context,
            headers={**model.headers, **(options.headers or {})},
            timeout_ms=options.timeout_ms,
            now_ms=context.now_ms or clock.now_ms,
        )

    async def payload(self, payload: JsonValue) -> JsonValue:
        """`payload`, or what `on_payload` makes of it."""
        if self.context.on_payload is None or self.context.signal.aborted:
            return payload
        return await self.context.on_payload(payload)

    async def key(self, credential: Credential) -> str | None:
        """The API key, from now on hidden in error texts.

        Raises:
            MissingKey: there is none and the server needs one.
        """
        key = await credential.resolve()
        self.keys.extend([key] if key else [])
        return key

    @property
    def secrets(self) -> Secrets:
        """What is known by now."""
        return Secrets.of(self.keys, self.headers.values())

    def in_stream(self, body: object) -> Failure:
        """An error that the server sent inside a stream."""
        return response_failure(body, None, {}, self.now_ms(), self.secrets)

    def request(self, source: Source, explain: Explain, keep: set[asyncio.Task[None]]) -> Request:
        """What `drive` needs; `explain` describes what `source` raises."""
        return Request(
            source=source,
            context=self.context,
            timeout_ms=self.timeout_ms,
            explain=lambda error: explain(error, self.secrets, self.now_ms()),
            keep=keep,
        )


class SdkConnection:
    """Speaks to one base URL. Nothing is left open between requests."""

    def __init__(self, *, base_url: str, credential: Credential, errors: SdkErrors, http: "HttpClients") -> None:
        self.base_url = base_url
        self.credential = credential
        self.keep: set[asyncio.Task[None]] = set()
        self.http = http
        self._errors = errors

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown_url!r})"

    @property
    def shown_url(self) -> str:
        """See `shown_url`."""
        return shown_url(self.base_url)

    async def read(self, open_stream: Open, sending: Sending) -> AsyncGenerator[Head | Event]:
        """Send and read the events of the answer; a server that does not stream gives one event.

        Raises what the SDK raises.
        """
        key = await sending.key(self.credential)
        async with self.http.client() as client:
            try:
                stream = await open_stream(client, key)
            except self._errors.status as error:
                yield head_of(cast("_StatusError", error).response)
                raise
            async with stream:
                response = stream.response
                yield head_of(response)
                if response.headers.get("content-type", "").startswith("application/json"):
                    yield Event(data=json.loads(await response.aread()))
                else:
                    async with aclosing(self.decoded(stream)) as events:
                        async for data in events:
                            yield Event(data=data)

    async def decoded(self, stream: SdkStream) -> AsyncGenerator[object]:
        """The stream's events as plain JSON."""
        async for data in stream:
            yield data

    def explain(self, error: Exception, secrets: Secrets, now_ms: int) -> Failure:
        """An exception of the SDK, or of what lies below it, as a failure."""
        if isinstance(error, self._errors.status):
            said = cast("_StatusError", error)
            return response_failure(said.body, said.status_code, dict(said.response.headers), now_ms, secrets)
        if isinstance(error, self._errors.timeout):
            return Failure(code="timeout", message=f"{self.shown_url} did not answer in time")
        if isinstance(error, self._errors.connection):
            cause = error.__cause__
            said_by = f" ({type(cause).__name__})" if cause is not None else ""
            return Failure(code="transport", message=f"the connection to {self.shown_url} failed{said_by}")
        if isinstance(error, self._errors.base):
            body: object = getattr(error, "body", None)
            body = cast("object", body) if isinstance(body, dict) else {"message": getattr(error, "message", "")}
            return response_failure(body, None, {}, now_ms, secrets)
        return explain_transport(error, self.shown_url, secrets)


def explain_transport(error: Exception, url: str, secrets: Secrets) -> Failure:
    """What the HTTP library or a parser raised: the SDKs let a good part of it through."""
    import httpx2

    match error:
        case MissingKey():
            return Failure(code="auth", message=str(error))
        case httpx2.TimeoutException():
            return Failure(code="timeout", message=f"{url} did not answer in time")
        case httpx2.RequestError():
            return Failure(code="transport", message=f"the connection to {url} failed ({type(error).__name__})")
        case json.JSONDecodeError():  # its text would quote the document
            return Failure(code="transport", message=f"malformed chunk: {error.msg} at character {error.pos}")
        case UnicodeDecodeError() | RecursionError():
            return Failure(code="transport", message=f"malformed chunk: {type(error).__name__}")
        case _:
            return Failure(code="invalid_request", message=secrets.hide(f"{type(error).__name__}: {error}"))


def head_of(response: "httpx2.Response") -> Head:
    """Status and headers, names in lower case."""
    return Head(status=response.status_code, headers=dict(response.headers))


def shown_url(base_url: str) -> str:
    """A base URL without what may be secret in it."""
    parts = urlsplit(base_url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def has_header(headers: Mapping[str, object], name: str) -> bool:
    """Whether a header of this name, in any case, is among them."""
    return any(given.lower() == name for given in headers)
