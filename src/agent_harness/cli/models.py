"""From `--model` and `--base-url` to something a harness can ask, checked before anything is written."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ..providers.base import Model, Models
from .failure import Failure
from .scripted import PREFIX, scripted_model

MODEL_VARIABLE = "AGENT_HARNESS_MODEL"
KEY_VARIABLE = "AGENT_HARNESS_API_KEY"
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A model ready to be asked. `name` and `base_url` are what chooses it again, without secrets."""

    models: Models
    model: Model
    name: str
    base_url: str | None


def choose_model(name: str | None, base_url: str | None, folder: Path) -> Chosen:
    """Resolve a model's name, `provider/id` or `scripted:FILE`.

    Raises:
        Failure: no name, a malformed or unknown one, no API key, an address that is none.
        MissingExtra: the provider's package is not installed.
    """
    if not name:
        raise Failure(f"no model: pass --model PROVIDER/ID or set {MODEL_VARIABLE}")
    if name.startswith(PREFIX):
        models, model, full = scripted_model(name, folder)
        return Chosen(models=models, model=model, name=full, base_url=None)
    provider, slash, model_id = name.partition("/")
    if not (provider and slash and model_id) or any(character.isspace() for character in name):
        raise Failure(f"{name!r} names no model: write PROVIDER/ID, such as openai/gpt-5, or scripted:FILE")
    if base_url is not None:
        check_url(base_url)
    return _remote(provider, model_id, name, base_url)


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


def _remote(provider: str, model_id: str, name: str, base_url: str | None) -> Chosen:
    from ..providers.base import ModelRegistry
    from ..providers.openai_chat import OPENAI_CHAT_API, OpenAIChatProvider
    from ..providers.openai_common import OPENAI_URL

    if base_url is None and provider != "openai":
        raise Failure(f"unknown provider {provider!r}: use openai, or pass --base-url for a compatible server")
    own = base_url is None
    key = os.environ.get(KEY_VARIABLE) or (os.environ.get("OPENAI_API_KEY") if own else None)
    if own and not key:
        raise Failure(f"no API key: set OPENAI_API_KEY or {KEY_VARIABLE}")
    model = Model(provider=provider, id=model_id, api=OPENAI_CHAT_API, base_url=base_url or OPENAI_URL)
    return Chosen(
        models=ModelRegistry([OpenAIChatProvider(base_url=base_url or OPENAI_URL, api_key=key)], [model]),
        model=model,
        name=name,
        base_url=base_url,
    )
