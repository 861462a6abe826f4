"""How instrumentation says that a span failed: classes and codes, never the text of an error (harness-v2 §18)."""

import re
from typing import Final

from .context import SpanError, SpanStatus

_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def error_status(name: str, message: str) -> SpanStatus:
    """Error status of an expected failure. `message` is a sentence of ours."""
    return SpanStatus(status="error", error=SpanError(name=name, message=message))


def error_label(code: str | None) -> str | None:
    """`code` as an attribute: "other" unless it is a short plain identifier, since a foreign one may hold anything."""
    if code is None:
        return None
    return code if _CODE.fullmatch(code) else "other"
