"""One provider request to one settled assistant message (harness-v2 §14). No durable state, no harness."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from ..abort_signal import AbortSignal
from ..providers.arguments import INVALID_ARGUMENTS, check_arguments
from ..providers.base import (
    AssistantMessageEvent,
    Model,
    Models,
    OnResponse,
    ProviderContext,
    ProviderResponse,
    RequestContext,
    StreamDelta,
    StreamEnd,
    StreamOptions,
    ToolSpec,
)
from ..session.context import to_provider_messages, unique_call_ids
from ..telemetry.context import NOOP, TelemetryContext
from ..types.codec import dump, load_message
from ..types.json import JsonValue, canon, check_text, replace_surrogates
from ..types.messages import (
    AgentMessage,
    AssistantContent,
    AssistantMessage,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from ..types.tools import AgentTool
from .requests import Chunks, RequestSpan, record_answer, request_span

DEPTH_OUTSIDE = 4
"""Arrays and objects that an entry or a record puts around a message."""

Emit = Callable[[AssistantMessageEvent], None]
TransformMessages = Callable[[tuple[AgentMessage, ...]], Awaitable[tuple[AgentMessage, ...]]]
ConvertMessages = Callable[[Sequence[AgentMessage]], Awaitable[Sequence[Message]]]


OnRequestPayload = Callable[[JsonValue, TelemetryContext], Awaitable[JsonValue]]
"""May replace the provider's wire payload; the context is the request's, for what it does itself."""


async def _convert(messages: Sequence[AgentMessage]) -> Sequence[Message]:
    return to_provider_messages(messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAssistantConfig:
    """Everything one request needs beside its messages."""

    model: Model
    models: Models
    now_ms: Callable[[], int]
    system_prompt: str | None = None
    tools: Sequence[AgentTool] = ()
    options: StreamOptions = field(default_factory=StreamOptions)
    transform_context: TransformMessages | None = None  # pruning, injection; its output is never cached
    to_provider_messages: ConvertMessages = _convert
    on_payload: OnRequestPayload | None = None
    on_response: OnResponse | None = None
    signal: AbortSignal = field(default_factory=AbortSignal)
    telemetry: TelemetryContext = NOOP


async def stream_assistant(
    messages: Sequence[AgentMessage], config: StreamAssistantConfig, emit: Emit
) -> AssistantMessage:
    """Send one request and return its settled message. Provider errors are in-band; the inputs are not changed.

    Raises:
        LookupError: no provider speaks the model's API.
        AssertionError: the provider broke its contract (no end, or an unsettled one).
    """
    return await request_span(
        config.telemetry,
        config.model,
    agent_messages = tuple(messages)
    if config.transform_context is not None:
        agent_messages = await config.transform_context(agent_messages)
    context = ProviderContext(
        messages=unique_call_ids(await config.to_provider_messages(agent_messages)),
        system_prompt=config.system_prompt,
        tools=[tool_spec(tool) for tool in config.tools] if config.model.tools else (),
    )
        "stream",
        lambda span: _stream(context, config, emit, span),
        deferred=config.options.deferred,
    )


async def _stream(
    context: ProviderContext, config: StreamAssistantConfig, emit: Emit, span: RequestSpan
) -> AssistantMessage:
    provider = config.models.provider(config.model)
    on_payload, on_response = config.on_payload, config.on_response

    async def head_arrived(head: ProviderResponse) -> None:
        span.set_attributes({"pi.ai.http.status_code": head.status})
        if on_response is not None:
            await on_response(head)

    request = RequestContext(
        signal=config.signal,
        telemetry=span,
        on_payload=None if on_payload is None else lambda payload: on_payload(payload, span),
        on_response=head_arrived,
        now_ms=config.now_ms,
    )
    chunks = Chunks(config.now_ms)
    final: AssistantMessage | None = None
    stream = provider.stream(config.model, context, config.options, request)
    try:
        async for event in stream:
            if isinstance(event, StreamEnd):
                final = event.message
            else:
                if isinstance(event, StreamDelta):
                    chunks.arrived()
                emit(event)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        final = transport_error(config.model, error, config.now_ms())  # the provider's own, not ours
    except Exception as error:
        # Adapters report in-band; one that raises all the same is a transport failure, not a defect of the run.
        final = transport_error(config.model, error, config.now_ms())
    finally:
        closing = getattr(stream, "aclose", None)
        if closing is not None:
            await closing()
        chunks.record(span)
    if final is None or final.stop_reason == "pending":
        raise AssertionError(f"provider {config.model.api!r} ended a stream without a settled message")
    answer = storable_message(final, config.model, config.now_ms())
    record_answer(span, answer)
    return answer


def storable_message(message: AssistantMessage, model: Model, now_ms: int) -> AssistantMessage:
    """The message as it can be kept, whatever its provider sent.

    Lone surrogates become U+FFFD; a call whose arguments are no JSON as we accept it is marked, so that it becomes an
    error result (decisions section 4). What is still no message is an error answer.
    """
    if _survives(message):
        return message
    try:
        cleaned = replace(
            message,
            content=tuple(_clean_part(part) for part in message.content),
            error_message=None if message.error_message is None else replace_surrogates(message.error_message),
        )
    except (TypeError, AttributeError):
        cleaned = message
    if _survives(cleaned):
        return cleaned
    return replace(
        transport_error(model, TypeError(), now_ms),
        error_message="the provider sent an answer that cannot be stored",
        error_code="invalid_response",
    )


def presentable(delta: StreamDelta) -> StreamDelta:
    """A piece of a stream as watchers may see it: valid text and JSON, like the settled message that follows."""
    try:
        dump(delta.partial)
        check_text(delta.delta)
    except (ValueError, TypeError, RecursionError):
        cleaned = [_clean_part(part) for part in delta.partial.content]
        shown = replace(delta.partial, content=tuple(cleaned))
        partial = shown if _survives(shown) else replace(delta.partial, content=())
        return replace(delta, delta=replace_surrogates(delta.delta), partial=partial)
    return delta


def _survives(message: AssistantMessage) -> bool:
    try:
        load_message(canon(dump(message), depth=DEPTH_OUTSIDE))
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _clean_part(part: AssistantContent) -> AssistantContent:
    match part:
        case TextContent():
            return replace(part, text=replace_surrogates(part.text))
        case ThinkingContent():
            return replace(part, thinking=replace_surrogates(part.thinking))
        case ToolCall():
            arguments, refusal = check_arguments(part.arguments)
            extra = part.extra if refusal is None else {**part.extra, INVALID_ARGUMENTS: refusal}
            name, call_id = replace_surrogates(part.name), replace_surrogates(part.id)
            return replace(part, id=call_id, name=name, arguments=arguments, extra=extra)


def tool_spec(tool: AgentTool) -> ToolSpec:
    """The tool as the model sees it."""
    return ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)


def transport_error(model: Model, error: BaseException, now_ms: int) -> AssistantMessage:
    """An error message for a failure that never became an answer. The text names the class, not the content."""
    return AssistantMessage(
        content=(),
        api=model.api,
        provider=model.provider,
        model=model.id,
        stop_reason="error",
        error_message=f"the request failed: {type(error).__name__}",
        error_code="transport",
        timestamp=now_ms,
    )
