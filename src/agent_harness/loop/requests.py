"""The span of a logical model request (harness-v2 §18 "AI request schema"): aggregates of the answer, never content."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from ..providers.base import Model
from ..telemetry.attributes import AiRequestEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.recording import OK_STATUS
from ..telemetry.schema import Span
from ..telemetry.spans import start_ai_span
from ..telemetry.status import error_label, error_status
from ..telemetry.vocabulary import AiOperation, telemetry_stop_reason
from ..types.messages import AssistantMessage

T = TypeVar("T")
RequestSpan: TypeAlias = Span[AiRequestEnd]


async def request_span(
    parent: TelemetryContext,
    model: Model,
    operation: AiOperation,
    work: Callable[[RequestSpan], Awaitable[T]],
    *,
    deferred: bool,
) -> T:
    """Run `work` in the span of one request to `model`; `deferred` says whether it takes part in deferred execution."""
    return await start_ai_span(
        parent,
        "pi.ai.request",
        {
            "pi.ai.operation": operation,
            "pi.ai.provider": model.provider,
            "pi.ai.model": model.id,
            "pi.ai.api": model.api,
            "pi.ai.streaming": operation == "stream",
            "pi.ai.deferred": deferred,
        },
        work,
    )


def record_answer(span: RequestSpan, message: AssistantMessage) -> None:
    """What a settled answer says about its request. An error answer is an expected failure."""
    usage = message.usage
    failed = message.stop_reason == "error"
    span.set_attributes(
        {
            "pi.ai.response.model": message.response_model,
            "pi.ai.response.id": message.response_id,
            "pi.ai.response.stop_reason": telemetry_stop_reason(message.stop_reason)
            if message.stop_reason != "pending"
            else None,
            "pi.ai.usage.input_tokens": usage.input,
            "pi.ai.usage.output_tokens": usage.output,
            "pi.ai.usage.cache_read_tokens": usage.cache_read,
            "pi.ai.usage.cache_write_tokens": usage.cache_write,
            "pi.ai.usage.reasoning_tokens": usage.reasoning,
            "pi.ai.usage.total_tokens": usage.total_tokens,
            "pi.ai.usage.cost": usage.cost.total,
        }
    )
    if failed:
        record_failure(span, message.error_code or "error")
    else:
        span.set_status(OK_STATUS)


def record_failure(span: RequestSpan, code: str) -> None:
    """The class of what went wrong, and error status."""
    label = error_label(code)
    span.set_attributes({"pi.ai.error.type": label})
    span.set_status(error_status(label or "error", "the request failed"))


class Chunks:
    """Counts streamed updates, and the time to the first."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._started = now_ms()
        self._count = 0
        self._first_ms: int | None = None

    def arrived(self) -> None:
        """One more update."""
        if self._first_ms is None:
            self._first_ms = self._now_ms() - self._started
        self._count += 1

    def record(self, span: RequestSpan) -> None:
        """Put the aggregates on the request's span."""
        span.set_attributes(
            {"pi.ai.stream.chunk_count": self._count, "pi.ai.stream.time_to_first_chunk_ms": self._first_ms}
        )
