"""A session as a conversation to read: every message whole, tool results cut to their first lines."""

from collections.abc import Iterable, Iterator
from typing import assert_never

from ..types.codec import dump
from ..types.entries import BranchSummaryBody, CompactionBody, Entry, MessageBody
from ..types.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ExtensionMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from .output import one_line, printable, to_json
from .rendering import clock, content_text, entry_text

RESULT_LINES = 12
CALL_CHARS = 400


def transcript(entries: Iterable[Entry], *, full: bool) -> Iterator[str]:
    """Printable lines, oldest entry first. `full` shows results whole, and what the model thought."""
    for entry in entries:
        yield ""
        match entry.body:
            case MessageBody(message=message):
                yield _head(_who(message), entry)
                yield from _lines(_said(message, full=full), None if full or _is_talk(message) else RESULT_LINES)
            case CompactionBody(summary=summary):
                yield _head("compaction", entry)
                yield from _lines(summary, None)
            case BranchSummaryBody(summary=summary):
                yield _head("summary of a branch", entry)
                yield from _lines(summary, None)
            case _:
                yield _head(entry_text(entry), entry)


def _head(what: str, entry: Entry) -> str:
    return f"--- {one_line(what)}  {clock(entry.timestamp)}"


def _lines(text: str, limit: int | None) -> Iterator[str]:
    lines = printable(text).rstrip().split("\n") if text.strip() else []
    kept = lines if limit is None else lines[:limit]
    yield from kept
    if len(lines) > len(kept):
        yield f"[{len(lines) - len(kept)} more lines]"


def _is_talk(message: AgentMessage) -> bool:
    return not isinstance(message, ToolResultMessage | BashExecutionMessage)


def _who(message: AgentMessage) -> str:
    match message:
        case UserMessage():
            return "user"
        case AssistantMessage(provider=provider, model=model):
            return f"assistant {provider}/{model}"
        case ToolResultMessage(tool_name=name, is_error=failed):
            return f"{'error' if failed else 'result'} of {name}"
        case BashExecutionMessage():
            return "command of the user"
        case CustomMessage(custom_type=custom_type):
            return custom_type
        case BranchSummaryMessage() | CompactionSummaryMessage():
            return "summary"
        case ExtensionMessage(role=role):
            return f"message of role {role}"
        case _:
            assert_never(message)


def _said(message: AgentMessage, *, full: bool) -> str:
    match message:
        case UserMessage(content=content) | ToolResultMessage(content=content) | CustomMessage(content=content):
            return content_text(content)
        case AssistantMessage():
            return "\n".join(_parts(message, full=full))
        case BashExecutionMessage(command=command, output=output):
            return f"$ {command}\n{output}"
        case BranchSummaryMessage(summary=summary) | CompactionSummaryMessage(summary=summary):
            return summary
        case ExtensionMessage():
            return to_json(dump(message))
        case _:
            assert_never(message)


def _parts(message: AssistantMessage, *, full: bool) -> Iterator[str]:
    for part in message.content:
        match part:
            case TextContent(text=text):
                yield text
            case ThinkingContent(thinking=thinking):
                if full:
                    yield f"(thinking) {thinking}"
            case ToolCall(name=name, arguments=arguments):
                yield f"> {one_line(name)} {one_line(to_json(dict(arguments)), None if full else CALL_CHARS)}"
            case _:
                assert_never(part)
    if message.stop_reason not in ("stop", "toolUse"):
        yield f"<{message.stop_reason}> {message.error_message or ''}".rstrip()
