"""From `--model` and `--base-url` to something a harness can ask, checked before anything is written."""

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import WriteRefused
from ..harness import AgentHarness
from ..providers.base import Model, ModelRegistry, Models
from ..providers.catalog import UnknownModel, load_catalog
from ..providers.credentials import Credential
from ..providers.registry import BUILDERS, build_models, with_prices
from ..types.state import ModelRef
from .failure import Failure
from .scripted import PREFIX, scripted_model
from .variables import KEY_VARIABLE, MODEL_VARIABLE

CONNECT_TIMEOUT_S = 5.0
LOCAL_PREFIX = "local:"
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_CHAT_API = "openai-chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A model ready to be asked. `name` and `given` are what chooses it again, without secrets."""

    models: Models
    model: Model
    name: str
    server: str | None  # what is reached before anything is written; None: nothing, or the adapter alone knows
    given: str | None  # the base URL that the user gave
    api: str | None = None  # the API that the user asked for


def choose_model(name: str | None, base_url: str | None, folder: Path, api: str | None = None) -> Chosen:
    """Resolve a model's name, `provider/id`, `local:FILE.gguf` or `scripted:FILE`. `api` is how it is spoken to.

    Raises:
        Failure: no name, a malformed or unknown one, no API key, an address that is none.
        MissingExtra: the provider's package is not installed.
    """
    if not name:
        raise Failure(f"no model: pass --model PROVIDER/ID or set {MODEL_VARIABLE}")
    if name.startswith(PREFIX):
        models, model, full = scripted_model(name, folder)
        return Chosen(models=models, model=model, name=full, server=None, given=None)
    if name.startswith(LOCAL_PREFIX):
        return _local(name, folder)
    provider, slash, model_id = name.partition("/")
    if not (provider and slash and model_id) or any(not character.isprintable() for character in name):
        raise Failure(
            f"{name!r} names no model: write PROVIDER/ID, such as openai/gpt-5, or local:FILE.gguf or scripted:FILE"
        )
    if api is not None and api not in BUILDERS:
        raise Failure(f"no adapter speaks {api!r} (have: {', '.join(BUILDERS)})")
    if base_url is None:
        return _listed(name, api)
    check_url(base_url)
    return _compatible(provider, model_id, base_url, api)


def _local(name: str, folder: Path) -> Chosen:
    """A model file on this machine. It is loaded by the first request, not here."""
    from ..providers.local import LocalProvider, local_model

    path = Path(os.path.abspath(folder / Path(name.removeprefix(LOCAL_PREFIX)).expanduser()))
    try:
        provider = LocalProvider(path)
    except FileNotFoundError as error:
        raise Failure(str(error)) from None
    model = local_model(path)
    models = ModelRegistry([provider], [model])
    return Chosen(models=models, model=model, name=f"{LOCAL_PREFIX}{path}", server=None, given=None)


def check_url(url: str) -> None:
    """Refuse what is no address of a server, or would carry a secret into the session's store.

    Raises:
        Failure.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Failure("--base-url is no address: write http://HOST:PORT/PATH") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Failure("--base-url is no address: write http://HOST:PORT/PATH")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise Failure(f"--base-url must hold no password and no query: set {KEY_VARIABLE} for the key")


async def check_reachable(url: str | None) -> None:
    """Connect once, so that a server that is not there is told before a session is made.

    Raises:
        Failure: nobody answers at the address.
    """
    if url is None or any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or "no such host")
        raise Failure(f"cannot reach {parts.scheme}://{parts.hostname}:{port}: {reason.lower()}") from None
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass  # it was reachable


async def settle_model(harness: AgentHarness, chosen: Chosen, *, wanted: bool) -> None:
    """A session's newest model holds, unless another is `wanted` now, or it is not known here any more."""
    try:
        known = await harness.get_model()
    except LookupError:
        known = None
    if known is not None and (known == chosen.model or not wanted):
        return
    try:
        await harness.set_model(chosen.model)
    except WriteRefused:
        pass  # what is interrupted goes on with its own model


def _compatible(provider: str, model_id: str, base_url: str, api: str | None) -> Chosen:
    """A model behind a server of the user's own; its limits and prices are the catalog's if that knows the name.

    Such a server speaks Chat Completions, unless `api` says otherwise or the provider is one that never does.
    """
    catalog = load_catalog()
    ref = ModelRef(provider=provider, model_id=model_id)
    entry = catalog.providers.get(provider)
    spoken = api or (entry.api if entry is not None and not entry.api.startswith("openai") else OPENAI_CHAT_API)
    known = catalog.find(ref)
    model = replace(known or Model(provider=provider, id=model_id, api=spoken), api=spoken, base_url=base_url)
    # A key of the environment that belongs to another server is not sent to this one.
    adapter = BUILDERS[spoken](base_url, Credential(os.environ.get(KEY_VARIABLE) or None))
    if known is not None and entry is not None:
        adapter = with_prices(adapter, entry.prices or provider)
    models = ModelRegistry([adapter], [model])
    return Chosen(models=models, model=model, name=str(model), server=base_url, given=base_url, api=api)


def _listed(name: str, api: str | None) -> Chosen:
    """A model of the catalog, at its provider's own server."""
    try:
        catalog = load_catalog()
        model = catalog.resolve(name)
        model = replace(model, api=api or model.api)
    except UnknownModel as error:
        raise Failure(f"{error} For another server pass --base-url.") from None
    key = os.environ.get(KEY_VARIABLE)
    entry = catalog.providers.get(model.provider)
    variables = list(entry.keys) if entry is not None else []
    if variables and not key and not any(os.environ.get(variable) for variable in variables):
        raise Failure(f"no API key for {model}: set {' or '.join([*variables, KEY_VARIABLE])}")
    models = build_models(catalog=catalog, api_keys={model.provider: key} if key else None)
    try:
        models.provider(model)  # a missing extra is told now
    except LookupError as error:
        raise Failure(f"{model}: {error}") from None
    server = model.base_url
    if server is None and model.api.startswith("openai"):
        server = os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    return Chosen(models=models, model=model, name=str(model), server=server, given=None, api=api)
