"""How our dataclasses look on the wire: camelCase keys, absent fields, flattened envelopes, open objects.

Reading is pydantic's work (one module-level `TypeAdapter` per union in `codec.py`); writing is `codec.dump`,
which walks the dataclass fields in order, so that one pass both encodes and checks.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, ClassVar, TypeAlias, TypeVar, cast, get_args

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from .json import JsonValue

WIRE = ConfigDict(alias_generator=to_camel, extra="forbid")
"""Configuration of every durable dataclass: keys are the camelCase of the field, unknown keys are refused."""

Int: TypeAlias = StrictInt
Bool: TypeAlias = StrictBool
Number: TypeAlias = Annotated[StrictInt | StrictFloat, Field(union_mode="left_to_right")]
"""An int stays an int: `0` and `0.0` are different bytes on the wire."""


class JsonMark:
    """Marks a field that holds data from outside: `codec.dump` checks it instead of encoding it as our own type."""


Json: TypeAlias = Annotated[JsonValue, JsonMark()]
JsonObject: TypeAlias = Annotated[dict[str, JsonValue], JsonMark()]


class AbsentMark:
    """Marks a field that is left off the wire when it is `None`; an explicit `null` is refused on reading."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schema = handler(source)
        if schema["type"] == "nullable":
            inner: core_schema.CoreSchema = schema["schema"]
            return inner
        return schema


T = TypeVar("T")
Absent = Annotated[T | None, AbsentMark()]
"""`field: Absent[T] = None`: required-but-null is `T | None` without a default, absent is this (style section 4)."""


def wire_key(name: str) -> str:
    """The wire key of a field name: `run_id` -> `runId`."""
    return to_camel(name)


def is_marked(annotation: object, mark: type) -> bool:
    """Whether `Annotated` metadata anywhere in `annotation` holds an instance of `mark`."""
    return any(isinstance(arg, mark) or is_marked(arg, mark) for arg in get_args(annotation))


class Open:
    """Mixin of what comes from outside (messages, content, usage): unknown keys are kept in `extra`.

    They survive every rewrite (decisions section 4).
    """

    __slots__ = ()

    @model_validator(mode="before")
    @classmethod
    def collect_unknown_keys(cls, value: object) -> object:
        """Move keys that are none of the fields' into `extra`. Called for each part of each line of a load."""
        if not isinstance(value, dict):
            return value
        raw: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
        known = _known_keys(cast("type", cls))
        if known.issuperset(raw):
            return raw
        inside = {k: v for k, v in raw.items() if k in known}
        inside["extra"] = {k: v for k, v in raw.items() if k not in known}
        return inside


@cache
def _known_keys(cls: type) -> frozenset[str]:
    assert is_dataclass(cls)
    return frozenset(wire_key(f.name) for f in fields(cls) if f.name != "extra")


class Flattened:
    """Mixin of `ProvisionedEntry`: on the wire its body's keys stand beside its own (`Omit<T, ...>` in the spec)."""

    __slots__ = ()
    ENVELOPE: ClassVar[frozenset[str]]

    @model_validator(mode="before")
    @classmethod
    def split_envelope(cls, value: object) -> object:
        """Gather the body's keys under `body`."""
        if not isinstance(value, dict):
            return value
        raw = cast("dict[str, object]", value)
        outside = {k: v for k, v in raw.items() if k in cls.ENVELOPE}
        outside["body"] = {k: v for k, v in raw.items() if k not in cls.ENVELOPE}
        return outside
