"""The chunks of a Chat Completions stream -> an answer. Every field is taken with care: servers differ."""

from collections.abc import Callable, Sequence
from typing import cast

from ..types.json import InvalidJson, JsonValue, canon
from ..types.messages import AssistantMessage, Cost, TerminalStopReason, Usage
from .answer import Answer, Part
from .arguments import clean
from .base import StreamDelta
from .errors import ErrorCode
from .failure import Failure
from .fields import count_of, list_of, object_of, text_of
from .openai_chat_request import REASONING_DETAILS, REASONING_FIELDS

STOPS: dict[str, TerminalStopReason] = {
    "stop": "stop",
    "tool_calls": "toolUse",
    "function_call": "toolUse",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
}
FAILURES: dict[str, tuple[ErrorCode, str]] = {
    "content_filter": ("content_filter", "the provider's content filter stopped the answer"),
    "sensitive": ("content_filter", "the provider's content filter stopped the answer"),
    "model_context_window_exceeded": ("overflow", "the context window of the model is exceeded"),
    "insufficient_system_resource": ("overloaded", "the provider ran out of resources"),
    "network_error": ("transport", "the provider reported a network error"),
    "error": ("server_error", "the provider reported an error"),
    "abort": ("stream_cut", "the server aborted the answer"),
}


class ChatReader:
    """Reads chunks. `explain` describes an error object that a server sends inside the stream.

    `needs_finish_reason=False` is for servers that never send one: a closing usage report counts as the end then, but
    only for an answer without tool calls.
    """

    def __init__(self, answer: Answer, explain: Callable[[object], Failure], *, needs_finish_reason: bool) -> None:
        self.answer = answer
        self._explain = explain
        self._needs_finish_reason = needs_finish_reason
        self._calls: dict[int, Part] = {}
        self._refusal = ""
        self._reason: str | None = None

    @property
    def complete(self) -> bool:
        """See `Reader`."""
        return self._reason is not None

    def feed(self, chunk: dict[str, object]) -> Sequence[StreamDelta] | Failure:
        """See `Reader`."""
        if chunk.get("error"):
            return self._explain(chunk)
        self.answer.response_id = text_of(chunk.get("id")) or self.answer.response_id
        self.answer.response_model = text_of(chunk.get("model")) or self.answer.response_model
        choices = [object_of(choice) for choice in list_of(chunk.get("choices"))]
        for usage in (
            chunk.get("usage"),
            object_of(chunk.get("x_groq")).get("usage"),
            *(c.get("usage") for c in choices),
        ):
            if isinstance(usage, dict):
                self.answer.usage = read_usage(cast("dict[str, object]", usage))
                if not choices and not self._needs_finish_reason and not self._calls:
                    self._reason = self._reason or "stop"
        deltas: list[StreamDelta] = []
        for choice in choices:
            if choice.get("index") in (0, None):
                deltas += self._choice(choice)
        return deltas

    def finish(self) -> AssistantMessage:
        """See `Reader`."""
        raw = self._reason or ""
        if raw in FAILURES:
            code, message = FAILURES[raw]
            return self.answer.fail(Failure(code=code, message=message), raw)
        if self._refusal and not self._calls:
            return self.answer.fail(Failure(code="content_filter", message=f"the model refused: {self._refusal}"), raw)
        return self.answer.settle(STOPS.get(raw, "stop"), raw)

    def _choice(self, choice: dict[str, object]) -> list[StreamDelta]:
        delta = object_of(choice.get("delta")) or object_of(choice.get("message"))  # a whole message: not streamed
        out = [*self._reasoning(delta), *self._content(delta.get("content"))]
        self._refusal += text_of(delta.get("refusal"))
        for call in list_of(delta.get("tool_calls")):
            out += self._call(object_of(call))
        self._reason = text_of(choice.get("finish_reason")) or self._reason
        return out

    def _content(self, content: object) -> list[StreamDelta]:
        if isinstance(content, str):
            return [self.answer.add(self.answer.current("text"), content)] if content else []
        out: list[StreamDelta] = []
        for item in map(object_of, list_of(content)):  # Mistral: content is a list of typed pieces
            if item.get("type") == "thinking":
                for inner in map(object_of, list_of(item.get("thinking"))):
                    out += self._thinking(text_of(inner.get("text")), None)
            else:
                out += self._content(text_of(item.get("text")))
        return out

    def _reasoning(self, delta: dict[str, object]) -> list[StreamDelta]:
        name = next((name for name in REASONING_FIELDS if text_of(delta.get(name))), None)
        details = list_of(delta.get("reasoning_details"))
        if name is not None:
            out = self._thinking(text_of(delta.get(name)), name)
        else:
            text = "".join(
                text_of(object_of(item).get("text")) or text_of(object_of(item).get("summary")) for item in details
            )
            out = self._thinking(text, None)
        if details:
            self._keep_details(details)
        return out

    def _thinking(self, text: str, field: str | None) -> list[StreamDelta]:
        if not text:
            return []
        part = self.answer.current("thinking")
        part.signature = part.signature or field
        return [self.answer.add(part, text)]

    def _keep_details(self, details: list[object]) -> None:
        try:
            kept = cast("list[JsonValue]", canon(clean(details), depth=16))
        except (InvalidJson, RecursionError):
            return
        part = next((p for p in reversed(self.answer.parts) if p.kind == "thinking"), None)
        part = part if part is not None else self.answer.part("thinking")
        earlier = part.extra.get(REASONING_DETAILS)
        part.extra = {**part.extra, REASONING_DETAILS: _merged(earlier if isinstance(earlier, list) else [], kept)}

    def _call(self, call: dict[str, object]) -> list[StreamDelta]:
        function = object_of(call.get("function"))
        id, name = text_of(call.get("id")), text_of(function.get("name"))
        index = call.get("index")
        part = self._find(index if type(index) is int else None, id, name)
        part.id = part.id or id
        part.name = part.name or name
        signature = text_of(object_of(object_of(call.get("extra_content")).get("google")).get("thought_signature"))
        part.signature = signature or part.signature
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # some servers send the object itself
            part.arguments = cast("object", arguments)
            arguments = ""
        return [self.answer.add(part, text_of(arguments))]

    def _find(self, index: int | None, id: str, name: str) -> Part:
        """The call a delta belongs to. Some servers give no index, others 0 to each call: a new id and name is new."""
        calls = self._calls
        key = index if index is not None else max(calls, default=-1) + (1 if name or not calls else 0)
        existing = calls.get(key)
        if existing is not None and id and name and existing.id and id != existing.id:
            key, existing = max(calls) + 1, None
        if existing is None:
            existing = calls[key] = self.answer.part("call", id=id, name=name)
            if index is not None and key != index:
                calls[index], calls[key] = existing, calls[index]  # later deltas of this index are the new call's
        return existing


def _merged(earlier: list[JsonValue], later: list[JsonValue]) -> list[JsonValue]:
    """Streamed reasoning details: pieces of one index are joined, so that they go back as they were meant."""
    out = list(earlier)
    for item in later:
        last = out[-1] if out else None
        if (
            isinstance(item, dict)
            and isinstance(last, dict)
            and (item.get("index"), item.get("type")) == (last.get("index"), last.get("type"))
        ):
            joined = dict(last)
            for key, value in item.items():
                before = joined.get(key)
                if key in {"text", "summary", "data"} and isinstance(before, str) and isinstance(value, str):
                    joined[key] = before + value
                elif value is not None:
                    joined[key] = value
            out[-1] = joined
        else:
            out.append(item)
    return out


def read_usage(usage: dict[str, object]) -> Usage:
    """Tokens as we count them: `input` without cached ones, `output` with reasoning (decisions section 7)."""
    prompt_details, output_details = (
        object_of(usage.get("prompt_tokens_details")),
        object_of(usage.get("completion_tokens_details")),
    )
    prompt, output = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    cached = (
        count_of(prompt_details.get("cached_tokens"))
        or count_of(usage.get("prompt_cache_hit_tokens"))  # DeepSeek
        or count_of(usage.get("cached_tokens"))  # Moonshot, Together
    )
    cached = min(cached, prompt)
    written = min(count_of(prompt_details.get("cache_write_tokens")), prompt - cached)
    reasoning = count_of(output_details.get("reasoning_tokens"))
    total = count_of(usage.get("total_tokens"))
    if reasoning and total == prompt + output + reasoning:  # xAI counts reasoning beside the completion
        output += reasoning
    cost = usage.get("cost")
    paid = cost if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < 1e9 else 0
    return Usage(
        input=prompt - cached - written,
        output=output,
        cache_read=cached,
        cache_write=written,
        total_tokens=prompt + output,
        cost=Cost(total=paid),
        reasoning=reasoning or None,
    )
