"""The in-memory loop: prompts, answers and tools without a session (harness-v2 §14 "Compatibility wrapper").

Composed of `stream_assistant` and the tool phases, with the no-op telemetry. Nothing is durable and nothing is retried;
an application that wants either uses `AgentHarness`.
"""

from collections.abc import Sequence

from ..abort_signal import AbortSignal
from ..types.messages import AgentMessage, AssistantMessage
from .agent_events import AgentEventSink
from .event_stream import AgentEventStream, OrderedSink
from .loop_config import AgentContext, AgentLoopConfig
from .turns import TurnLoop


def agent_loop(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: AgentLoopConfig,
    signal: AbortSignal | None = None,
) -> AgentEventStream:
    """Answer `prompts`, running tools until the model is done, as a stream of events.

    Raises:
        ValueError: there is no prompt.
    """
    _require_prompts(prompts)
    return AgentEventStream(lambda emit, own: run_agent_loop(prompts, context, config, emit, own), signal)


def agent_loop_continue(
    context: AgentContext, config: AgentLoopConfig, signal: AbortSignal | None = None
) -> AgentEventStream:
    """`agent_loop` without a prompt: the last message of `context` is one the model has to answer.

    Raises:
        ValueError: the context is empty, or its last message is an answer.
    """
    _require_unanswered(context)
    return AgentEventStream(lambda emit, own: run_agent_loop_continue(context, config, emit, own), signal)


async def run_agent_loop(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: AgentLoopConfig,
    emit: AgentEventSink,
    signal: AbortSignal | None = None,
) -> tuple[AgentMessage, ...]:
    """Answer `prompts`, reporting to `emit`. Provider errors are in-band: the last message has `stop_reason` "error".

    Returns:
        Every message the loop added, the prompts first.
    """
    _require_prompts(prompts)
    return await _run(prompts, context, config, emit, signal)


async def run_agent_loop_continue(
    context: AgentContext, config: AgentLoopConfig, emit: AgentEventSink, signal: AbortSignal | None = None
) -> tuple[AgentMessage, ...]:
    """`run_agent_loop` without a prompt."""
    _require_unanswered(context)
    return await _run((), context, config, emit, signal)


async def _run(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: AgentLoopConfig,
    emit: AgentEventSink,
    signal: AbortSignal | None,
) -> tuple[AgentMessage, ...]:
    sink = OrderedSink(emit)
    try:
        return await TurnLoop(context, config, sink, signal or AbortSignal()).run(prompts)
    finally:
        sink.close()


def _require_prompts(prompts: Sequence[AgentMessage]) -> None:
    if not prompts:
        raise ValueError("there is no prompt; agent_loop_continue answers what the context already holds")


def _require_unanswered(context: AgentContext) -> None:
    if not context.messages:
        raise ValueError("cannot continue: the context has no messages")
    if isinstance(context.messages[-1], AssistantMessage):
        raise ValueError("cannot continue: the last message is an answer")
