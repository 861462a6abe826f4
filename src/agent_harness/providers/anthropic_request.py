"""Messages -> the payload of an Anthropic Messages request."""

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

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
from .openai_chat_request import IMAGE_OMITTED, is_own

Object: TypeAlias = dict[str, JsonValue]

DEFAULT_MAX_TOKENS: Final = 8_192
"""The API insists on a limit: used where neither the request nor the model names one."""
CACHED: Final[Object] = {"type": "ephemeral"}
BUDGETS: Final = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768}
"""Thinking tokens by level, for models that take a budget instead of an effort."""
_BUDGET_MODELS = re.compile(r"claude-(3|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8})?$)")
LONGEST_ID: Final = 64


def anthropic_payload(model: Model, context: ProviderContext, options: StreamOptions) -> Object:
    """The JSON body. The prefix that stays (tools, system prompt, everything up to the last message) is cached."""
    max_tokens = options.max_tokens or model.max_tokens or DEFAULT_MAX_TOKENS
    payload: Object = {"model": model.id, "max_tokens": max_tokens, "stream": True}
    messages = _messages(context.messages, model)
    _mark_last(messages)
    payload["messages"] = list[JsonValue](messages)
    if context.system_prompt:
        payload["system"] = [{"type": "text", "text": context.system_prompt, "cache_control": CACHED}]
    if context.tools and model.tools:
        tools: list[Object] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in context.tools
        ]
        if not context.system_prompt:  # tools come before the system prompt: its mark covers them
            tools[-1]["cache_control"] = CACHED
        payload["tools"] = list[JsonValue](tools)
    output: Object = {}
    if options.response_schema is not None:
        output["format"] = {"type": "json_schema", "schema": dict(options.response_schema)}
    thinking = _thinking(model, options, max_tokens, output)
    if thinking is not None:
        payload["thinking"] = thinking
    elif options.temperature is not None:
        payload["temperature"] = options.temperature
    if output:
        payload["output_config"] = output
    user = options.metadata.get("user_id") if options.metadata else None
    if isinstance(user, str):
        payload["metadata"] = {"user_id": user}
    return payload


def _thinking(model: Model, options: StreamOptions, max_tokens: int, output: Object) -> Object | None:
    level = options.thinking_level
    if level is None or level == "off" or level not in model.thinking_levels:
        return None
    if not _BUDGET_MODELS.match(model.id):
        output["effort"] = level
        return {"type": "adaptive", "display": "summarized"}
    budget = min(BUDGETS.get(level, BUDGETS["medium"]), max_tokens - 1_024)  # the budget is part of max_tokens
    return {"type": "enabled", "budget_tokens": budget} if budget >= BUDGETS["minimal"] else None


def _messages(messages: Sequence[Message], model: Model) -> list[Object]:
    out: list[Object] = []
    ids = CallIds(LONGEST_ID)

    def say(role: str, blocks: list[JsonValue]) -> None:
        last = out[-1] if out else None
        if last is not None and last["role"] == role and isinstance(last["content"], list):
            last["content"] = [*last["content"], *blocks]  # results of one batch belong into one message
        elif blocks:
            out.append({"role": role, "content": blocks})

    for message in messages:
        match message:
            case UserMessage():
                say("user", _user_content(message.content, model))
            case AssistantMessage():
                say("assistant", _assistant(message, model, ids))
            case ToolResultMessage():
                result: Object = {
                    "type": "tool_result",
                    "tool_use_id": ids(message.tool_call_id),
                    "content": _user_content(message.content, model),
                }
                if message.is_error:
                    result["is_error"] = True
                say("user", [result])
    return out


def _user_content(content: str | Sequence[UserContent], model: Model) -> list[JsonValue]:
    if isinstance(content, str):
        return _text(content)
    return [block for part in content for block in _user_part(part, model)]


def _user_part(part: UserContent, model: Model) -> list[JsonValue]:
    match part:
        case TextContent():
            return _text(part.text)
        case ImageContent():
            if not model.images:
                return _text(IMAGE_OMITTED)
            return [
                {"type": "image", "source": {"type": "base64", "media_type": part.mime_type, "data": part.data}},
            ]


def _text(text: str) -> list[JsonValue]:
    return [{"type": "text", "text": text}] if text.strip() else []  # a blank block is refused


def _assistant(message: AssistantMessage, model: Model, ids: CallIds) -> list[JsonValue]:
    blocks: list[JsonValue] = []
    own = is_own(message, model)
    for part in message.content:
        match part:
            case TextContent():
                blocks += _text(part.text)
            case ThinkingContent():
                if own and part.thinking_signature:
                    blocks.append(
                        {"type": "redacted_thinking", "data": part.thinking_signature}
                        if part.redacted
                        else {"type": "thinking", "thinking": part.thinking, "signature": part.thinking_signature}
                    )
            case ToolCall():
                blocks.append(
                    {"type": "tool_use", "id": ids(part.id), "name": part.name, "input": dict(part.arguments)}
                )
    return blocks


def _mark_last(messages: Sequence[Object]) -> None:
    """Cache up to the last message: the next request of the conversation begins with all of it."""
    content = messages[-1]["content"] if messages else None
    if isinstance(content, list) and content:
        block = content[-1]
        if isinstance(block, dict) and block.get("type") not in {"thinking", "redacted_thinking"}:
            content[-1] = {**block, "cache_control": CACHED}
