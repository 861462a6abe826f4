"""Format 4: one line <-> one log item (harness-v2 §13 "JSONL", decisions section 4). Pure.

Lines written by us are canonical: encoding what was read gives the same bytes. That is also the cheap proof that a
line hides no duplicate key and no number that lost digits; only other lines are parsed a second time, strictly.
"""

import json
from collections.abc import Sequence
from typing import assert_never, cast

from agent_harness.errors import CorruptSession, UnsupportedFormat
from agent_harness.session.storage import (
    EntryItem,
    LabelItem,
    LaneItem,
    LogItem,
    NameItem,
    RecordItem,
    SessionMetadata,
)
from agent_harness.types.codec import Wire, WireError, dump_entry, dump_record, encode, load_entry, load_record, parse
from agent_harness.types.ids import is_session_id
from agent_harness.types.json import MAX_BYTES, MAX_DEPTH, MAX_INT, MIN_INT, InvalidJson, JsonValue, canon

from ..staging import Mutation

VERSION = 4
MAX_LINE = MAX_BYTES + 1024 * 1024
"""Longest line in bytes: the largest payload and room for its envelope."""
MAX_HEADER = 64 * 1024
"""Longest header in bytes: listings read no more than this of a file."""

_HEADER_KEYS = frozenset(
    {"kind", "version", "id", "createdAt", "cwd", "parentSessionId", "legacyParentSessionPath", "metadata"}
)
_LANE_KEYS = frozenset({"kind", "seq", "lane", "leafId"})
_NAME_KEYS = frozenset({"kind", "seq", "fact", "name"})
_LABEL_KEYS = frozenset({"kind", "seq", "fact", "targetId", "label"})


class LineError(ValueError):
    """A line that is none of format 4. The text names the reason, never the content."""


def at_line(error: Exception, number: int, offset: int, path: str) -> CorruptSession:
    """`error` about line `number` (1-based) that starts at byte `offset`."""
    return CorruptSession(f"{path}: line {number} (byte {offset}): {error}", line=number, offset=offset)


def trim(raw: bytes) -> bytes:
    """A line without its CR and trailing spaces, which are tolerated."""
    return raw.rstrip(b" \t\r")


def parse_object(raw: bytes) -> Wire:
    """One JSON object, strictly: UTF-8, no BOM, no duplicate key, numbers of 64 bits, bounded size and depth.

    Raises:
        LineError: naming the reason.
    """
    if not raw.strip():
        raise LineError("blank line")
    if len(raw) > MAX_LINE:
        raise LineError(f"{len(raw)} bytes are more than the limit of {MAX_LINE}")
    try:
        value = cast("JsonValue", parse(raw))
        if not isinstance(value, dict):
            raise LineError("not a JSON object")
        # As many brackets as this are needed for nesting too deep; most lines have fewer and skip the walk.
        if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
            canon(value)
        # An integer beyond 64 bits was read as a float, a key that came twice was lost: neither is written as it stood.
        if encode(value) != raw:
            _check_strictly(raw)
    except InvalidJson as error:
        raise LineError(str(error)) from None
    except WireError as error:
        raise LineError(str(error)) from None
    return value


def _check_strictly(raw: bytes) -> None:
    try:
        json.loads(raw, object_pairs_hook=_unique_keys, parse_int=_bounded_int)
    except json.JSONDecodeError as error:
        raise LineError(f"not valid JSON at character {error.pos}: {error.msg}") from None


def _unique_keys(pairs: Sequence[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise LineError("duplicate key in an object")


def _bounded_int(digits: str) -> None:
    # Longer literals are out of range whatever they say, and Python refuses to read thousands of digits.
    if len(digits) > 20 or not MIN_INT <= int(digits) <= MAX_INT:
        raise LineError("integer does not fit in 64 bits")


def decode_line(raw: bytes) -> Mutation:
    """A mutation line, without its newline; of an entry or a record the bytes are kept as they stand.

    Raises:
        LineError: naming the reason.
    """
    wire = parse_object(raw)
    kind = wire.get("kind")
    try:
        match kind:
            case "entry":
                lane = _optional_text(wire, "lane")
                del wire["kind"]
                wire.pop("lane", None)
                entry = load_entry(wire)
                return Mutation(item=EntryItem(seq=entry.seq, entry=entry, lane=lane), wire=raw, lane=lane)
            case "record":
                del wire["kind"]
                record = load_record(wire)
                return Mutation(item=RecordItem(seq=record.seq, record=record), wire=raw)
            case "lane":
                _check_keys(wire, _LANE_KEYS)
                leaf_id = None if "leafId" in wire and wire["leafId"] is None else _text(wire, "leafId")
                return Mutation(item=LaneItem(seq=_seq(wire), lane=_text(wire, "lane"), leaf_id=leaf_id))
            case "fact":
                return Mutation(item=_fact(wire))
            case "header":
                raise LineError("a second header")
            case _:
                raise LineError(f"unknown kind {_shown(kind)}")
    except WireError as error:
        raise LineError(f"{kind} line: {_with_type(wire, error)}") from None


def _with_type(wire: Wire, error: WireError) -> str:
    return f"{error} (type {_shown(wire.get('type'))})"


def _shown(value: JsonValue | None) -> str:
    return ascii(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"


def _fact(wire: Wire) -> NameItem | LabelItem:
    match wire.get("fact"):
        case "name":
            _check_keys(wire, _NAME_KEYS)
            return NameItem(seq=_seq(wire), name=_optional_text(wire, "name", empty=True))
        case "label":
            _check_keys(wire, _LABEL_KEYS)
            label = _optional_text(wire, "label", empty=True)
            return LabelItem(seq=_seq(wire), target_id=_text(wire, "targetId"), label=label)
        case fact:
            raise LineError(f"unknown fact {_shown(fact)}")


def _check_keys(wire: Wire, known: frozenset[str]) -> None:
    unknown = wire.keys() - known
    if unknown:
        raise LineError(f"unknown key {_shown(min(unknown))}")


def _text(wire: Wire, key: str, *, empty: bool = False) -> str:
    value = wire.get(key)
    if not isinstance(value, str) or not (value or empty):
        raise LineError(f"$.{key}: text is required")
    return value


def _optional_text(wire: Wire, key: str, *, empty: bool = False) -> str | None:
    return _text(wire, key, empty=empty) if key in wire else None


def _seq(wire: Wire) -> int:
    return _int(wire, "seq")


def _int(wire: Wire, key: str) -> int:
    value = wire.get(key)
    if type(value) is not int:
        raise LineError(f"$.{key}: an integer is required")
    return value


def encode_line(item: LogItem) -> bytes:
    """The line of an item, keys in the order of the format."""
    wire: Wire
    match item:
        case EntryItem(entry=entry, lane=lane):
            wire = {"kind": "entry", **({} if lane is None else {"lane": lane}), **dump_entry(entry)}
        case RecordItem(record=record):
            wire = {"kind": "record", **dump_record(record)}
        case LaneItem():
            wire = {"kind": "lane", "seq": item.seq, "lane": item.lane, "leafId": item.leaf_id}
        case NameItem():
            wire = {"kind": "fact", "seq": item.seq, "fact": "name"}
            if item.name is not None:
                wire["name"] = item.name
        case LabelItem():
            wire = {"kind": "fact", "seq": item.seq, "fact": "label", "targetId": item.target_id}
            if item.label is not None:
                wire["label"] = item.label
        case _:
            assert_never(item)
    return encode(wire)


def line_of(mutation: Mutation) -> bytes:
    """The line of a mutation, without its newline; an entry's or record's bytes are used as they are."""
    match mutation.item:
        case EntryItem():
            lane = b"" if mutation.lane is None else b'"lane":' + encode(mutation.lane) + b","
            return b'{"kind":"entry",' + lane + mutation.wire[1:]
        case RecordItem():
            return b'{"kind":"record",' + mutation.wire[1:]
        case LaneItem() | NameItem() | LabelItem():
            return encode_line(mutation.item)
        case _:
            assert_never(mutation.item)


def decode_header(raw: bytes) -> SessionMetadata:
    """The first line of a format-4 file, without its newline.

    Raises:
        LineError: naming the reason.
        UnsupportedFormat: a header of a newer version.
    """
    wire = parse_object(raw)
    if wire.get("kind") != "header":
        raise LineError("not a session header")
    version = _int(wire, "version")
    if version > VERSION:
        raise UnsupportedFormat(f"session format version {version} is newer than {VERSION}, the newest known here")
    if version != VERSION:
        raise LineError(f"a header of format version {version} is not of this shape")
    _check_keys(wire, _HEADER_KEYS)
    session_id = _text(wire, "id")
    if not is_session_id(session_id):
        raise LineError("$.id: not a valid session id")
    metadata = wire.get("metadata", {})
    if not isinstance(metadata, dict):
        raise LineError("$.metadata: an object is required")
    return SessionMetadata(
        id=session_id,
        created_at=_int(wire, "createdAt"),
        cwd=_optional_text(wire, "cwd", empty=True),
        parent_session_id=_optional_text(wire, "parentSessionId"),
        metadata=metadata,
        legacy_parent_session_path=_optional_text(wire, "legacyParentSessionPath", empty=True),
    )


def encode_header(metadata: SessionMetadata) -> bytes:
    """The first line of a format-4 file, without its newline."""
    wire: Wire = {"kind": "header", "version": VERSION, "id": metadata.id, "createdAt": metadata.created_at}
    if metadata.cwd is not None:
        wire["cwd"] = metadata.cwd
    if metadata.parent_session_id is not None:
        wire["parentSessionId"] = metadata.parent_session_id
    if metadata.legacy_parent_session_path is not None:
        wire["legacyParentSessionPath"] = metadata.legacy_parent_session_path
    if metadata.metadata:
        wire["metadata"] = dict(metadata.metadata)
    return encode(wire)
