"""OpenAI Responses: reasoning that travels encrypted, terminal events, and answers that come later."""

import asyncio
import json
import time
from typing import Any

import pytest
from adapters import OpenAIResponses
from provider_fakes import DEADLINE_S, Connection, FakeServer
from streaming import HELLO, WEATHER, ask, collect, final
from test_behaviours import plays

from agent_harness.abort_signal import AbortSignal
from agent_harness.providers.base import Model, RequestContext, StreamDelta, StreamOptions, is_retryable
from agent_harness.providers.openai_responses import OpenAIResponsesProvider
from agent_harness.types.messages import (
    AssistantMessage,
    DeferredHandle,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
)

DEFERRED = StreamOptions(deferred=True)
NOW_MS = 1_000_000
CONTEXT = RequestContext(signal=AbortSignal(), now_ms=lambda: NOW_MS)


@pytest.fixture
def api() -> OpenAIResponses:
    return OpenAIResponses()


async def answered(api: OpenAIResponses, *pieces: bytes, **given: Any) -> AssistantMessage:
    async with FakeServer(plays(*pieces)) as s:
        return await ask(api, s.url, **given)


async def sent(api: OpenAIResponses, *messages: Message, model: Model | None = None, **given: Any) -> dict[str, Any]:
    """The payload of one request."""
    async with FakeServer(plays(api.start(), api.finish("stop"))) as s:
        await ask(api, s.url, model=model, messages=messages or (HELLO,), **given)
        payload: dict[str, Any] = s.requests[0].json
        assert s.requests[0].target == "/responses"
        return payload


def replies(api: OpenAIResponses, status: int, body: dict[str, Any]) -> Any:
    async def script(connection: Connection) -> None:
        await connection.reply(status, json.dumps(body).encode())

    return script


# Streams


async def test_reasoning_goes_back_encrypted(api: OpenAIResponses) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret", "status": "completed"}
    start = api.start()
    pieces = [
        start,
        api.added({"type": "reasoning", "id": "rs_1", "summary": []}),
        api.event("response.reasoning_summary_part.added", output_index=0, summary_index=0),
        api.event("response.reasoning_summary_text.delta", output_index=0, delta="first"),
        api.event("response.reasoning_summary_part.added", output_index=0, summary_index=1),
        api.event("response.reasoning_summary_text.delta", output_index=0, delta="second"),
        api.event("response.output_item.done", output_index=0, item=item),
        *api.call("c", "f", '{"a": 1}'),
        api.finish("toolUse"),
    ]
    async with FakeServer(plays(*pieces)) as s:
        events = await collect(api.provider(s.url), api.model())
    message = final(events)
    assert isinstance(message.content[0], ThinkingContent)
    assert message.content[0].thinking == "first\n\nsecond"
    assert [e.type for e in events if isinstance(e, StreamDelta)][:3] == ["thinking_delta"] * 3
    back = (await sent(api, HELLO, message))["input"]
    assert back[1] == {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret"}
    assert back[2] == {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
    other = Model(provider="test", id="gpt-other", api=api.name)
    assert [item.get("type") for item in (await sent(api, HELLO, message, model=other))["input"]][1:] == [
        "function_call"
    ]


async def test_a_phase_goes_back_with_its_text(api: OpenAIResponses) -> None:
    start = api.start()
    opened = api.added({"type": "message", "role": "assistant", "content": [], "phase": "commentary"})
    message = await answered(api, start, opened, api.text("I look it up"), api.finish("stop"))
    assert message.content == (TextContent(text="I look it up", extra={"phase": "commentary"}),)
    assert (await sent(api, HELLO, message))["input"][1]["phase"] == "commentary"


async def test_a_tool_round_has_the_shape_the_api_checks(api: OpenAIResponses) -> None:
    asked = AssistantMessage(
        content=(TextContent(text="t"), ToolCall(id="a", name="f", arguments={"n": 2**63})),
        api="anthropic-messages",
        provider="x",
        model="y",
        stop_reason="toolUse",
        timestamp=1,
    )
    picture = ImageContent(data="aGk=", mime_type="image/png")
    result = ToolResultMessage(tool_call_id="a", tool_name="f", content=(picture,), is_error=False, timestamp=2)
    bare = ToolResultMessage(tool_call_id="b", tool_name="f", content=(), is_error=True, timestamp=2)
    payload = await sent(api, HELLO, asked, result, bare, system_prompt="be brief", tools=[WEATHER])
    user, text, call, seen, empty = payload["input"]
    assert (user, payload["instructions"]) == ({"role": "user", "content": "hello"}, "be brief")
    assert text == {"type": "message", "role": "assistant", "content": "t"}
    assert call["arguments"] == '{"n":9223372036854775808}'
    assert seen["output"][0]["image_url"] == "data:image/png;base64,aGk="
    assert empty["output"] == "(no output)"
    assert payload["tools"][0]["name"] == "get_weather"
    assert (payload["stream"], payload["store"]) == (True, False)
    assert "include" not in payload


async def test_options_are_sent_as_the_api_takes_them(api: OpenAIResponses) -> None:
    options = StreamOptions(max_tokens=3, temperature=0.5, thinking_level="high", deferred=True)
    payload = await sent(api, model=api.model(thinking_levels=("high",)), options=options)
    assert payload["max_output_tokens"] == 16
    assert payload["reasoning"] == {"effort": "high", "summary": "auto"}
    assert payload["include"] == ["reasoning.encrypted_content"]
    assert "background" not in payload  # the model cannot answer later


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": "server_error", "message": "it broke"}, "server_error"),
        ({"code": "rate_limit_exceeded", "message": "slow"}, "rate_limit"),
        ({"code": "invalid_prompt", "message": "no"}, "invalid_request"),
        (None, "invalid_request"),
    ],
)
async def test_a_failed_response_raises_nothing_and_is_an_error(
    api: OpenAIResponses, error: dict[str, str] | None, code: str
) -> None:
    failed = api.event("response.failed", response=api.response("failed", error=error))
    message = await answered(api, api.start(), api.text("half"), failed)
    assert (message.stop_reason, message.error_code, message.raw_stop_reason) == ("error", code, "failed")


async def test_a_content_filter_is_a_terminal_error(api: OpenAIResponses) -> None:
    details = {"reason": "content_filter"}
    event = api.event("response.incomplete", response=api.response("incomplete", incomplete_details=details))
    message = await answered(api, api.start(), api.text("half"), event)
    assert (message.stop_reason, message.error_code) == ("error", "content_filter")
    assert not is_retryable(message)


async def test_a_refusal_is_a_terminal_error_with_its_words(api: OpenAIResponses) -> None:
    refusal = api.event("response.refusal.delta", output_index=0, delta="I cannot")
    message = await answered(api, api.start(), refusal, api.finish("stop"))
    assert (message.error_code, message.error_message) == ("content_filter", "the model refused: I cannot")


async def test_a_whole_response_instead_of_a_stream_is_read(api: OpenAIResponses) -> None:
    output = [
        {"type": "reasoning", "id": "rs", "summary": [{"text": "hm"}], "encrypted_content": "x"},
        {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        {"type": "web_search_call", "id": "ws"},
    ]
    async with FakeServer(replies(api, 200, api.response("completed", output=output))) as s:
        message = await ask(api, s.url)
    assert [type(part) for part in message.content] == [ThinkingContent, TextContent, ToolCall]
    assert (message.text, message.stop_reason) == ("hi", "toolUse")


NO_OBJECT = ("error", "transport", "")
LEFT_OUT = ("stop", None, "x")  # as if the odd event had not been sent


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ([], NO_OBJECT),
        (None, NO_OBJECT),
        ({"type": "response.output_text.delta", "output_index": 9, "delta": "x"}, LEFT_OUT),
        ({"type": "response.completed"}, LEFT_OUT),
    ],
)
async def test_odd_shapes_end_in_an_answer_or_a_named_error(
    api: OpenAIResponses, odd: object, expected: tuple[str, str | None, str]
) -> None:
    start = api.start()
    message = await answered(api, start, f"data: {json.dumps(odd)}\n\n".encode(), api.text("x"), api.finish("stop"))
    assert (message.stop_reason, message.error_code, message.text) == expected


# Deferred


def background(api: OpenAIResponses) -> Model:
    return api.model(deferred=True)


HANDLE = DeferredHandle(provider="test", model_id="gpt-test", api="openai-responses", id="resp_1", expires_at=9)


async def test_a_deferred_request_answers_with_a_handle(api: OpenAIResponses) -> None:
    async with FakeServer(replies(api, 200, api.response("queued"))) as s:
        message = await ask(api, s.url, model=background(api), options=DEFERRED)
        payload = s.requests[0].json
    assert (payload["background"], payload["store"], payload["stream"]) == (True, True, False)
    assert (message.stop_reason, message.content) == ("deferred", ())
    assert message.deferred == DeferredHandle(
        provider="test",
        model_id="gpt-test",
        api="openai-responses",
        id="resp_1",
        expires_at=1_000_000 + 600_000,
        poll_after_ms=2_000,
    )


async def test_a_deferred_request_that_is_ready_at_once_is_an_answer(api: OpenAIResponses) -> None:
    output = [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]
    async with FakeServer(replies(api, 200, api.response("completed", output=output))) as s:
        message = await ask(api, s.url, model=background(api), options=DEFERRED)
    assert (message.text, message.stop_reason, message.deferred) == ("hi", "stop", None)


async def fetched(api: OpenAIResponses, script: Any) -> AssistantMessage:
    async with FakeServer(script) as s:
        provider = OpenAIResponsesProvider(base_url=s.url, api_key="k-123456")
        message = await provider.fetch_deferred(background(api), HANDLE, CONTEXT)
        assert [request.target for request in s.requests] == ["/responses/resp_1"]
        return message


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_a_pending_answer_is_deferred_with_the_same_handle(api: OpenAIResponses, status: str) -> None:
    message = await fetched(api, replies(api, 200, api.response(status)))
    assert (message.stop_reason, message.deferred) == ("deferred", HANDLE)


async def test_a_ready_answer_is_a_normal_message(api: OpenAIResponses) -> None:
    output = [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    message = await fetched(api, replies(api, 200, api.response("completed", output=output, usage=usage)))
    assert (message.text, message.stop_reason, message.usage.total_tokens) == ("hi", "stop", 7)
    assert message.timestamp == NOW_MS


async def test_an_answer_that_is_gone_is_a_terminal_error(api: OpenAIResponses) -> None:
    message = await fetched(api, replies(api, 404, {"error": {"message": "Response not found"}}))
    assert (message.stop_reason, message.error_code) == ("error", "not_found")


@pytest.mark.parametrize(("status", "code"), [("failed", "server_error"), ("cancelled", "invalid_request")])
async def test_an_answer_that_failed_is_a_terminal_error(api: OpenAIResponses, status: str, code: str) -> None:
    error = {"code": "server_error", "message": "it broke"} if status == "failed" else None
    message = await fetched(api, replies(api, 200, api.response(status, error=error)))
    assert (message.stop_reason, message.error_code) == ("error", code)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_fetch_that_fails_for_the_moment_leaves_the_answer_pending(api: OpenAIResponses, status: int) -> None:
    message = await fetched(api, replies(api, status, {"error": {"message": "busy"}}))
    assert (message.stop_reason, message.deferred) == ("deferred", HANDLE)


async def test_a_fetch_without_a_server_leaves_the_answer_pending(api: OpenAIResponses) -> None:
    async with FakeServer(plays()) as s:
        url = s.url
    provider = OpenAIResponsesProvider(base_url=url, api_key="k-123456")
    message = await provider.fetch_deferred(background(api), HANDLE, CONTEXT)
    assert (message.stop_reason, message.deferred) == ("deferred", HANDLE)


async def test_a_fetch_can_be_aborted(api: OpenAIResponses) -> None:
    async def script(connection: Connection) -> None:
        s.answering.set()
        await connection.until_closed()

    signal = AbortSignal()
    async with FakeServer(script) as s:
        provider = OpenAIResponsesProvider(base_url=s.url, api_key="k-123456")
        fetching = asyncio.create_task(provider.fetch_deferred(background(api), HANDLE, RequestContext(signal=signal)))
        async with asyncio.timeout(DEADLINE_S):
            await s.answering.wait()
            began = time.monotonic()
            signal.abort()
            assert (await fetching).stop_reason == "aborted"
            await s.closed.wait()
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_cancelling_asks_once_and_never_raises(api: OpenAIResponses, status: int) -> None:
    async with FakeServer(replies(api, status, api.response("cancelled"))) as s:
        provider = OpenAIResponsesProvider(base_url=s.url, api_key="k-123456")
        await provider.cancel_deferred(background(api), HANDLE, CONTEXT)
        assert [request.target for request in s.requests] == ["/responses/resp_1/cancel"]


async def test_an_id_cannot_leave_its_place_in_the_path(api: OpenAIResponses) -> None:
    async with FakeServer(replies(api, 404, {"error": {"message": "no"}})) as s:
        provider = OpenAIResponsesProvider(base_url=s.url, api_key="k-123456")
        handle = DeferredHandle(provider="test", model_id="m", api=api.name, id="../files?x=1")
        await provider.fetch_deferred(background(api), handle, CONTEXT)
        assert s.requests[0].target == "/responses/..%2Ffiles%3Fx%3D1"
