"""Tool calls for models and servers that know none: described in words, answered in JSON that a grammar enforces. Pure.

An answer is `{"tool": NAME, "arguments": {...}}` or `{"answer": TEXT}`; the schema has one branch for each. Earlier
calls are shown to the model in the same form, results as user messages.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import orjson
import pydantic_core

from ..types.json import InvalidJson, JsonValue, canon
from ..types.messages import (
    AssistantContent,
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from .base import ProviderContext, ToolSpec

MAX_REPEATS: Final = 3
"""How often one call is made in a row of turns; after that the model can only answer."""

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEPT: Final = frozenset(
    ("type", "enum", "const", "required", "minItems", "maxItems", "minLength", "maxLength", *_BOUNDS)
)
_ONE: Final = frozenset(("items", "additionalProperties"))
_LISTS: Final = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf", "prefixItems": "prefixItems"}


def spoken(context: ProviderContext) -> ProviderContext:
    """The same conversation without a tool in its form: what they do stands in the system prompt."""
    return ProviderContext(
        messages=tuple(_said(message) for message in context.messages),
        system_prompt="\n\n".join([*([context.system_prompt] if context.system_prompt else []), manual(context.tools)]),
    )


def manual(tools: Sequence[ToolSpec]) -> str:
    """How the model is told to use tools."""
    lines = ["You can use these tools:"]
    for tool in tools:
        lines.append(f"- {tool.name}: {tool.description}\n  arguments: {_dumped(dict(tool.parameters))}")
    lines.append('To use a tool, reply with JSON only: {"tool": "NAME", "arguments": {...}}')
    lines.append("You will be given its result. Use one tool at a time.")
    lines.append('When nothing is left to do, reply with JSON only: {"answer": "what you want to say"}')
    return "\n".join(lines)


def goes_in_circles(messages: Sequence[Message]) -> bool:
    """Whether one call was made `MAX_REPEATS` times since somebody spoke: small models repeat what they see."""
    made: Counter[str] = Counter()
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            break
        if isinstance(message, AssistantMessage):
            made.update(_dumped([call.name, call.arguments]) for call in message.tool_calls)
    return max(made.values(), default=0) >= MAX_REPEATS


def answer_schema(tools: Sequence[ToolSpec], answer: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """What every answer must fit. `answer` is the schema of a final answer; text without one."""
    defs: dict[str, JsonValue] = {}
    branches: list[JsonValue] = []
    for number, tool in enumerate(tools):
        arguments = _embedded(dict(tool.parameters), f"t{number}.", defs)
        if isinstance(arguments, dict):
            arguments.setdefault("type", "object")
        branches.append(_closed({"tool": {"const": tool.name}, "arguments": arguments}))
    final: JsonValue = {"type": "string"} if answer is None else _embedded(dict(answer), "a.", defs)
    branches.append(_closed({"answer": final}))
    return {"anyOf": branches, **({"$defs": defs} if defs else {})}


def _closed(properties: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {
        "type": "object",
        "properties": properties,
        "required": list[JsonValue](properties),
        "additionalProperties": False,
    }


def _embedded(schema: JsonValue, prefix: str, defs: dict[str, JsonValue]) -> JsonValue:
    """A schema as part of another document, with the keywords that grammars know; the tool checks the others itself."""
    if isinstance(schema, dict):
        own = schema.get("$defs")
        for name, held in own.items() if isinstance(own, dict) else ():
            defs[prefix + name] = _embedded(held, prefix, defs)
    return _narrowed(schema, prefix)


def _narrowed(schema: JsonValue, prefix: str) -> JsonValue:
    if not isinstance(schema, dict):
        return schema
    ref = schema.get("$ref")
    if isinstance(ref, str):
        name = ref.rpartition("/")[2]
        return {"$ref": f"#/$defs/{prefix}{name}"} if ref == f"#/$defs/{name}" else {}
    kept: dict[str, JsonValue] = {}
    for key, value in schema.items():
        if key in _KEPT:
            kept[key] = value
        elif key == "properties" and isinstance(value, dict):
            kept[key] = {name: _narrowed(held, prefix) for name, held in value.items()}
        elif key in _ONE:
            kept[key] = _narrowed(value, prefix)
        elif key in _LISTS and isinstance(value, list):
            kept[_LISTS[key]] = [_narrowed(held, prefix) for held in value]
    return kept


def partial_answer(text: str) -> str:
    """As much of a final answer's text as an unfinished reply holds; empty for a tool call."""
    try:
        value: object = pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return ""
    said: object = value.get("answer") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return said if isinstance(said, str) else ""


def read_answer(message: AssistantMessage, call_id: str) -> AssistantMessage:
    """The settled reply as an answer with text or a call. A cut one keeps its text and is never a call."""
    if message.stop_reason == "length":
        return replace(message, content=_text(partial_answer(message.text)))
    if message.stop_reason != "stop":
        return message
    try:
        value = canon(orjson.loads(message.text))
    except (orjson.JSONDecodeError, InvalidJson):
        value = None
    match value:
        case {"tool": str(name), "arguments": dict(arguments)}:
            call = ToolCall(id=call_id, name=name, arguments=arguments)
            return replace(message, content=(call,), stop_reason="toolUse")
        case {"answer": said}:
            return replace(message, content=_text(said if isinstance(said, str) else _dumped(said)))
        case _:
            text = "the model's reply is not the JSON that it was held to"
            return replace(message, content=(), stop_reason="error", error_code="server_error", error_message=text)


def _text(text: str) -> tuple[AssistantContent, ...]:
    return (TextContent(text=text),) if text else ()


def _said(message: Message) -> Message:
    match message:
        case AssistantMessage():
            replies = [_dumped({"tool": call.name, "arguments": call.arguments}) for call in message.tool_calls]
            if not replies:
                replies = [_dumped({"answer": message.text})]
            return replace(message, content=(TextContent(text="\n".join(replies)),), stop_reason="stop")
        case ToolResultMessage():
            text = "\n".join(part.text for part in message.content if isinstance(part, TextContent))
            pictures = sum(isinstance(part, ImageContent) for part in message.content)
            what = "failed" if message.is_error else "gave"
            shown = text or (f"[{pictures} images]" if pictures else "(nothing)")
            return UserMessage(content=f"The tool {message.tool_name} {what}:\n{shown}", timestamp=message.timestamp)
        case UserMessage():
            return message


def _dumped(value: JsonValue) -> str:
    return orjson.dumps(value).decode()
