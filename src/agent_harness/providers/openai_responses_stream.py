"""The events of an OpenAI Responses stream, or a whole response -> an answer."""

import json
from collections.abc import Callable, Sequence
from typing import cast

from ..types.messages import AssistantMessage, DeferredHandle, TerminalStopReason, Usage
from .answer import Answer, Part
from .base import StreamDelta
from .failure import Failure
from .fields import count_of, list_of, object_of, text_of
from .openai_responses_request import PHASE

WAITING = frozenset({"queued", "in_progress"})


class ResponsesReader:
    """Reads events. `handle` makes the handle of a background response, None where none was asked for."""

    def __init__(
        self,
        answer: Answer,
        explain: Callable[[object], Failure],
        handle: Callable[[dict[str, object]], DeferredHandle] | None = None,
    ) -> None:
        self.answer = answer
        self.complete = False
        self._explain = explain
        self._handle = handle
        self._items: dict[int, Part] = {}
        self._response: dict[str, object] = {}
        self._refusal = ""

    def feed(self, event: dict[str, object]) -> Sequence[StreamDelta] | Failure:
        """See `Reader`."""
        if event.get("object") == "response":  # not streamed
            return self._whole(event)
        index = event.get("output_index")
        part = self._items.get(index) if type(index) is int else None
        delta = text_of(event.get("delta"))
        match event.get("type"):
            case "response.created" | "response.queued" | "response.in_progress":
                self._about(object_of(event.get("response")))
            case "response.output_item.added" if type(index) is int:
                self._open(index, object_of(event.get("item")))
            case "response.output_item.done" if type(index) is int:
                return self._close(index, object_of(event.get("item")))
            case "response.output_text.delta" | "response.function_call_arguments.delta" if part is not None:
                return self._add(part, delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" if part is not None:
                return self._add(part, delta)
            case "response.reasoning_summary_part.added" if part is not None and part.text.value:
                return self._add(part, "\n\n")
            case "response.refusal.delta":
                self._refusal += delta
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                return self._whole(object_of(event.get("response")))
            case "error":
                return self._explain(event.get("error") if isinstance(event.get("error"), dict) else event)
            case _:
                pass  # parts of server tools, and what the API may add
        return ()

    def finish(self) -> AssistantMessage:
        """See `Reader`."""
        response, status = self._response, text_of(self._response.get("status"))
        reason = text_of(object_of(response.get("incomplete_details")).get("reason"))
        raw = reason or status
        if status in WAITING:
            if self._handle is not None:
                return self.answer.settle("deferred", raw, deferred=self._handle(response))
            return self.answer.fail(
                Failure(code="stream_cut", message="the server answered before the answer was complete"), raw
            )
        if status == "failed":
            return self.answer.fail(self._explain(object_of(response.get("error"))), raw)
        if status == "cancelled":
            return self.answer.fail(Failure(code="invalid_request", message="the response was cancelled"), raw)
        if reason == "content_filter":
            message = "the provider's content filter stopped the answer"
            return self.answer.fail(Failure(code="content_filter", message=message), raw)
        if self._refusal:
            return self.answer.fail(Failure(code="content_filter", message=f"the model refused: {self._refusal}"), raw)
        stop: TerminalStopReason = "length" if status == "incomplete" else "stop"
        return self.answer.settle(stop, raw)

    def _about(self, response: dict[str, object]) -> None:
        self.answer.response_id = text_of(response.get("id")) or self.answer.response_id
        self.answer.response_model = text_of(response.get("model")) or self.answer.response_model
        usage = response.get("usage")
        if isinstance(usage, dict):
            self.answer.usage = read_usage(cast("dict[str, object]", usage))

    def _whole(self, response: dict[str, object]) -> list[StreamDelta]:
        """A response in its last state; its items are taken from it if no event told of any."""
        self._about(response)
        self._response, self.complete = response, True
        if self._items:
            return []
        items = enumerate(list_of(response.get("output")))
        return [delta for index, item in items for delta in self._close(index, object_of(item))]

    def _open(self, index: int, item: dict[str, object]) -> Part | None:
        match item.get("type"):
            case "message":
                part = self.answer.part("text")
                phase = text_of(item.get(PHASE))
                part.extra = {PHASE: phase} if phase else {}
            case "reasoning":
                part = self.answer.part("thinking")
            case "function_call":
                part = self.answer.part("call", id=text_of(item.get("call_id")), name=text_of(item.get("name")))
            case _:
                return None
        self._items[index] = part
        return part

    def _close(self, index: int, item: dict[str, object]) -> list[StreamDelta]:
        """The finished item: what its deltas did not bring is added, and reasoning is kept for the next request."""
        part = self._items.get(index) or self._open(index, item)
        if part is None:
            return []
        if item.get("type") == "reasoning" and text_of(item.get("encrypted_content")):
            part.signature = json.dumps(item)
        if item.get("type") == "message":
            contents = [object_of(content) for content in list_of(item.get("content"))]
            self._refusal = "".join(text_of(content.get("refusal")) for content in contents) or self._refusal
        return self._add(part, _item_text(item)) if not part.text.value else []

    def _add(self, part: Part, delta: str) -> list[StreamDelta]:
        return [self.answer.add(part, delta)] if delta else []


def _item_text(item: dict[str, object]) -> str:
    match item.get("type"):
        case "message":
            return "".join(text_of(object_of(content).get("text")) for content in list_of(item.get("content")))
        case "reasoning":
            texts = [text_of(object_of(part).get("text")) for part in list_of(item.get("summary"))]
            texts = texts or [text_of(object_of(part).get("text")) for part in list_of(item.get("content"))]
            return "\n\n".join(text for text in texts if text)
        case "function_call":
            return text_of(item.get("arguments"))
        case _:
            return ""


def read_usage(usage: dict[str, object]) -> Usage:
    """Tokens as we count them: `input` without cached ones, `output` with reasoning (decisions section 7)."""
    given, output = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    details = object_of(usage.get("input_tokens_details"))
    cached = min(count_of(details.get("cached_tokens")), given)
    written = min(count_of(details.get("cache_write_tokens")), given - cached)
    reasoning = count_of(object_of(usage.get("output_tokens_details")).get("reasoning_tokens"))
    return Usage(
        input=given - cached - written,
        output=output,
        cache_read=cached,
        cache_write=written,
        total_tokens=given + output,
        reasoning=reasoning or None,
    )
