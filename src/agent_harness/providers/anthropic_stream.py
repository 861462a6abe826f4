"""The events of an Anthropic Messages stream -> an answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ..types.json import InvalidJson, JsonValue, canon
from ..types.messages import AssistantMessage, TerminalStopReason, Usage
from .answer import Answer, Part
from .arguments import clean, parse_arguments
from .base import StreamDelta
from .failure import Failure
from .fields import count_of, object_of, text_of

STOPS: dict[str, TerminalStopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolUse",
    "max_tokens": "length",
}
PAUSED = "pause_turn"


class AnthropicReader:
    """Reads events. An answer that paused and was resubmitted arrives as several messages and becomes one."""

    def __init__(self, answer: Answer, explain: Callable[[object], Failure]) -> None:
        self.answer = answer
        self.complete = False
        self._explain = explain
        self._blocks: dict[int, Part] = {}
        self._reason = ""
        self._refusal = ""
        self._earlier = Usage()  # of the messages before a pause
        self._usage: dict[str, int] = {}

    def feed(self, event: dict[str, object]) -> Sequence[StreamDelta] | Failure:
        """See `Reader`."""
        index = event.get("index")
        part = self._blocks.get(index) if type(index) is int else None
        match event.get("type"):
            case "message_start":
                self._start(object_of(event.get("message")))
            case "content_block_start" if type(index) is int:
                return self._open(index, object_of(event.get("content_block")))
            case "content_block_delta" if part is not None:
                return self._delta(part, object_of(event.get("delta")))
            case "message_delta":
                delta = object_of(event.get("delta"))
                self._reason = text_of(delta.get("stop_reason")) or self._reason
                self._refusal = text_of(object_of(delta.get("stop_details")).get("explanation")) or self._refusal
                self._count(object_of(event.get("usage")))
            case "message_stop":
                self.complete = self._reason != PAUSED
            case "error":
                return self._explain(event)
            case _:
                pass  # pings, blocks of server tools, and what the API may add
        return ()

    def finish(self) -> AssistantMessage:
        """See `Reader`."""
        match self._reason:
            case "refusal":
                said = f": {self._refusal}" if self._refusal else ""
                return self.answer.fail(
                    Failure(code="content_filter", message=f"the model refused{said}"), self._reason
                )
            case "model_context_window_exceeded":
                return self.answer.fail(
                    Failure(code="overflow", message="the context window of the model is exceeded"), self._reason
                )
            case _:
                return self.answer.settle(STOPS.get(self._reason, "stop"), self._reason or None)

    def _start(self, message: dict[str, object]) -> None:
        self._earlier, self._usage, self._blocks = self.answer.usage, {}, {}
        self.answer.response_id = text_of(message.get("id")) or None
        self.answer.response_model = text_of(message.get("model")) or None
        self._count(object_of(message.get("usage")))

    def _open(self, index: int, block: dict[str, object]) -> list[StreamDelta]:
        match block.get("type"):
            case "text":
                part = self.answer.part("text")
                first = text_of(block.get("text"))
            case "thinking":
                part = self.answer.part("thinking")
                part.signature = text_of(block.get("signature")) or None
                first = text_of(block.get("thinking"))
            case "redacted_thinking":
                part = self.answer.part("thinking")
                part.signature, part.redacted, first = text_of(block.get("data")), True, ""
            case "tool_use":
                part = self.answer.part("call", id=text_of(block.get("id")), name=text_of(block.get("name")))
                first = ""
                if block.get("input"):  # the whole input at once, from servers that do not stream it
                    part.arguments = block.get("input")
            case _:
                return []
        self._blocks[index] = part
        return [self.answer.add(part, first)] if first else []

    def _delta(self, part: Part, delta: dict[str, object]) -> list[StreamDelta]:
        match delta.get("type"):
            case "text_delta":
                added = text_of(delta.get("text"))
            case "thinking_delta":
                added = text_of(delta.get("thinking"))
            case "input_json_delta":
                added = text_of(delta.get("partial_json"))
                part.arguments = None if added else part.arguments
            case "signature_delta":
                part.signature = (part.signature or "") + text_of(delta.get("signature"))
                return []
            case _:
                return []
        return [self.answer.add(part, added)] if added else []

    def _count(self, usage: dict[str, object]) -> None:
        """Take the newest value of each count; events repeat them, growing."""
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            if usage.get(name) is not None:
                self._usage[name] = count_of(usage.get(name))
        details = object_of(usage.get("output_tokens_details"))
        thinking = count_of(details.get("thinking_tokens"))
        before, now = self._earlier, self._usage
        fresh, output = before.input + now.get("input_tokens", 0), before.output + now.get("output_tokens", 0)
        read = before.cache_read + now.get("cache_read_input_tokens", 0)
        written = before.cache_write + now.get("cache_creation_input_tokens", 0)
        self.answer.usage = replace(
            self.answer.usage,
            input=fresh,
            output=output,
            cache_read=read,
            cache_write=written,
            total_tokens=fresh + output + read + written,
            reasoning=(before.reasoning or 0) + thinking or self.answer.usage.reasoning,
        )


@dataclass(slots=True)
class RawBlocks:
    """The content of one message as the API sent it: what a paused turn has to be resubmitted with."""

    reason: str = ""
    _blocks: dict[int, dict[str, object]] = field(default_factory=dict[int, dict[str, object]])
    _json: dict[int, str] = field(default_factory=dict[int, str])

    def feed(self, data: object) -> None:
        """Take one event in."""
        event = object_of(data)
        index = event.get("index")
        if event.get("type") == "message_delta":
            self.reason = text_of(object_of(event.get("delta")).get("stop_reason")) or self.reason
        elif type(index) is int and event.get("type") == "content_block_start":
            self._blocks[index] = dict(object_of(event.get("content_block")))
        elif type(index) is int and event.get("type") == "content_block_delta" and index in self._blocks:
            self._delta(index, self._blocks[index], object_of(event.get("delta")))

    def content(self) -> list[JsonValue]:
        """The blocks in order; [] when they cannot be sent back."""
        out: list[object] = []
        for index, block in sorted(self._blocks.items()):
            arguments, problem = parse_arguments(self._json.get(index, ""))
            if problem is not None:
                return []
            out.append({**block, "input": arguments} if index in self._json else block)
        try:
            return cast("list[JsonValue]", canon(clean(out)))
        except (InvalidJson, RecursionError):
            return []

    def _delta(self, index: int, block: dict[str, object], delta: dict[str, object]) -> None:
        match delta.get("type"):
            case "text_delta":
                block["text"] = text_of(block.get("text")) + text_of(delta.get("text"))
            case "thinking_delta":
                block["thinking"] = text_of(block.get("thinking")) + text_of(delta.get("thinking"))
            case "signature_delta":
                block["signature"] = text_of(block.get("signature")) + text_of(delta.get("signature"))
            case "input_json_delta":
                self._json[index] = self._json.get(index, "") + text_of(delta.get("partial_json"))
            case "citations_delta":
                given = block.get("citations")
                cited = cast("list[object]", given) if isinstance(given, list) else []
                block["citations"] = [*cited, delta.get("citation")]
            case _:
                pass
