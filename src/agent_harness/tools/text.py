"""Text that a model is shown: decoded without loss of validity, cut at code points (decisions section 4)."""

import re

# What UTF-8 would make of a lone surrogate. No valid text holds these bytes; one U+FFFD stands for each.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def decode(data: bytes) -> str:
    """UTF-8, every invalid piece as U+FFFD."""
    return _SURROGATE.sub(b"\xef\xbf\xbd", data).decode("utf-8", errors="replace")


def cut_end(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes from the beginning, no code point divided."""
    if len(data) <= limit:
        return data
    end = limit
    while end > 0 and limit - end < 3 and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]


def cut_start(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes from the end, no code point divided."""
    if len(data) <= limit:
        return data
    start = len(data) - limit
    while start < len(data) and start - (len(data) - limit) < 3 and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
