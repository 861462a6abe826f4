"""Each payload, with every option and kind of content at once, fits the parameter types of the SDK it is sent with."""

import json
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter
from streaming import HELLO, WEATHER

from agent_harness.providers.anthropic_request import anthropic_payload
from agent_harness.providers.base import Model, ProviderContext, StreamOptions
from agent_harness.providers.openai_chat_request import Dialect, chat_payload
from agent_harness.providers.openai_responses_request import responses_payload
from agent_harness.types.messages import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

PICTURE = ImageContent(data="aGk=", mime_type="image/png")
OPTIONS = StreamOptions(
    max_tokens=40_000,
    temperature=0.3,
    thinking_level="high",
    response_schema={"type": "object", "properties": {}, "additionalProperties": False},
    metadata={"user_id": "u"},
)
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e", "status": "completed"}


def model(api: str) -> Model:
    return Model(provider="p", id="m", api=api, images=True, thinking_levels=("high",), max_tokens=50_000)


def context(api: str, signature: str) -> ProviderContext:
    answer = AssistantMessage(
        content=(
            ThinkingContent(thinking="t", thinking_signature=signature),
            TextContent(text="x", extra={"phase": "commentary"}),
            ToolCall(id="c", name="f", arguments={"a": 1}),
        ),
        api=api,
        provider="p",
        model="m",
        stop_reason="toolUse",
        timestamp=1,
    )
    result = ToolResultMessage(
        tool_call_id="c", tool_name="f", content=(TextContent(text="r"), PICTURE), is_error=True, timestamp=1
    )
    asked = UserMessage(content=(TextContent(text="a"), PICTURE), timestamp=1)
    return ProviderContext(messages=[asked, answer, result, HELLO], system_prompt="s", tools=[WEATHER])


@pytest.mark.parametrize(
    ("payload", "params"),
    [
        (
            chat_payload(
                model("openai-chat"), context("openai-chat", "reasoning_content"), OPTIONS, Dialect(stream_usage=True)
            ),
            CompletionCreateParamsStreaming,
        ),
        (
            responses_payload(
                model("openai-responses"),
                context("openai-responses", json.dumps(REASONING)),
                OPTIONS,
                own_server=False,
            ),
            ResponseCreateParamsStreaming,
        ),
        (
            anthropic_payload(model("anthropic-messages"), context("anthropic-messages", "sig"), OPTIONS),
            MessageCreateParamsStreaming,
        ),
    ],
    ids=["chat", "responses", "messages"],
)
def test_a_payload_fits_the_sdks_parameter_types(payload: dict[str, Any], params: Any) -> None:
    TypeAdapter(params).validate_python(payload)
    assert set(payload) <= set(params.__annotations__)
    with pytest.raises(ValueError, match="validation error"):
        TypeAdapter(params).validate_python({**payload, "stream": "yes"})
