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
    r"rate.?limit|too many requests|tokens per (min|day)|\btpm\b|\brpm\b|throttl|please (wait|slow down)|slow.?down"
    r"|retry in \d|resource.?exhausted",
    re.I,
)
_QUOTA = re.compile(
    r"insufficient.?(quota|balance|funds|credit)|exceeded your (current )?quota|billing|credit balance"
    r"|requires more credits|payment required|spending limit",
    re.I,
)
_RETRY_SAID = re.compile(r"(retry|try again) in \d", re.I)
_OVERFLOW = re.compile(
    r"context.?(length|window|size)|maximum (context|prompt|model) length|(prompt|input) is too long|prompt too long"
    r"|too (large|long) for (the )?model|too long to fit|token count\b.*\bexceed|input tokens? exceed|model token limit"
    r"|exceeds? (the )?(maximum allowed|max|available) (length|context)|exceed_context|exceed context|reduce the length"
    r"|request_too_large|longer than the maximum|too many (input )?tokens|model_context_window|larger than the maximum"
    r"|when context the overflows|\bn_keep\b.*\bn_ctx\b|range of input length|inputs` tokens .* must be"
    r"|(message|payload|request) size\b.*\bexceeds",
    re.I,
)
_OVERLOADED = re.compile(r"overloaded|unavailable|try again later|no capacity", re.I)
_FILTERED = re.compile(r"content.?filter|content.?policy|content management policy|usage policies|safety system", re.I)
_AUTH = re.compile(r"authentication_error|permission_error|invalid.?api.?key|incorrect api key|unauthorized", re.I)
_TIMEOUT = re.compile(r"timeout_error|deadline.?exceeded|timed out", re.I)
_SERVER = re.compile(r"api_error|server.?error|internal.?error", re.I)


def classify_error(message: str, status: int | None = None) -> ErrorCode:
    """The code of a provider's error, from its text and, where there was a response, its HTTP status.

    The look-alikes decide the order: a throttling text may speak of tokens and even come with status 413, so it is
    asked before overflow; a quota that comes back by itself ("retry in 20s") is throttling. An error inside a stream
    has no status and is read by its text alone. What nothing recognises is terminal.
    """
    if status == 402 or _QUOTA.search(message):
        return "rate_limit" if _RETRY_SAID.search(message) else "quota"
    if status == 429 or _THROTTLED.search(message):
        return "rate_limit"
    if status == 413 or _OVERFLOW.search(message):
        return "overflow"
    if "tool_use_failed" in message:  # Groq: the model wrote a bad call; asked again it may write a good one
        return "server_error"
    if status in (401, 403) or (status is None and _AUTH.search(message)):
        return "auth"
    if status == 404 or (status is None and "not_found_error" in message):
        return "not_found"
    if _FILTERED.search(message):
        return "content_filter"
    if status in (408, 504) or (status is None and _TIMEOUT.search(message)):
        return "timeout"
    if status in (503, 529) or ((status is None or status >= 500) and _OVERLOADED.search(message)):
        return "overloaded"
    if (status is not None and status >= 500) or (status is None and _SERVER.search(message)):
        return "server_error"
    return "invalid_request"
