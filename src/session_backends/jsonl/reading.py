"""A file's bytes -> a session's state, with the rules for its tail (decisions section 5). Pure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from agent_harness.errors import CorruptSession, InvalidWrite, UnsupportedFormat
from agent_harness.session.storage import (
    Diagnostic,
    EntryItem,
    LabelItem,
    LaneItem,
    NameItem,
    RecordItem,
    SessionMetadata,
)
from agent_harness.types.codec import WireError, dump_entry, encode, parse
from agent_harness.types.ids import is_session_id
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import Usage

from ..staging import Mutation, check
from ..state import MAIN, SessionState
from .lines import LineError, at_line, decode_header, decode_line, trim
from .v3 import V3Session, normalise

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a file holds. For an old file `metadata.source_format` is 3, and nothing of the file may be kept."""

    metadata: SessionMetadata
    state: SessionState
    diagnostics: tuple[Diagnostic, ...] = ()
    end: int  # bytes that count; what follows is the append that died
    newline_missing: bool = False  # the last line counts, but does not end
    old_usage: Usage | None = None  # of an old file: what its conversion has to enter in the ledger
    old_parent: str | None = None  # of an old file: its parent's path, as written there


def load(raw: bytes, path: Path, *, strict: bool = False) -> Loaded:
    """Read a session file, format 4 or 3.

    Raises:
        CorruptSession: naming line, byte offset and reason.
        UnsupportedFormat: another version, named.
    """
    if is_old(raw):
        try:
            return _load_old(normalise(raw, strict=strict), len(raw))
        except (CorruptSession, UnsupportedFormat) as error:
            error.args = (f"{path}: {error}", *error.args[1:])
            raise
    lines = raw.split(b"\n")
    tail = lines.pop()
    end, torn = len(raw), False
    if tail and not _parses(tail):
        end, torn = len(raw) - len(tail), True
    elif tail:
        lines.append(tail)
    if not lines:
        raise CorruptSession(f"{path}: not a session file: no complete first line", line=1, offset=0)
    try:
        metadata = decode_header(trim(lines[0]))
    except LineError as error:
        raise at_line(error, 1, 0, str(path)) from None
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error}") from None
    newline_missing = bool(tail) and not torn
    diagnostics: list[Diagnostic] = []
    if torn:
        message = f"the last write did not finish: {len(tail)} bytes without a line end are left out"
        dropped = len(tail)
        diagnostics.append(Diagnostic(code="torn_tail", message=message, line=len(lines) + 1, bytes_dropped=dropped))
    elif newline_missing:
        message = "the last line has no line end; it is complete and kept"
        diagnostics.append(Diagnostic(code="missing_final_newline", message=message, line=len(lines)))
    return Loaded(
        metadata=metadata,
        state=_replay(lines, path),
        diagnostics=tuple(diagnostics),
        end=end,
        newline_missing=newline_missing,
    )


def _parses(tail: bytes) -> bool:
    try:
        parse(trim(tail))
    except WireError:
        return False
    return True


def _replay(lines: Iterable[bytes], path: Path) -> SessionState:
    state = SessionState()
    offset = 0
    for number, raw in enumerate(lines, start=1):
        if number > 1:
            line = trim(raw)
            try:
                mutation = _mutation(line)
                check(state, mutation)
            except (LineError, InvalidWrite) as error:
                raise at_line(error, number, offset, str(path)) from None
            state.apply(mutation)
        offset += len(raw) + 1
    return state


def _mutation(raw: bytes) -> Mutation:
    line = decode_line(raw)
    match line.item:
        case EntryItem() | RecordItem():
            return Mutation(item=line.item, wire=raw, lane=line.lane)
        case _:
            return Mutation(item=line.item)


def is_old(raw: bytes) -> bool:
    """Whether the first line is the header of a file before format 4."""
    return _old_header(raw) is not None


def _old_header(raw: bytes) -> dict[str, JsonValue] | None:
    first = raw.removeprefix(_BOM).lstrip(b" \t\r\n").split(b"\n", 1)[0]
    if b'"session"' not in first:
        return None
    try:
        value: object = json.loads(first)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    header = cast("dict[str, JsonValue]", value)
    return header if header.get("type") == "session" else None


def read_header(head: bytes) -> Loaded:
    """The header alone, from the first bytes of a file; the state is empty.

    Raises:
        CorruptSession, UnsupportedFormat, LineError: no session, or cut before its first line ended.
    """
    if is_old(head):
        first = head.removeprefix(_BOM).lstrip(b" \t\r\n").split(b"\n", 1)[0]
        return _load_old(normalise(first + b"\n", strict=False), len(head))
    return Loaded(metadata=decode_header(trim(head.split(b"\n", 1)[0])), state=SessionState(), end=len(head))


def _load_old(old: V3Session, end: int) -> Loaded:
    if not is_session_id(old.id):
        raise CorruptSession("the header's id is not a valid session id", line=1)
    state = SessionState()
    for mutation in _old_mutations(old):
        check(state, mutation)
        state.apply(mutation)
    state.stats = replace(state.stats, usage=old.usage)
    metadata = SessionMetadata(
        id=old.id,
        created_at=old.created_at,
        cwd=old.cwd,
        metadata=dict(old.header_metadata),
        source_format=3,
    )
    return Loaded(
        metadata=metadata,
        state=state,
        diagnostics=old.diagnostics,
        end=end,
        old_usage=old.usage,
        old_parent=old.parent_session,
    )


def _old_mutations(old: V3Session) -> Iterable[Mutation]:
    for entry in old.entries:
        yield Mutation(item=EntryItem(seq=entry.seq, entry=entry), wire=encode(dump_entry(entry)))
    seq = len(old.entries)
    if old.leaf_id is not None:
        seq += 1
        yield Mutation(item=LaneItem(seq=seq, lane=MAIN, leaf_id=old.leaf_id))
    if old.name is not None:
        seq += 1
        yield Mutation(item=NameItem(seq=seq, name=old.name))
    for target_id, label in old.labels.items():
        seq += 1
        yield Mutation(item=LabelItem(seq=seq, target_id=target_id, label=label))
