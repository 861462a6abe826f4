"""What a provider's error text means: overflow, throttling, a passing failure, or the end (decisions section 7).

Adapters put the normalised code into `AssistantMessage.error_code`; core logic reads only that.
"""

import re
from typing import Literal, TypeAlias

ErrorCode: TypeAlias = Literal[
    "overflow",
    "rate_limit",
    "overloaded",
    "transport",
    "timeout",
    "server_error",
    "stream_cut",
    "auth",
    "quota",
    "not_found",
    "content_filter",
    "invalid_request",
]

_THROTTLED = re.compile(
    r"rate.?limit|too many (requests|tokens)|tokens per (min|day)|\btpm\b|\brpm\b|throttl|please (wait|slow down)"
    r"|resource.?exhausted|capacity",
    re.I,
)
_QUOTA = re.compile(r"insufficient.?quota|exceeded your current quota|billing|credit balance|payment required", re.I)
_OVERFLOW = re.compile(
    r"context.?(length|window|size)|maximum (context|prompt) length|prompt is too long|input is too long"
    r"|too (large|long) for model|(input )?token count .*exceed|input tokens? exceed|exceeds? the (maximum|available)"
    r"|exceed_context|reduce the length|request_too_large|longer than the maximum|too many input tokens"
    r"|prompt too long|model_context_window|larger than the maximum",
    re.I,
)
_OVERLOADED = re.compile(r"overloaded|unavailable|try again later", re.I)


def classify_error(message: str, status: int | None = None) -> ErrorCode:
    """The code of a provider's error, from its text and, where there was a response, its HTTP status.

    The look-alikes decide the order: a throttling text may speak of tokens, so it is asked before overflow.
    """
    if _QUOTA.search(message):
        return "quota"
    if status == 429 or _THROTTLED.search(message):
        return "overflow" if status == 413 else "rate_limit"
    if status == 413 or _OVERFLOW.search(message):
        return "overflow"
    if status in (401, 403):
        return "auth"
    if status == 404:
        return "not_found"
    if status == 408:
        return "timeout"
    if status in (503, 529) or _OVERLOADED.search(message):
        return "overloaded"
    if status is not None and status >= 500:
        return "server_error"
    return "invalid_request"
