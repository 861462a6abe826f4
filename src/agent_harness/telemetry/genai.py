"""OpenTelemetry's GenAI semantic conventions for spans of our vocabulary, beside the `pi.*` names (pure).

Only identifiers, names, counts and codes are translated; the conventions' content attributes have no source here.
The names are those of the conventions' development release of 2026; a rename there changes this module alone.
"""

from collections.abc import Mapping
from typing import Final

from .recording import RecordedValue

_PROVIDERS: Final = {
    "google": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "amazon-bedrock": "aws.bedrock",
    "azure-openai": "azure.ai.openai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Well-known values that differ from our provider ids; any other id is its own name."""

_OPERATIONS: Final = {"stream": "chat", "fetch_deferred": "chat", "generate_images": "generate_content"}
_REQUEST_START: Final = {"pi.ai.model": "gen_ai.request.model", "pi.ai.streaming": "gen_ai.request.stream"}
_REQUEST_END: Final = {
    "pi.ai.response.model": "gen_ai.response.model",
    "pi.ai.response.id": "gen_ai.response.id",
    "pi.ai.usage.output_tokens": "gen_ai.usage.output_tokens",
    "pi.ai.usage.cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "pi.ai.usage.cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "pi.ai.usage.reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "pi.ai.http.status_code": "http.response.status_code",
    "pi.ai.error.type": "error.type",
}
_INPUT_TOKENS: Final = ("pi.ai.usage.input_tokens", "pi.ai.usage.cache_read_tokens", "pi.ai.usage.cache_write_tokens")
_TOOL_START: Final = {"pi.tool.name": "gen_ai.tool.name", "pi.tool.call_id": "gen_ai.tool.call.id"}


def convention_start(span_name: str, attributes: Mapping[str, RecordedValue]) -> dict[str, RecordedValue]:
    """What the conventions call the start attributes of `span_name`; empty for spans they do not know."""
    match span_name:
        case "pi.ai.request":
            found = _renamed(_REQUEST_START, attributes)
            operation, provider = attributes.get("pi.ai.operation"), attributes.get("pi.ai.provider")
            if isinstance(operation, str):
                found["gen_ai.operation.name"] = _OPERATIONS.get(operation, operation)
            if isinstance(provider, str):
                found["gen_ai.provider.name"] = _PROVIDERS.get(provider, provider)
            return found
        case "pi.harness.tool":
            return {"gen_ai.operation.name": "execute_tool", **_renamed(_TOOL_START, attributes)}
        case _:
            return {}


def convention_end(span_name: str, attributes: Mapping[str, RecordedValue]) -> dict[str, RecordedValue]:
    """What the conventions call the end attributes of `span_name`, all of them known.

    The conventions count cached tokens into the input, `pi.ai.usage.input_tokens` does not; the first-chunk time is
    in seconds there.
    """
    if span_name != "pi.ai.request":
        return {}
    found = _renamed(_REQUEST_END, attributes)
    stop_reason = attributes.get("pi.ai.response.stop_reason")
    if isinstance(stop_reason, str):
        found["gen_ai.response.finish_reasons"] = ("tool_call" if stop_reason == "tool_use" else stop_reason,)
    if "pi.ai.usage.input_tokens" in attributes:
        counts = [attributes.get(key, 0) for key in _INPUT_TOKENS]
        found["gen_ai.usage.input_tokens"] = sum(count for count in counts if isinstance(count, (int, float)))
    first_chunk = attributes.get("pi.ai.stream.time_to_first_chunk_ms")
    if isinstance(first_chunk, (int, float)):
        found["gen_ai.response.time_to_first_chunk"] = first_chunk / 1000
    return found


def _renamed(names: Mapping[str, str], attributes: Mapping[str, RecordedValue]) -> dict[str, RecordedValue]:
    return {theirs: attributes[ours] for ours, theirs in names.items() if ours in attributes}
