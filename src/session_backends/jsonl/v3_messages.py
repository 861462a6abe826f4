"""Messages and usage of v3 files as ours: what does not fit our types is repaired, never dropped and never fatal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from agent_harness.types.codec import Wire, WireError, load_message, load_usage
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import AgentMessage, AssistantMessage, ExtensionMessage, Usage

from .v3_raw import unix_ms

UNREAD = "v3Unread"
"""Key of a repaired message under which the values that did not fit are kept."""


def readable_message(value: JsonValue, timestamp: int) -> tuple[AgentMessage, str | None]:
    """An agent message, and why it had to be repaired, if it had to.

    `timestamp` (Unix ms) stands in for a missing one. Nothing is lost: values that fit no field of ours are kept under
    `v3Unread`, and a message that cannot be repaired is kept whole as an extension message of the role `v3.ROLE`.
    """
    reason = None
    try:
        message = load_message(value)
        if not (isinstance(message, AssistantMessage) and message.stop_reason == "pending"):
            return message, None
        reason = "an unfinished answer"
    except WireError as error:
        reason = str(error)
    if not isinstance(value, dict):
        return ExtensionMessage(role="v3.unknown", fields={"value": value}), reason
    try:
        return load_message(_repaired(value, timestamp)), reason
    except WireError:
        role = value.get("role")
        name = role.strip() if isinstance(role, str) else ""
        fields = {key: item for key, item in value.items() if key != "role"}
        if not name and role is not None:
            fields[UNREAD] = {"role": role}
        return ExtensionMessage(role=f"v3.{name or 'unknown'}", fields=fields), reason


def readable_usage(value: JsonValue) -> tuple[Usage | None, str | None]:
    """Usage, and why it had to be repaired; None when there is none."""
    if value is None:
        return None, None
    try:
        return load_usage(value), None
    except WireError as error:
        return load_usage(_numbers_only(value)), str(error)


# Repair --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    fits: Callable[[JsonValue], bool]
    default: JsonValue = None  # None: the field may be absent


Fields: TypeAlias = dict[str, _Field]


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_bool(value: JsonValue) -> bool:
    return isinstance(value, bool)


def _is_int(value: JsonValue) -> bool:
    return type(value) is int


def _is_number(value: JsonValue) -> bool:
    return type(value) in (int, float)


def _is_object(value: JsonValue) -> bool:
    return isinstance(value, dict)


def _is_stop_reason(value: JsonValue) -> bool:
    return value in ("stop", "length", "toolUse", "error", "aborted", "deferred")


TEXT, OPTIONAL_TEXT = _Field(_is_text, ""), _Field(_is_text)
FLAG, OPTIONAL_FLAG = _Field(_is_bool, False), _Field(_is_bool)
OPTIONAL_INT, OPTIONAL_OBJECT = _Field(_is_int), _Field(_is_object)

MESSAGES: dict[str, Fields] = {
    "user": {},
    "assistant": {
        "api": TEXT,
        "provider": TEXT,
        "model": TEXT,
        "usage": OPTIONAL_OBJECT,
        "stopReason": _Field(_is_stop_reason, "aborted"),
        "errorMessage": OPTIONAL_TEXT,
        "deferred": OPTIONAL_OBJECT,
        "errorCode": OPTIONAL_TEXT,
        "retryAfterMs": OPTIONAL_INT,
        "responseId": OPTIONAL_TEXT,
        "responseModel": OPTIONAL_TEXT,
        "rawStopReason": OPTIONAL_TEXT,
    },
    "toolResult": {"toolCallId": TEXT, "toolName": TEXT, "isError": FLAG, "usage": OPTIONAL_OBJECT},
    "bashExecution": {
        "command": TEXT,
        "output": TEXT,
        "exitCode": OPTIONAL_INT,
        "cancelled": FLAG,
        "truncated": FLAG,
        "fullOutputPath": OPTIONAL_TEXT,
        "excludeFromContext": OPTIONAL_FLAG,
    },
    "custom": {"customType": TEXT, "display": _Field(_is_bool, True)},
    "branchSummary": {"summary": TEXT, "fromId": TEXT},
    "compactionSummary": {"summary": TEXT, "tokensBefore": _Field(_is_number, 0)},
}
"""Fields of the known roles, but for `content` and `timestamp`."""

PARTS: dict[str, Fields] = {
    "text": {"text": TEXT, "textSignature": OPTIONAL_TEXT},
    "thinking": {"thinking": TEXT, "thinkingSignature": OPTIONAL_TEXT, "redacted": OPTIONAL_FLAG},
    "image": {"data": TEXT, "mimeType": TEXT},
    "toolCall": {"id": TEXT, "name": TEXT, "arguments": _Field(_is_object, {}), "thoughtSignature": OPTIONAL_TEXT},
}
USER_PARTS, ASSISTANT_PARTS = ("text", "image"), ("text", "thinking", "toolCall")

CONTENT: dict[str, tuple[str, ...]] = {
    "user": USER_PARTS,
    "custom": USER_PARTS,
    "toolResult": USER_PARTS,
    "assistant": ASSISTANT_PARTS,
}
"""Which parts the content of a role may hold."""

PLAIN_TEXT = frozenset({"user", "custom"})
"""Roles whose content may be a text instead of parts."""


def _repaired(message: Wire, timestamp: int) -> Wire:
    role = message.get("role")
    known = MESSAGES.get(role) if isinstance(role, str) else None
    if not isinstance(role, str) or known is None:
        return message
    out, unread = _fitted(message, known)
    given = message.get("timestamp")
    out["timestamp"] = timestamp if (moment := unix_ms(given)) is None else moment
    if given is not None and unix_ms(given) is None:
        unread["timestamp"] = given
    if role in CONTENT:
        content, complete = _content(message.get("content"), CONTENT[role], plain=role in PLAIN_TEXT)
        out["content"] = content
        if not complete:
            unread["content"] = message.get("content")
    if isinstance(usage := out.get("usage"), dict) and readable_usage(usage)[1] is not None:
        out["usage"], unread["usage"] = _numbers_only(usage), usage
    return {**out, UNREAD: unread} if unread else out


def _fitted(value: Wire, fields: Fields) -> tuple[Wire, Wire]:
    out, unread = dict(value), Wire()
    for key, expected in fields.items():
        given = out.get(key)
        if key in out and not expected.fits(given):
            del out[key]
            if given is not None:  # null says no more than absence
                unread[key] = given
        if key not in out and expected.default is not None:
            out[key] = expected.default
    if out.get("details", 0) is None:
        del out["details"]
    return out, unread


def _content(content: JsonValue, allowed: tuple[str, ...], *, plain: bool) -> tuple[JsonValue, bool]:
    """Content that fits, and whether it is all of it."""
    if isinstance(content, str):
        return (content if plain else [{"type": "text", "text": content}]), True
    if not isinstance(content, list):
        return ("" if plain else []), content is None
    parts: list[JsonValue] = []
    complete = True
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, dict) and isinstance(kind, str) and kind in allowed:
            fitted, unread = _fitted(part, PARTS[kind])
            parts.append(fitted)
            complete = complete and not unread
        else:
            complete = False
    return parts, complete


def _numbers_only(usage: JsonValue) -> Wire:
    if not isinstance(usage, dict):
        return {}
    out: Wire = {key: value for key, value in usage.items() if _is_number(value)}
    if isinstance(cost := usage.get("cost"), dict):
        out["cost"] = {key: value for key, value in cost.items() if _is_number(value)}
    return out
