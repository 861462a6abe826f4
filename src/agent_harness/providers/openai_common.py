"""What the two OpenAI adapters share."""

import json
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ..errors import MissingExtra
from ..types.json import JsonValue
from .credentials import ApiKey, Credential
from .exchange import Event, Head
from .sdk import SdkConnection, SdkErrors, SdkStream, Sending, has_header, head_of

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

OPENAI_URL = "https://api.openai.com/v1"


def is_openai(base_url: str) -> bool:
    """Whether this is OpenAI itself (or its Azure form), not a compatible server."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.openai.com" or host.endswith((".api.openai.com", ".openai.azure.com"))


def credential_for(base_url: str, given: ApiKey | Credential | None) -> Credential:
    """A given key goes to any server; `OPENAI_API_KEY` to OpenAI and to `OPENAI_BASE_URL` alone."""
    known = base_url in (OPENAI_URL, os.environ.get("OPENAI_BASE_URL"))
    return Credential.of(given, ("OPENAI_API_KEY",) if known else (), required=is_openai(base_url))


class OpenAIConnection(SdkConnection):
    """Speaks to OpenAI or a compatible server through the `openai` package.

    Raises:
        MissingExtra: it is not installed.
    """

    def __init__(self, base_url: str, *, api_key: ApiKey | Credential | None, read_timeout_ms: int) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtra("openai", "the OpenAI provider") from error
        from .http import HttpClients

        super().__init__(
            base_url=base_url,
            credential=credential_for(base_url, api_key),
            errors=SdkErrors(
                status=openai.APIStatusError,
                timeout=openai.APITimeoutError,
                connection=openai.APIConnectionError,
                base=openai.APIError,
            ),
            http=HttpClients(read_timeout_ms),
        )

    @property
    def is_openai(self) -> bool:
        """See `is_openai`."""
        return is_openai(self.base_url)

    def post(self, path: str, payload: JsonValue, sending: Sending) -> AsyncGenerator[Head | Event]:
        """Send and read a stream; see `SdkConnection.read`."""
        from openai import AsyncStream

        async def open_stream(http: "httpx2.AsyncClient", key: str | None) -> SdkStream:
            return await self._client(key, http).post(
                path,
                cast_to=object,
                body=payload,
                options={"headers": self._headers(key, sending.headers)},
                stream=True,
                stream_cls=AsyncStream[object],
            )

        return self.read(open_stream, sending)

    async def call(self, method: Literal["GET", "POST"], path: str, sending: Sending) -> tuple[Head, object]:
        """A request that is answered at once. Raises what the SDK raises."""
        import httpx2

        key = await sending.key(self.credential)
        async with self.http.client() as http:
            client = self._client(key, http)
            sent = self._headers(key, sending.headers)
            if method == "GET":
                response = await client.get(path, cast_to=httpx2.Response, options={"headers": sent})
            else:
                response = await client.post(path, cast_to=httpx2.Response, options={"headers": sent})
            return head_of(response), json.loads(response.content)

    def _client(self, key: str | None, http: "httpx2.AsyncClient") -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        return AsyncOpenAI(api_key=key or "none", base_url=self.base_url, http_client=http, max_retries=0)

    def _headers(self, key: str | None, headers: Mapping[str, str]) -> dict[str, Any]:
        from openai import Omit

        out: dict[str, Any] = dict(headers)  # a header's value or the SDK's sentinel for none
        if key is None and not has_header(out, "authorization"):
            out["Authorization"] = Omit()
        if not self.is_openai:  # an organisation of the environment is nobody else's business
            out.setdefault("OpenAI-Organization", Omit())
            out.setdefault("OpenAI-Project", Omit())
        return out
