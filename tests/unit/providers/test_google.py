"""Gemini: calls that end with STOP, thoughts and their signatures, filters, and waits named in the body."""

import asyncio
import json
import sys
from typing import Any

import pytest
from adapters import KEY, Google, sse
from provider_fakes import Connection, FakeServer
from streaming import HELLO, WEATHER, ask, collect, final
from test_behaviours import plays

from agent_harness.errors import MissingExtra
from agent_harness.providers.base import Model, StreamDelta, StreamOptions, is_retryable
from agent_harness.providers.google import GoogleProvider
from agent_harness.providers.google_request import UNSIGNED
from agent_harness.types.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
)

SIGNATURE = "c2lnbmVk"  # base64, as the API sends it


@pytest.fixture
def api() -> Google:
    return Google()


async def answered(api: Google, *pieces: bytes, **given: Any) -> AssistantMessage:
    async with FakeServer(plays(*pieces)) as s:
        return await ask(api, s.url, **given)


async def sent(api: Google, *messages: Message, model: Model | None = None, **given: Any) -> dict[str, Any]:
    """The payload of one request."""
    async with FakeServer(plays(api.finish("stop"))) as s:
        await ask(api, s.url, model=model, messages=messages or (HELLO,), **given)
        payload: dict[str, Any] = s.requests[0].json
        assert s.requests[0].target.endswith(":streamGenerateContent?alt=sse")
        assert s.requests[0].headers["x-goog-api-key"] == KEY
        return payload


async def test_thoughts_are_shown_and_only_signatures_go_back(api: Google) -> None:
    pieces = [
        api.chunk({"text": "let me ", "thought": True}),
        api.chunk({"text": "think", "thought": True}),
        api.chunk({"text": "I call. "}),
        api.chunk({"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": SIGNATURE}),
        api.chunk({"functionCall": {"name": "g", "args": {}}}),
        api.end("STOP"),
    ]
    async with FakeServer(plays(*pieces)) as s:
        events = await collect(api.provider(s.url), api.model())
    message = final(events)
    assert message.stop_reason == "toolUse"
    assert message.content == (
        ThinkingContent(thinking="let me think"),
        TextContent(text="I call. "),
        ToolCall(id="", name="f", arguments={"a": 1}, thought_signature=SIGNATURE),
        ToolCall(id="", name="g", arguments={}),
    )
    assert [e.type for e in events if isinstance(e, StreamDelta)] == [
        "thinking_delta",
        "thinking_delta",
        "text_delta",
        "toolcall_delta",
        "toolcall_delta",
    ]
    back = (await sent(api, HELLO, message))["contents"][1]
    assert back == {
        "role": "model",
        "parts": [
            {"text": "I call. "},
            {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": SIGNATURE},
            {"functionCall": {"name": "g", "args": {}}},
        ],
    }


async def test_a_signature_on_empty_text_is_kept(api: Google) -> None:
    message = await answered(
        api, api.text("hi"), api.chunk({"text": "", "thoughtSignature": SIGNATURE}), api.end("STOP")
    )
    assert (message.text, message.content[-1]) == ("hi", TextContent(text="hi", text_signature=SIGNATURE))
    assert (await sent(api, HELLO, message))["contents"][1]["parts"] == [{"text": "hi", "thoughtSignature": SIGNATURE}]


@pytest.mark.parametrize(("id", "expected"), [("gemini-3-flash-preview", UNSIGNED), ("gemini-2.5-flash", None)])
async def test_calls_of_another_model_get_the_stand_in_signature_where_one_is_demanded(
    api: Google, id: str, expected: str | None
) -> None:
    other = AssistantMessage(
        content=(
            ToolCall(id="a", name="f", arguments={}, thought_signature="theirs"),
            ToolCall(id="b", name="g", arguments={}),
        ),
        api="anthropic-messages",
        provider="x",
        model="y",
        stop_reason="toolUse",
        timestamp=1,
    )
    parts = (await sent(api, HELLO, other, model=Model(provider="test", id=id, api=api.name)))["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [expected, None]


async def test_results_of_one_batch_are_one_content(api: Google) -> None:
    picture = ImageContent(data="aGk=", mime_type="image/png")
    asked = AssistantMessage(
        content=(ToolCall(id="a", name="f", arguments={"n": 2**63}), ToolCall(id="b", name="g", arguments={})),
        api=api.name,
        provider="test",
        model="gemini-test",
        stop_reason="toolUse",
        timestamp=1,
    )
    results = [
        ToolResultMessage(tool_call_id="a", tool_name="f", content=(picture,), is_error=False, timestamp=2),
        ToolResultMessage(
            tool_call_id="b", tool_name="g", content=(TextContent(text="no"),), is_error=True, timestamp=3
        ),
    ]
    payload = await sent(api, HELLO, asked, *results, system_prompt="be brief", tools=[WEATHER])
    assert [content["role"] for content in payload["contents"]] == ["user", "model", "user"]
    assert payload["contents"][1]["parts"][0]["functionCall"]["args"] == {"n": 2**63}
    assert payload["contents"][2]["parts"] == [
        {"functionResponse": {"name": "f", "response": {"output": "(no output)"}}},
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"functionResponse": {"name": "g", "response": {"error": "no"}}},
    ]
    assert payload["systemInstruction"] == {"parts": [{"text": "be brief"}]}
    declaration = payload["tools"][0]["functionDeclarations"][0]
    assert declaration["parametersJsonSchema"] == dict(WEATHER.parameters)


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("gemini-2.5-flash", {"includeThoughts": True, "thinkingBudget": 8_192}),
        ("gemini-3.8-flash", {"includeThoughts": True, "thinkingLevel": "MEDIUM"}),
    ],
)
async def test_options_are_sent_as_the_model_takes_them(api: Google, id: str, expected: dict[str, Any]) -> None:
    model = Model(provider="test", id=id, api=api.name, thinking_levels=("medium",))
    options = StreamOptions(thinking_level="medium", temperature=0.5, max_tokens=9, response_schema={"type": "object"})
    config = (await sent(api, model=model, options=options))["generationConfig"]
    assert config["thinkingConfig"] == expected
    assert (config["temperature"], config["maxOutputTokens"]) == (0.5, 9)
    assert (config["responseMimeType"], config["responseJsonSchema"]) == ("application/json", {"type": "object"})


@pytest.mark.parametrize(
    ("reason", "code", "retryable"),
    [
        ("SAFETY", "content_filter", False),
        ("PROHIBITED_CONTENT", "content_filter", False),
        ("MALFORMED_FUNCTION_CALL", "server_error", True),
        ("OTHER", "server_error", True),
    ],
)
async def test_a_finish_reason_that_is_a_failure_is_an_error(
    api: Google, reason: str, code: str, *, retryable: bool
) -> None:
    message = await answered(api, api.text("half"), api.end(reason))
    assert (message.stop_reason, message.error_code, message.raw_stop_reason) == ("error", code, reason)
    assert is_retryable(message) is retryable


async def test_a_blocked_prompt_is_a_terminal_error(api: Google) -> None:
    message = await answered(api, sse({"promptFeedback": {"blockReason": "SAFETY"}}))
    assert (message.stop_reason, message.error_code) == ("error", "content_filter")


async def test_a_wait_named_in_the_body_is_parsed(api: Google) -> None:
    error = {
        "code": 429,
        "message": "You exceeded your current quota. Please retry in 22.5s.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "22.5s"}],
    }

    async def script(connection: Connection) -> None:
        await connection.reply(429, json.dumps({"error": error}).encode())

    async with FakeServer(script) as s:
        message = await ask(api, s.url)
    assert (message.error_code, message.retry_after_ms) == ("rate_limit", 22_500)


async def test_a_client_of_ours_keeps_the_sdk_on_one_attempt_and_off_aiohttp(
    api: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.genai import _api_client

    monkeypatch.setattr(_api_client, "has_aiohttp", True)  # as if it were installed

    async def script(connection: Connection) -> None:
        connection.drop()

    async with FakeServer(script) as s:
        message = await ask(api, s.url)
        assert len(s.requests) == 1
    assert (message.stop_reason, message.error_code) == ("error", "transport")


async def test_the_event_loop_is_free_while_a_client_is_built(api: Google) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.001)

    async with FakeServer(plays(api.text("hi"), api.end("STOP"))) as s:
        beating = asyncio.create_task(beat())
        assert (await ask(api, s.url)).text == "hi"
        beating.cancel()
    assert beats > 5


async def test_a_key_of_the_environment_goes_to_no_other_server(api: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, KEY)
    async with FakeServer(plays(api.finish("stop"))) as s:
        assert final(await collect(GoogleProvider(base_url=s.url), api.model())).stop_reason == "stop"
        assert KEY not in str(s.requests[0].headers)
        assert KEY not in s.requests[0].target


async def test_a_missing_key_says_what_to_do(api: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    message = final(await collect(GoogleProvider(), api.model()))
    assert (message.error_code, message.error_message) == (
        "auth",
        "no API key: set GEMINI_API_KEY or GOOGLE_API_KEY or pass api_key",
    )


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)
    monkeypatch.delattr("google.genai", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'agent-harness\[google\]'"):
        GoogleProvider()
