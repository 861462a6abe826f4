"""One v3 entry -> the body of a format-4 entry, with the context edits of its path applied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from agent_harness.types.codec import Wire
from agent_harness.types.entries import (
    ActiveToolsBody,
    BranchSummaryBody,
    CompactionBody,
    CustomBody,
    EntryBody,
    MessageBody,
    ModelChangeBody,
    ThinkingLevelBody,
)
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import AgentMessage, AssistantMessage, Usage

from .v3_messages import readable_message, readable_usage
from .v3_raw import RawEntry

RETAINED = frozenset(
    {
        "message",
        "custom_message",
        "model_change",
        "thinking_level_change",
        "active_tools_change",
        "compaction",
        "branch_summary",
        "custom",
        "context_edit",
    }
)
"""Types that have a place in the tree."""

FACTS = frozenset({"label", "session_info", "usage"})
"""Types that are no part of the conversation: they become facts and statistics (harness-v2 §12)."""

EDITABLE = frozenset({"user", "assistant", "toolResult", "custom"})
"""Roles whose content a context edit can replace; any message can be removed."""

EDIT_TYPE = "v3.context_edit"
"""Custom type of what an edit leaves: the edit itself and, in the place of a removed entry, a mark without content."""

Repaired: TypeAlias = Callable[[str], None]
"""Told why something had to be repaired."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What a `context_edit` does to its target on the paths below it."""

    id: str
    content: JsonValue = None
    removes: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """A message of a compaction's retained tail and the entry it came from, if it came from one."""

    source_id: str | None
    wire: JsonValue
    timestamp: int  # Unix ms, of the entry


Edits: TypeAlias = Mapping[str, Edit]
"""Latest edit by target entry."""


def read_edit(entry: RawEntry) -> Edit | None:
    """The edit in a `context_edit` entry; None when its replacement is unreadable, which removes the target."""
    replacement = entry.wire.get("replacement", False)
    if replacement is None:
        return Edit(entry.id, removes=True)
    if isinstance(replacement, dict) and isinstance(content := replacement.get("content"), str | list):
        return Edit(entry.id, content)
    return None


def context_message(entry: RawEntry) -> Wire | None:
    """What an entry other than a compaction adds to the context, unedited; None when it adds nothing."""
    wire = entry.wire
    match entry.type:
        case "message":
            message = wire.get("message")
            return message if isinstance(message, dict) else {"role": "v3.unknown", "value": message}
        case "custom_message":
            kept: Wire = {key: wire[key] for key in ("customType", "content", "display", "details") if key in wire}
            return {"role": "custom", "display": True, **kept, "timestamp": entry.timestamp}
        case "branch_summary" if summary := _text(wire.get("summary")):
            from_id = _text(wire.get("fromId"))
            return {"role": "branchSummary", "summary": summary, "fromId": from_id, "timestamp": entry.timestamp}
        case _:
            return None


def edited(message: JsonValue, edit: Edit | None) -> JsonValue:
    """A message with an edit applied; None when the edit removes it."""
    if edit is None or not isinstance(message, dict):
        return message if edit is None or not edit.removes else None
    if edit.removes:
        return None
    role = message.get("role")
    if role not in EDITABLE:
        return message
    as_parts = role in ("assistant", "toolResult") and isinstance(edit.content, str)
    return {**message, "content": [{"type": "text", "text": edit.content}] if as_parts else edit.content}


def entry_body(entry: RawEntry, kept: tuple[Kept, ...], edits: Edits, repaired: Repaired) -> EntryBody | None:
    """The body of a retained entry; None when the entry is unreadable, and stays out of the tree.

    `kept` is a compaction's retained tail, unedited. `edits` are those that its path applies to it and to its tail.
    """
    wire, edit = entry.wire, edits.get(entry.id)
    match entry.type:
        case "message" | "custom_message":
            return _message_body(entry, edit, repaired)
        case "model_change":
            provider, model_id = wire.get("provider"), wire.get("modelId")
            if isinstance(provider, str) and isinstance(model_id, str):
                return ModelChangeBody(provider=provider, model_id=model_id)
        case "thinking_level_change":
            if isinstance(level := wire.get("thinkingLevel"), str):
                return ThinkingLevelBody(thinking_level=level)
        case "active_tools_change":
            if isinstance(names := wire.get("activeToolNames"), list):
                return ActiveToolsBody(active_tool_names=tuple(name for name in names if isinstance(name, str)))
        case "compaction":
            return CompactionBody(
                summary="" if edit is not None and edit.removes else _text(wire.get("summary"), repaired),
                retained_tail=_tail(kept, edits, repaired),
                tokens_before=_number(wire.get("tokensBefore")),
                details=wire.get("details"),
                usage=entry_usage(entry, repaired),
            )
        case "branch_summary":
            if edit is not None and edit.removes:
                return removed_mark(entry, edit)
            if not _text(wire.get("summary"), repaired):  # adds nothing to the context, as for the original
                return CustomBody(custom_type="v3.branch_summary", data={"fromId": _text(wire.get("fromId"))})
            return BranchSummaryBody(
                from_id=_text(wire.get("fromId"), repaired),
                summary=_text(wire.get("summary")),
                details=wire.get("details"),
                usage=entry_usage(entry, repaired),
            )
        case "custom":
            if isinstance(custom_type := wire.get("customType"), str):
                return CustomBody(custom_type=custom_type, data=wire.get("data"))
        case "context_edit":
            # What replaced the text stands in the edited message; here only the fact of the edit is kept.
            target = wire.get("targetId")
            action = "replaced" if isinstance(wire.get("replacement"), dict) else "removed"
            return CustomBody(custom_type=EDIT_TYPE, data={"targetId": target, "action": action})
        case _:
            pass
    return None


def removed_mark(entry: RawEntry, edit: Edit) -> EntryBody:
    """What stands in the place of an entry that was removed from the context: its id, not its content.

    A removed answer still says which model the path uses, as it does for the program that wrote the file.
    """
    message = entry.wire.get("message")
    if isinstance(message, dict) and message.get("role") == "assistant":
        provider, model = message.get("provider"), message.get("model")
        if isinstance(provider, str) and isinstance(model, str):
            return ModelChangeBody(provider=provider, model_id=model)
    return CustomBody(custom_type=EDIT_TYPE, data={"removedBy": edit.id})


def entry_usage(entry: RawEntry, repaired: Repaired) -> Usage | None:
    """The usage that an entry reports: an answer's, a tool's, a summary's, or that of a `usage` entry."""
    holder: JsonValue = entry.wire
    if entry.type == "message":
        holder = entry.wire.get("message")
    elif entry.type not in ("compaction", "branch_summary", "usage"):
        return None
    usage, reason = readable_usage(holder.get("usage") if isinstance(holder, dict) else None)
    if reason is not None:
        repaired(f"usage: {reason}")
    return usage


def _message_body(entry: RawEntry, edit: Edit | None, repaired: Repaired) -> EntryBody:
    wire = edited(context_message(entry), edit)
    if wire is None and edit is not None:
        return removed_mark(entry, edit)
    if entry.type == "message" and not isinstance(entry.wire.get("message"), dict):
        repaired("message: an object is required")
    return MessageBody(message=_message(wire, entry.timestamp, repaired))


def _message(wire: JsonValue, timestamp: int, repaired: Repaired) -> AgentMessage:
    message, reason = readable_message(wire, timestamp)
    if reason is not None:
        repaired(f"message: {reason}")
    return message


def _tail(kept: tuple[Kept, ...], edits: Edits, repaired: Repaired) -> tuple[AgentMessage, ...]:
    messages: list[AgentMessage] = []
    for item in kept:
        wire = edited(item.wire, edits.get(item.source_id) if item.source_id is not None else None)
        if wire is None:
            continue
        # What had to be repaired in an entry's message was reported with that entry.
        message = _message(wire, item.timestamp, repaired if item.source_id is None else _told_before)
        if not (isinstance(message, AssistantMessage) and message.stop_reason == "deferred"):
            messages.append(message)
    return tuple(messages)


def _told_before(reason: str) -> None:
    del reason


def _text(value: JsonValue, repaired: Repaired | None = None) -> str:
    if isinstance(value, str):
        return value
    if repaired is not None:
        repaired("a text is missing")
    return ""


def _number(value: JsonValue) -> int | float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
