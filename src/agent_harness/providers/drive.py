"""From an exchange to stream events: the part of every adapter that is the same (decisions section 7)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from ..types.messages import AssistantMessage
from .answer import Answer
from .base import (
    AssistantMessageEvent,
    ProviderResponse,
    RequestContext,
    StreamDelta,
    StreamEnd,
    StreamStart,
)
from .exchange import Event, Exchange, Head, Over, Source
from .failure import Failure

TRAILER_MS = 5_000
"""How long a complete answer waits for what may follow it, such as usage, when the server keeps the stream open."""


class Reader(Protocol):
    """Turns the events of one API into an answer. It never raises for what a server sends."""

    @property
    def answer(self) -> Answer:
        """The message under construction."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the terminal event has been seen."""
        ...

    def feed(self, event: dict[str, object], /) -> Sequence[StreamDelta] | Failure:
        """Take one event in. A failure ends the stream."""
        ...

    def finish(self) -> AssistantMessage:
        """The settled message, once complete."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `drive` needs besides the reader."""

    source: Source = field(repr=False)  # bound to what it sends
    context: RequestContext
    timeout_ms: int | None
    explain: Callable[[Exception], Failure]
    keep: set[asyncio.Task[None]]
    trailer_ms: int = TRAILER_MS


async def drive(reader: Reader, request: Request) -> AsyncIterator[AssistantMessageEvent]:
    """Run one request to its `StreamEnd`. Only the request's own callbacks can raise."""
    answer, signal = reader.answer, request.context.signal
    if signal.aborted:
        yield StreamEnd(message=answer.abort())
        return
    async with Exchange(request.source, signal, request.timeout_ms, request.keep) as exchange:
        final: AssistantMessage | None = None
        while final is None:
            item = await exchange.next(request.trailer_ms if reader.complete else None)
            match item:
                case Head():
                    if request.context.on_response is not None:
                        await request.context.on_response(ProviderResponse(status=item.status, headers=item.headers))
                    if item.status < 400:
                        yield StreamStart(partial=answer.partial())
                case Event():
                    fed = _fed(reader, item.data)
                    if isinstance(fed, Failure):
                        final = answer.fail(fed)
                    else:
                        for delta in fed:
                            yield delta
                case Over():
                    final = _final(reader, item, request)
    yield StreamEnd(message=final)


def _fed(reader: Reader, data: object) -> Sequence[StreamDelta] | Failure:
    if not isinstance(data, dict):
        return Failure(code="transport", message="malformed chunk: not a JSON object")
    return reader.feed(cast("dict[str, object]", data))


def _final(reader: Reader, over: Over, request: Request) -> AssistantMessage:
    if over.why == "aborted":
        return reader.answer.abort()
    if reader.complete:  # whatever breaks after the terminal event takes nothing away from the answer
        return reader.finish()
    if over.error is not None:
        return reader.answer.fail(request.explain(over.error))
    if over.why == "timeout":
        return reader.answer.fail(Failure(code="timeout", message=f"no answer within {request.timeout_ms} ms"))
    return reader.answer.fail(Failure(code="stream_cut", message="the stream ended before the answer was complete"))
