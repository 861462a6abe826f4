"""Chat Completions: what servers that call themselves compatible send, refuse and leave out."""

import json
import subprocess
import sys
from typing import Any

import pytest
from adapters import KEY, OpenAIChat, sse
from provider_fakes import Connection, FakeServer
from streaming import HELLO, WEATHER, ask, collect, final
from test_behaviours import Script, plays

from agent_harness.errors import MissingExtra
from agent_harness.providers.base import Model, StreamDelta, StreamOptions, ToolSpec
from agent_harness.providers.openai_chat import OpenAIChatProvider
from agent_harness.providers.openai_chat_request import is_strict_schema
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

CHAT = OpenAIChat()
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    return sse({"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more})


async def answered(*pieces: bytes, **given: Any) -> AssistantMessage:
    async with FakeServer(plays(*pieces)) as s:
        return await ask(CHAT, s.url, **given)


async def sent(model: Model | None = None, **given: Any) -> dict[str, Any]:
    """The payload of one request."""
    async with FakeServer(plays(chunk({}, "stop"), DONE)) as s:
        await ask(CHAT, s.url, model=model, **given)
        payload: dict[str, Any] = s.requests[0].json
        assert s.requests[0].target == "/chat/completions"
        return payload


# Answers


async def test_a_server_without_usage_still_answers() -> None:
    message = await answered(chunk({"content": "hi"}), chunk({}, "stop"), DONE)
    assert (message.text, message.stop_reason, message.usage.total_tokens) == ("hi", "stop", 0)


async def test_stop_with_calls_is_tool_use_and_tool_calls_without_any_is_stop() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    assert (await answered(chunk({"tool_calls": [call]}, "stop"))).stop_reason == "toolUse"
    assert (await answered(chunk({"content": "x"}, "tool_calls"))).stop_reason == "stop"


@pytest.mark.parametrize("indexes", [(0, 0), (None, None), (0, 1), (3, 7)])
async def test_two_calls_stay_two_whatever_their_index(indexes: tuple[int | None, int | None]) -> None:
    pieces = []
    for position, index in enumerate(indexes):
        at = {} if index is None else {"index": index}
        name = {"name": f"f{position}", "arguments": '{"n":'}
        pieces.append(chunk({"tool_calls": [{**at, "id": f"c{position}", "function": name}]}))
        pieces.append(chunk({"tool_calls": [{**at, "function": {"arguments": f" {position}}}"}}]}))
    message = await answered(*pieces, chunk({}, "tool_calls"))
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [
        ("c0", "f0", {"n": 0}),
        ("c1", "f1", {"n": 1}),
    ]


async def test_an_id_repeated_with_every_fragment_is_one_call() -> None:
    fragments = ['{"a"', ": 1", "}"]
    functions = [{"name": "f" if n == 0 else None, "arguments": text} for n, text in enumerate(fragments)]
    pieces = [chunk({"tool_calls": [{"index": 0, "id": "c", "function": given}]}) for given in functions]
    message = await answered(*pieces, chunk({}, "tool_calls"))
    assert [call.arguments for call in message.tool_calls] == [{"a": 1}]


async def test_arguments_sent_as_an_object_are_taken() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": {"a": [1]}}}
    assert (await answered(chunk({"tool_calls": [call]}, "tool_calls"))).tool_calls[0].arguments == {"a": [1]}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_a_part_of_its_own_and_goes_back_as_it_came(name: str) -> None:
    pieces = (chunk({name: "let me "}), chunk({name: "think"}), chunk({"content": "42"}), chunk({}, "stop"), DONE)
    async with FakeServer(plays(*pieces)) as s:
        events = await collect(CHAT.provider(s.url), CHAT.model())
    message = final(events)
    assert message.content == (
        ThinkingContent(thinking="let me think", thinking_signature=name),
        TextContent(text="42"),
    )
    assert [e.type for e in events if isinstance(e, StreamDelta)] == ["thinking_delta", "thinking_delta", "text_delta"]
    back = await sent(messages=[HELLO, message, HELLO])
    assert back["messages"][1] == {"role": "assistant", "content": "42", name: "let me think"}


async def test_structured_reasoning_is_joined_and_sent_back() -> None:
    def detail(**fields: Any) -> dict[str, Any]:
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0, **fields}]}

    pieces = [
        chunk(detail(text="a ")),
        chunk(detail(text="b")),
        chunk(detail(signature="sig")),
        chunk({"content": "x"}),
    ]
    message = await answered(*pieces, chunk({}, "stop"))
    assert isinstance(message.content[0], ThinkingContent)
    assert message.content[0].thinking == "a b"
    back = await sent(messages=[HELLO, message, HELLO])
    assert back["messages"][1]["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "a b", "signature": "sig"}
    ]


async def test_private_blocks_of_another_model_are_not_sent() -> None:
    other = AssistantMessage(
        content=(
            ThinkingContent(thinking="secret", thinking_signature="reasoning_content", extra={"reasoningDetails": [1]}),
            TextContent(text="hi"),
            ToolCall(id="c", name="f", arguments={}, thought_signature="sig"),
        ),
        api="anthropic-messages",
        provider="anthropic",
        model="claude",
        stop_reason="toolUse",
        timestamp=1,
    )
    assistant = (await sent(messages=[HELLO, other]))["messages"][1]
    assert set(assistant) == {"role", "content", "tool_calls"}
    assert "extra_content" not in assistant["tool_calls"][0]


async def test_content_in_typed_pieces_is_read() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    message = await answered(chunk({"content": thinking}), chunk({"content": [{"type": "text", "text": "ok"}]}, "stop"))
    assert message.content == (ThinkingContent(thinking="hm"), TextContent(text="ok"))


async def test_a_whole_answer_instead_of_a_stream_is_read() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    whole = {
        "id": "1",
        "model": "m-1",
        "choices": [{"index": 0, "message": {"content": "hi", "tool_calls": [call]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }

    async def script(connection: Connection) -> None:
        await connection.reply(200, json.dumps(whole).encode())

    async with FakeServer(script) as s:
        message = await ask(CHAT, s.url)
    assert (message.text, message.stop_reason, message.response_model) == ("hi", "toolUse", "m-1")
    assert message.tool_calls[0].arguments == {"a": 1}
    assert message.usage.total_tokens == 5


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 4}, (6, 5, 4)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4}, (6, 5, 4)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 99}}, (0, 5, 10)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            (10, 12, 0),
        ),
        ({"prompt_tokens": None, "completion_tokens": "5", "prompt_tokens_details": []}, (0, 0, 0)),
        ({"prompt_tokens": -1, "completion_tokens": True}, (0, 0, 0)),
    ],
)
async def test_usage_of_several_servers(usage: dict[str, Any], expected: tuple[int, int, int]) -> None:
    found = (await answered(chunk({"content": "x"}, "stop"), sse({"choices": [], "usage": usage}))).usage
    assert (found.input, found.output, found.cache_read) == expected
    assert found.total_tokens == found.input + found.output + found.cache_read


async def test_a_price_that_the_server_reports_is_kept() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.0125}
    assert (await answered(chunk({"content": "x"}, "stop", usage=usage))).usage.cost.total == 0.0125


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("content_filter", "content_filter"),
        ("sensitive", "content_filter"),
        ("model_context_window_exceeded", "overflow"),
        ("insufficient_system_resource", "overloaded"),
        ("error", "server_error"),
        ("abort", "stream_cut"),
    ],
)
async def test_a_finish_reason_that_is_a_failure_is_an_error(reason: str, code: str) -> None:
    message = await answered(chunk({"content": "x"}, reason))
    assert (message.stop_reason, message.error_code, message.raw_stop_reason) == ("error", code, reason)


async def test_a_refusal_is_a_terminal_error_with_its_words() -> None:
    message = await answered(chunk({"refusal": "I cannot "}), chunk({"refusal": "help"}, "stop"))
    assert (message.stop_reason, message.error_code) == ("error", "content_filter")
    assert "I cannot help" in str(message.error_message)


async def test_a_server_that_never_gives_a_reason_is_accepted_on_request() -> None:
    pieces = (chunk({"content": "hi"}), sse({"choices": [], "usage": {"prompt_tokens": 1}}), DONE)
    assert (await answered(*pieces)).error_code == "stream_cut"
    async with FakeServer(plays(*pieces)) as s:
        provider = OpenAIChatProvider(base_url=s.url, needs_finish_reason=False)
        assert final(await collect(provider, CHAT.model())).stop_reason == "stop"
    call = chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]})
    async with FakeServer(plays(call, *pieces)) as s:
        provider = OpenAIChatProvider(base_url=s.url, needs_finish_reason=False)
        assert final(await collect(provider, CHAT.model())).error_code == "stream_cut"


NO_OBJECT = ("error", "transport", "")
LEFT_OUT = ("stop", None, "x")  # as if the odd chunk had not been sent


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ([], NO_OBJECT),
        ("text", NO_OBJECT),
        (None, NO_OBJECT),
        ({"choices": None}, LEFT_OUT),
        ({"choices": "x"}, LEFT_OUT),
        ({"choices": [None]}, LEFT_OUT),
        ({"choices": [{"delta": None}]}, LEFT_OUT),
        ({"choices": [{"delta": {"content": 5, "reasoning_details": [1]}}]}, LEFT_OUT),
        ({"choices": [{"index": 1, "delta": {"content": "second choice"}}]}, LEFT_OUT),
        # A call without a name is a call: the tool step answers that there is none of this name.
        (
            {"choices": [{"delta": {"tool_calls": [None, {"function": None}, {"function": {"arguments": 5}}]}}]},
            ("toolUse", None, "x"),
        ),
    ],
)
async def test_odd_shapes_end_in_an_answer_or_a_named_error(
    odd: JsonValue, expected: tuple[str, str | None, str]
) -> None:
    message = await answered(sse(odd), chunk({"content": "x"}, "stop"))
    assert (message.stop_reason, message.error_code, message.text) == expected


# Requests


async def test_a_tool_round_has_the_shape_servers_check() -> None:
    asked = AssistantMessage(
        content=(ToolCall(id="a", name="f", arguments={"n": 2**63}), ToolCall(id="b", name="g", arguments={})),
        api="openai-chat",
        provider="test",
        model="gpt-test",
        stop_reason="toolUse",
        timestamp=1,
    )
    picture = ImageContent(data="aGk=", mime_type="image/png")
    results = [
        ToolResultMessage(tool_call_id="a", tool_name="f", content=(picture,), is_error=False, timestamp=2),
        ToolResultMessage(tool_call_id="b", tool_name="g", content=(), is_error=True, timestamp=3),
    ]
    payload = await sent(messages=[HELLO, asked, *results, HELLO], system_prompt="be brief", tools=[WEATHER])
    system, user, assistant, first, second, images, last = payload["messages"]
    assert system == {"role": "system", "content": "be brief"}
    assert user == last == {"role": "user", "content": "hello"}
    assert assistant["content"] is None
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"n":9223372036854775808}'}
    assert [first["tool_call_id"], second["tool_call_id"]] == ["a", "b"]
    assert second["content"] == "(no output)"
    assert images["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="
    assert payload["tools"][0]["function"]["parameters"]["required"] == ["city"]
    assert (payload["stream"], payload["stream_options"]) == (True, {"include_usage": True})


async def test_options_are_sent_where_the_model_takes_them() -> None:
    options = StreamOptions(max_tokens=7, temperature=0.5, thinking_level="high")
    plain = await sent(options=options)
    assert (plain["max_tokens"], plain["temperature"]) == (7, 0.5)
    assert "reasoning_effort" not in plain
    thinking = await sent(CHAT.model(thinking_levels=("low", "high")), options=options)
    assert thinking["reasoning_effort"] == "high"


async def test_a_response_schema_is_strict_only_where_strict_mode_takes_it() -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert not is_strict_schema(schema)
    closed: dict[str, JsonValue] = {**schema, "required": ["a"], "additionalProperties": False}
    assert is_strict_schema(closed)
    assert not is_strict_schema({**closed, "properties": {"a": schema}})
    payload = await sent(options=StreamOptions(response_schema=closed))
    assert payload["response_format"]["json_schema"] == {"name": "answer", "schema": closed, "strict": True}


async def test_a_server_that_refuses_stream_options_is_asked_without_them_from_then_on() -> None:
    answer = plays(chunk({"content": "hi"}), chunk({}, "stop"), DONE)

    async def script(connection: Connection) -> None:
        if "stream_options" in connection.json:
            await connection.reply(400, b'{"error": {"message": "unknown field stream_options"}}')
        else:
            await answer(connection)

    heads: list[int] = []

    async def keep(head: Any) -> None:
        heads.append(head.status)

    async with FakeServer(script) as s:
        provider = CHAT.provider(s.url)
        for _ in range(2):
            assert final(await collect(provider, CHAT.model(), on_response=keep)).text == "hi"
        assert ["stream_options" in request.json for request in s.requests] == [True, False, False]
    assert heads == [200, 200]


# Keys


def script_of_hi() -> Script:
    return plays(chunk({"content": "hi"}, "stop"), DONE)


async def headers_of(provider: OpenAIChatProvider, s: FakeServer) -> dict[str, str]:
    assert final(await collect(provider, CHAT.model())).text == "hi"
    return s.requests[-1].headers


async def test_a_key_may_be_computed_for_each_request() -> None:
    keys = iter(["first-key\n", "second-key"])

    async def later() -> str:
        return next(keys)

    async with FakeServer(script_of_hi()) as s:
        provider = OpenAIChatProvider(base_url=s.url, api_key=later)
        assert (await headers_of(provider, s))["authorization"] == "Bearer first-key"
        assert (await headers_of(provider, s))["authorization"] == "Bearer second-key"
        provider = OpenAIChatProvider(base_url=s.url, api_key=lambda: "plain")
        assert (await headers_of(provider, s))["authorization"] == "Bearer plain"


async def test_a_key_that_cannot_be_computed_is_an_error_in_band() -> None:
    def refuse() -> str:
        raise OSError("keyring locked")

    async with FakeServer(script_of_hi()) as s:
        message = final(await collect(OpenAIChatProvider(base_url=s.url, api_key=refuse), CHAT.model()))
        assert s.requests == []
    assert (message.stop_reason, is_text(message)) == ("error", True)
    assert "keyring locked" in str(message.error_message)


def is_text(message: AssistantMessage) -> bool:
    return message.error_code is not None and bool(message.error_message)


async def test_secrets_of_the_environment_go_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, KEY)
    async with FakeServer(script_of_hi()) as s:
        headers = await headers_of(OpenAIChatProvider(base_url=s.url), s)
        assert KEY not in str(headers)
        assert "authorization" not in headers
        monkeypatch.setenv("OPENAI_BASE_URL", s.url)
        assert (await headers_of(OpenAIChatProvider(), s))["authorization"] == f"Bearer {KEY}"


async def test_a_missing_key_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    message = final(await collect(OpenAIChatProvider(), CHAT.model()))
    assert (message.stop_reason, message.error_code) == ("error", "auth")
    assert message.error_message == "no API key: set OPENAI_API_KEY or pass api_key"


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=r"pip install 'agent-harness\[openai\]'"):
        OpenAIChatProvider()


def test_importing_the_adapter_imports_no_sdk() -> None:
    program = "import sys, agent_harness.providers.openai_chat; print({'openai', 'httpx2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


async def test_a_base_url_of_the_model_wins() -> None:
    async with FakeServer(script_of_hi()) as s:
        provider = OpenAIChatProvider(base_url="http://127.0.0.1:9", api_key=KEY)
        assert final(await collect(provider, CHAT.model(base_url=s.url))).text == "hi"
        assert s.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_tool_without_properties_is_sent_as_it_is() -> None:
    bare = ToolSpec(name="now", description="", parameters={"type": "object", "properties": {}})
    assert (await sent(tools=[bare]))["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}


async def test_an_image_of_a_user_is_a_data_url() -> None:
    message = UserMessage(content=(ImageContent(data="aGk=", mime_type="image/png"),), timestamp=1)
    (user,) = (await sent(messages=[message]))["messages"]
    assert user["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
