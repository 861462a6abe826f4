"""What every adapter does, whatever its API: answers, faults, cancellation, secrets (decisions section 7)."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest
from adapters import KEY, Adapter
from provider_fakes import DEADLINE_S, Connection, FakeServer
from streaming import HELLO, WEATHER, ask, collect, final

from agent_harness.abort_signal import AbortSignal
from agent_harness.providers.arguments import INVALID_ARGUMENTS
from agent_harness.providers.base import (
    Provider,
    ProviderContext,
    ProviderResponse,
    RequestContext,
    StreamDelta,
    StreamEnd,
    StreamOptions,
    StreamStart,
    is_retryable,
)
from agent_harness.providers.credentials import ApiKey, Credential
from agent_harness.providers.registry import BUILDERS
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import ImageContent, TextContent, UserMessage
from tests.support.canaries import locals_of

Script = Callable[[Connection], Awaitable[None]]


def plays(*pieces: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(*pieces)
        await connection.end()

    return script


# Answers


async def test_text_arrives_in_pieces_and_settles(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), adapter.text("Hel"), adapter.text("lo"), adapter.finish("stop"))) as s:
        events = await collect(adapter.provider(s.url), adapter.model(), now_ms=lambda: 42)
    message = final(events)
    assert isinstance(events[0], StreamStart)
    assert [event.delta for event in events if isinstance(event, StreamDelta)] == ["Hel", "lo"]
    assert [event.partial.text for event in events if isinstance(event, StreamDelta)] == ["Hel", "Hello"]
    assert (message.content, message.stop_reason, message.timestamp) == ((TextContent(text="Hello"),), "stop", 42)
    assert (message.provider, message.api, message.model) == ("test", adapter.name, adapter.model().id)


async def test_usage_counts_cached_tokens_apart_and_reasoning_as_output(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), adapter.text("x"), adapter.finish("stop"))) as s:
        usage = (await ask(adapter, s.url)).usage
    assert (usage.input, usage.cache_read, usage.output, usage.total_tokens) == (60, 40, 20, 120)
    assert usage.cost.total == 0


async def test_a_tool_call_is_assembled_from_its_fragments(adapter: Adapter) -> None:
    fragments = ['{"ci', 'ty": "Par', 'is"}'] if adapter.args_are_text else ['{"city": "Paris"}']
    calls = [*adapter.call("c1", "get_weather", *fragments), *adapter.call("c2", "now", "{}")]
    async with FakeServer(plays(adapter.start(), *calls, adapter.finish("toolUse"))) as s:
        message = await ask(adapter, s.url, tools=[WEATHER])
    assert message.stop_reason == "toolUse"
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [
        ("c1", "get_weather", {"city": "Paris"}),
        ("c2", "now", {}),
    ]


async def test_tool_arguments_keep_every_digit_of_64_bits(adapter: Adapter) -> None:
    given = '{"big": 18446744073709551615, "small": -9223372036854775808, "odd": 9007199254740993}'
    async with FakeServer(plays(adapter.start(), *adapter.call("c", "f", given), adapter.finish("toolUse"))) as s:
        call = (await ask(adapter, s.url, tools=[WEATHER])).tool_calls[0]
    assert call.arguments == json.loads(given)
    assert all(type(value) is int for value in call.arguments.values())
    assert INVALID_ARGUMENTS not in call.extra


@pytest.mark.parametrize("given", ['{"n": 18446744073709551616}', '{"n": -9223372036854775809}', '{"n": 1e999}'])
async def test_out_of_range_arguments_are_marked_and_empty(adapter: Adapter, given: str) -> None:
    async with FakeServer(plays(adapter.start(), *adapter.call("c", "f", given), adapter.finish("toolUse"))) as s:
        call = (await ask(adapter, s.url, tools=[WEATHER])).tool_calls[0]
    assert (call.arguments, call.name) == ({}, "f")
    assert str(call.extra[INVALID_ARGUMENTS]).startswith("$.n: ")


@pytest.mark.parametrize(
    "given", ['{"a": ', "[1]", '"text"', '{"a": 1} trailing', "nonsense", '{"a": NaN}', "[" * 9999]
)
async def test_arguments_that_are_no_json_object_are_marked_and_empty(adapter: Adapter, given: str) -> None:
    async with FakeServer(plays(adapter.start(), *adapter.call("c", "f", given), adapter.finish("toolUse"))) as s:
        message = await ask(adapter, s.url, tools=[WEATHER])
    if not adapter.args_are_text and message.stop_reason == "error":  # the chunk itself is broken
        assert (message.error_code, message.tool_calls) == ("transport", ())
        return
    assert message.stop_reason == "toolUse"
    assert message.tool_calls[0].arguments == {}
    assert message.tool_calls[0].extra[INVALID_ARGUMENTS]


async def test_no_arguments_at_all_are_an_empty_object(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), *adapter.call("c", "f", ""), adapter.finish("toolUse"))) as s:
        call = (await ask(adapter, s.url, tools=[WEATHER])).tool_calls[0]
    assert (call.arguments, call.extra) == ({}, {})


async def test_an_answer_cut_by_the_output_limit_is_length(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), adapter.text("lo"), adapter.finish("length"))) as s:
        message = await ask(adapter, s.url)
    assert (message.text, message.stop_reason) == ("lo", "length")


async def test_an_empty_answer_has_no_empty_content_part(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        message = await ask(adapter, s.url)
    assert (message.content, message.stop_reason) == ((), "stop")


async def test_lone_surrogates_are_replaced_and_pairs_cut_between_pieces_are_joined(adapter: Adapter) -> None:
    pieces = [adapter.text(piece) for piece in ("ok \ud83d", "\ude00 and \udc9c", " end \ud83d")]
    call = adapter.call("c", "f", '{"a\\udc9c": "x\\ud83d"}')
    async with FakeServer(plays(adapter.start(), *pieces, *call, adapter.finish("toolUse"))) as s:
        message = await ask(adapter, s.url, tools=[WEATHER])
    assert message.text == "ok 😀 and � end �"
    assert message.tool_calls[0].arguments == {"a�": "x�"}


# Faults


async def test_a_stream_cut_in_text_is_a_retryable_error_that_keeps_the_text(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), adapter.text("half an ans"))) as s:
        message = await ask(adapter, s.url)
    assert (message.stop_reason, message.error_code, message.text) == ("error", "stream_cut", "half an ans")
    assert is_retryable(message)


async def test_a_stream_cut_in_arguments_returns_no_call(adapter: Adapter) -> None:
    whole = adapter.call("c", "f", '{"a": ' if adapter.args_are_text else '{"a": 1}')
    async with FakeServer(plays(adapter.start(), adapter.text("t"), *whole)) as s:
        message = await ask(adapter, s.url, tools=[WEATHER])
    assert (message.stop_reason, message.error_code) == ("error", "stream_cut")
    assert message.content == (TextContent(text="t"),)


async def test_an_empty_body_is_a_cut_stream(adapter: Adapter) -> None:
    async with FakeServer(plays()) as s:
        message = await ask(adapter, s.url)
    assert (message.stop_reason, message.error_code) == ("error", "stream_cut")


async def test_a_broken_connection_is_a_retryable_error(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(adapter.start(), adapter.text("half"))
        connection.drop()

    async with FakeServer(script) as s:
        message = await ask(adapter, s.url)
    assert (message.stop_reason, message.error_code) == ("error", "transport")
    assert is_retryable(message)


async def test_what_breaks_after_the_terminal_event_takes_nothing_away(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(adapter.start(), adapter.text("whole"), adapter.finish("stop").replace(b"[DONE]", b""))
        connection.drop()

    async with FakeServer(script) as s:
        message = await ask(adapter, s.url)
    assert (message.stop_reason, message.text) == ("stop", "whole")


async def test_a_silent_stream_ends_by_the_read_timeout(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(adapter.start(), adapter.text("half"))
        await connection.until_closed()

    async with FakeServer(script) as s:
        message = await ask(adapter, s.url, read_timeout_ms=200)
        async with asyncio.timeout(DEADLINE_S):
            await s.closed.wait()
    assert (message.stop_reason, message.error_code) == ("error", "timeout")
    assert is_retryable(message)


async def test_a_server_that_never_answers_ends_by_the_read_timeout(adapter: Adapter) -> None:
    async with FakeServer(lambda connection: connection.until_closed()) as s:
        message = await ask(adapter, s.url, read_timeout_ms=200)
    assert (message.stop_reason, message.error_code) == ("error", "timeout")


async def test_the_total_deadline_holds_against_a_stream_that_drips(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(adapter.start())
        while not connection.closed.is_set():
            await connection.send(adapter.text("."))
            await asyncio.sleep(0.02)

    began = time.monotonic()
    async with FakeServer(script) as s:
        message = await ask(adapter, s.url, options=StreamOptions(timeout_ms=300))
        async with asyncio.timeout(DEADLINE_S):
            await s.closed.wait()
    assert (message.stop_reason, message.error_code) == ("error", "timeout")
    assert 0.25 < time.monotonic() - began < 3


async def test_a_refused_connection_is_a_retryable_error(adapter: Adapter) -> None:
    async with FakeServer(plays()) as s:
        url = s.url
    message = await ask(adapter, url)
    assert (message.stop_reason, message.error_code) == ("error", "transport")


async def test_a_malformed_chunk_is_a_retryable_error_that_quotes_nothing(adapter: Adapter) -> None:
    broken = adapter.text("secret words").replace(b"}", b"", 1).replace(b"data: {", b"data: {]")
    async with FakeServer(plays(adapter.start(), adapter.text("a"), broken, adapter.finish("stop"))) as s:
        message = await ask(adapter, s.url)
    assert (message.stop_reason, message.error_code) == ("error", "transport")
    assert "secret words" not in str(message.error_message)


async def test_bytes_that_are_no_utf8_are_a_retryable_error_or_replaced(adapter: Adapter) -> None:
    broken = adapter.text("zz").replace(b"zz", b"\xff\xfe")
    async with FakeServer(plays(adapter.start(), broken, adapter.finish("stop"))) as s:
        message = await ask(adapter, s.url)
    if adapter.name == "google-gemini":  # its SDK decodes leniently: what it hands over is whole
        assert (message.stop_reason, message.text) == ("stop", "��")
        return
    assert (message.stop_reason, message.error_code, message.text) == ("error", "transport", "")
    assert is_retryable(message)


async def test_an_error_inside_the_stream_is_read_by_its_text(adapter: Adapter) -> None:
    event = adapter.error_event("The server is overloaded, try again later")
    async with FakeServer(plays(adapter.start(), adapter.text("a"), event)) as s:
        message = await ask(adapter, s.url)
    assert (message.stop_reason, message.error_code) == ("error", "overloaded")
    assert "overloaded" in str(message.error_message)


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        (400, "tools.0.name: invalid", "invalid_request"),
        (400, "prompt is too long: 200251 tokens > 200000 maximum", "overflow"),
        (401, "invalid key", "auth"),
        (403, "not allowed", "auth"),
        (404, "no such model", "not_found"),
        (408, "request timeout", "timeout"),
        (413, "request exceeds the maximum size", "overflow"),
        (429, "Rate limit reached", "rate_limit"),
        (429, "You exceeded your current quota, please check your plan and billing details", "quota"),
        (500, "internal error", "server_error"),
        (502, "bad gateway", "server_error"),
        (503, "no capacity left", "overloaded"),
        (529, "Overloaded", "overloaded"),
    ],
)
async def test_an_error_status_has_its_code_and_one_request(
    adapter: Adapter, status: int, said: str, code: str
) -> None:
    async def script(connection: Connection) -> None:
        await connection.reply(status, adapter.error_body(status, said))

    async with FakeServer(script) as s:
        message = await ask(adapter, s.url)
        assert len(s.requests) == 1
    assert (message.stop_reason, message.error_code, message.content) == ("error", code, ())
    assert said in str(message.error_message)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7_000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1_500),
        ({"retry-after": formatdate(1_000_030, usegmt=True)}, 30_000),
        ({"retry-after": formatdate(1_000_000 - 60, usegmt=True)}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9999999999"}, 24 * 60 * 60 * 1000),
        ({}, None),
    ],
)
async def test_what_the_provider_asks_to_wait_is_parsed(
    adapter: Adapter, headers: dict[str, str], expected: int | None
) -> None:
    async def script(connection: Connection) -> None:
        await connection.reply(429, adapter.error_body(429, "slow down"), headers)

    async with FakeServer(script) as s:
        message = await ask(adapter, s.url, now_ms=lambda: 1_000_000_000)
    assert (message.error_code, message.retry_after_ms) == ("rate_limit", expected)


async def test_an_error_page_that_is_no_json_still_has_a_code(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await connection.reply(502, b"<html><body>Bad Gateway</body></html>")

    async with FakeServer(script) as s:
        message = await ask(adapter, s.url)
    assert (message.error_code, message.error_message) == ("server_error", "HTTP status 502")


# Cancellation


def held(s: FakeServer) -> tuple[set[asyncio.Task[Any]], set[str]]:
    """The tasks that run and the sockets that are open, those of the server apart."""
    sockets = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                sockets.add(target)
    return asyncio.all_tasks() - s._tasks, sockets


async def nothing_left(s: FakeServer, before: tuple[set[asyncio.Task[Any]], set[str]]) -> None:
    """Every task and socket that was not there before goes away within a second."""
    async with asyncio.timeout(1):
        while any(now - then for now, then in zip(held(s), before, strict=True)):
            await asyncio.sleep(0.01)


async def abort_at(adapter: Adapter, s: FakeServer, url: str, ready: Callable[[], Awaitable[Any]]) -> Any:
    """Abort when `ready` returns; the answer, its socket and all its tasks must be gone within a second."""
    before = held(s)
    signal = AbortSignal()
    asking = asyncio.create_task(ask(adapter, url, signal=signal, tools=[WEATHER]))
    async with asyncio.timeout(DEADLINE_S):
        await ready()
    began = time.monotonic()
    signal.abort()
    async with asyncio.timeout(DEADLINE_S):
        message = await asking
        await s.closed.wait()
    assert time.monotonic() - began < 1
    assert (message.stop_reason, message.tool_calls) == ("aborted", ())
    assert message.error_code is None
    await nothing_left(s, before)
    return message


async def test_abort_while_connecting(adapter: Adapter) -> None:
    async with FakeServer(plays(), silent=True) as s:  # a TLS handshake that is never answered
        await abort_at(adapter, s, s.url.replace("http:", "https:"), s.connected.wait)


async def test_abort_while_waiting_for_the_head(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        s.answering.set()
        await connection.until_closed()

    async with FakeServer(script) as s:
        message = await abort_at(adapter, s, s.url, s.answering.wait)
    assert message.content == ()


async def test_abort_in_the_middle_of_text_keeps_it(adapter: Adapter) -> None:
    seen = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(adapter.start(), adapter.text("half"))
        await connection.until_closed()

    async with FakeServer(script) as s:
        before = held(s)
        signal = AbortSignal()
        context, request = ProviderContext(messages=[HELLO]), RequestContext(signal=signal)
        events = []
        async with asyncio.timeout(DEADLINE_S):
            async for event in adapter.provider(s.url).stream(adapter.model(), context, StreamOptions(), request):
                events.append(event)
                if isinstance(event, StreamDelta):
                    began = time.monotonic()
                    signal.abort()
                    seen.set()
            await s.closed.wait()
        assert time.monotonic() - began < 1
        await nothing_left(s, before)
    assert (final(events).stop_reason, final(events).text) == ("aborted", "half")


async def test_abort_in_the_middle_of_arguments_returns_no_call(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(adapter.start(), *adapter.call("c", "f", '{"a": 1}'))
        s.answering.set()
        await connection.until_closed()

    async with FakeServer(script) as s:
        message = await abort_at(adapter, s, s.url, s.answering.wait)
    assert message.content == ()


async def test_a_request_aborted_before_it_begins_sends_nothing(adapter: Adapter) -> None:
    signal = AbortSignal()
    signal.abort()
    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        message = await ask(adapter, s.url, signal=signal)
        assert s.requests == []
    assert message.stop_reason == "aborted"


async def test_abort_from_another_thread(adapter: Adapter) -> None:
    signal = AbortSignal()

    async def script(connection: Connection) -> None:
        s.answering.set()
        await connection.until_closed()

    async with FakeServer(script) as s:
        await asyncio.to_thread(lambda: None)  # the loop's threads keep descriptors of their own
        before = held(s)
        asking = asyncio.create_task(ask(adapter, s.url, signal=signal))
        await s.answering.wait()
        began = time.monotonic()
        await asyncio.to_thread(signal.abort)
        async with asyncio.timeout(DEADLINE_S):
            assert (await asking).stop_reason == "aborted"
            await s.closed.wait()
        assert time.monotonic() - began < 1
        await nothing_left(s, before)


async def test_a_cancelled_consumer_closes_the_socket(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        s.answering.set()
        await connection.until_closed()

    async with FakeServer(script) as s:
        asking = asyncio.create_task(ask(adapter, s.url))
        await s.answering.wait()
        asking.cancel()
        async with asyncio.timeout(1):
            await s.closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_consumer_that_leaves_early_closes_the_socket(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(adapter.start(), adapter.text("a"))
        await connection.until_closed()

    async with FakeServer(script) as s:
        context, request = ProviderContext(messages=[HELLO]), RequestContext(signal=AbortSignal())
        stream = adapter.provider(s.url).stream(adapter.model(), context, StreamOptions(), request)
        seen: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            async for event in stream:
                if isinstance(event, StreamDelta):
                    seen.append(event.delta)
                    break
            assert not s.closed.is_set()  # the consumer leaves first
            await stream.aclose()
        async with asyncio.timeout(1):
            await s.closed.wait()
        assert seen == ["a"]


async def test_a_finished_request_leaves_no_connection_open(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        await plays(adapter.start(), adapter.text("a"), adapter.finish("stop"))(connection)
        await connection.until_closed()

    async with FakeServer(script) as s:
        assert (await ask(adapter, s.url)).stop_reason == "stop"
        async with asyncio.timeout(1):
            await s.closed.wait()


# Callbacks, requests, secrets


async def test_the_payload_can_be_read_and_replaced_before_it_is_sent(adapter: Adapter) -> None:
    async def mark(payload: JsonValue) -> JsonValue:
        assert isinstance(payload, dict)
        json.dumps(payload)
        return {**payload, "metadata": {"marked": "yes"}}

    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        await ask(adapter, s.url, on_payload=mark)
        assert s.requests[0].json["metadata"] == {"marked": "yes"}


@pytest.mark.parametrize("status", [200, 429])
async def test_the_response_head_is_shown(adapter: Adapter, status: int) -> None:
    heads: list[ProviderResponse] = []

    async def keep(head: ProviderResponse) -> None:
        heads.append(head)

    async def script(connection: Connection) -> None:
        if status == 200:
            await connection.head(headers={"X-Request-Id": "r-1"})
            await connection.send(adapter.start(), adapter.finish("stop"))
            await connection.end()
        else:
            await connection.reply(status, adapter.error_body(status, "slow down"), {"X-Request-Id": "r-1"})

    async with FakeServer(script) as s:
        await ask(adapter, s.url, on_response=keep)
    assert [(head.status, head.headers["x-request-id"]) for head in heads] == [(status, "r-1")]


async def test_a_callback_that_raises_is_not_taken_for_a_provider_error(adapter: Adapter) -> None:
    async def refuse(head: ProviderResponse) -> None:
        raise LookupError("mine")

    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        with pytest.raises(LookupError, match="mine"):
            await ask(adapter, s.url, on_response=refuse)


KEY_HEADER = {
    "openai-chat": "authorization",
    "openai-responses": "authorization",
    "anthropic-messages": "x-api-key",
    "google-gemini": "x-goog-api-key",
}


def keyed(adapter: Adapter, url: str, key: ApiKey) -> Provider:
    """The adapter as an application builds it, with a key of its own."""
    return BUILDERS[adapter.name](url, Credential(key))


async def test_a_key_may_be_computed_for_each_request(adapter: Adapter) -> None:
    """A token that expires is renewed by whoever hands it out; around it, a file's last newline is no part of it."""
    keys = iter(["first-key-12345\n", "second-key-12345"])

    async def later() -> str:
        return next(keys)

    given: list[ApiKey] = [later, lambda: "plain-key-12345"]
    async with FakeServer(plays(adapter.start(), adapter.text("hi"), adapter.finish("stop"))) as s:
        awaited, plain = (keyed(adapter, s.url, key) for key in given)
        for provider in (awaited, awaited, plain):
            assert final(await collect(provider, adapter.model())).text == "hi"
        sent = [request.headers[KEY_HEADER[adapter.name]] for request in s.requests]
    assert [value.removeprefix("Bearer ") for value in sent] == [
        "first-key-12345",
        "second-key-12345",
        "plain-key-12345",
    ]


async def test_a_key_that_cannot_be_computed_is_an_error_in_band(adapter: Adapter) -> None:
    def refuse() -> str:
        raise OSError("keyring locked")

    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        message = final(await collect(keyed(adapter, s.url, refuse), adapter.model()))
        assert s.requests == []
    assert message.stop_reason == "error"
    assert "keyring locked" in str(message.error_message)


async def test_headers_of_the_model_and_the_request_are_sent(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        model = adapter.model(headers={"x-team": "a", "x-both": "model"})
        await ask(adapter, s.url, model=model, options=StreamOptions(headers={"x-both": "request"}))
        sent = s.requests[0].headers
    assert (sent["x-team"], sent["x-both"]) == ("a", "request")


async def test_a_key_echoed_by_the_server_is_hidden(adapter: Adapter) -> None:
    async def script(connection: Connection) -> None:
        body = adapter.error_body(401, f"Incorrect API key provided: {KEY} with header HEADER-SECRET")
        await connection.reply(401, body)

    model = adapter.model(headers={"x-proxy-auth": "HEADER-SECRET"})
    async with FakeServer(script) as s:
        message = await ask(adapter, s.url, model=model)
    assert "Incorrect API key provided: ***" in str(message.error_message)
    assert KEY not in repr(message)
    assert "HEADER-SECRET" not in repr(message)


SECRETS = ("CANARY-first-key", "CANARY-second-key", "CANARY-model-header", "CANARY-option-header")


async def echo(connection: Connection, adapter: Adapter, status: int) -> None:
    """A server that says what it was sent."""
    said = " ".join(secret for secret in SECRETS if secret in str(connection.headers))
    await connection.reply(status, adapter.error_body(status, f"refused: {said}"))


@pytest.mark.parametrize("status", [401, 500])
async def test_every_requests_own_key_and_headers_are_hidden_where_the_server_echoes_them(
    adapter: Adapter, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    keys = iter(SECRETS)
    model = adapter.model(headers={"x-team": "CANARY-model-header"})
    options = StreamOptions(headers={"x-proxy-auth": "CANARY-option-header"})
    async with FakeServer(lambda connection: echo(connection, adapter, status)) as s:
        provider = keyed(adapter, s.url, lambda: next(keys))
        events = [event for _ in range(2) for event in await collect(provider, model, options=options)]
        first, second = (str(request.headers) for request in s.requests)
    assert [secret in first for secret in SECRETS] == [True, False, True, True]
    assert [secret in second for secret in SECRETS] == [False, True, True, True]
    errors = [event.message.error_message for event in events if isinstance(event, StreamEnd)]
    assert errors == [f"{status} refused: *** *** ***"] * 2
    logged = caplog.text + repr([record.args for record in caplog.records])
    assert [secret for secret in SECRETS if secret in repr(events) + logged] == []


async def test_a_traceback_with_locals_shows_no_secret(adapter: Adapter) -> None:
    """The request's own callback raises, the one way for an exception to leave an adapter."""

    async def refuse(_: ProviderResponse) -> None:
        raise RuntimeError("no")

    model = adapter.model(headers={"x-team": "CANARY-model-header"})
    options = StreamOptions(headers={"x-proxy-auth": "CANARY-option-header"})
    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        provider = keyed(adapter, s.url, lambda: "CANARY-first-key")
        with pytest.raises(RuntimeError) as raised:
            await collect(provider, model, options=options, on_response=refuse)
    shown = locals_of(raised.value)
    assert [line for line in shown if any(secret in line for secret in SECRETS)] == []
    assert any("Sending(" in line for line in shown)


async def test_secrets_and_content_appear_in_no_repr_and_no_log(
    adapter: Adapter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    canaries = (KEY, "CANARY-prompt", "CANARY-system", "CANARY-answer", "CANARY-header", "CANARY-argument")
    pieces = (adapter.start(), adapter.text("CANARY-answer"), *adapter.call("c", "f", '{"a": "CANARY-argument"}'))
    async with FakeServer(plays(*pieces, adapter.finish("toolUse"))) as s:
        provider = adapter.provider(s.url)
        prompt = UserMessage(content="CANARY-prompt", timestamp=1)
        model = adapter.model(headers={"x-proxy-auth": "CANARY-header"})
        await collect(provider, model, messages=[prompt], system_prompt="CANARY-system", tools=[WEATHER])
        request = s.requests[0]
        assert [canary in str(request.headers) + request.body.decode() for canary in canaries] == [
            True, True, True, False, True, False
        ]  # fmt: skip
    text = repr(provider) + repr(vars(provider)) + repr(model) + caplog.text
    assert [canary for canary in canaries if canary in text] == []
    with_password = adapter.provider(s.url.replace("127.0.0.1", "user:URL-SECRET@127.0.0.1"))
    assert "URL-SECRET" not in repr(with_password)


async def test_images_are_sent_to_a_model_that_sees_and_named_to_one_that_does_not(adapter: Adapter) -> None:
    picture = UserMessage(
        content=(TextContent(text="what is it?"), ImageContent(data="aGk=", mime_type="image/png")), timestamp=1
    )
    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        await ask(adapter, s.url, messages=[picture])
        blind = adapter.model()
        blind = type(blind)(provider=blind.provider, id=blind.id, api=blind.api, images=False)
        await ask(adapter, s.url, messages=[picture], model=blind)
        seen, told = (request.body for request in s.requests)
    assert b"aGk=" in seen
    assert b"aGk=" not in told
    assert b"image left out" in told


async def test_tools_are_left_out_for_a_model_without_them(adapter: Adapter) -> None:
    async with FakeServer(plays(adapter.start(), adapter.finish("stop"))) as s:
        await ask(adapter, s.url, tools=[WEATHER])
        await ask(adapter, s.url, tools=[WEATHER], model=adapter.model(tools=False))
        with_tools, without = (request.body for request in s.requests)
    assert b"get_weather" in with_tools
    assert b"get_weather" not in without


async def test_a_whole_event_loop_can_end_after_a_request_and_the_provider_works_in_the_next(adapter: Adapter) -> None:
    async def once() -> str:
        async with FakeServer(plays(adapter.start(), adapter.text("hi"), adapter.finish("stop"))) as s:
            return final(await collect(provider, adapter.model(base_url=s.url))).text

    provider = adapter.provider("http://127.0.0.1:9")
    assert await asyncio.to_thread(lambda: [asyncio.run(once()), asyncio.run(once())]) == ["hi", "hi"]
