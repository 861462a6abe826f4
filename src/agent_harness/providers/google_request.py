"""Messages -> the payload of a Gemini `generateContent` request."""

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
from .openai_chat_request import IMAGE_OMITTED, NO_OUTPUT, is_own

Object: TypeAlias = dict[str, JsonValue]

BUDGETS: Final = {"minimal": 512, "low": 2_048, "medium": 8_192, "high": 24_576}
"""Thinking tokens by level, for the models before Gemini 3, which take a budget."""
UNSIGNED: Final = "skip_thought_signature_validator"
"""Google's documented stand-in for the signature of a call that another model made."""
_BUDGET_MODELS = re.compile(r"gemini-[12]\.")


def google_payload(model: Model, context: ProviderContext, options: StreamOptions) -> Object:
    """The JSON body."""
    payload: Object = {"contents": list[JsonValue](_contents(context.messages, model))}
    if context.system_prompt:
        payload["systemInstruction"] = {"parts": [{"text": context.system_prompt}]}
    if context.tools and model.tools:
        declarations: list[JsonValue] = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": dict(tool.parameters)}
            for tool in context.tools
        ]
        payload["tools"] = [{"functionDeclarations": declarations}]
    config: Object = {}
    if options.max_tokens is not None:
        config["maxOutputTokens"] = options.max_tokens
    if options.temperature is not None:
        config["temperature"] = options.temperature
    level = options.thinking_level
    if level is not None and level != "off" and level in model.thinking_levels:
        thinking: Object = {"includeThoughts": True}
        if _BUDGET_MODELS.match(model.id):
            thinking["thinkingBudget"] = BUDGETS.get(level, BUDGETS["high"])
        else:
            thinking["thinkingLevel"] = level.upper()
        config["thinkingConfig"] = thinking
    if options.response_schema is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = dict(options.response_schema)
    if config:
        payload["generationConfig"] = config
    return payload


def _contents(messages: Sequence[Message], model: Model) -> list[Object]:
    out: list[Object] = []

    def say(role: str, parts: list[JsonValue]) -> None:
        last = out[-1] if out else None
        if last is not None and last["role"] == role and isinstance(last["parts"], list):
            last["parts"] = [*last["parts"], *parts]  # results of one batch belong into one content
        elif parts:
            out.append({"role": role, "parts": parts})

    for message in messages:
        match message:
            case UserMessage(content=content):
                say("user", [{"text": content}] if isinstance(content, str) else _user_parts(content, model))
            case AssistantMessage():
                say("model", _model_parts(message, model))
            case ToolResultMessage():
                text = "\n".join(part.text for part in message.content if isinstance(part, TextContent)) or NO_OUTPUT
                answer: JsonValue = {"error" if message.is_error else "output": text}
                images = [part for part in message.content if isinstance(part, ImageContent)]
                response: JsonValue = {"functionResponse": {"name": message.tool_name, "response": answer}}
                say("user", [response, *_user_parts(images, model)])
    return out


def _user_parts(content: Sequence[UserContent], model: Model) -> list[JsonValue]:
    out: list[JsonValue] = []
    for part in content:
        match part:
            case TextContent():
                out.append({"text": part.text})
            case ImageContent() if model.images:
                out.append({"inlineData": {"mimeType": part.mime_type, "data": part.data}})
            case ImageContent():
                out.append({"text": IMAGE_OMITTED})
    return out


def _model_parts(message: AssistantMessage, model: Model) -> list[JsonValue]:
    own = is_own(message, model)
    out: list[JsonValue] = []
    first_call = True
    for part in message.content:
        match part:
            case TextContent():
                signature = part.text_signature if own else None
                if part.text or signature:
                    out.append(_signed({"text": part.text}, signature))
            case ThinkingContent():
                pass  # a summary for people: only the signatures on the other parts go back
            case ToolCall():
                signature = part.thought_signature if own else None
                if signature is None and first_call and not own and not _BUDGET_MODELS.match(model.id):
                    signature = UNSIGNED
                first_call = False
                out.append(_signed({"functionCall": {"name": part.name, "args": dict(part.arguments)}}, signature))
    return out


def _signed(part: Object, signature: str | None) -> Object:
    return part if signature is None else {**part, "thoughtSignature": signature}
