"""Messages -> the payload of an OpenAI Responses request. Nothing is kept at the provider but background answers."""

import json
from collections.abc import Sequence
from typing import Final, TypeAlias, cast

import orjson

from ..types.json import JsonValue
from ..types.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserContent,
    UserMessage,
)
from .base import Model, ProviderContext, StreamOptions
from .call_ids import CallIds
from .openai_chat_request import IMAGE_OMITTED, NO_OUTPUT, is_own, is_strict_schema

Object: TypeAlias = dict[str, JsonValue]

MIN_OUTPUT: Final = 16
"""The API refuses smaller limits."""
LONGEST_ID: Final = 64
"""Longer call ids are refused."""
PHASE: Final = "phase"
"""Key in `TextContent.extra`: whether a text is commentary or the answer; the API wants it back."""


def responses_payload(model: Model, context: ProviderContext, options: StreamOptions, *, own_server: bool) -> Object:
    """The JSON body. `own_server` is OpenAI itself, whose reasoning models refuse a temperature."""
    deferred = options.deferred and model.deferred
    payload: Object = {
        "model": model.id,
        "input": _items(context.messages, model),
        "stream": not deferred,
        "store": deferred,
    }
    if deferred:
        payload["background"] = True
    if context.system_prompt:
        payload["instructions"] = context.system_prompt
    if context.tools and model.tools:
        payload["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
                "strict": False,
            }
            for tool in context.tools
        ]
    if options.max_tokens is not None:
        payload["max_output_tokens"] = max(MIN_OUTPUT, options.max_tokens)
    if options.temperature is not None and not (own_server and model.thinking_levels):
        payload["temperature"] = options.temperature
    if model.thinking_levels:
        payload["include"] = ["reasoning.encrypted_content"]
        level = options.thinking_level
        if level is not None and level != "off" and level in model.thinking_levels:
            payload["reasoning"] = {"effort": level, "summary": "auto"}
    if options.response_schema is not None:
        schema = dict(options.response_schema)
        payload["text"] = {
            "format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict_schema(schema)}
        }
    return payload


def _items(messages: Sequence[Message], model: Model) -> list[JsonValue]:
    out: list[JsonValue] = []
    ids = CallIds(LONGEST_ID)
    for message in messages:
        match message:
            case UserMessage(content=content):
                said: JsonValue = content if isinstance(content, str) else _parts(content, model)
                out.append({"role": "user", "content": said})
            case AssistantMessage():
                out += _assistant(message, model, ids)
            case ToolResultMessage():
                plain = all(isinstance(part, TextContent) for part in message.content)
                text = "\n".join(part.text for part in message.content if isinstance(part, TextContent))
                output: JsonValue = (text or NO_OUTPUT) if plain else _parts(message.content, model)
                out.append({"type": "function_call_output", "call_id": ids(message.tool_call_id), "output": output})
    return out


def _parts(content: Sequence[UserContent], model: Model) -> list[JsonValue]:
    out: list[JsonValue] = []
    for part in content:
        match part:
            case TextContent():
                out.append({"type": "input_text", "text": part.text})
            case ImageContent():
                url = f"data:{part.mime_type};base64,{part.data}"
                image: Object = {"type": "input_image", "image_url": url, "detail": "auto"}
                out.append(image if model.images else {"type": "input_text", "text": IMAGE_OMITTED})
    return out


def _assistant(message: AssistantMessage, model: Model, ids: CallIds) -> list[JsonValue]:
    out: list[JsonValue] = []
    own = is_own(message, model)
    for part in message.content:
        match part:
            case TextContent():
                if part.text:
                    item: Object = {"type": "message", "role": "assistant", "content": part.text}
                    if own and PHASE in part.extra:
                        item[PHASE] = part.extra[PHASE]
                    out.append(item)
            case ThinkingContent():
                reasoning = _reasoning(part.thinking_signature) if own else None
                out += [reasoning] if reasoning is not None else []
            case ToolCall():
                arguments = orjson.dumps(part.arguments).decode()
                call_id = ids(part.id, keep=own)
                out.append({"type": "function_call", "call_id": call_id, "name": part.name, "arguments": arguments})
    return out


def _reasoning(signature: str | None) -> JsonValue | None:
    """The reasoning item that the signature holds, as the API sent it."""
    try:
        item: object = json.loads(signature or "")
    except ValueError:
        return None
    if not isinstance(item, dict):
        return None
    return {key: value for key, value in cast("Object", item).items() if key != "status"}  # refused as input
