"""Checking a JSON value against a JSON Schema, as far as the schemas of typed answers go. Pure.

Known are the keywords that pydantic writes for models without code of their own: type, enum, const, properties,
required, additionalProperties, items, prefixItems, anyOf, oneOf, allOf, $ref into the document, and the bounds. Others
say nothing here: such a schema accepts more than it should, never less.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from .json import JsonValue


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[JsonValue], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: _is_number(value) and float(str(value)).is_integer(),
    "number": _is_number,
}
_MAX_DEPTH: Final = 200  # values nest at most 128 deep; a schema that refers to itself must end too


def schema_errors(schema: JsonValue, value: JsonValue) -> list[str]:
    """What is wrong with `value`, one line each, with its place (`cities.0.name`); empty if nothing is."""
    return _Check(schema).errors(schema, value, "", 0)


def root_of(schema: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The schema that stands at the root, a reference followed."""
    found = _Check(dict(schema)).resolved(dict(schema))
    return found if isinstance(found, dict) else {}


class _Check:
    def __init__(self, document: JsonValue) -> None:
        self._document = document

    def resolved(self, schema: JsonValue) -> JsonValue:
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict) or not isinstance(ref := schema.get("$ref"), str):
                return schema
            schema = self._target(ref)
        return {}

    def _target(self, ref: str) -> JsonValue:
        found = self._document
        for part in ref.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                return {}
            found = found[key]
        return found

    def errors(self, schema: JsonValue, value: JsonValue, at: str, depth: int) -> list[str]:
        schema = self.resolved(schema)
        if schema is False:
            return [_line(at, "is not allowed")]
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return []
        wrong = _type_error(schema.get("type"), value)
        if wrong is not None:
            return [_line(at, wrong)]
        allowed = schema.get("enum")
        if isinstance(allowed, list) and not any(_same(value, one) for one in allowed):
            return [_line(at, f"is not one of {', '.join(map(repr, allowed[:20]))}")]
        if "const" in schema and not _same(value, schema["const"]):
            return [_line(at, f"is not {schema['const']!r}")]
        found = [_line(at, text) for text in _bounds(schema, value)]
        found += self._combined(schema, value, at, depth)
        if isinstance(value, dict):
            found += self._properties(schema, value, at, depth)
        elif isinstance(value, list):
            found += self._items(schema, value, at, depth)
        return found

    def _combined(self, schema: dict[str, JsonValue], value: JsonValue, at: str, depth: int) -> list[str]:
        found: list[str] = []
        for keyword in ("anyOf", "oneOf"):
            options = schema.get(keyword)
            if isinstance(options, list) and options:
                tried = [self.errors(option, value, at, depth + 1) for option in options]
                if all(tried):
                    nearest: list[str] = min(tried, key=len)
                    found += nearest
        every = schema.get("allOf")
        for part in every if isinstance(every, list) else []:
            found += self.errors(part, value, at, depth + 1)
        return found

    def _properties(self, schema: dict[str, JsonValue], value: dict[str, JsonValue], at: str, depth: int) -> list[str]:
        required, known, rest = schema.get("required"), schema.get("properties"), schema.get("additionalProperties")
        names = known if isinstance(known, dict) else {}
        listed = required if isinstance(required, list) else []
        found = [_line(_join(at, str(name)), "is missing") for name in listed if name not in value]
        for name, held in value.items():
            rule = names.get(name, rest)
            if rule is not None:
                found += self.errors(rule, held, _join(at, name), depth + 1)
        return found

    def _items(self, schema: dict[str, JsonValue], value: list[JsonValue], at: str, depth: int) -> list[str]:
        prefix, rest = schema.get("prefixItems"), schema.get("items")
        first = prefix if isinstance(prefix, list) else []
        found: list[str] = []
        for index, held in enumerate(value):
            rule = first[index] if index < len(first) else rest
            if rule is not None:
                found += self.errors(rule, held, _join(at, str(index)), depth + 1)
        return found


def _same(left: JsonValue, right: JsonValue) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _type_error(wanted: JsonValue, value: JsonValue) -> str | None:
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    known = [name for name in names if isinstance(name, str) and name in _TYPES]
    if not known or any(_TYPES[name](value) for name in known):
        return None
    return f"is not of type {' or '.join(known)}"


def _bounds(schema: dict[str, JsonValue], value: JsonValue) -> list[str]:
    found: list[str] = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        found += _between(schema, value, ("minimum", "maximum"), "is")
        low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if isinstance(low, int | float) and value <= low:
            found.append(f"is not more than {low}")
        if isinstance(high, int | float) and value >= high:
            found.append(f"is not less than {high}")
    elif isinstance(value, str):
        found += _between(schema, len(value), ("minLength", "maxLength"), "has a length that is")
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not _matches(pattern, value):
            found.append(f"does not match {pattern!r}")
    elif isinstance(value, list):
        found += _between(schema, len(value), ("minItems", "maxItems"), "has a number of items that is")
    return found


def _between(schema: dict[str, JsonValue], value: float, keywords: tuple[str, str], what: str) -> list[str]:
    low, high = (schema.get(keyword) for keyword in keywords)
    if isinstance(low, int | float) and value < low:
        return [f"{what} less than {low}"]
    if isinstance(high, int | float) and value > high:
        return [f"{what} more than {high}"]
    return []


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:  # written for another engine: it says nothing here
        return True


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _line(at: str, text: str) -> str:
    return f"{at or 'the answer'} {text}"
