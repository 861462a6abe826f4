"""The scripted provider: answers come from a list or a function. For tests, demos and examples (decisions §7)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TypeAlias

from ..types.json import JsonValue
from ..types.messages import AssistantMessage, DeferredHandle, TextContent, ToolCall, Usage
from .base import (
    AssistantMessageEvent,
    Model,
    ModelRegistry,
    ProviderContext,
    ProviderResponse,
    RequestContext,
    StreamDelta,
    StreamEnd,
    StreamOptions,
    StreamStart,
)

SCRIPTED_API = "scripted"
"""The API that `ScriptedProvider` speaks."""

SCRIPTED_MODEL = Model(
    provider="scripted", id="scripted-1", api=SCRIPTED_API, context_window=100_000, max_tokens=8_000, images=True
)
"""A model of the scripted provider: 100,000 tokens of context, 8,000 of output, images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """What the provider was asked, kept for assertions."""

    model: Model
    context: ProviderContext
    options: StreamOptions


ScriptedAnswer: TypeAlias = AssistantMessage | str
AnswerFunction: TypeAlias = Callable[[ScriptedRequest], ScriptedAnswer | Awaitable[ScriptedAnswer]]


def answer(
    text: str = "",
    *,
    calls: Sequence[ToolCall] = (),
    usage: Usage | None = None,
    stop_reason: str | None = None,
    error_message: str | None = None,
    error_code: str | None = None,
    retry_after_ms: int | None = None,
    deferred: DeferredHandle | None = None,
) -> AssistantMessage:
    """A scripted answer: text, calls, or an error (`error_code` "overloaded" is retryable, "auth" is not).

    Raises:
        ValueError: there is no such `stop_reason`.
    """
    reason = stop_reason or ("error" if error_message else "deferred" if deferred else "toolUse" if calls else "stop")
    message = AssistantMessage(
        content=((TextContent(text=text),) if text else ()) + tuple(calls),
        api=SCRIPTED_API,
        provider=SCRIPTED_MODEL.provider,
        model=SCRIPTED_MODEL.id,
        usage=usage or Usage(input=10, output=5, total_tokens=15),
        stop_reason="stop",
        timestamp=0,
        error_message=error_message,
        error_code=error_code,
        retry_after_ms=retry_after_ms,
        deferred=deferred,
    )
    match reason:
        case "stop" | "length" | "toolUse" | "error" | "aborted" | "deferred":
            return replace(message, stop_reason=reason)
        case _:
            raise ValueError(f"unknown stop reason {reason!r}")


def call(name: str, arguments: Mapping[str, JsonValue] | None = None, *, id: str = "call-1") -> ToolCall:
    """A tool call for a scripted answer."""
    return ToolCall(id=id, name=name, arguments=dict(arguments or {}))


@dataclass(slots=True)
class ScriptedProvider:
    """Plays `answers` in order, or asks `respond` each time. Running out of answers is an error answer.

    `requests` keeps what it was asked. `fetches` are the answers of `fetch_deferred`, in order.
    """

    answers: Sequence[ScriptedAnswer] = ()
    respond: AnswerFunction | None = None
    fetches: Sequence[AssistantMessage] = ()
    requests: list[ScriptedRequest] = field(default_factory=list[ScriptedRequest])
    cancelled: list[DeferredHandle] = field(default_factory=list[DeferredHandle])
    played: int = 0
    fetched: int = 0

    @property
    def api(self) -> str:
        """Serves `SCRIPTED_MODEL`."""
        return SCRIPTED_API

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """See `Provider`."""
        if request.signal.aborted:  # as the adapters do: nothing is sent, so nothing is paid for
            refused = answer(stop_reason="aborted", error_message="Request was aborted", usage=Usage())
            now = request.now_ms() if request.now_ms is not None else 0
            yield StreamEnd(
                message=replace(refused, provider=model.provider, model=model.id, api=model.api, timestamp=now)
            )
            return
        asked = ScriptedRequest(model=model, context=context, options=options)
        self.requests.append(asked)
        if request.on_payload is not None:
            await request.on_payload({"model": model.id, "messages": len(context.messages)})
        final = await self._next(asked)
        now = request.now_ms() if request.now_ms is not None else 0
        final = replace(final, provider=model.provider, model=model.id, api=model.api, timestamp=now)
        if _aborted(request):
            final = replace(final, content=(), stop_reason="aborted", error_message="Request was aborted")
        if request.on_response is not None:
            await request.on_response(ProviderResponse(status=200))
        pending = replace(final, content=(), stop_reason="pending", error_message=None, error_code=None, deferred=None)
        yield StreamStart(partial=pending)
        for index, part in enumerate(final.content):
            if isinstance(part, TextContent):
                shown = replace(pending, content=final.content[: index + 1])
                yield StreamDelta(type="text_delta", index=index, delta=part.text, partial=shown)
        yield StreamEnd(message=final)

    async def _next(self, asked: ScriptedRequest) -> AssistantMessage:
        if self.respond is not None:
            chosen = self.respond(asked)
            given = await chosen if isawaitable(chosen) else chosen
        elif self.played < len(self.answers):
            given = self.answers[self.played]
            self.played += 1
        else:
            given = answer(error_message="the script has no more answers", error_code="invalid_request")
        return answer(given) if isinstance(given, str) else given

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> AssistantMessage:
        """See `DeferredProvider`.

        Raises:
            LookupError: the script has no answer; the harness turns it into an error.
        """
        if self.fetched >= len(self.fetches):
            raise LookupError("the script has no deferred answer")
        self.fetched += 1
        return self.fetches[self.fetched - 1]

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> None:
        """See `DeferredProvider`."""
        self.cancelled.append(handle)


def _aborted(request: RequestContext) -> bool:
    # A question of its own each time: checkers take a property for constant between two looks.
    return request.signal.aborted


def scripted_models(*answers: ScriptedAnswer, respond: AnswerFunction | None = None) -> ModelRegistry:
    """A `Models` with one scripted provider and its model."""
    return ModelRegistry([ScriptedProvider(answers=answers, respond=respond)], [SCRIPTED_MODEL])
