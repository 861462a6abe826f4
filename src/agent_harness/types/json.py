"""JSON values we accept: finite, 64-bit, valid Unicode, bounded (decisions section 4).

One check before every backend, so that memory, JSONL and SQLite accept and refuse the same values.
"""

from math import isfinite
from typing import TypeAlias, cast

from pydantic import JsonValue as JsonValue

MAX_DEPTH = 128
"""Deepest nesting of arrays and objects."""

DEPTH_OUTSIDE = 16
"""Arrays and objects that an entry or a record may put around a tool's arguments, a result or a handler's answer."""

MAX_BYTES = 64 * 1024 * 1024
"""Largest encoded value, in bytes of UTF-8."""

MIN_INT = -(2**63)
MAX_INT = 2**64 - 1

Path: TypeAlias = tuple[str | int, ...]


class InvalidJson(ValueError):
    """A value that would not survive a round trip. `path` is a JSON path such as `$.arguments.bed`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def json_path(path: Path) -> str:
    """`("message", "content", 0)` -> `$.message.content[0]`."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def check_text(text: str, path: Path = ()) -> None:
    """Refuse lone surrogates, which no UTF-8 can hold.

    Raises:
        InvalidJson: `text` is not valid Unicode.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidJson(json_path(path), "text is not valid Unicode (lone surrogate)") from None


def is_text(value: object) -> bool:
    """Whether a backend can look for `value` as a name: text without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        check_text(value)
    except InvalidJson:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """Each lone surrogate becomes U+FFFD: for text from tools and providers, at that boundary only."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= ch <= "\udfff" else ch for ch in text)
    return text


def canon(value: object, path: Path = (), depth: int = 0) -> JsonValue:
    """Return a fresh copy of `value` if it survives `orjson.dumps` and `orjson.loads` unchanged.

    Exact types only: a tuple, a set, bytes, a date, a UUID, an enum or a `str` subclass is refused, never converted.

    Raises:
        InvalidJson: naming the JSON path of the offending value.
    """
    kind = type(value)
    if kind is str:
        check_text(cast("str", value), path)
        return cast("str", value)
    if value is None or kind is bool:
        return cast("JsonValue", value)
    if kind is int:
        if not MIN_INT <= cast("int", value) <= MAX_INT:
            raise InvalidJson(json_path(path), "integer does not fit in 64 bits")
        return cast("int", value)
    if kind is float:
        number = cast("float", value)
        if not isfinite(number):
            raise InvalidJson(json_path(path), "number is not finite")
        return number
    if kind is list or kind is dict:
        if depth >= MAX_DEPTH:
            raise InvalidJson(json_path(path), f"nested deeper than {MAX_DEPTH}")
        if kind is list:
            items = cast("list[object]", value)
            return [canon(item, (*path, i), depth + 1) for i, item in enumerate(items)]
        copy: dict[str, JsonValue] = {}
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise InvalidJson(json_path(path), f"object key is {type(key).__name__}, not text")
            check_text(key, path)
            copy[key] = canon(item, (*path, key), depth + 1)
        return copy
    raise InvalidJson(json_path(path), f"{kind.__name__} is not a JSON value")
