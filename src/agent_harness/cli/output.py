"""Printing text that models and tools wrote: a terminal must not obey it (T26), and pipes may close early (case 85)."""

import json
import re
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ..types.json import JsonValue

# Whole sequences first, so that "\x1b[31m" does not leave "[31m" behind; then every control character that is left.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, screen
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, clipboard, links
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c\n]*(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Marks that reorder text: a shown command could read differently from the one that ran.
_BIDI = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# What may be the beginning of a sequence whose rest has not arrived.
_UNFINISHED = re.compile(
    r"(?:\r|(?:\x1b\[|\x9b)[0-?]*[ -/]*|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*\x1b?|\x1b[ -/]*)\Z"
)
_LONGEST_SEQUENCE = 65_536
_BREAK = re.compile(r"\s*[\n\u2028\u2029]\s*")


def printable(text: str) -> str:
    """`text` without anything a terminal would obey; line breaks and tabs stay."""
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return _SURROGATE.sub("\ufffd", _BIDI.sub("", _CONTROL.sub("", text)))


class PrintableStream:
    """`printable` for text that arrives in pieces: a sequence cut by a piece's end is not left behind."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished and len(text) <= _LONGEST_SEQUENCE else len(text)
        self._held = text[cut:]
        return printable(text[:cut])

    def end(self) -> str:
        """What was held back; the next piece begins anew."""
        rest, self._held = self._held, ""
        return printable(rest)


def one_line(text: str, limit: int | None = None) -> str:
    """`printable`, on one line, cut to `limit` characters."""
    line = _BREAK.sub(" ", printable(text)).replace("\t", " ").strip()
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def to_json(value: "Mapping[str, JsonValue] | JsonValue") -> str:
    """One line of JSON. ASCII alone: every control character is an escape, and the value is exact."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def say(line: str = "", *, file: IO[str] | None = None) -> None:
    """Print a line that is known to be printable.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    stream = file or sys.stdout
    stream.write(line + "\n")
    stream.flush()


def note(line: str) -> None:
    """Tell the user something beside the result, on stderr; nobody has to listen."""
    try:
        say(line, file=sys.stderr)
    except (OSError, ValueError):
        pass  # closed: the work matters more than its progress


def drop_stdout() -> None:
    """After a closed pipe: the interpreter's own last flush must not fail either."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # stdout is no file
    finally:
        os.close(null)
