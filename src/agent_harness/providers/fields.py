"""Taking fields out of what a server sent: a wrong type counts as absent."""

from typing import cast

MAX_COUNT = 2**53


def text_of(value: object) -> str:
    """A string, else the empty one."""
    return value if isinstance(value, str) else ""


def list_of(value: object) -> list[object]:
    """A list, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def object_of(value: object) -> dict[str, object]:
    """An object, else an empty one."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def count_of(value: object) -> int:
    """A number of tokens, else 0."""
    return value if type(value) is int and 0 <= value < MAX_COUNT else 0
