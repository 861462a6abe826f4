"""The turns of the in-memory loop: pending messages, an answer, its tool batch, and what comes next."""

from collections.abc import Sequence
from dataclasses import replace
from inspect import isawaitable

from ..abort_signal import AbortSignal
from ..providers.base import AssistantMessageEvent, StreamOptions, StreamStart
from ..types.messages import AgentMessage, AssistantMessage, ToolResultMessage
from .agent_events import (
    AgentEndEvent,
    AgentStartEvent,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from .event_stream import OrderedSink
from .loop_config import AgentContext, AgentLoopConfig, GetMessages, TurnContext
from .provider_stream import Abandoned
from .stream import StreamAssistantConfig, aborted_answer, stream_assistant
from .tool_events import run_reported_batch


class TurnLoop:
    """One call of the loop. The context it was given is not changed."""

    def __init__(self, context: AgentContext, config: AgentLoopConfig, sink: OrderedSink, signal: AbortSignal) -> None:
        self._context = context
        self._config = config
        self._sink = sink
        self._signal = signal
        self._messages = list(context.messages)
        self._added: list[AgentMessage] = []
        self._abandoned = Abandoned()

    async def run(self, prompts: Sequence[AgentMessage]) -> tuple[AgentMessage, ...]:
        """From `agent_start` to `agent_end`."""
        try:
            return await self._run(prompts)
        finally:
            await self._abandoned.close()

    async def _run(self, prompts: Sequence[AgentMessage]) -> tuple[AgentMessage, ...]:
        await self._sink.send(AgentStartEvent())
        await self._sink.send(TurnStartEvent())
        for prompt in prompts:
            await self._report(prompt)
        await self._turns()
        await self._sink.send(AgentEndEvent(messages=tuple(self._added)))
        return tuple(self._added)

    async def _turns(self) -> None:
        pending = await _asked(self._config.get_steering_messages)
        while True:
            follow_up = await self._turn(pending)
            if follow_up is None:
                return
            pending = follow_up
            await self._sink.send(TurnStartEvent())

    async def _turn(self, pending: Sequence[AgentMessage]) -> Sequence[AgentMessage] | None:
        """One turn. Returns the messages that the next one begins with, None when there is no next one."""
        for message in pending:
            await self._report(message)
        answer = await self._answer()
        results: tuple[ToolResultMessage, ...] = ()
        goes_on = False
        failed = answer.stop_reason in ("error", "aborted")
        if answer.tool_calls and not failed:
            results, terminate = await self._run_tools(answer)
            goes_on = not terminate
        await self._sink.send(TurnEndEvent(message=answer, tool_results=results))
        if failed:
            return None
        if self._signal.aborted:
            # The next turn closes the loop with an aborted answer; queues keep what nobody will read.
            return () if goes_on else None
        if await self._stops(answer, results):
            return None
        steering = await _asked(self._config.get_steering_messages)
        if goes_on or steering:
            return steering
        return await _asked(self._config.get_follow_up_messages) or None

    async def _stops(self, answer: AssistantMessage, results: tuple[ToolResultMessage, ...]) -> bool:
        prepare, stop = self._config.prepare_next_turn, self._config.should_stop_after_turn
        if prepare is not None:
            prepared = prepare(self._seen(answer, results))
            change = await prepared if isawaitable(prepared) else prepared
            if change is not None and change.context is not None:
                self._context, self._messages = change.context, list(change.context.messages)
            if change is not None and change.model is not None:
                self._config = replace(self._config, model=change.model)
            if change is not None and change.thinking_level is not None:
                options = replace(self._config.options, thinking_level=change.thinking_level)
                self._config = replace(self._config, options=options)
        if stop is None:
            return False
        decided = stop(self._seen(answer, results))
        return await decided if isawaitable(decided) else decided

    def _seen(self, answer: AssistantMessage, results: tuple[ToolResultMessage, ...]) -> TurnContext:
        return TurnContext(
            message=answer,
            tool_results=results,
            context=replace(self._context, messages=tuple(self._messages)),
            new_messages=tuple(self._added),
        )

    async def _report(self, message: AgentMessage) -> None:
        await self._sink.send(MessageStartEvent(message=message))
        await self._finish(message)

    async def _finish(self, message: AgentMessage) -> None:
        self._messages.append(message)
        self._added.append(message)
        await self._sink.send(MessageEndEvent(message=message))

    # The answer ------------------------------------------------------------

    async def _answer(self) -> AssistantMessage:
        if self._signal.aborted:
            closing = aborted_answer(self._config.model, self._config.now_ms())
            await self._report(closing)
            return closing
        started = False

        def emit(event: AssistantMessageEvent) -> None:
            nonlocal started
            if event.type == "end":
                return
            if not started:
                started = True
                self._sink.push(MessageStartEvent(message=event.partial))
            if not isinstance(event, StreamStart):
                self._sink.push(MessageUpdateEvent(message=event.partial, event=event))

        final = await stream_assistant(self._messages, self._request(), emit)
        await self._sink.flush()
        if not started:
            await self._sink.send(MessageStartEvent(message=final))
        await self._finish(final)
        return final

    def _request(self) -> StreamAssistantConfig:
        config = self._config
        on_payload = config.on_payload
        return StreamAssistantConfig(
            model=config.model,
            models=config.models,
            now_ms=config.now_ms,
            system_prompt=self._context.system_prompt,
            tools=self._context.tools,
            options=self._options(),
            transform_context=config.transform_context,
            to_provider_messages=config.to_provider_messages,
            on_payload=None if on_payload is None else lambda payload, _telemetry: on_payload(payload),
            on_response=config.on_response,
            signal=self._signal,
            abandoned=self._abandoned,
        )

    def _options(self) -> StreamOptions:
        """What the model lacks is left out of the request instead of failing."""
        model, options = self._config.model, self._config.options
        level = options.thinking_level
        return replace(
            options,
            thinking_level=level if level in model.thinking_levels else None,
            deferred=options.deferred and model.deferred,
        )

    # Its tools -------------------------------------------------------------

    async def _run_tools(self, answer: AssistantMessage) -> tuple[tuple[ToolResultMessage, ...], bool]:
        return await run_reported_batch(
            answer, self._context.tools, self._config, self._sink, signal=self._signal, report=self._report
        )


async def _asked(callback: GetMessages | None) -> Sequence[AgentMessage]:
    if callback is None:
        return ()
    given = callback()
    return await given if isawaitable(given) else given
