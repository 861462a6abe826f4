"""An assistant message that grows: adapters add what arrives, consumers see it, and it settles once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ..types.json import JsonValue
from ..types.messages import (
    AssistantContent,
    AssistantMessage,
    DeferredHandle,
    TerminalStopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
)
from .arguments import INVALID_ARGUMENTS, check_arguments, parse_arguments
from .base import Model, StreamDelta
from .failure import Failure

PartKind: TypeAlias = Literal["text", "thinking", "call"]


class _Text:
    """Joins deltas. A surrogate pair may be cut between two of them, so a trailing high half waits for its low one."""

    __slots__ = ("value", "waiting")

    def __init__(self) -> None:
        self.value = ""
        self.waiting = ""

    def add(self, delta: str) -> str:
        delta = self.waiting + delta
        self.waiting = delta[-1] if delta and "\ud800" <= delta[-1] <= "\udbff" else ""
        if self.waiting:
            delta = delta[:-1]
        delta = valid_text(delta)
        self.value += delta
        return delta

    def close(self) -> str:
        if self.waiting:
            self.waiting = ""
            self.value += "\ufffd"
        return self.value


def valid_text(text: str) -> str:
    """Surrogate pairs become their character, lone surrogates U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(slots=True, kw_only=True)
class Part:
    """One content part while it grows. `text` is text, reasoning, or the text of the arguments."""

    kind: PartKind
    index: int
    id: str = ""
    name: str = ""
    signature: str | None = None
    redacted: bool = False
    arguments: object = None  # given as JSON instead of as text
    extra: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    text: _Text = field(default_factory=_Text)

    def shown(self) -> AssistantContent:
        """As it looks before it is complete: a call has no arguments yet."""
        match self.kind:
            case "text":
                return TextContent(text=self.text.value, text_signature=self.signature, extra=self.extra)
            case "thinking":
                return ThinkingContent(
                    thinking=self.text.value,
                    thinking_signature=self.signature,
                    redacted=True if self.redacted else None,
                    extra=self.extra,
                )
            case "call":
                return ToolCall(
                    id=self.id, name=self.name, arguments={}, thought_signature=self.signature, extra=self.extra
                )

    def settled(self) -> AssistantContent:
        """As it is kept. Arguments that cannot be used leave the call with `{}` and the reason in `extra`."""
        text = self.text.close()
        content = self.shown()
        if not isinstance(content, ToolCall):
            return content
        arguments, problem = check_arguments(self.arguments) if self.arguments is not None else parse_arguments(text)
        extra: Mapping[str, JsonValue] = {**self.extra, INVALID_ARGUMENTS: problem} if problem else self.extra
        return replace(content, arguments=arguments, extra=extra)


class Answer:
    """The message under construction. `usage`, `response_id` and `response_model` are set as they become known."""

    def __init__(self, model: Model, timestamp: int) -> None:
        self._model = model
        self._timestamp = timestamp
        self._shown: list[AssistantContent] = []
        self.parts: list[Part] = []
        self.usage = Usage()
        self.response_id: str | None = None
        self.response_model: str | None = None

    def part(self, kind: PartKind, *, id: str = "", name: str = "") -> Part:
        """Open a new part at the end."""
        part = Part(kind=kind, index=len(self.parts), id=valid_text(id), name=valid_text(name))
        self.parts.append(part)
        self._shown.append(part.shown())
        return part

    def current(self, kind: PartKind) -> Part:
        """The last part if it is of this kind, else a new one."""
        return self.parts[-1] if self.parts and self.parts[-1].kind == kind else self.part(kind)

    def add(self, part: Part, delta: str) -> StreamDelta:
        """Append to a part; the event tells consumers."""
        added = part.text.add(delta)
        self._shown[part.index] = part.shown()
        kinds: dict[PartKind, Literal["text_delta", "thinking_delta", "toolcall_delta"]] = {
            "text": "text_delta",
            "thinking": "thinking_delta",
            "call": "toolcall_delta",
        }
        return StreamDelta(type=kinds[part.kind], index=part.index, delta=added, partial=self.partial())

    def partial(self) -> AssistantMessage:
        """What there is so far, pending."""
        return AssistantMessage(
            content=tuple(self._shown),
            api=self._model.api,
            provider=self._model.provider,
            model=self._model.id,
            usage=self.usage,
            stop_reason="pending",
            timestamp=self._timestamp,
            response_id=self.response_id,
            response_model=self.response_model,
        )

    def settle(
        self, stop_reason: TerminalStopReason, raw: str | None = None, *, deferred: DeferredHandle | None = None
    ) -> AssistantMessage:
        """The complete message. Calls decide between "stop" and "toolUse", whatever the provider called it."""
        content = self._content(calls=True)
        if stop_reason in {"stop", "toolUse"}:
            stop_reason = "toolUse" if any(isinstance(part, ToolCall) for part in content) else "stop"
        return replace(self.partial(), content=content, stop_reason=stop_reason, raw_stop_reason=raw, deferred=deferred)

    def fail(self, failure: Failure, raw: str | None = None) -> AssistantMessage:
        """An error message. It keeps the text that arrived; calls are left out, since none of them may run."""
        return replace(
            self.partial(),
            content=self._content(calls=False),
            stop_reason="error",
            error_message=failure.message,
            error_code=failure.code,
            retry_after_ms=failure.retry_after_ms,
            raw_stop_reason=raw,
        )

    def abort(self) -> AssistantMessage:
        """The message of a cancelled request: the text that arrived, no calls."""
        return replace(
            self.partial(),
            content=self._content(calls=False),
            stop_reason="aborted",
            error_message="Request was aborted",
        )

    def _content(self, *, calls: bool) -> tuple[AssistantContent, ...]:
        settled = [part.settled() for part in self.parts if calls or part.kind != "call"]
        return tuple(part for part in settled if not _is_empty(part))


def _is_empty(part: AssistantContent) -> bool:
    match part:
        case TextContent():
            return not part.text and part.text_signature is None
        case ThinkingContent():
            return not part.thinking and part.thinking_signature is None and not part.extra
        case ToolCall():
            return False
