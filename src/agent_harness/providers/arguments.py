"""Tool arguments as models write them: text that ought to be a JSON object (decisions section 4)."""

import json
from typing import Final, TypeAlias, cast

from ..types.json import DEPTH_OUTSIDE, InvalidJson, JsonValue, canon, replace_surrogates

INVALID_ARGUMENTS: Final = "invalidArguments"
"""Key in `ToolCall.extra`: why the model's arguments cannot be used. A call that carries it is never executed."""

Arguments: TypeAlias = dict[str, JsonValue]


def parse_arguments(text: str) -> tuple[Arguments, str | None]:
    """Arguments and, when they cannot be used, the reason; they are `{}` then.

    Integers keep every digit up to 64 bits; larger ones, NaN and infinities make the arguments unusable instead of
    changing silently. Nothing is repaired: half an object is not an object. No text at all is a call without arguments.
    """
    if not text.strip():
        return {}, None
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as error:
        return {}, f"not valid JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError):
        return {}, "not valid JSON: a number is too long or the nesting too deep"
    return check_arguments(value)


def check_arguments(value: object) -> tuple[Arguments, str | None]:
    """The same for arguments that a provider sends as JSON instead of as text."""
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return {}, "not a JSON object"
    try:
        return cast("Arguments", canon(clean(cast("object", value)), depth=DEPTH_OUTSIDE)), None
    except InvalidJson as error:
        return {}, f"{error.path}: {error.reason}"
    except RecursionError:
        return {}, "nested too deep"


def clean(value: object) -> object:
    """Lone surrogates of a JSON value become U+FFFD, keys included."""
    match value:
        case str():
            return replace_surrogates(value)
        case list():
            return [clean(item) for item in cast("list[object]", value)]
        case dict():
            return {replace_surrogates(k): clean(v) for k, v in cast("dict[str, object]", value).items()}
        case _:
            return value
