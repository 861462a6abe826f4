"""Wire bytes <-> types. The one place where JSON becomes our values and back (decisions section 4)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_type_hints

import orjson
from pydantic import TypeAdapter, ValidationError

from ..errors import InvalidPayload
from .entries import Entry, EntryBody, ProvisionedEntry
from .json import MAX_BYTES, MAX_DEPTH, InvalidJson, JsonValue, Path, canon, check_text, json_path
from .messages import AgentMessage, AssistantMessage, ExtensionMessage, Usage
from .records import LaneRecord, NewRecord, RecordBody
from .tools import AgentToolResult
from .wire import AbsentMark, Flattened, JsonMark, Open, is_marked, wire_key

Wire: TypeAlias = dict[str, JsonValue]
T = TypeVar("T")


# Adapters are built by the first reading that needs one: they are most of what an import would cost.


@cache
def _entry_body() -> TypeAdapter[EntryBody]:
    return TypeAdapter(EntryBody)


@cache
def _record_body() -> TypeAdapter[RecordBody]:
    return TypeAdapter(RecordBody)


@cache
def _message() -> TypeAdapter[AgentMessage]:
    return TypeAdapter(AgentMessage)


@cache
def _usage() -> TypeAdapter[Usage]:
    return TypeAdapter(Usage)


@cache
def _tool_result() -> TypeAdapter[AgentToolResult]:
    return TypeAdapter(AgentToolResult)


ENTRY_ENVELOPE = frozenset({"id", "seq", "parentId", "timestamp"})
RECORD_ENVELOPE = frozenset({"id", "lane", "seq", "timestamp"})


class WireError(ValueError):
    """Stored JSON that is none of our values. The text names the field and the reason, never the content."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    key: str
    absent: bool  # left off when None
    json: bool  # outside data: checked, not encoded
    merged: bool  # its keys stand beside the owner's


@cache
def _plan(cls: type) -> tuple[_Field, ...]:
    assert is_dataclass(cls)
    hints = get_type_hints(cls, include_extras=True)
    merged = {"extra"} if issubclass(cls, Open) else {"body"} if issubclass(cls, Flattened) else set[str]()
    if cls in (Entry, LaneRecord):
        merged = {"body"}
    return tuple(
        _Field(
            name=f.name,
            key=wire_key(f.name),
            absent=is_marked(hints[f.name], AbsentMark),
            json=is_marked(hints[f.name], JsonMark),
            merged=f.name in merged,
        )
        for f in fields(cls)
    )


def dump(value: object, path: Path = ()) -> JsonValue:
    """Encode one of our values as JSON, checking on the way everything that came from outside.

    Raises:
        InvalidJson: a value inside would not survive a round trip; names its path.
    """
    if isinstance(value, str):
        check_text(value, path)
        return value
    if value is None or isinstance(value, (int, float)):
        return canon(value, path)
    if isinstance(value, (tuple, frozenset)):
        items = cast("tuple[object, ...]", value)
        return [dump(item, (*path, i)) for i, item in enumerate(items)]
    if isinstance(value, ExtensionMessage):
        check_text(value.role, (*path, "role"))
        return {"role": value.role, **cast("Wire", canon(dict(value.fields), path))}
    if is_dataclass(value) and not isinstance(value, type):
        out: Wire = {}
        for f in _plan(type(value)):
            item = getattr(value, f.name)
            if f.absent and item is None:
                continue
            if f.merged:
                inner = dump(item, path) if is_dataclass(item) else canon(dict(item), path) if item else {}
                out.update(cast("Wire", inner))
            elif f.json:
                checked = dict(cast("Mapping[str, object]", item)) if isinstance(item, Mapping) else item
                out[f.key] = canon(checked, (*path, f.key))
            else:
                out[f.key] = dump(item, (*path, f.key))
        return out
    return canon(value, path)


def dump_object(value: object) -> Wire:
    """`dump` for a value that is an object on the wire."""
    wire = dump(value)
    assert isinstance(wire, dict)
    return wire


def encode(wire: JsonValue) -> bytes:
    """JSON bytes, UTF-8, keys in the order they have, no spaces."""
    return orjson.dumps(wire)


def _check_id(value: object) -> None:
    if type(value) is not str or not value:
        raise InvalidJson("$.id", "non-empty text is required")
    check_text(value, ("id",))


S = TypeVar("S", ProvisionedEntry, NewRecord)


@dataclass(frozen=True, slots=True)
class Sealed(Generic[S]):
    """A write that passed the check, encoded once: `wire` is its JSON. Storage takes nothing else."""

    value: S
    wire: bytes


def _checked(build: Callable[[], Wire], max_bytes: int) -> tuple[Wire, bytes]:
    try:
        wire = build()
        raw = encode(wire)
        if len(raw) > max_bytes:
            raise InvalidJson("$", f"{len(raw)} bytes are more than the limit of {max_bytes}")
        # Our own envelopes count as well: one limit for the whole line. Nesting too deep takes this many brackets.
        if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
            canon(wire)
    except InvalidJson as error:
        raise InvalidPayload(f"payload refused at {error}") from None
    return wire, raw


def seal_entry(entry: ProvisionedEntry, max_bytes: int = MAX_BYTES) -> Sealed[ProvisionedEntry]:
    """Check and encode an entry that is about to be written: `{id, type, ...body}`.

    The sealed value is decoded afresh, so later changes to the caller's objects do not reach live state.

    Raises:
        InvalidPayload: names the JSON path; nothing has been written.
    """
    message = getattr(entry.body, "message", None)
    if isinstance(message, AssistantMessage) and message.stop_reason == "pending":
        raise InvalidPayload("an assistant message with stop reason 'pending' is not settled")

    def build() -> Wire:
        _check_id(entry.id)
        return {"id": entry.id, **dump_object(entry.body)}

    wire, raw = _checked(build, max_bytes)
    return Sealed(ProvisionedEntry(id=entry.id, body=_seal_body(entry_body, wire, "id")), raw)


def seal_record(record: NewRecord, max_bytes: int = MAX_BYTES) -> Sealed[NewRecord]:
    """Check and encode a record that is about to be written: `{type, id, lane, ...body}`.

    Raises:
        InvalidPayload: names the JSON path; nothing has been written.
    """

    def build() -> Wire:
        _check_id(record.id)
        body = dump_object(record.body)
        return {"type": body.pop("type"), "id": record.id, "lane": record.lane, **body}

    wire, raw = _checked(build, max_bytes)
    body = _seal_body(record_body, wire, "id", "lane")
    return Sealed(NewRecord(id=record.id, lane=record.lane, body=body), raw)


def _seal_body(load: Callable[[Wire], T], wire: Wire, *envelope: str) -> T:
    try:
        return load({k: v for k, v in wire.items() if k not in envelope})
    except WireError as error:
        raise InvalidPayload(f"payload refused: {error}") from None


def _validated(adapter: TypeAdapter[T], wire: object) -> T:
    try:
        return adapter.validate_python(wire)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        path = json_path(tuple(part for part in first["loc"] if not _is_tag(part)))
        raise WireError(f"{path}: {first['msg']}") from None


def _is_tag(part: str | int) -> bool:
    # Union members show up in pydantic's locations as their tag or class name.
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in _TAGS)


_TAGS = frozenset({"function-before", "function-after"})


def entry_body(wire: Wire) -> EntryBody:
    """The body in `{type, ...}`.

    Raises:
        WireError: naming the field.
    """
    return _validated(_entry_body(), wire)


def record_body(wire: Wire) -> RecordBody:
    """The body in `{type, ...}`.

    Raises:
        WireError: naming the field.
    """
    return _validated(_record_body(), wire)


def _integer(wire: Wire, key: str) -> int:
    value = wire.get(key)
    if type(value) is not int:
        raise WireError(f"$.{key}: an integer is required")
    return value


def _text(wire: Wire, key: str) -> str:
    value = wire.get(key)
    if type(value) is not str or not value:
        raise WireError(f"$.{key}: non-empty text is required")
    return value


def _without(wire: Wire, keys: frozenset[str]) -> Wire:
    rest = wire.copy()
    for key in keys:
        rest.pop(key, None)
    return rest


def load_entry(wire: Wire) -> Entry:
    """A committed entry from `{id, type, ...body, parentId, seq, timestamp}`.

    Raises:
        WireError: naming the field.
    """
    parent = wire.get("parentId", 0)
    if parent is not None and type(parent) is not str:
        raise WireError("$.parentId: text or null is required")
    return Entry(
        id=_text(wire, "id"),
        seq=_integer(wire, "seq"),
        parent_id=parent,
        timestamp=_integer(wire, "timestamp"),
        body=entry_body(_without(wire, ENTRY_ENVELOPE)),
    )


def load_record(wire: Wire) -> LaneRecord:
    """A committed record from `{type, id, lane, ...body, seq, timestamp}`.

    Raises:
        WireError: naming the field.
    """
    return LaneRecord(
        id=_text(wire, "id"),
        lane=_text(wire, "lane"),
        seq=_integer(wire, "seq"),
        timestamp=_integer(wire, "timestamp"),
        body=record_body(_without(wire, RECORD_ENVELOPE)),
    )


def dump_entry(entry: Entry) -> Wire:
    """The inverse of `load_entry`, keys in the order of the format."""
    return {
        "id": entry.id,
        **dump_object(entry.body),
        "parentId": entry.parent_id,
        "seq": entry.seq,
        "timestamp": entry.timestamp,
    }


def dump_record(record: LaneRecord) -> Wire:
    """The inverse of `load_record`, keys in the order of the format."""
    body = dump_object(record.body)
    return {
        "type": body.pop("type"),
        "id": record.id,
        "lane": record.lane,
        **body,
        "seq": record.seq,
        "timestamp": record.timestamp,
    }


def load_message(wire: JsonValue) -> AgentMessage:
    """An agent message; an unregistered role becomes an `ExtensionMessage`.

    Raises:
        WireError: naming the field.
    """
    return _validated(_message(), wire)


def load_usage(wire: JsonValue) -> Usage:
    """Usage from its wire form.

    Raises:
        WireError: naming the field.
    """
    return _validated(_usage(), wire)


def load_tool_result(wire: JsonValue) -> AgentToolResult:
    """A tool result from the `result` of a `tool_settled` record.

    Raises:
        WireError: naming the field.
    """
    return _validated(_tool_result(), wire)


def parse(raw: bytes | str) -> Any:
    """JSON text to plain values, strictly: orjson, so no NaN and no lone surrogates.

    Raises:
        WireError: without the content.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise WireError(f"not valid JSON at character {error.pos}: {error.msg}") from None
