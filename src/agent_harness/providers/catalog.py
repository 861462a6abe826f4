"""Models by name: limits and capabilities from a small JSON of ours, which a user's file may extend (decisions §7).

The file's shape, all of it optional but a new provider's `baseUrl` or `api`:
`{"providers": {"acme": {"api": "openai-chat", "baseUrl": "https://...", "keys": ["ACME_API_KEY"], "anyModel": true}},
"models": {"acme/one": {"contextWindow": 200000, "maxTokens": 8192, "images": true, "tools": true,
"thinkingLevels": ["low", "high"], "deferred": false}}}`. An entry of a later file replaces the fields it names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from ..types.state import ModelRef
from .base import Model

Entry = TypeVar("Entry", bound=BaseModel)
_WRITTEN = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, strict=True)


class ProviderEntry(BaseModel):
    """Where a provider's models are reached."""

    model_config = _WRITTEN

    api: str = "openai-chat"
    base_url: str | None = None
    keys: list[str] = []  # environment variables that may hold the key; none for a server without keys
    any_model: bool = False  # a model that is not listed is taken as it is, with unknown limits
    prices: str | None = None  # genai-prices' name of the provider, where it differs


class ModelEntry(BaseModel):
    """What a model can do; 0 is unknown."""

    model_config = _WRITTEN

    context_window: int = 0
    max_tokens: int = 0
    images: bool = False
    tools: bool = True
    thinking_levels: list[str] = []
    deferred: bool = False
    api: str | None = None  # where it differs from its provider's


class CatalogFile(BaseModel):
    """The shape of a catalog file."""

    model_config = _WRITTEN

    providers: dict[str, ProviderEntry] = {}
    models: dict[str, ModelEntry] = {}


class InvalidCatalog(ValueError):
    """A catalog file cannot be used; the message names the file and the place."""


class UnknownModel(LookupError):
    """No model of this name; the message names near ones."""

    def __init__(self, name: str, near: Iterable[str]) -> None:
        self.near = tuple(near)
        hint = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        super().__init__(
            f"unknown model {name!r}{hint} Name it provider/model, or build a Model(...) of your own."[:500]
        )

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Catalog:
    """Known providers and models."""

    providers: Mapping[str, ProviderEntry] = field(default_factory=dict[str, ProviderEntry])
    models: Mapping[ModelRef, Model] = field(default_factory=dict[ModelRef, Model])

    def find(self, ref: ModelRef) -> Model | None:
        """The model of exactly this name, None when it is not known."""
        found = self.models.get(ref)
        entry = self.providers.get(ref.provider)
        if found is None and entry is not None and entry.any_model and ref.model_id:
            return Model(provider=ref.provider, id=ref.model_id, api=entry.api, base_url=entry.base_url)
        return found

    def resolve(self, name: str) -> Model:
        """The model that `provider/model`, or a model id that only one provider has, means.

        Raises:
            UnknownModel: there is none, or the bare id is ambiguous; near names are in the message.
        """
        provider, slash, model_id = name.partition("/")
        if slash:
            found = self.find(ModelRef(provider=provider, model_id=model_id))
            if found is not None:
                return found
        named = [model for model in self.models.values() if model.id == name]
        if len(named) == 1:
            return named[0]
        known = [str(model) for model in self.models.values()]
        near = [str(model) for model in named] or get_close_matches(name, known, n=3, cutoff=0.5)
        if not near:
            by_id = {model.id: str(model) for model in self.models.values()}
            near = [by_id[id] for id in get_close_matches(model_id or name, by_id, n=3, cutoff=0.5)]
        raise UnknownModel(name, near)


def load_catalog(*paths: Path) -> Catalog:
    """The catalog of this package, extended by `paths` in order; each must exist.

    Raises:
        InvalidCatalog: a file is not of the documented shape.
        OSError: a file cannot be read.
    """
    own = files(__package__ or "").joinpath("models.json").read_text(encoding="utf-8")
    texts = [("models.json", own), *((str(path), path.read_text(encoding="utf-8")) for path in paths)]
    providers: dict[str, ProviderEntry] = {}
    entries: dict[str, ModelEntry] = {}
    for name, text in texts:
        try:
            given = CatalogFile.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InvalidCatalog(f"{name}: {place}: {first['msg']}") from None
        for key, provider in given.providers.items():
            providers[key] = _over(providers.get(key), provider)
        for key, entry in given.models.items():
            entries[key] = _over(entries.get(key), entry)
    models: dict[ModelRef, Model] = {}
    for key, entry in entries.items():
        provider_name, _, model_id = key.partition("/")
        if provider_name not in providers or not model_id:
            raise InvalidCatalog(f"models.{key}: name it provider/model, with a provider that is listed")
        provider = providers[provider_name]
        model = Model(
            provider=provider_name,
            id=model_id,
            api=entry.api or provider.api,
            base_url=provider.base_url,
            context_window=entry.context_window,
            max_tokens=entry.max_tokens,
            images=entry.images,
            tools=entry.tools,
            thinking_levels=tuple(entry.thinking_levels),
            deferred=entry.deferred,
        )
        models[model.ref] = model
    return Catalog(providers, models)


def resolve_model(name: str, *paths: Path) -> Model:
    """`Catalog.resolve` on a freshly loaded catalog."""
    return load_catalog(*paths).resolve(name)


def _over(base: Entry | None, given: Entry) -> Entry:
    return given if base is None else base.model_copy(update={k: getattr(given, k) for k in given.model_fields_set})
