"""What the original program computes for a v3 file, written a second time, straight from the raw lines.

It knows nothing of normalisation: it walks raw parents and projects raw entries, so that the two can be compared.
"""

import json
from collections.abc import Sequence
from typing import Any

from agent_harness.session.context import Context, build_context
from agent_harness.session.queries import BranchBounds, EntryQuery, select_on_branch
from agent_harness.types.codec import dump
from agent_harness.types.entries import Entry
from agent_harness.types.json import replace_surrogates

Raw = dict[str, Any]


class PathView:
    """The reads that `build_context` needs, over a tuple of entries."""

    def __init__(self, entries: Sequence[Entry], leaf_id: str | None) -> None:
        self._by_id = {entry.id: entry for entry in entries}
        self._leaf_id = leaf_id

    async def get_leaf_id(self) -> str | None:
        return self._leaf_id

    async def find_entries_on_branch(self, *, start, stop_at_type=None, **query: Any) -> list[Entry]:
        path, current = [], start
        while current is not None:
            path.append(self._by_id[current])
            current = path[-1].parent_id
        return select_on_branch(path, EntryQuery(**query), BranchBounds(start=start, stop_at_type=stop_at_type))


async def context_of(entries: Sequence[Entry], leaf_id: str | None) -> Raw:
    """The context of a leaf in the form of the oracles."""
    context: Context = await build_context(PathView(entries, leaf_id), leaf_id)  # type: ignore[arg-type]
    model = context.model
    return {
        "messages": [dump(message) for message in context.messages],
        "model": None if model is None else {"provider": model.provider, "modelId": model.model_id},
        "thinkingLevel": context.thinking_level,
    }


def storable(value: Any) -> Any:
    """The same JSON with lone surrogates replaced, as nothing else can be stored."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): storable(item) for key, item in value.items()}
    return value


def raw_entries(raw: bytes) -> dict[str, Raw]:
    """Readable entries below the header, by id, in file order."""
    found: dict[str, Raw] = {}
    for line in raw.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if value["type"] != "session":
            found.pop(value["id"], None)
            found[value["id"]] = value
    return found


def raw_path(entries: dict[str, Raw], leaf: str) -> list[Raw]:
    """Root to leaf; a parent that is not in the file ends the path."""
    path: list[Raw] = []
    current: str | None = leaf
    while current in entries:
        path.append(entries[current])
        current = path[-1]["parentId"]
    return path[::-1]


def resolved(entries: dict[str, Raw], entry_id: str | None, retained: set[str]) -> str | None:
    """The entry or its nearest ancestor that was retained."""
    while entry_id is not None and entry_id not in retained:
        entry_id = entries[entry_id]["parentId"] if entry_id in entries else None
    return entry_id


def raw_context(path: list[Raw]) -> tuple[list[Any], Any]:
    """Texts that the path shows, and the model: the newest compaction, what it keeps, what follows, edits applied."""
    newest = max((i for i, entry in enumerate(path) if entry["type"] == "compaction"), default=None)
    shown = path
    if newest is not None:
        first = next((i for i in range(newest) if path[i]["id"] == path[newest]["firstKeptEntryId"]), newest)
        shown = [path[newest], *path[first:newest], *path[newest + 1 :]]
    edits = {entry["targetId"]: entry["replacement"] for entry in shown if entry["type"] == "context_edit"}
    texts: list[Any] = []
    for index, entry in enumerate(shown):
        match entry["type"]:
            case "compaction" if index == 0:
                texts.append(entry["summary"])
            case "branch_summary" if entry["id"] not in edits or edits[entry["id"]] is not None:
                texts.append(entry["summary"])
            case "message" | "custom_message":
                message = entry.get("message", entry)
                if entry["id"] not in edits:
                    texts.append(message["content"])
                elif (replacement := edits[entry["id"]]) is not None:
                    texts.append(replacement["content"])
            case _:
                pass
    models = [
        (entry["provider"], entry["modelId"])
        if entry["type"] == "model_change"
        else (entry["message"]["provider"], entry["message"]["model"])
        for entry in path
        if entry["type"] == "model_change" or (entry["type"] == "message" and entry["message"]["role"] == "assistant")
    ]
    return texts, models[-1] if models else None
