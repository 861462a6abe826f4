"""The `Models` of the command line: every catalog model, each adapter built when it is first spoken to."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeGuard

from ..types.messages import AssistantMessage, DeferredHandle
from ..types.state import ModelRef
from .base import (
    AssistantMessageEvent,
    DeferredProvider,
    Model,
    Provider,
    ProviderContext,
    RequestContext,
    StreamEnd,
    StreamOptions,
)
from .catalog import Catalog, ProviderEntry, load_catalog
from .credentials import ApiKey, Credential
from .prices import priced

Build: TypeAlias = Callable[[str | None, Credential], Provider]


class CatalogModels:
    """See `Models`. One adapter per provider, built lazily: an SDK is imported when it is needed and not before."""

    def __init__(
        self,
        catalog: Catalog,
        api_keys: Mapping[str, ApiKey],
        providers: Sequence[Provider],
        builders: Mapping[str, Build],
    ) -> None:
        self.catalog = catalog
        self._credentials = {name: Credential(key) for name, key in api_keys.items()}
        self._given = {provider.api: provider for provider in providers}
        self._builders = builders
        self._built: dict[tuple[str, str], Provider] = {}
        self._added: dict[ModelRef, Model] = {}

    def add(self, model: Model) -> None:
        """Make a model known that the catalog does not list."""
        self._added[model.ref] = model

    def find(self, ref: ModelRef) -> Model | None:
        """See `Models`."""
        return self._added.get(ref) or self.catalog.find(ref)

    def provider(self, model: Model) -> Provider:
        """See `Models`.

        Raises:
            MissingExtra: the SDK of `model.api` is not installed; the message names the pip command.
        """
        given = self._given.get(model.api)
        if given is not None:
            return given
        found = self._built.get((model.provider, model.api))
        if found is not None:
            return found
        build = self._builders.get(model.api)
        if build is None:
            known = ", ".join(sorted({*self._builders, *self._given}))
            raise LookupError(f"no provider speaks {model.api!r} (have: {known})")
        entry = self.catalog.providers.get(model.provider, ProviderEntry())
        credential = self._credentials.get(model.provider) or Credential(None, tuple(entry.keys), bool(entry.keys))
        wrapped = with_prices(build(model.base_url or entry.base_url, credential), entry.prices or model.provider)
        self._built[model.provider, model.api] = wrapped
        return wrapped


def with_prices(provider: Provider, price_list: str) -> Provider:
    """The provider, its answers priced from a list of genai-prices."""
    return PricedDeferred(provider, price_list) if _defers(provider) else Priced(provider, price_list)


def _defers(provider: Provider) -> TypeGuard[DeferredProvider]:
    return hasattr(provider, "fetch_deferred")


class Priced:
    """A provider whose answers carry their cost."""

    def __init__(self, inner: Provider, price_list: str) -> None:
        self._inner = inner
        self._price_list = price_list

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def api(self) -> str:
        """See `Provider`."""
        return self._inner.api

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """See `Provider`."""
        events = self._inner.stream(model, context, options, request)
        try:
            async for event in events:
                if isinstance(event, StreamEnd):
                    event = replace(event, message=priced(event.message, model, self._price_list))
                yield event
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()


class PricedDeferred(Priced):
    """The same for a provider that can answer later."""

    def __init__(self, inner: DeferredProvider, price_list: str) -> None:
        super().__init__(inner, price_list)
        self._deferred = inner

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> AssistantMessage:
        """See `DeferredProvider`."""
        return priced(await self._deferred.fetch_deferred(model, handle, request), model, self._price_list)

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> None:
        """See `DeferredProvider`."""
        await self._deferred.cancel_deferred(model, handle, request)


def _openai_chat(base_url: str | None, key: Credential) -> Provider:
    from .openai_chat import OpenAIChatProvider

    return OpenAIChatProvider(base_url=base_url, api_key=key)


def _anthropic(base_url: str | None, key: Credential) -> Provider:
    from .anthropic import AnthropicProvider

    return AnthropicProvider(base_url=base_url, api_key=key)


def _openai_responses(base_url: str | None, key: Credential) -> Provider:
    from .openai_responses import OpenAIResponsesProvider

    return OpenAIResponsesProvider(base_url=base_url, api_key=key)


def _google(base_url: str | None, key: Credential) -> Provider:
    from .google import GoogleProvider

    return GoogleProvider(base_url=base_url, api_key=key)


BUILDERS: Mapping[str, Build] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic-messages": _anthropic,
    "google-gemini": _google,
}


def build_models(
    *,
    catalog: Catalog | None = None,
    api_keys: Mapping[str, ApiKey] | None = None,
    providers: Sequence[Provider] = (),
) -> CatalogModels:
    """A `Models` over the catalog. `api_keys` are by provider name and win over the environment; `providers` are
    adapters of your own, which win over ours for the APIs they speak."""
    return CatalogModels(catalog or load_catalog(), api_keys or {}, providers, BUILDERS)
