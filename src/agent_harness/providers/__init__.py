"""The adapters to model providers. A class is imported with its first use, and its SDK with its first instance."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .anthropic import AnthropicProvider as AnthropicProvider
    from .catalog import load_catalog as load_catalog
    from .google import GoogleProvider as GoogleProvider
    from .local import LocalProvider as LocalProvider
    from .openai_chat import OpenAIChatProvider as OpenAIChatProvider
    from .openai_responses import OpenAIResponsesProvider as OpenAIResponsesProvider
    from .registry import build_models as build_models

_HOME_OF = {
    "AnthropicProvider": "anthropic",
    "GoogleProvider": "google",
    "LocalProvider": "local",
    "OpenAIChatProvider": "openai_chat",
    "OpenAIResponsesProvider": "openai_responses",
    "build_models": "registry",
    "load_catalog": "catalog",
}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
