"""Running a provider in a test."""

import asyncio
from collections.abc import Sequence
from typing import Any

from adapters import Adapter
from provider_fakes import DEADLINE_S

from agent_harness.abort_signal import AbortSignal
from agent_harness.providers.base import (
    AssistantMessageEvent,
    Model,
    Provider,
    ProviderContext,
    RequestContext,
    StreamEnd,
    StreamOptions,
    ToolSpec,
)
from agent_harness.types.messages import AssistantMessage, Message, UserMessage

HELLO = UserMessage(content="hello", timestamp=1)
WEATHER = ToolSpec(
    name="get_weather",
    description="Weather of a city",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


async def collect(
    provider: Provider,
    model: Model,
    *,
    messages: Sequence[Message] = (HELLO,),
    system_prompt: str | None = None,
    tools: Sequence[ToolSpec] = (),
    options: StreamOptions | None = None,
    signal: AbortSignal | None = None,
    **callbacks: Any,
) -> list[AssistantMessageEvent]:
    """Every event of one request. The last one is the only `StreamEnd`, and its message is settled."""
    context = ProviderContext(messages=messages, system_prompt=system_prompt, tools=tools)
    request = RequestContext(signal=signal or AbortSignal(), **callbacks)
    events: list[AssistantMessageEvent] = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in provider.stream(model, context, options or StreamOptions(), request):
            events.append(event)
    assert [isinstance(event, StreamEnd) for event in events] == [False] * (len(events) - 1) + [True]
    assert final(events).stop_reason != "pending"
    return events


def final(events: Sequence[AssistantMessageEvent]) -> AssistantMessage:
    """The settled message."""
    last = events[-1]
    assert isinstance(last, StreamEnd)
    return last.message


async def ask(adapter: Adapter, url: str, *, read_timeout_ms: int = 10_000, **given: Any) -> AssistantMessage:
    """The settled message of one request."""
    provider = adapter.provider(url, read_timeout_ms=read_timeout_ms)
    return final(await collect(provider, given.pop("model", None) or adapter.model(), **given))
