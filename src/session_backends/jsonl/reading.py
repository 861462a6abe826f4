"""A file's bytes -> a session's state, with the rules for its tail (decisions section 5). Pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

from agent_harness.errors import CorruptSession, InvalidWrite, UnsupportedFormat
from agent_harness.session.storage import (
    MAIN,
    Diagnostic,
    EntryItem,
    LabelItem,
    LaneItem,
    NameItem,
    SessionMetadata,
)
from agent_harness.types.codec import WireError, dump_entry, encode, parse
from agent_harness.types.ids import is_session_id
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import Usage

from ..staging import Mutation, check
from ..state import SessionState
from .lines import MAX_LINE, LineError, at_line, decode_header, decode_line, trim
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


class RawLine(NamedTuple):
    """A line as it stands in a file, without its newline."""

    number: int  # 1-based
    offset: int  # bytes
    length: int
    raw: bytes  # empty when it is longer than any line may be: such a line is never held
    ended: bool  # by a newline

    @property
    def too_long(self) -> bool:
        """Whether no line can be this long."""
        return self.length > MAX_LINE


def split_lines(chunks: Iterable[bytes]) -> Iterator[RawLine]:
    """The lines of a file that arrives in pieces; only the line at hand is held."""
    number, offset, length = 1, 0, 0
    parts: list[bytes] = []
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            piece = chunk[start:end]
            length += len(piece)
            raw = b"" if length > MAX_LINE else b"".join((*parts, piece)) if parts else piece
            yield RawLine(number, offset, length, raw, True)
            offset += length + 1
            number, length, start = number + 1, 0, end + 1
            parts.clear()
        rest = chunk[start:]
        length += len(rest)
        if length > MAX_LINE:
            parts.clear()
        elif rest:
            parts.append(rest)
    if length:
        yield RawLine(number, offset, length, b"".join(parts), False)


def load(raw: bytes, path: Path, *, strict: bool = False) -> Loaded:
    """Read a session file of format 4 or 3 that is in memory; see `load_lines`."""
    if not is_old(raw):
        return load_lines([raw], path)
    try:
        return _load_old(normalise(raw, strict=strict), len(raw))
    except (CorruptSession, UnsupportedFormat) as error:
        error.args = (f"{path}: {error}", *error.args[1:])
        raise


def load_lines(chunks: Iterable[bytes], path: Path) -> Loaded:
    """Read a session file of format 4, each line once.

    Raises:
        CorruptSession: naming line, byte offset and reason.
        UnsupportedFormat: another version, named.
    """
    loaded, damage = load_prefix(chunks, path)
    if damage is not None:
        raise damage
    return loaded


def load_prefix(chunks: Iterable[bytes], path: Path) -> tuple[Loaded, CorruptSession | None]:
    """What a file of format 4 holds before its first damaged line, and that damage; the file is read to there.

    Raises:
        CorruptSession, UnsupportedFormat: there is no header to begin with.
    """
    metadata: SessionMetadata | None = None
    state = SessionState()
    diagnostics: list[Diagnostic] = []
    damage: CorruptSession | None = None
    end, newline_missing = 0, False
    for line in split_lines(chunks):
        if not line.ended:
            if line.too_long or not _parses(line.raw):
                dropped = line.length
                message = f"the last write did not finish: {dropped} bytes without a line end are left out"
                found = Diagnostic(code="torn_tail", message=message, line=line.number, bytes_dropped=dropped)
                diagnostics.append(found)
                break
            message = "the last line has no line end; it is complete and kept"
            diagnostics.append(Diagnostic(code="missing_final_newline", message=message, line=line.number))
        try:
            if metadata is None:
                metadata = decode_header(_trimmed(line))
            else:
                mutation = decode_line(_trimmed(line))
                check(state, mutation)
                state.apply(mutation)
        except (LineError, InvalidWrite) as error:
            damage = at_line(error, line.number, line.offset, str(path))
            if metadata is None:
                raise damage from None
            diagnostics.clear()  # the damage is what there is to say about that line
            break
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{path}: {error}") from None
        newline_missing = not line.ended
        end = line.offset + line.length + line.ended
    if metadata is None:
        raise CorruptSession(f"{path}: not a session file: no complete first line", line=1, offset=0)
    loaded = Loaded(
        metadata=metadata,
        state=state,
        diagnostics=tuple(diagnostics),
        end=end,
        newline_missing=newline_missing,
    )
    return loaded, damage


def _trimmed(line: RawLine) -> bytes:
    if line.too_long:
        raise LineError(f"{line.length} bytes are more than the limit of {MAX_LINE}")
    return trim(line.raw)


def _parses(tail: bytes) -> bool:
    try:
        parse(trim(tail))
    except WireError:
        return False
    return True


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
