"""Anthropic Messages: thinking, caching, pauses, and errors that come with status 200."""

import json
import sys
from typing import Any

import pytest
from adapters import KEY, Anthropic
from provider_fakes import Connection, FakeServer
from streaming import HELLO, WEATHER, ask, collect, final
from test_behaviours import plays

from agent_harness.errors import MissingExtra
from agent_harness.providers.anthropic import MAX_PAUSES, AnthropicProvider
from agent_harness.providers.base import Model, StreamDelta, StreamOptions, is_retryable
from agent_harness.types.messages import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

CACHED = {"type": "ephemeral"}


@pytest.fixture
def api() -> Anthropic:
    return Anthropic()


def thinking(api: Anthropic, text: str, signature: str) -> bytes:
    deltas = [{"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}]
    return api.block({"type": "thinking", "thinking": "", "signature": ""}, deltas)


async def answered(api: Anthropic, *pieces: bytes, **given: Any) -> AssistantMessage:
    async with FakeServer(plays(*pieces)) as s:
        return await ask(api, s.url, **given)


async def sent(api: Anthropic, *messages: Message, model: Model | None = None, **given: Any) -> dict[str, Any]:
    """The payload of one request."""
    async with FakeServer(plays(api.start(), api.finish("stop"))) as s:
        await ask(api, s.url, model=model, messages=messages or (HELLO,), **given)
        payload: dict[str, Any] = s.requests[0].json
        assert s.requests[0].target == "/v1/messages"
        assert s.requests[0].headers["x-api-key"] == KEY
        return payload


async def test_thinking_keeps_its_signature_and_goes_back_with_it(api: Anthropic) -> None:
    start = api.start()
    hidden = api.block({"type": "redacted_thinking", "data": "encrypted"}, [])
    pieces = [start, thinking(api, "let me think", "sig-1"), hidden, *api.call("c", "f", "{}"), api.finish("toolUse")]
    async with FakeServer(plays(*pieces)) as s:
        events = await collect(api.provider(s.url), api.model())
    message = final(events)
    assert message.content == (
        ThinkingContent(thinking="let me think", thinking_signature="sig-1"),
        ThinkingContent(thinking="", thinking_signature="encrypted", redacted=True),
        ToolCall(id="c", name="f", arguments={}),
    )
    assert [e.type for e in events if isinstance(e, StreamDelta)] == ["thinking_delta", "toolcall_delta"]
    back = await sent(api, HELLO, message)
    assert back["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "let me think", "signature": "sig-1"},
        {"type": "redacted_thinking", "data": "encrypted"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}, "cache_control": CACHED},
    ]


async def test_thinking_of_another_model_is_not_sent(api: Anthropic) -> None:
    other = AssistantMessage(
        content=(ThinkingContent(thinking="private", thinking_signature="sig"), TextContent(text="hi")),
        api="anthropic-messages",
        provider="test",
        model="claude-other",
        stop_reason="stop",
        timestamp=1,
    )
    assert (await sent(api, HELLO, other, HELLO))["messages"][1]["content"] == [{"type": "text", "text": "hi"}]


async def test_the_stable_prefix_is_cached(api: Anthropic) -> None:
    payload = await sent(api, HELLO, system_prompt="be brief", tools=[WEATHER])
    assert payload["system"] == [{"type": "text", "text": "be brief", "cache_control": CACHED}]
    assert "cache_control" not in payload["tools"][0]
    assert payload["messages"][-1]["content"][-1]["cache_control"] == CACHED
    without_system = await sent(api, HELLO, tools=[WEATHER])
    assert without_system["tools"][-1]["cache_control"] == CACHED


async def test_results_of_one_batch_are_one_message(api: Anthropic) -> None:
    asked = AssistantMessage(
        content=(ToolCall(id="a|1", name="f", arguments={"n": 2**63}), ToolCall(id="b", name="g", arguments={})),
        api="openai-chat",
        provider="x",
        model="y",
        stop_reason="toolUse",
        timestamp=1,
    )
    picture = ImageContent(data="aGk=", mime_type="image/png")
    results = [
        ToolResultMessage(tool_call_id="a|1", tool_name="f", content=(picture,), is_error=False, timestamp=2),
        ToolResultMessage(tool_call_id="b", tool_name="g", content=(), is_error=True, timestamp=3),
    ]
    payload = await sent(api, HELLO, asked, *results, HELLO)
    assert [message["role"] for message in payload["messages"]] == ["user", "assistant", "user"]
    first, second, text = payload["messages"][2]["content"]
    assert payload["messages"][1]["content"][0]["input"] == {"n": 2**63}
    assert first["tool_use_id"] == payload["messages"][1]["content"][0]["id"] == "a_1"
    assert first["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    ]
    assert second == {"type": "tool_result", "tool_use_id": "b", "content": [], "is_error": True}
    assert text["text"] == "hello"


async def test_blank_text_is_not_sent(api: Anthropic) -> None:
    blank = UserMessage(content=(TextContent(text=" \n"), TextContent(text="x")), timestamp=1)
    assert [part["text"] for part in (await sent(api, blank))["messages"][0]["content"]] == ["x"]


async def test_a_limit_is_always_sent(api: Anthropic) -> None:
    assert (await sent(api))["max_tokens"] == 8_192
    assert (await sent(api, model=api.model(max_tokens=64_000)))["max_tokens"] == 64_000
    assert (await sent(api, options=StreamOptions(max_tokens=5)))["max_tokens"] == 5


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("claude-sonnet-4-5-20250929", {"type": "enabled", "budget_tokens": 16_384}),
        ("claude-opus-4-1", {"type": "enabled", "budget_tokens": 16_384}),
        ("claude-3-7-sonnet-latest", {"type": "enabled", "budget_tokens": 16_384}),
        ("claude-opus-4-6", {"type": "adaptive", "display": "summarized"}),
        ("claude-sonnet-5-5", {"type": "adaptive", "display": "summarized"}),
    ],
)
async def test_thinking_is_asked_for_as_the_model_takes_it(api: Anthropic, id: str, expected: dict[str, Any]) -> None:
    model = Model(provider="test", id=id, api=api.name, max_tokens=64_000, thinking_levels=("high",))
    payload = await sent(api, model=model, options=StreamOptions(thinking_level="high", temperature=0.5))
    assert payload["thinking"] == expected
    assert "temperature" not in payload
    assert payload.get("output_config") == ({"effort": "high"} if expected["type"] == "adaptive" else None)


async def test_a_budget_leaves_room_for_the_answer(api: Anthropic) -> None:
    model = Model(provider="test", id="claude-sonnet-4-5", api=api.name, max_tokens=4_096, thinking_levels=("high",))
    options = StreamOptions(thinking_level="high")
    assert (await sent(api, model=model, options=options))["thinking"]["budget_tokens"] == 3_072
    small = StreamOptions(thinking_level="high", max_tokens=1_500)
    assert "thinking" not in await sent(api, model=model, options=small)


async def test_a_paused_turn_is_resubmitted_until_it_is_over(api: Anthropic) -> None:
    async def script(connection: Connection) -> None:
        first = len(s.requests) == 1
        await connection.head()
        await connection.send(api.start(), api.text("one. " if first else "two."))
        if first:
            query = {"type": "input_json_delta", "partial_json": '{"query": "x"}'}
            search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
            await connection.send(api.block(search, [query]), api.end("pause_turn"))
        else:
            await connection.send(api.end("end_turn"))
        await connection.end()

    heads: list[int] = []

    async def keep(head: Any) -> None:
        heads.append(head.status)

    async with FakeServer(script) as s:
        message = await ask(api, s.url, on_response=keep)
        assert len(s.requests) == 2
        again = s.requests[1].json["messages"][-1]
    assert (message.text, message.stop_reason) == ("one. two.", "stop")
    assert again["role"] == "assistant"
    assert again["content"][0] == {"type": "text", "text": "one. "}
    assert again["content"][-1]["input"] == {"query": "x"}
    assert (message.usage.input, message.usage.output, message.usage.cache_read) == (120, 40, 80)
    assert heads == [200]


async def test_a_turn_that_pauses_for_ever_ends_in_an_error(api: Anthropic) -> None:
    async with FakeServer(plays(api.start(), api.text("x"), api.end("pause_turn"))) as s:
        message = await ask(api, s.url)
        assert len(s.requests) == MAX_PAUSES + 1
    assert (message.stop_reason, message.error_code) == ("error", "stream_cut")


async def test_an_exceeded_window_is_overflow(api: Anthropic) -> None:
    message = await answered(api, api.start(), api.text("x"), api.end("model_context_window_exceeded"))
    assert (message.stop_reason, message.error_code) == ("error", "overflow")


async def test_a_refusal_is_terminal(api: Anthropic) -> None:
    pieces = [api.start(), api.end("refusal", stop_details={"explanation": "not allowed"})]
    message = await answered(api, *pieces)
    assert (message.stop_reason, message.error_code) == ("error", "content_filter")
    assert "not allowed" in str(message.error_message)
    assert not is_retryable(message)


@pytest.mark.parametrize(
    ("type", "code"),
    [
        ("overloaded_error", "overloaded"),
        ("rate_limit_error", "rate_limit"),
        ("api_error", "server_error"),
        ("timeout_error", "timeout"),
        ("authentication_error", "auth"),
        ("invalid_request_error", "invalid_request"),
        ("request_too_large", "overflow"),
        ("not_found_error", "not_found"),
    ],
)
async def test_an_error_inside_a_stream_is_read_by_its_type_in_spite_of_status_200(
    api: Anthropic, type: str, code: str
) -> None:
    error = api.event("error", error={"type": type, "message": "it went wrong"})
    message = await answered(api, api.start(), api.text("half"), error)
    assert (message.stop_reason, message.error_code, message.text) == ("error", code, "half")


async def test_a_stop_reason_without_message_stop_is_a_cut_stream(api: Anthropic) -> None:
    delta = api.event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 20})
    message = await answered(api, api.start(), api.text("half"), delta)
    assert (message.stop_reason, message.error_code) == ("error", "stream_cut")


async def test_a_broken_event_without_a_name_is_not_passed_over(api: Anthropic) -> None:
    message = await answered(api, api.start(), b"data: {broken\n\n", api.text("x"), api.finish("stop"))
    assert (message.stop_reason, message.error_code) == ("error", "transport")


async def test_a_whole_input_at_the_start_of_a_block_is_taken(api: Anthropic) -> None:
    start = api.start()
    block = api.block({"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}, [])
    message = await answered(api, start, block, api.finish("toolUse"))
    assert message.tool_calls[0].arguments == {"a": 1}


NO_OBJECT = ("error", "transport", "")
LEFT_OUT = ("stop", None, "x")  # as if the odd event had not been sent


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ([], NO_OBJECT),
        (None, NO_OBJECT),
        ({"type": "content_block_delta", "index": 7, "delta": {}}, LEFT_OUT),
        ({"type": "content_block_start", "index": "x"}, LEFT_OUT),
        ({"type": "content_block_start", "index": 0, "content_block": None}, LEFT_OUT),
        ({"type": "message_delta", "delta": None, "usage": []}, LEFT_OUT),
        ({"type": "something_new"}, LEFT_OUT),
        ({"no": "type"}, LEFT_OUT),
    ],
)
async def test_odd_shapes_end_in_an_answer_or_a_named_error(
    api: Anthropic, odd: object, expected: tuple[str, str | None, str]
) -> None:
    start = api.start()
    message = await answered(api, start, plain(odd), api.text("x"), api.finish("stop"))
    assert (message.stop_reason, message.error_code, message.text) == expected


def plain(data: object) -> bytes:
    return f"event: x\ndata: {json.dumps(data)}\n\n".encode()


async def test_a_user_id_is_sent_as_metadata(api: Anthropic) -> None:
    assert (await sent(api, options=StreamOptions(metadata={"user_id": "u1", "other": 1})))["metadata"] == {
        "user_id": "u1"
    }


async def test_a_key_of_the_environment_goes_to_no_other_server(
    api: Anthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    async with FakeServer(plays(api.start(), api.finish("stop"))) as s:
        assert final(await collect(AnthropicProvider(base_url=s.url), api.model())).stop_reason == "stop"
        assert KEY not in str(s.requests[0].headers)
        assert {"x-api-key", "authorization"}.isdisjoint(s.requests[0].headers)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", s.url)
        assert final(await collect(AnthropicProvider(), api.model())).stop_reason == "stop"
        assert s.requests[1].headers["x-api-key"] == KEY


async def test_a_missing_key_says_what_to_do(api: Anthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    message = final(await collect(AnthropicProvider(), api.model()))
    assert (message.error_code, message.error_message) == (
        "auth",
        "no API key: set ANTHROPIC_API_KEY or pass api_key",
    )


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(MissingExtra, match=r"pip install 'agent-harness\[anthropic\]'"):
        AnthropicProvider()
