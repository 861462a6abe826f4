"""What a server asks a client to wait: seconds, milliseconds or an HTTP date (decisions section 7)."""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite

MAX_WAIT_MS = 24 * 60 * 60 * 1000
"""Longer requests to wait are cut to a day."""


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """Milliseconds to wait, from `retry-after-ms` or `retry-after`; None when neither says."""
    lowered = {key.lower(): value.strip() for key, value in headers.items()}
    precise = _number(lowered.get("retry-after-ms", ""))
    if precise is not None:
        return _bounded(precise)
    text = lowered.get("retry-after", "")
    seconds = _number(text)
    if seconds is not None:
        return _bounded(seconds * 1000)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:  # "-0000" and a missing zone both mean UTC, not this machine's zone
        moment = moment.replace(tzinfo=UTC)
    return _bounded(moment.timestamp() * 1000 - now_ms)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _bounded(value: float) -> int:
    return min(MAX_WAIT_MS, max(0, round(value)))
