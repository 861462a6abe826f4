"""The chunks of a Gemini stream -> an answer."""

import json
from collections.abc import Callable, Sequence
from typing import Final, cast

from ..types.messages import AssistantMessage, Usage
from .answer import Answer, PartKind
from .base import StreamDelta
from .errors import ErrorCode
from .failure import Failure
from .fields import count_of, list_of, object_of, text_of

FILTERED: Final = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "IMAGE_SAFETY", "MODEL_ARMOR"}
)
FAILURES: Final[dict[str, tuple[ErrorCode, str]]] = {
    "MALFORMED_FUNCTION_CALL": ("server_error", "the model wrote a malformed function call"),
    "MALFORMED_RESPONSE": ("server_error", "the model wrote a malformed response"),
    "UNEXPECTED_TOOL_CALL": ("server_error", "the model called a tool where it should not"),
    "TOO_MANY_TOOL_CALLS": ("server_error", "the model called too many tools in a row"),
    "MISSING_THOUGHT_SIGNATURE": ("invalid_request", "a thought signature is missing in the request"),
    "OTHER": ("server_error", "the provider stopped the answer without saying why"),
}


class GoogleReader:
    """Reads chunks. Function calls come whole and end with STOP, like any answer."""

    def __init__(self, answer: Answer, explain: Callable[[object], Failure]) -> None:
        self.answer = answer
        self._explain = explain
        self._reason = ""
        self._blocked = ""

    @property
    def complete(self) -> bool:
        """See `Reader`."""
        return bool(self._reason or self._blocked)

    def feed(self, chunk: dict[str, object]) -> Sequence[StreamDelta] | Failure:
        """See `Reader`."""
        if chunk.get("error"):
            return self._explain(chunk)
        self.answer.response_id = text_of(chunk.get("responseId")) or self.answer.response_id
        self.answer.response_model = text_of(chunk.get("modelVersion")) or self.answer.response_model
        usage = chunk.get("usageMetadata")
        if isinstance(usage, dict):
            self.answer.usage = read_usage(cast("dict[str, object]", usage))
        self._blocked = text_of(object_of(chunk.get("promptFeedback")).get("blockReason")) or self._blocked
        deltas: list[StreamDelta] = []
        for candidate in map(object_of, list_of(chunk.get("candidates"))):
            if count_of(candidate.get("index")) == 0:
                for part in list_of(object_of(candidate.get("content")).get("parts")):
                    deltas += self._part(object_of(part))
                reason = text_of(candidate.get("finishReason"))
                if reason != "FINISH_REASON_UNSPECIFIED":
                    self._reason = reason or self._reason
        return deltas

    def finish(self) -> AssistantMessage:
        """See `Reader`."""
        if self._blocked or self._reason in FILTERED:
            raw = self._blocked or self._reason
            said = f"the provider's content filter stopped the {'request' if self._blocked else 'answer'} ({raw})"
            return self.answer.fail(Failure(code="content_filter", message=said), raw)
        if self._reason in FAILURES:
            code, message = FAILURES[self._reason]
            return self.answer.fail(Failure(code=code, message=message), self._reason)
        return self.answer.settle("length" if self._reason == "MAX_TOKENS" else "stop", self._reason)

    def _part(self, part: dict[str, object]) -> list[StreamDelta]:
        signature = text_of(part.get("thoughtSignature")) or None
        call = object_of(part.get("functionCall"))
        if call:
            opened = self.answer.part("call", id=text_of(call.get("id")), name=text_of(call.get("name")))
            opened.signature = signature
            arguments: object = call.get("args")
            opened.arguments = {} if arguments is None else arguments
            return [self.answer.add(opened, json.dumps(opened.arguments))]
        text = text_of(part.get("text"))
        if not text and signature is None:
            return []
        kind: PartKind = "thinking" if part.get("thought") is True else "text"
        last = self.answer.parts[-1] if self.answer.parts else None
        if last is not None and last.kind == "text" and last.signature is not None:
            last = None  # a signed part is whole
        grown = last if last is not None and last.kind == kind else self.answer.part(kind)
        grown.signature = signature or grown.signature
        return [self.answer.add(grown, text)] if text else []


def read_usage(usage: dict[str, object]) -> Usage:
    """Tokens as we count them: `input` without cached ones, `output` with thoughts (decisions section 7)."""
    given = count_of(usage.get("promptTokenCount")) + count_of(usage.get("toolUsePromptTokenCount"))
    cached = min(count_of(usage.get("cachedContentTokenCount")), given)
    thoughts = count_of(usage.get("thoughtsTokenCount"))
    output = count_of(usage.get("candidatesTokenCount")) + thoughts
    return Usage(
        input=given - cached,
        output=output,
        cache_read=cached,
        total_tokens=given + output,
        reasoning=thoughts or None,
    )
