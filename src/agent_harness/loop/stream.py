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
    Usage,
)
from ..types.tools import AgentTool
from .provider_stream import Abandoned, NoAnswer, ProviderStream
from .requests import Chunks, RequestSpan, record_answer, request_span

DEPTH_AROUND_MESSAGE = 4
"""Arrays and objects that an entry or a record puts around a message."""

Emit = Callable[[AssistantMessageEvent], None]
TransformMessages = Callable[[tuple[AgentMessage, ...]], Awaitable[tuple[AgentMessage, ...]]]
ConvertMessages = Callable[[Sequence[AgentMessage]], Awaitable[Sequence[Message]]]
OnRequestPayload = Callable[[JsonValue, TelemetryContext], Awaitable[JsonValue]]
"""May replace the provider's wire payload; the context is the request's, for what it does itself."""


async def convert_messages(messages: Sequence[AgentMessage]) -> Sequence[Message]:
    """What is sent unless an application converts by itself."""
    return to_provider_messages(messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAssistantConfig:
    """Everything one request needs beside its messages."""

    model: Model
    models: Models
    now_ms: Callable[[], int]
    system_prompt: str | None = field(default=None, repr=False)
    tools: Sequence[AgentTool] = ()
    options: StreamOptions = field(default_factory=StreamOptions)
    transform_context: TransformMessages | None = None  # pruning, injection; its output is never cached
    to_provider_messages: ConvertMessages = convert_messages
    on_payload: OnRequestPayload | None = None
    on_response: OnResponse | None = None
    signal: AbortSignal = field(default_factory=AbortSignal)
    abandoned: Abandoned = field(default_factory=Abandoned)  # holds the stream of a provider that ignores the signal
    telemetry: TelemetryContext = NOOP


async def stream_assistant(
    messages: Sequence[AgentMessage], config: StreamAssistantConfig, emit: Emit
) -> AssistantMessage:
    """Send one request and return its settled message. Provider errors are in-band; the inputs are not changed.

    Raises:
        LookupError: no provider speaks the model's API.
        AssertionError: the provider broke its contract (no end, or an unsettled one).
    """
    agent_messages = tuple(messages)
    if config.transform_context is not None:
        agent_messages = await config.transform_context(agent_messages)
    context = ProviderContext(
        messages=unique_call_ids(await config.to_provider_messages(agent_messages)),
        system_prompt=config.system_prompt,
        tools=[tool_spec(tool) for tool in config.tools] if config.model.tools else (),
    )
    return await request_span(
        config.telemetry,
        config.model,
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

    chunks = Chunks(config.now_ms)
    final: AssistantMessage | None = None
    newest: AssistantMessage | None = None
    try:
        async with ProviderStream(config.signal, config.abandoned) as stream:
            request = RequestContext(
                signal=config.signal,
                telemetry=span,
                on_payload=None if on_payload is None else stream.in_caller(lambda payload: on_payload(payload, span)),
                on_response=stream.in_caller(head_arrived),
                now_ms=config.now_ms,
            )
            stream.begin(lambda: provider.stream(config.model, context, config.options, request))
            async for event in stream:
                if isinstance(event, StreamEnd):
                    final = event.message
                    continue
                if isinstance(event, StreamDelta):
                    chunks.arrived()
                newest = event.partial
                emit(event)
    except NoAnswer:
        final = final or aborted_answer(config.model, config.now_ms(), newest)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        final = transport_error(config.model, error, config.now_ms())  # the provider's own, not ours
    except Exception as error:
        # Adapters report in-band; one that raises all the same is a transport failure, not a defect of the run.
        final = transport_error(config.model, error, config.now_ms())
    finally:
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
        load_message(canon(dump(message), depth=DEPTH_AROUND_MESSAGE))
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


def aborted_answer(model: Model, now_ms: int, partial: AssistantMessage | None = None) -> AssistantMessage:
    """The answer of a provider that was given up after an abort: what had arrived, without calls."""
    said = partial.content if partial is not None else ()
    return AssistantMessage(
        content=tuple(
            part
            for part in said
            if (isinstance(part, TextContent) and part.text) or (isinstance(part, ThinkingContent) and part.thinking)
        ),
        api=model.api,
        provider=model.provider,
        model=model.id,
        usage=partial.usage if partial is not None else Usage(),
        stop_reason="aborted",
        error_message="Request was aborted",
        timestamp=now_ms,
    )


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
