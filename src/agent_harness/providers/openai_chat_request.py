"""Messages -> the payload of an OpenAI Chat Completions request, for any compatible server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import orjson

from ..types.json import JsonValue
from ..types.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserContent,
    UserMessage,
)
from .base import Model, ProviderContext, StreamOptions
from .call_ids import CallIds

Object: TypeAlias = dict[str, JsonValue]
MaxTokensField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]

IMAGE_OMITTED: Final = "[image left out: this model takes no images]"
NO_OUTPUT: Final = "(no output)"
LONGEST_ID: Final = 40
"""OpenAI refuses longer call ids."""
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""Where servers put reasoning text; the name is kept as its signature and used again to send it back."""
REASONING_DETAILS: Final = "reasoningDetails"
"""Key in `ThinkingContent.extra`: OpenRouter's structured reasoning, sent back as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Where compatible servers differ."""

    max_tokens_field: MaxTokensField = "max_tokens"
    stream_usage: bool = True  # send stream_options.include_usage
    fixed_temperature: bool = False  # reasoning models refuse a temperature


def chat_payload(model: Model, context: ProviderContext, options: StreamOptions, dialect: Dialect) -> Object:
    """The JSON body. What the model cannot do is left out instead of failing."""
    messages: list[JsonValue] = []
    if context.system_prompt:
        messages.append({"role": "system", "content": context.system_prompt})
    messages += _messages(context.messages, model)
    payload: Object = {"model": model.id, "messages": messages, "stream": True}
    if dialect.stream_usage:
        payload["stream_options"] = {"include_usage": True}
    if context.tools and model.tools:
        payload["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
            }
            for tool in context.tools
        ]
    if options.max_tokens is not None:
        payload[dialect.max_tokens_field] = options.max_tokens
    if options.temperature is not None and not (dialect.fixed_temperature and model.thinking_levels):
        payload["temperature"] = options.temperature
    if options.thinking_level is not None and options.thinking_level in model.thinking_levels:
        if options.thinking_level != "off":
            payload["reasoning_effort"] = options.thinking_level
    if options.response_schema is not None:
        schema = dict(options.response_schema)
        payload["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": is_strict_schema(schema)},
        }
    return payload


def is_strict_schema(schema: JsonValue) -> bool:
    """Whether OpenAI's strict mode takes this schema: closed objects whose properties are all required."""
    match schema:
        case dict():
            if "properties" in schema or schema.get("type") == "object":
                properties, required = schema.get("properties"), schema.get("required")
                names = list(properties) if isinstance(properties, dict) else []
                listed = required if isinstance(required, list) else []
                if schema.get("additionalProperties") is not False or any(name not in listed for name in names):
                    return False
            return all(is_strict_schema(value) for value in schema.values())
        case list():
            return all(is_strict_schema(value) for value in schema)
        case _:
            return True


def _messages(messages: Sequence[Message], model: Model) -> list[JsonValue]:
    out: list[JsonValue] = []
    images: list[JsonValue] = []  # of a batch of results: only a user message can carry them, after the last result
    ids = CallIds(LONGEST_ID)
    for message in messages:
        if not isinstance(message, ToolResultMessage) and images:
            out.append({"role": "user", "content": images})
            images = []
        match message:
            case UserMessage():
                out.append({"role": "user", "content": _user_content(message.content, model)})
            case AssistantMessage():
                converted = _assistant(message, model, ids)
                if converted is not None:
                    out.append(converted)
            case ToolResultMessage():
                text = "\n".join(part.text for part in message.content if isinstance(part, TextContent))
                pictures = [part for part in message.content if isinstance(part, ImageContent)]
                if pictures and not model.images:
                    text = "\n".join([*([text] if text else []), *([IMAGE_OMITTED] * len(pictures))])
                elif pictures:
                    images.append({"type": "text", "text": f"Images of the result of {message.tool_name}:"})
                    images += [_image(part) for part in pictures]
                    text = text or "(see the images below)"
                out.append({"role": "tool", "tool_call_id": ids(message.tool_call_id), "content": text or NO_OUTPUT})
    if images:
        out.append({"role": "user", "content": images})
    return out


def _user_content(content: str | Sequence[UserContent], model: Model) -> JsonValue:
    if isinstance(content, str):
        return content
    if all(isinstance(part, TextContent) for part in content):
        return "\n".join(part.text for part in content if isinstance(part, TextContent))
    parts: list[JsonValue] = []
    for part in content:
        match part:
            case TextContent():
                parts.append({"type": "text", "text": part.text})
            case ImageContent():
                parts.append(_image(part) if model.images else {"type": "text", "text": IMAGE_OMITTED})
    return parts


def _image(part: ImageContent) -> JsonValue:
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.data}"}}


def _assistant(message: AssistantMessage, model: Model, ids: CallIds) -> JsonValue | None:
    out: Object = {"role": "assistant"}
    text = message.text
    calls: list[JsonValue] = []
    own = is_own(message, model)
    for call in message.tool_calls:
        item: Object = {
            "id": ids(call.id, keep=own),
            "type": "function",
            "function": {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()},
        }
        if own and call.thought_signature is not None:  # Gemini refuses its calls without it
            item["extra_content"] = {"google": {"thought_signature": call.thought_signature}}
        calls.append(item)
    if not text and not calls:
        return None
    out["content"] = text or None
    if calls:
        out["tool_calls"] = calls
    if own:
        _add_reasoning(out, [part for part in message.content if isinstance(part, ThinkingContent)])
    return out


def _add_reasoning(out: Object, parts: Sequence[ThinkingContent]) -> None:
    for name in REASONING_FIELDS:
        text = "".join(part.thinking for part in parts if part.thinking_signature == name)
        if text:
            out[name] = text
    details: list[JsonValue] = []
    for part in parts:
        kept = part.extra.get(REASONING_DETAILS)
        if isinstance(kept, list):
            details += kept
    if details:
        out["reasoning_details"] = details


def is_own(message: AssistantMessage, model: Model) -> bool:
    """Whether this model wrote the message: private blocks of another provider or model are not sent (case 46)."""
    return (message.api, message.provider, message.model) == (model.api, model.provider, model.id)


def without_stream_options(payload: Mapping[str, JsonValue]) -> Object:
    """The same request for a server that refuses to report usage in the stream."""
    return {key: value for key, value in payload.items() if key != "stream_options"}
