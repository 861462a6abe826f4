"""Real messages of providers and what they mean (fixtures/providers/error-messages.json)."""

import json
from pathlib import Path

import pytest

from agent_harness.providers.errors import ErrorCode, classify_error

ROWS = json.loads((Path(__file__).parents[3] / "fixtures/providers/error-messages.json").read_text())
LOOK_ALIKES: dict[str, ErrorCode] = {
    "OpenAI TPM 429": "rate_limit",
    "Groq TPM 413": "rate_limit",
    "Bedrock throttle": "rate_limit",
    "Anthropic max_tokens": "invalid_request",
    "DeepSeek max_tokens": "invalid_request",
    "OpenRouter credit": "quota",
    "Rate limit": "rate_limit",
}


def named(row: dict[str, str]) -> str:
    return row["from"]


OVERFLOWS = [row for row in ROWS if row["kind"] == "overflow"]
OTHERS = [row for row in ROWS if row["kind"] == "not_overflow"]


def test_every_row_is_asked() -> None:
    assert len(OVERFLOWS) + len(OTHERS) == len(ROWS) > 40
    assert {named(row) for row in OTHERS} == set(LOOK_ALIKES)


@pytest.mark.parametrize("status", [None, 400, 413, 500])
@pytest.mark.parametrize("row", OVERFLOWS, ids=named)
def test_an_overflow_is_told_whatever_its_status(row: dict[str, str], status: int | None) -> None:
    assert classify_error(row["message"], status) == "overflow"


@pytest.mark.parametrize("row", OTHERS, ids=named)
def test_a_look_alike_is_no_overflow(row: dict[str, str]) -> None:
    statuses = {"OpenAI TPM 429": 429, "Groq TPM 413": 413, "OpenRouter credit": 402}
    assert classify_error(row["message"]) == LOOK_ALIKES[named(row)]
    assert classify_error(row["message"], statuses.get(named(row), 400)) == LOOK_ALIKES[named(row)]


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("insufficient_quota: You exceeded your current quota, check your plan.", 429, "quota"),
        ("You exceeded your current quota. Please retry in 22.5s. RESOURCE_EXHAUSTED", 429, "rate_limit"),
        ("Overloaded overloaded_error", None, "overloaded"),
        ("Number of request tokens has exceeded your per-minute rate limit rate_limit_error", None, "rate_limit"),
        ("Internal server error api_error", None, "server_error"),
        ("invalid x-api-key authentication_error", None, "auth"),
        ("The prompt triggered Azure OpenAI's content management policy.", 400, "content_filter"),
        ("The model is overloaded. Please try again later. UNAVAILABLE", 503, "overloaded"),
        ("upstream request timeout", 504, "timeout"),
        ("something new", None, "invalid_request"),
        ("something new", 418, "invalid_request"),
        ("", 500, "server_error"),
    ],
)  # fmt: skip
def test_other_errors_have_their_code(message: str, status: int | None, code: ErrorCode) -> None:
    assert classify_error(message, status) == code
