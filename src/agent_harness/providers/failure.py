"""What went wrong with a request, in words that may be stored: bounded, and without secrets (threat T10)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from .errors import ErrorCode, classify_error
from .retry_after import retry_after_ms

MAX_MESSAGE = 2_000
"""Longest error message, in characters."""

MIN_SECRET = 6
"""Shorter values are not looked for in error texts: they would blank out ordinary words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A normalised error: the code decides what happens, the message is for people."""

    code: ErrorCode
    message: str
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values that must not appear in any text this program writes."""

    values: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, *groups: Iterable[str | None]) -> "Secrets":
        """Of keys and header values."""
        found = {value for group in groups for value in group if value and len(value) >= MIN_SECRET}
        return cls(tuple(sorted(found, key=len, reverse=True)))

    def hide(self, text: str) -> str:
        """`text` without them, cut to `MAX_MESSAGE`."""
        for value in self.values:
            text = text.replace(value, "***")
        return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def response_failure(
    body: object, status: int | None, headers: Mapping[str, str], now_ms: int, secrets: Secrets
) -> Failure:
    """The failure that an error response, or an error event inside a stream, describes."""
    message, hints = error_text(body)
    if status is None:
        status = _status_inside(body)
    code = classify_error(" ".join([message, *hints]), status)
    shown = message or (f"HTTP status {status}" if status is not None else "the provider reported an error")
    return Failure(
        code=code,
        message=secrets.hide(f"{status} {shown}" if status is not None and message else shown),
        retry_after_ms=retry_after_ms(headers, now_ms),
    )


def error_text(body: object) -> tuple[str, list[str]]:
    """The sentence of an error body and, apart, what else helps to classify it: codes, types, upstream texts."""
    if isinstance(body, str):
        return _plain(body), []
    if isinstance(body, list):  # Gemini's compatible endpoint wraps its error in an array
        items = cast("list[object]", body)
        return error_text(items[0]) if items else ("", [])
    if not isinstance(body, dict):
        return "", []
    fields = cast("dict[str, object]", body)
    inner = fields.get("error")
    if isinstance(inner, dict):
        return error_text(cast("object", inner))
    message = next((value for key in ("message", "detail", "error") if (value := _text(fields.get(key)))), "")
    hints = [value for key in ("code", "type", "status") if (value := _text(fields.get(key)))]
    metadata = fields.get("metadata")
    if isinstance(metadata, dict):  # OpenRouter hands the upstream provider's own text through
        hints += [value for value in (_text(v) for v in cast("dict[str, object]", metadata).values()) if value]
    return _plain(message), hints


def _status_inside(body: object) -> int | None:
    """The HTTP status that an error event carries as its code (OpenRouter, Gemini)."""
    if not isinstance(body, dict):
        return None
    fields = cast("dict[str, object]", body)
    code = fields.get("code")
    return code if type(code) is int and 400 <= code < 600 else _status_inside(fields.get("error"))


def _text(value: object) -> str:
    match value:
        case str():
            return value
        case list() | dict():
            return json.dumps(value)[:MAX_MESSAGE]
        case _:
            return ""


def _plain(body: str) -> str:
    text = " ".join(body.split())
    return "" if text.startswith("<") else text[:MAX_MESSAGE]  # an HTML page of a proxy says nothing useful
