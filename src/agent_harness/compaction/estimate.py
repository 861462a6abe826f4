"""How many tokens a context takes, without a tokenizer (decisions section 7, A-6). Pure.

The size of a context is what the provider last reported for it, plus an estimate of what came after. Usage that was
reported before the newest compaction measures a context that is gone, so it never counts.
"""

import re
from collections.abc import Sequence
from math import ceil
from typing import assert_never

import orjson

from ..session.context import UNSENT
from ..types.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ExtensionMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserContent,
    UserMessage,
)

CHARS_PER_TOKEN = 3.5
DENSE_CHARS_PER_TOKEN = 1.75  # base64, hashes: vocabularies hold no such words
IMAGE_TOKENS = 1_500
MESSAGE_TOKENS = 4  # role and separators

_DENSE = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_WIDE = re.compile("[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff]")


def text_tokens(text: str) -> int:
    """Tokens of `text`: one per CJK character or emoji, more than usual for dense runs, else 3.5 characters each."""
    dense = sum(len(run) for run in _DENSE.findall(text) if _is_dense(run))
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    plain = len(text) - dense - wide
    return ceil(plain / CHARS_PER_TOKEN + dense / DENSE_CHARS_PER_TOKEN + wide)


def _is_dense(run: str) -> bool:
    """A long run with digits among letters (or none of either) is data; `-----` and long words are not."""
    letters = any(c.isalpha() for c in run)
    return any(c.isdigit() for c in run) or (letters and run.lower() != run and "_" not in run and "-" not in run)


def message_tokens(message: AgentMessage) -> int:
    """Tokens that one message adds to a request; 0 for an answer that is not sent."""
    match message:
        case AssistantMessage():
            return 0 if message.stop_reason in UNSENT else MESSAGE_TOKENS + sum(map(_part_tokens, message.content))
        case UserMessage() | CustomMessage() | ToolResultMessage():
            return MESSAGE_TOKENS + _content_tokens(message.content)
        case BashExecutionMessage():
            if message.exclude_from_context:
                return 0
            return MESSAGE_TOKENS + text_tokens(message.command) + text_tokens(message.output)
        case BranchSummaryMessage() | CompactionSummaryMessage():
            return MESSAGE_TOKENS + text_tokens(message.summary)
        case ExtensionMessage():
            return MESSAGE_TOKENS + text_tokens(orjson.dumps(dict(message.fields)).decode())
        case _:
            assert_never(message)


def _content_tokens(content: str | Sequence[UserContent]) -> int:
    return text_tokens(content) if isinstance(content, str) else sum(map(_part_tokens, content))


def _part_tokens(part: TextContent | ImageContent | ThinkingContent | ToolCall) -> int:
    match part:
        case TextContent(text=text) | ThinkingContent(thinking=text):
            return text_tokens(text)
        case ImageContent():
            return IMAGE_TOKENS
        case ToolCall():
            return text_tokens(part.name) + text_tokens(orjson.dumps(dict(part.arguments)).decode())
        case _:
            assert_never(part)


def messages_tokens(messages: Sequence[AgentMessage]) -> int:
    """The sum over `messages`."""
    return sum(map(message_tokens, messages))


def usage_tokens(usage: Usage) -> int:
    """The context as the provider counted it: everything read, and the answer that is now part of it.

    Not `total_tokens`: providers disagree on what it holds.
    """
    return round(usage.input + usage.cache_read + usage.cache_write + usage.output)


def context_tokens(messages: Sequence[AgentMessage], inherited: int = 0) -> int:
    """The size of a projected context, in tokens.

    `inherited` is how many leading messages come from the newest compaction (its summary and retained tail): their
    usage was reported before it (A-6).
    """
    for index in range(len(messages) - 1, inherited - 1, -1):
        message = messages[index]
        if not isinstance(message, AssistantMessage) or message.stop_reason in UNSENT:
            continue  # what is not sent takes no room, and its usage measures nothing kept
        reported = usage_tokens(message.usage)
        # An answer without a reported prompt measures nothing: some servers report output alone.
        if reported > message.usage.output:
            return reported + messages_tokens(messages[index + 1 :])
    return messages_tokens(messages)


def context_limit(context_window: int, reserve_tokens: int) -> int | None:
    """The largest context that a request should have, in tokens; None when the window is unknown.

    At most half of the window is reserved: a large reserve must not make every request of a small model too large.
    """
    if context_window <= 0:
        return None
    return context_window - min(reserve_tokens, context_window // 2)
