"""Provider requests of one lane, with the hooks inside them; deltas become events (harness-v2 §11, §15).

A hook inside a request parks as an action of its own, when there is a gate.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from ..abort_signal import AbortSignal
from ..events.catalog import MessageStart, MessageUpdate
from ..hooks.catalog import AfterResponse, BeforePayload, HookName, TransformContext
from ..lanes.lane import LaneRuntime
from ..lanes.reads import LaneReads
from ..loop.provider_stream import NoAnswer, ask_provider
from ..loop.requests import RequestSpan, record_answer, record_failure, request_span
from ..loop.stream import (
    StreamAssistantConfig,
    aborted_answer,
    presentable,
    storable_message,
    stream_assistant,
    transport_error,
)
from ..providers.base import (
    AssistantMessageEvent,
    Model,
    ProviderResponse,
    RequestContext,
    StreamDelta,
    StreamOptions,
)
from ..telemetry.context import TelemetryContext
from ..types.actions import HookAction
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage, DeferredHandle
from .base import AssistantRequest

T = TypeVar("T")
CANCEL_LIMIT_S = 5.0
"""How long an abort waits for a provider to cancel a deferred answer."""


class DirectRequests:
    """The part of `Effects` that asks a provider."""

    def __init__(self, lane: LaneRuntime) -> None:
        self._lane = lane
        self._env = lane.env
        self._reads = LaneReads(lane)

    async def stream_assistant(self, request: AssistantRequest, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        self._env.require_alive()
        model = self._reads.model()
        streamed = request.messages is None
        head = ProviderResponse(status=200)

        async def on_response(response: ProviderResponse) -> None:
            nonlocal head
            head = response

        config = StreamAssistantConfig(
            model=model,
            models=self._env.models,
            now_ms=self._env.clock.now_ms,
            system_prompt=await self._system_prompt(request, model),
            tools=self._reads.tools() if streamed else (),
            options=self._options(request, model),
            transform_context=lambda messages: self._transform(messages, parent),
            to_provider_messages=self._env.convert,
            on_payload=(lambda payload, span: self._payload(model, payload, span))
            if self._env.hooks.has("before_payload")
            else None,
            on_response=on_response,
            signal=self._lane.signal,
            abandoned=self._env.abandoned,
            telemetry=parent,
        )
        messages = await self._lane.context.messages() if request.messages is None else request.messages
        if streamed:
            self._env.session.tell_request(self._lane.name, request.run_id, model.ref, messages)

        def emit(event: AssistantMessageEvent) -> None:
            if streamed:  # a summary streams to nobody
                self._stream_event(request.run_id, event)

        final = await stream_assistant(messages, config, emit)
        return await self._after_response(head, final, parent)

    async def _system_prompt(self, request: AssistantRequest, model: Model) -> str | None:
        if request.system_prompt is not None or request.messages is not None:
            return request.system_prompt
        configuration = self._reads.state.effective_configuration
        return await self._env.resolve_system_prompt(self._lane.name, model, configuration)

    def _options(self, request: AssistantRequest, model: Model) -> StreamOptions:
        options = request.options
        level = options.thinking_level or self._reads.state.effective_configuration.thinking_level
        return replace(
            options,
            thinking_level=level if level != "off" and level in model.thinking_levels else None,
            deferred=options.deferred and model.deferred and request.step == "assistant",
        )

    def _stream_event(self, run_id: str, event: AssistantMessageEvent) -> None:
        if not isinstance(event, StreamDelta):
            return
        event = presentable(event)
        if not self._lane.view.message_open:
            self._lane.view.message_open = True
            self._lane.emit(MessageStart(lane=self._lane.name, run_id=run_id, message=event.partial))
        self._lane.emit(MessageUpdate(lane=self._lane.name, run_id=run_id, message=event.partial, event=event))

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        self._env.require_alive()

        async def work(span: RequestSpan) -> tuple[AssistantMessage, bool]:
            try:
                fetch = getattr(self._env.models.provider(model), "fetch_deferred", None)
                if fetch is None:
                    raise LookupError(f"provider {model.api!r} cannot fetch deferred answers")
                asked = self._request_context(span, self._lane.signal)
                message: AssistantMessage = await ask_provider(
                    fetch(model, handle, asked), asked.signal, self._env.abandoned
                )
            except NoAnswer:
                message = aborted_answer(model, self._env.clock.now_ms())
            except Exception as error:
                failed = transport_error(model, error, self._env.clock.now_ms())
                record_answer(span, failed)
                return failed, False
            message = storable_message(message, model, self._env.clock.now_ms())
            record_answer(span, message)
            return message, True

        message, answered = await request_span(parent, model, "fetch_deferred", work, deferred=True)
        if not answered:
            return message
        return await self._after_response(ProviderResponse(status=200), message, parent)

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> None:
        """See `Effects`."""
        try:
            cancel = getattr(self._env.models.provider(model), "cancel_deferred", None)
        except Exception:
            return
        if cancel is None:
            return

        async def work(span: RequestSpan) -> None:
            try:
                # A signal of its own: the lane's has fired already, which would cancel the cancellation.
                asked = self._request_context(span, AbortSignal())
                await ask_provider(
                    cancel(model, handle, asked), asked.signal, self._env.abandoned, limit_s=CANCEL_LIMIT_S
                )
            except Exception as error:  # best effort; the abort goes on
                record_failure(span, type(error).__name__)

        await request_span(parent, model, "cancel_deferred", work, deferred=True)

    def _request_context(self, parent: TelemetryContext, signal: AbortSignal) -> RequestContext:
        return RequestContext(signal=signal, telemetry=parent, now_ms=self._env.clock.now_ms)

    # Hooks inside a request ------------------------------------------------

    async def _transform(
        self, messages: tuple[AgentMessage, ...], parent: TelemetryContext
    ) -> tuple[AgentMessage, ...]:
        if not self._env.hooks.has("transform_context"):
            return messages
        event = TransformContext(lane=self._lane.name, messages=messages)
        return await self._nested(
            "transform_context", lambda: self._env.hooks.transform_context(event, parent, self._lane.op().id)
        )

    async def _payload(self, model: Model, payload: JsonValue, parent: TelemetryContext) -> JsonValue:
        event = BeforePayload(lane=self._lane.name, model=model, payload=payload)
        return await self._nested(
            "before_payload", lambda: self._env.hooks.before_payload(event, parent, self._lane.op().id)
        )

    async def _after_response(
        self, head: ProviderResponse, message: AssistantMessage, parent: TelemetryContext
    ) -> AssistantMessage:
        if not self._env.hooks.has("after_response"):
            return message
        event = AfterResponse(lane=self._lane.name, status=head.status, headers=head.headers, message=message)
        return await self._nested(
            "after_response", lambda: self._env.hooks.after_response(event, parent, self._lane.op().id)
        )

    async def _nested(self, name: HookName, run: Callable[[], Awaitable[T]]) -> T:
        """A hook inside a released action parks as its own action (harness-v2 §15 "The gate is reentrant")."""

        async def in_hook() -> T:
            with self._lane.in_hook():
                return await run()

        gate = self._lane.gate
        if gate is None:
            result = await in_hook()
        else:
            result = await gate.pass_through(HookAction(name=name), in_hook)
        self._env.require_alive()  # a hook may have closed the harness: no request is sent after that
        return result
