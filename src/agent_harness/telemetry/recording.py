"""What an adapter reads from its callers, all or nothing (harness-v2 §18 "Context contract").

Telemetry never fails the work it watches: a payload that cannot be read counts as not sent, as a whole. The values
are copied, so that a caller's later changes reach no recorded span.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast

from .context import SpanError, SpanStatus

RecordedValue: TypeAlias = str | int | float | bool | tuple[str, ...] | tuple[float, ...] | tuple[bool, ...]

OK_STATUS: Final = SpanStatus(status="ok")


def read_attributes(attributes: object) -> dict[str, RecordedValue] | None:
    """Copy an attribute bag without its `None` values.

    Returns:
        None when the bag as a whole cannot be used: reading it raised, a name is no string, or a value is none of the
        attribute types (bytes, mixed arrays and nested values are none).
    """
    try:
        if not isinstance(attributes, Mapping):
            return None
        bag = cast("Mapping[object, object]", attributes)
        read: dict[str, RecordedValue] = {}
        for name, value in bag.items():
            if not isinstance(name, str):
                return None
            if value is None:
                continue
            copied = _copy(value)
            if copied is None:
                return None
            read[name] = copied
    except Exception:
        return None
    return read


def read_status(status: object) -> SpanStatus | None:
    """Copy a status; None when it cannot be read or is none."""
    try:
        if not isinstance(status, SpanStatus) or status.status not in ("ok", "error"):
            return None
        if status.error is None:
            return SpanStatus(status=status.status)
        texts = read_attributes({"name": status.error.name, "message": status.error.message})
        match texts:
            case {"name": str(name), "message": str(message)}:
                return SpanStatus(status=status.status, error=SpanError(name=name, message=message))
            case _:
                return None
    except Exception:
        return None


def raised_status(exception: BaseException) -> SpanStatus:
    """The automatic status of work that raised: the exception's class, never its text.

    Text of a foreign exception may hold a prompt, a payload or a key (JSON, validation and HTTP errors quote their
    input), and neither its arguments nor its traceback is safer.
    """
    return SpanStatus(status="error", error=SpanError(name=type(exception).__name__, message="raised"))


def _copy(value: object) -> RecordedValue | None:
    if isinstance(value, (str, bool, int, float)):
        return value
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray, memoryview)):
        return None
    items = tuple(cast("Sequence[object]", value))
    if all(isinstance(item, str) for item in items):
        return cast("tuple[str, ...]", items)
    if all(isinstance(item, bool) for item in items):
        return cast("tuple[bool, ...]", items)
    if all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items):
        return cast("tuple[float, ...]", items)
    return None
