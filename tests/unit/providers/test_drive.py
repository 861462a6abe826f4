"""The part of every adapter that is the same: one task owns the connection, and every end has a message."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from provider_fakes import DEADLINE_S

from agent_harness.abort_signal import AbortSignal
from agent_harness.providers.answer import Answer
from agent_harness.providers.base import Model, RequestContext, StreamEnd
from agent_harness.providers.drive import Request, drive
from agent_harness.providers.exchange import CLOSE_WAIT_S, Event, Exchange, Head, Source
from agent_harness.providers.failure import Failure, Secrets, error_text
from agent_harness.providers.openai_chat_stream import ChatReader
from agent_harness.types.messages import AssistantMessage

MODEL = Model(provider="test", id="m", api="openai-chat")
FINISHED = Event(data={"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]})


def failed(_: object) -> Failure:
    return Failure(code="server_error", message="it broke")


async def driven(source: Source, *, signal: AbortSignal | None = None, **given: Any) -> AssistantMessage:
    reader = ChatReader(Answer(MODEL, 0), failed, needs_finish_reason=True)
    context = RequestContext(signal=signal or AbortSignal(), on_response=given.pop("on_response", None))
    fields = {"timeout_ms": None, "keep": set(), **given}
    async with asyncio.timeout(DEADLINE_S):
        async for event in drive(reader, Request(source=source, context=context, explain=failed, **fields)):
            if isinstance(event, StreamEnd):
                return event.message
    raise AssertionError("no end")


async def test_a_complete_answer_does_not_wait_for_a_server_that_keeps_the_stream_open() -> None:
    closed = asyncio.Event()

    async def source() -> AsyncGenerator[Head | Event]:
        try:
            yield FINISHED
            await asyncio.Event().wait()
        finally:
            closed.set()

    message = await driven(source, trailer_ms=50)
    assert (message.text, message.stop_reason) == ("hi", "stop")
    assert closed.is_set()


async def test_a_connection_that_does_not_close_holds_nobody_up_and_is_kept_until_it_does() -> None:
    release = asyncio.Event()

    async def source() -> AsyncGenerator[Head | Event]:
        try:
            yield FINISHED
            await asyncio.Event().wait()
        finally:
            await release.wait()

    keep: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    message = await driven(source, trailer_ms=10, keep=keep)
    assert message.stop_reason == "stop"
    assert time.monotonic() - began < CLOSE_WAIT_S + 1
    (task,) = keep
    release.set()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert keep == set()


async def test_an_abort_overtakes_what_has_arrived() -> None:
    signal = AbortSignal()

    async def source() -> AsyncGenerator[Head | Event]:
        for _ in range(100):
            yield Event(data={"choices": [{"delta": {"content": "x"}}]})
        signal.abort()
        yield FINISHED
        await asyncio.Event().wait()

    message = await driven(source, signal=signal)
    assert message.stop_reason == "aborted"


async def test_a_callback_that_raises_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def source() -> AsyncGenerator[Head | Event]:
        try:
            yield Head(status=200, headers={})
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def refuse(_: object) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await driven(source, on_response=refuse)
    assert closed.is_set()


async def test_a_task_that_others_cancel_ends_the_stream() -> None:
    started = asyncio.Event()

    async def source() -> AsyncGenerator[Head | Event]:
        started.set()
        await asyncio.Event().wait()
        yield FINISHED

    keep: set[asyncio.Task[None]] = set()
    asking = asyncio.create_task(driven(source, keep=keep))
    await started.wait()
    next(iter(keep)).cancel()
    assert (await asking).error_code == "stream_cut"


async def test_an_exchange_left_at_once_closes_its_connection() -> None:
    entered, closed = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncGenerator[Head | Event]:
        entered.set()
        try:
            await asyncio.Event().wait()
            yield FINISHED
        finally:
            closed.set()

    async with Exchange(source, AbortSignal(), None, set()):
        await entered.wait()
    assert closed.is_set()


# Error texts


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "m", "code": "c"}}, "m"),
        ({"error": "plain"}, "plain"),
        ({"detail": "fastapi"}, "fastapi"),
        ({"message": ["list"]}, '["list"]'),
        ([{"error": {"message": "in an array"}}], "in an array"),
        ({"message": "<html>page</html>"}, ""),
        ("  spread \n out ", "spread out"),
        (None, ""),
        (5, ""),
        ([], ""),
    ],
)
def test_the_sentence_of_an_error_body_is_found(body: object, text: str) -> None:
    assert error_text(body)[0] == text


def test_secrets_are_hidden_longest_first_and_the_text_is_bounded() -> None:
    secrets = Secrets.of(["secret-key", None, ""], ["secret-key-longer", "ab"])
    assert secrets.hide("x secret-key-longer secret-key ab") == "x *** *** ab"
    assert len(secrets.hide("y" * 9_999)) == 2_000
    assert "secret" not in repr(secrets)
