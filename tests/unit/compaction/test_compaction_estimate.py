"""Estimates of context size: what counts, what never does (decisions section 7, A-6)."""

import base64
import hashlib
import random

import pytest

from agent_harness.compaction.estimate import (
    IMAGE_TOKENS,
    context_limit,
    context_tokens,
    message_tokens,
    messages_tokens,
    text_tokens,
)
from agent_harness.testing import answer, call
from agent_harness.types.messages import (
    AgentMessage,
    BashExecutionMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ExtensionMessage,
    ImageContent,
    TextContent,
    ToolResultMessage,
    Usage,
    UserMessage,
)


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def reported(read: int, wrote: int = 10, *, cache_read: int = 0, cache_write: int = 0) -> Usage:
    return Usage(input=read, output=wrote, cache_read=cache_read, cache_write=cache_write)


def test_prose_takes_a_token_per_three_and_a_half_characters() -> None:
    assert text_tokens("") == 0
    assert text_tokens("word " * 70) == 100


def test_cjk_takes_a_token_per_character_and_mixed_text_both() -> None:
    assert text_tokens("水をやる庭" * 20) == 100
    assert text_tokens("水" * 10 + "word " * 7) == 20
    assert text_tokens("🌱" * 10) == 10


@pytest.mark.parametrize(
    "dense",
    [
        hashlib.sha256(b"bed").hexdigest(),
        base64.b64encode(random.Random(3).randbytes(300)).decode(),
        "-".join(["9f1c2b7e-53ad"] * 8),
    ],
    ids=["hash", "base64", "joined ids"],
)
def test_dense_runs_take_more_than_prose_of_the_same_length(dense: str) -> None:
    assert text_tokens(dense) >= 1.9 * text_tokens("word " * (len(dense) // 5))


@pytest.mark.parametrize("plain", ["-" * 80, "=" * 80, "internationalization_of_long_identifier_names"])
def test_rulers_and_long_names_are_not_dense(plain: str) -> None:
    assert text_tokens(plain) == -(-len(plain) * 2 // 7)


def test_images_are_a_fixed_size_whatever_their_bytes() -> None:
    image = ImageContent(data="A" * 3_000_000, mime_type="image/png")
    small = ImageContent(data="A", mime_type="image/png")
    tokens = message_tokens(UserMessage(content=(image,), timestamp=1))
    assert tokens == message_tokens(UserMessage(content=(small,), timestamp=1))
    assert IMAGE_TOKENS <= tokens < IMAGE_TOKENS + 10


def test_every_kind_of_message_has_a_size_and_unsent_ones_have_none() -> None:
    sized: list[AgentMessage] = [
        user("x" * 350),
        answer("x" * 350),
        answer(calls=[call("measure", {"text": "x" * 350})]),
        CustomMessage(custom_type="note", content="x" * 350, timestamp=1),
        CompactionSummaryMessage(summary="x" * 350, tokens_before=1, timestamp=1),
        BashExecutionMessage(command="ls", output="x" * 350, timestamp=1),
        ExtensionMessage(role="note", fields={"text": "x" * 350}),
        ToolResultMessage(
            tool_call_id="c", tool_name="t", content=(TextContent(text="x" * 350),), is_error=False, timestamp=1
        ),
    ]
    for message in sized:
        assert 100 <= message_tokens(message) < 130, message
    unsent: list[AgentMessage] = [
        answer("x" * 350, stop_reason="aborted"),
        answer("x" * 350, error_message="no"),
        BashExecutionMessage(command="ls", output="x" * 350, exclude_from_context=True, timestamp=1),
    ]
    assert messages_tokens(unsent) == 0


def test_the_last_reported_usage_and_the_tail_after_it_decide() -> None:
    messages = [user("x" * 35_000), answer("old", usage=reported(5)), answer("new", usage=reported(900, 100))]
    assert context_tokens(messages) == 1_000
    assert context_tokens([*messages, user("x" * 350)]) == 1_000 + message_tokens(user("x" * 350))


def test_cached_tokens_are_context_too() -> None:
    assert context_tokens([answer("a", usage=reported(10, 5, cache_read=70_000, cache_write=20_000))]) == 90_015


def test_unusable_usage_leaves_the_estimate_over_everything() -> None:
    before = [user("x" * 350)]
    for unusable in (
        answer("a", usage=Usage()),
        answer("a", usage=Usage(output=7)),  # some servers report the answer alone
        answer("a", usage=reported(9_999), error_message="overloaded", error_code="overloaded"),
        answer("a", usage=reported(9_999), stop_reason="aborted"),
    ):
        messages = [*before, unusable]
        assert context_tokens(messages) == messages_tokens(messages)


def test_usage_from_before_the_newest_compaction_is_ignored() -> None:
    summary = CompactionSummaryMessage(summary="s", tokens_before=95_000, timestamp=1)
    inherited = [summary, user("hi"), answer("kept", usage=reported(95_000))]
    assert context_tokens(inherited, inherited=3) == messages_tokens(inherited) < 100
    newer = answer("newer", usage=reported(400))
    assert context_tokens([*inherited, newer], inherited=3) == 410


def test_at_most_half_of_a_window_is_reserved_and_an_unknown_one_has_no_limit() -> None:
    assert context_limit(100_000, 16_384) == 83_616
    assert context_limit(8_000, 16_384) == 4_000
    assert context_limit(0, 16_384) is None
