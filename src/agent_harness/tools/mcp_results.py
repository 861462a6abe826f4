"""What an MCP server says of its tools and answers, in our own words. Pure."""

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from ..types.json import InvalidJson, JsonValue, canon, replace_surrogates
from ..types.messages import ImageContent, TextContent, UserContent
from ..types.records import Replay
from ..types.tools import AgentToolResult
from .output import BoundedOutput

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock, Tool

MAX_IMAGE_BYTES: Final = 5 * 1024 * 1024
"""Of base64 in one result; further images are named and left out (T25)."""
MAX_DESCRIPTION: Final = 4_096
_MAX_NAME: Final = 64  # what every provider takes


def tool_name(server: str, tool: str) -> str:
    """`SERVER__TOOL`, as providers allow names; what does not fit is told apart by a hash."""
    name = f"{server}__{tool}"
    fitting = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if fitting == name and len(name) <= _MAX_NAME:
        return name
    mark = hashlib.sha256(tool.encode(errors="replace")).hexdigest()[:8]
    return f"{fitting[: _MAX_NAME - 9]}_{mark}"


def parameters_of(tool: "Tool") -> dict[str, JsonValue] | None:
    """The tool's schema of arguments; None for one that no provider could be sent."""
    try:
        schema = canon(tool.input_schema, depth=16)
    except InvalidJson:
        return None
    return schema if isinstance(schema, dict) and schema.get("type", "object") == "object" else None


def replay_of(tool: "Tool", *, trusted: bool) -> Replay:
    """Whether a call whose end nobody knows may be made again: only if the server says so and the user believes it."""
    hints = tool.annotations
    harmless = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return "safe" if trusted and harmless else "never"


def result_of(server: str, tool: str, result: "CallToolResult", max_text_bytes: int) -> AgentToolResult:
    """Content for the model, `details` for applications: `{"server", "tool", "structuredContent"?}`."""
    text = BoundedOutput(max_text_bytes)
    images: list[UserContent] = []
    room = MAX_IMAGE_BYTES
    for part in result.content:
        if part.type == "image" and len(part.data) <= room and _is_base64(part.data):
            room -= len(part.data)
            images.append(ImageContent(data=part.data, mime_type=part.mime_type))
            continue
        said = replace_surrogates(_text(part))
        text.add((("\n" if text.total else "") + said).encode())
    details: dict[str, JsonValue] = {"server": server, "tool": tool}
    if result.structured_content is not None:
        try:
            details["structuredContent"] = canon(result.structured_content, depth=32)
        except InvalidJson:
            details["structuredContent"] = None
        if not result.content:
            text.add(orjson.dumps(details["structuredContent"]))
    said_all: list[UserContent] = [TextContent(text=text.text())] if text.total or not images else []
    return AgentToolResult(content=(*said_all, *images), details=details)


def _text(part: "ContentBlock") -> str:
    match part.type:
        case "text":
            return part.text
        case "image" | "audio":
            return f"[{part.type} left out: {part.mime_type}, {len(part.data)} characters of base64]"
        case "resource_link":
            return f"[resource {part.name}: {part.uri}]"
        case "resource":
            held = part.resource
            return getattr(held, "text", None) or f"[resource left out: {held.uri}, {held.mime_type or 'no type'}]"
        case _:
            assert_never(part.type)


def _is_base64(data: str) -> bool:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
