"""What a summary request says and how its answer is read (A-7). Pure: requests are made by the procedures.

One attempt makes one or more requests: the history, and the head of a split turn on its own. What does not fit into
one request, or came back cut, is split into parts; each part is asked for with the same instructions.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import assert_never

import orjson

from ..session.context import UNSENT, to_user_message
from ..types.messages import (
    AgentMessage,
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserContent,
)
from ..types.structural import CompactionPreparation
from .estimate import text_tokens
from .prepare import shorten_text

RESULT_CHARS = 2_000
"""How much of a tool result is shown to the summariser."""
ARGUMENT_CHARS = 2_000
LEAST_PART_TOKENS = 50
PROMPT_TOKENS = 1_500
"""Room for the instructions of a request."""

SYSTEM_PROMPT = (
    "You write summaries of conversations between a person and an AI agent. The agent will continue from your summary "
    "instead of the conversation, so everything it needs must be in it. Never answer or continue the conversation and "
    "call no tools: reply with the summary and nothing else."
)
_SECTIONS = (
    "Use these sections, leaving out empty ones:\n"
    "## Goal\nWhat the person wants, with constraints and preferences, in their words where they matter.\n"
    "## Progress\nWhat is done, what is under way, what failed and why.\n"
    "## Decisions\nChoices made and their reasons.\n"
    "## Next steps\nWhat comes next, in order.\n"
    "## Facts to keep\nExact paths, names, commands, values, error messages and open questions."
)
_HISTORY = "Summarise the conversation above.\n" + _SECTIONS
_UPDATE = (
    "The summary above covers what came before this conversation. Write one summary of both: keep what still holds, "
    "correct what changed, add what is new.\n" + _SECTIONS
)
_TURN = (
    "The conversation above is the first half of a turn; its second half is kept word for word beside your summary. "
    "Summarise it shortly: what the person asked for, what was done so far and what was found, with exact paths, names "
    "and values."
)
_BRANCH = (
    "The conversation above is a branch that the person is leaving to go on elsewhere. Summarise what was tried there, "
    "what was learned, which files were read or changed, and what was left open.\n" + _SECTIONS
)
_PART = "This is part {} of {} of a long conversation, in order. Summarise only this part."
TURN_HEADING = "## The turn that is under way (first half)"

_TAGGED = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)
_THOUGHTS = re.compile(r"<(analysis|thinking)>.*?</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPrompt:
    """One request: its only user message, and the heading its answer gets in the whole summary."""

    text: str
    heading: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryLimits:
    """`part_tokens`: how much conversation one request may hold, None for any amount.

    `splits`: how many times a part came back cut; every one halves the parts.
    """

    part_tokens: int | None = None
    splits: int = 0


def part_tokens(context_window: int, max_tokens: int) -> int | None:
    """How much conversation fits beside the instructions and the answer; None when the window is unknown."""
    if context_window <= 0:
        return None
    return max(context_window - min(max_tokens, context_window // 2) - PROMPT_TOKENS, context_window // 4)


def compaction_prompts(
    preparation: CompactionPreparation, limits: SummaryLimits, custom_instructions: str | None = None
) -> list[SummaryPrompt]:
    """The requests of one attempt at a compaction summary, in order.

    A split turn is summarised on its own beside the history; without a history its head continues the earlier summary.
    """
    previous, history, prefix = (
        preparation.previous_summary,
        preparation.messages_to_summarize,
        preparation.turn_prefix,
    )
    if not history:
        task = _TURN if previous is None else _UPDATE
        return _prompts(prefix, task, limits, custom_instructions, previous=previous)
    task = _HISTORY if previous is None else _UPDATE
    prompts = _prompts(history, task, limits, custom_instructions, previous=previous)
    if prefix:
        prompts += _prompts(prefix, _TURN, limits, custom_instructions, heading=TURN_HEADING)
    return prompts


def branch_prompts(
    messages: Sequence[AgentMessage], limits: SummaryLimits, custom_instructions: str | None = None
) -> list[SummaryPrompt]:
    """The requests of one attempt at a branch summary, in order."""
    return _prompts(messages, _BRANCH, limits, custom_instructions)


def _prompts(
    messages: Sequence[AgentMessage],
    task: str,
    limits: SummaryLimits,
    custom_instructions: str | None,
    *,
    previous: str | None = None,
    heading: str | None = None,
) -> list[SummaryPrompt]:
    parts = _parts(serialise(messages), limits)
    prompts: list[SummaryPrompt] = []
    for number, part in enumerate(parts, start=1):
        sections: list[str] = []
        if previous is not None and number == 1:
            sections.append(f"<previous-summary>\n{previous}\n</previous-summary>")
        sections.append(f"<conversation>\n{part}\n</conversation>")
        # A later part knows nothing of the earlier summary, so it must not be told to update it.
        sections.append(_HISTORY if task == _UPDATE and number > 1 else task)
        if len(parts) > 1:
            sections.append(_PART.format(number, len(parts)))
        if custom_instructions:
            sections.append(f"Instructions of the person for this summary, which come first:\n{custom_instructions}")
        prompts.append(SummaryPrompt(text="\n\n".join(sections), heading=heading if number == 1 else None))
    return prompts


def join_summaries(prompts: Sequence[SummaryPrompt], answers: Sequence[str]) -> str:
    """The whole summary, from the answers to `prompts`."""
    pieces = [
        f"{prompt.heading}\n\n{text}" if prompt.heading else text for prompt, text in zip(prompts, answers, strict=True)
    ]
    return "\n\n".join(pieces)


# The conversation as text --------------------------------------------------------------------------------------------


def serialise(messages: Sequence[AgentMessage]) -> list[str]:
    """Each message as labelled text, those that say nothing to the model left out.

    Plain text, not messages: a model that is shown a conversation continues it. Tool results are shortened.
    """
    texts: list[str] = []
    for message in messages:
        match message:
            case AssistantMessage():
                text = "" if message.stop_reason in UNSENT else _answer(message)
            case ToolResultMessage():
                label = "Tool error" if message.is_error else "Tool result"
                shown = shorten_text(_text(message.content), RESULT_CHARS, "\n[... {} characters left out ...]\n")
                text = f"[{label} of {message.tool_name}]: {shown}"
            case _:
                said = to_user_message(message)
                text = f"[User]: {_text(said.content)}" if said is not None else ""
        if text:
            texts.append(text)
    return texts


def _answer(message: AssistantMessage) -> str:
    lines: list[str] = []
    for part in message.content:
        match part:
            case TextContent():
                lines.append(f"[Agent]: {part.text}")
            case ThinkingContent():
                if part.thinking and not part.redacted:
                    lines.append(f"[Agent's thoughts]: {part.thinking}")
            case ToolCall():
                arguments = orjson.dumps(dict(part.arguments)).decode()
                shown = shorten_text(arguments, ARGUMENT_CHARS, " [... {} characters left out ...] ")
                lines.append(f"[Agent calls]: {part.name}({shown})")
            case _:
                assert_never(part)
    return "\n".join(lines)


def _text(content: str | Sequence[UserContent]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join("[image]" if isinstance(part, ImageContent) else part.text for part in content)


def _parts(texts: Sequence[str], limits: SummaryLimits) -> list[str]:
    """The texts in consecutive parts of about equal size; one text too large for a part is cut at code points."""
    total = sum(map(text_tokens, texts))
    wanted = 1 if limits.part_tokens is None else ceil(total / max(limits.part_tokens, LEAST_PART_TOKENS))
    wanted = max(wanted, 1) << limits.splits
    wanted = max(min(wanted, total // LEAST_PART_TOKENS), 1)
    if wanted == 1:
        return ["\n\n".join(texts)]
    size = ceil(total / wanted)
    parts: list[list[str]] = [[]]
    used = 0
    for text in texts:
        for piece in _pieces(text, size):
            tokens = text_tokens(piece)
            if parts[-1] and used + tokens > size:
                parts.append([])
                used = 0
            parts[-1].append(piece)
            used += tokens
    return ["\n\n".join(part) for part in parts]


def _pieces(text: str, tokens: int) -> list[str]:
    own = text_tokens(text)
    if own <= tokens:
        return [text]
    step = max(len(text) * tokens // own, 1)
    return [text[start : start + step] for start in range(0, len(text), step)]


# The answer ----------------------------------------------------------------------------------------------------------


def parse_summary(message: AssistantMessage) -> str | None:
    """The summary in a complete answer; None when there is none, or the answer was cut.

    Models like to think aloud first or to wrap the summary in tags; neither becomes part of it.
    """
    if message.stop_reason != "stop":
        return None
    text = _THOUGHTS.sub("", message.text)
    tagged: list[str] = _TAGGED.findall(text)
    return ("\n\n".join(tagged) if tagged else text).strip() or None
