"""Small v3 files, and what the original program computes for them, written a second time from the raw lines.

The second reading knows nothing of normalisation: it walks raw parents and projects raw entries, so that the two can
be compared.
"""

import json
from collections.abc import Sequence
from typing import Any

from agent_harness.session.context import Context, build_context
from agent_harness.session.queries import BranchBounds, EntryQuery, select_on_branch
from agent_harness.types.codec import dump, dump_entry, encode, load_entry, parse
from agent_harness.types.entries import Entry
from agent_harness.types.json import canon, replace_surrogates
from session_backends.jsonl.v3 import V3Session, normalise

Raw = dict[str, Any]

HEADER = {"type": "session", "version": 3, "id": "s1", "timestamp": "2026-01-02T03:04:05.678Z", "cwd": "/tmp/demo"}
AT = "2026-01-02T03:04:06.789Z"
AT_MS = 1767323046789


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
    context: Context = await build_context(PathView(entries, leaf_id), leaf_id)
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


# Building files ---


def v3(*entries: dict[str, Any], header: dict[str, Any] = HEADER) -> bytes:
    """A v3 file; an entry without a parent hangs off the one before it."""
    lines, parent = [header], None
    for entry in entries:
        lines.append({"parentId": parent, "timestamp": AT, **entry})
        parent = entry["id"]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def user(id: str, text: Any = None, **more: Any) -> dict[str, Any]:
    content = text if text is not None else f"text of {id}"
    return {"type": "message", "id": id, "message": {"role": "user", "content": content, "timestamp": 1}, **more}


def answer(id: str, text: str | None = None, model: str = "demo-1", **more: Any) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": text or f"text of {id}"}],
        "api": "demo-api",
        "provider": "demo",
        "model": model,
        "usage": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3, "cost": {"total": 0.5}},
        "stopReason": "stop",
        "timestamp": 2,
    }
    return {"type": "message", "id": id, "message": message, **more}


def edit(id: str, target: str, content: Any = None, **more: Any) -> dict[str, Any]:
    replacement = None if content is None else {"content": content}
    return {"type": "context_edit", "id": id, "targetId": target, "replacement": replacement, **more}


def compaction(id: str, first: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "compaction",
        "id": id,
        "summary": f"sum {id}",
        "firstKeptEntryId": first,
        "tokensBefore": 9,
        **more,
    }


def found(session: V3Session) -> list[tuple[str, int | None]]:
    return [(item.code, item.line) for item in session.diagnostics]


def by_id(session: V3Session) -> dict[str, Entry]:
    return {entry.id: entry for entry in session.entries}


def assert_format_4(session: V3Session) -> None:
    """The entries can be written as they are and read back the same."""
    seen: set[str | None] = {None}
    for number, entry in enumerate(session.entries, 1):
        assert entry.seq == number
        assert entry.parent_id in seen
        assert entry.id not in seen
        seen.add(entry.id)
        wire = dump_entry(entry)
        assert canon(wire) == wire
        assert load_entry(parse(encode(wire))) == entry
    usage = dump(session.usage)
    assert canon(usage) == usage
    assert session.leaf_id in seen
    assert session.labels.keys() <= seen
    assert all(label and "\n" not in label for label in session.labels.values())


async def texts(session: V3Session, leaf: str | None) -> list[Any]:
    """The context of a leaf: contents and summaries only."""
    context = await context_of(session.entries, leaf)
    return [message.get("content", message.get("summary")) for message in context["messages"]]


def shown(contents: list[Any]) -> list[Any]:
    """Contents with a single text part as that text."""
    return [item[0]["text"] if isinstance(item, list) and len(item) == 1 else item for item in contents]


def label(id: str, target: str, text: str | None = None) -> dict[str, Any]:
    return {"type": "label", "id": id, "targetId": target, **({} if text is None else {"label": text})}


async def assert_reads_like_the_original(raw: bytes) -> None:
    session, entries = normalise(raw), raw_entries(raw)
    assert_format_4(session)
    inner = {entry["parentId"] for entry in entries.values()}
    for leaf in entries.keys() - inner:
        expected, model = raw_context(raw_path(entries, leaf))
        place = resolved(entries, leaf, set(by_id(session)))
        context = await context_of(session.entries, place)
        assert shown(await texts(session, place)) == shown(expected)
        assert context["model"] == (None if model is None else {"provider": model[0], "modelId": model[1]})
