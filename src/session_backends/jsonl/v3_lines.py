"""Lines of an old v3 session file: bytes -> objects, and what was found damaged on the way (decisions section 5)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import NoReturn, cast

from agent_harness.errors import CorruptSession
from agent_harness.session.storage import Diagnostic
from agent_harness.types.codec import Wire
from agent_harness.types.json import MAX_DEPTH, MAX_INT, MIN_INT, JsonValue, replace_surrogates

BOM = b"\xef\xbb\xbf"
LINE_DEPTH = MAX_DEPTH - 8
"""Deepest nesting of a v3 line: a message moves a few levels down when it becomes part of a retained tail."""


class Findings:
    """Collects what opening noticed; with `strict`, the first damage refuses the file."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._found: list[Diagnostic] = []

    def damage(self, code: str, message: str, line: int, *, bytes_dropped: int | None = None) -> None:
        """Something of the file is skipped or read differently than it stands there.

        Raises:
            CorruptSession: strict; names the line.
        """
        if self._strict:
            raise CorruptSession(f"line {line}: {message} [{code}]", line=line)
        self.note(code, message, line, bytes_dropped=bytes_dropped)

    def note(self, code: str, message: str, line: int, *, bytes_dropped: int | None = None) -> None:
        """Worth knowing, but no damage: `strict` accepts it."""
        self._found.append(Diagnostic(code=code, message=message, line=line, bytes_dropped=bytes_dropped))

    def in_file_order(self) -> tuple[Diagnostic, ...]:
        """Everything found, by line."""
        return tuple(sorted(self._found, key=lambda found: found.line or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that holds an object. Its text is valid Unicode, its numbers are finite and fit in 64 bits."""

    number: int  # 1-based
    value: Wire


def read_lines(raw: bytes, findings: Findings) -> Iterator[Line]:
    """The objects of the file, one per line; damage is skipped and reported.

    Lone surrogates, which JavaScript writes as escapes and no UTF-8 can hold, become U+FFFD without a report:
    what the writer meant cannot be stored anywhere (decisions section 4).

    Raises:
        CorruptSession: strict, at the first damage.
    """
    parts = raw.removeprefix(BOM).split(b"\n")
    blank: list[int] = []
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        if not part.strip():
            blank.append(number)
            continue
        for line in blank:  # blank lines at the very end stand between nothing
            findings.damage("skipped_line", "blank line was skipped", line)
        blank.clear()
        text = _decoded(part, number, findings)
        try:
            value: object = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            if last:
                message = f"the last line is incomplete; {len(part)} bytes were left out"
                findings.damage("torn_tail", message, number, bytes_dropped=len(part))
            else:
                findings.damage("skipped_line", "line is not valid JSON and was skipped", number)
            continue
        if last:
            findings.note("missing_final_newline", "the last line lacks its line break", number)
        if not isinstance(value, dict):
            findings.damage("skipped_line", "line is not a JSON object and was skipped", number)
            continue
        try:
            cleaned = clean(cast("object", value))
        except _TooDeep:
            findings.damage("skipped_line", f"line is nested deeper than {LINE_DEPTH} and was skipped", number)
            continue
        yield Line(number=number, value=cast("Wire", cleaned))


def _decoded(part: bytes, number: int, findings: Findings) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        # The writer's runtime reads such a file this way; dropping the line would cut its children off.
        text = part.decode(errors="replace")
        findings.damage("invalid_utf8", "bytes that are not UTF-8 were replaced by U+FFFD", number)
        return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")  # Python's parser takes NaN and Infinity, the writer's does not


class _TooDeep(ValueError):
    pass


def clean(value: object, depth: int = 0) -> JsonValue:
    """A parsed value as we can store it: surrogates replaced, integers beyond 64 bits as the doubles they were."""
    match value:
        case str():
            return replace_surrogates(value)
        case bool() | None:
            return value
        case int():
            return value if MIN_INT <= value <= MAX_INT else clean(_double(value), depth)
        case float():
            return value if isfinite(value) else None  # JSON.stringify writes null for it
        case list() | dict() if depth >= LINE_DEPTH:
            raise _TooDeep
        case list():
            return [clean(item, depth + 1) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {replace_surrogates(key): clean(item, depth + 1) for key, item in items}
        case _:
            raise TypeError(f"the parser gave a {type(value).__name__}")


def _double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
