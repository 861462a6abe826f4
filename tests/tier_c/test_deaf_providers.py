"""A provider that ignores its abort signal, and even cancellation, keeps nobody waiting (decisions section 3)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Literal

import pytest

from agent_harness import AgentHarness
from agent_harness.hooks.catalog import BeforePayload, BeforePayloadResult
from agent_harness.loop.provider_stream import GRACE_S, LET_GO_S
from agent_harness.providers.base import (
    AssistantMessageEvent,
    Model,
    ModelRegistry,
    ProviderContext,
    ProviderResponse,
    RequestContext,
    StreamDelta,
    StreamEnd,
    StreamOptions,
    StreamStart,
)
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_API, SCRIPTED_MODEL, answer, call, drive_until, start
from agent_harness.types.messages import AssistantMessage, DeferredHandle, TextContent
from session_backends import MemorySessionRepo
from tests.support.prefix import HANDLE, Prefix
from tests.support.rig import Rig, assert_sound, open_rig, turns

Where = Literal["head", "text", "end", "chatter"]
BOUND_S = GRACE_S + LET_GO_S + 3.0
"""What an abort may take, with room for a slow machine."""


@pytest.fixture
def repo() -> SessionRepo:
    """Where it is stored does not matter here."""
    return MemorySessionRepo()


class DeafProvider:
    """Hears no signal and, if `stubborn`, no cancellation either, until the test lets it go."""

    api = SCRIPTED_API

    def __init__(self, where: Where = "head", *, stubborn: bool = False) -> None:
        self.where = where
        self.stubborn = stubborn
        self.stuck = asyncio.Event()
        self.released = asyncio.Event()
        self.open = 0
        self.asked = 0
        self.cancels: list[DeferredHandle] = []
        self.deaf = True

    async def hang(self) -> None:
        self.open += 1
        self.stuck.set()
        try:
            while not self.released.is_set():
                try:
                    await self.released.wait()
                except asyncio.CancelledError:
                    if not self.stubborn:
                        raise
        finally:
            self.open -= 1

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        self.asked += 1
        if request.on_payload is not None:
            await request.on_payload({})
        if not self.deaf:
            yield StreamEnd(message=answer("heard"))
            return
        if self.where == "head":
            await self.hang()
        partial = replace(answer("Half an ans", calls=[call("measure")]), stop_reason="pending")
        if request.on_response is not None:
            await request.on_response(ProviderResponse(status=200))
        yield StreamStart(partial=partial)
        yield StreamDelta(type="text_delta", index=0, delta="Half an ans", partial=partial)
        if self.where == "text":
            await self.hang()
        while self.where == "chatter" and not self.released.is_set():
            self.stuck.set()
            yield StreamDelta(type="text_delta", index=0, delta="", partial=partial)
            await asyncio.sleep(0.001)
        yield StreamEnd(message=answer("whole"))
        await self.hang()

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> AssistantMessage:
        await self.hang()
        return answer("too late")

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> None:
        assert not request.signal.aborted
        self.cancels.append(handle)
        await self.hang()


def partial_text(message: AssistantMessage) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextContent))


async def rig_with(repo: SessionRepo, provider: DeafProvider, **options: object) -> Rig:
    return await open_rig(await repo.create(), models=ModelRegistry([provider], [SCRIPTED_MODEL]), **options)


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize(
    ("where", "said"), [("head", ""), ("text", "Half an ans"), ("chatter", "Half an ans"), ("end", "whole")]
)
async def test_an_abort_does_not_wait_for_a_deaf_provider(
    repo: SessionRepo, where: Where, said: str, stubborn: bool
) -> None:
    provider = DeafProvider(where, stubborn=stubborn)
    rig = await rig_with(repo, provider)
    work = asyncio.ensure_future(rig.harness.prompt("go"))
    await asyncio.wait_for(provider.stuck.wait(), 20)
    assert (await rig.harness.abort()).ok
    outcome = (await asyncio.wait_for(work, BOUND_S)).unwrap()
    assert outcome.kind == "aborted"
    texts = [partial_text(e.message) for e in await entries(rig) if isinstance(e.message, AssistantMessage)]
    assert texts[0] == said
    assert all(not e.message.tool_calls for e in await entries(rig) if isinstance(e.message, AssistantMessage))

    provider.deaf = False  # the next prompt works while the old stream still hangs
    assert (await asyncio.wait_for(rig.harness.prompt("again"), 20)).unwrap().final_message.text == "heard"
    await assert_sound(rig.session)
    provider.released.set()
    await turns()
    assert provider.open == 0
    assert (await rig.harness.prompt("and again")).ok


async def entries(rig: Rig) -> list[object]:
    return [item.entry for item in await rig.session.get_log() if hasattr(item, "entry")]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_close_is_bounded_with_a_deaf_provider(repo: SessionRepo, stubborn: bool) -> None:
    provider = DeafProvider("text", stubborn=stubborn)
    rig = await rig_with(repo, provider)
    work = asyncio.ensure_future(rig.harness.prompt("go"))
    await asyncio.wait_for(provider.stuck.wait(), 20)
    await asyncio.wait_for(rig.harness.close(), 3 * BOUND_S)
    assert provider.open == (1 if stubborn else 0)
    await asyncio.gather(work, return_exceptions=True)
    provider.released.set()
    await turns()
    assert provider.open == 0


async def test_a_stream_that_was_given_up_is_closed_with_the_harness(repo: SessionRepo) -> None:
    provider = DeafProvider("text", stubborn=True)
    rig = await rig_with(repo, provider)
    work = asyncio.ensure_future(rig.harness.prompt("go"))
    await asyncio.wait_for(provider.stuck.wait(), 20)
    await rig.harness.abort()
    await asyncio.wait_for(work, BOUND_S)
    assert provider.open == 1
    provider.stubborn = False
    await rig.harness.close()
    assert provider.open == 0


async def test_a_deaf_fetch_and_a_deaf_cancellation_do_not_hold_the_abort(repo: SessionRepo) -> None:
    provider = DeafProvider()
    session = await repo.create()
    await Prefix(session).deferred()
    rig = await open_rig(session, models=ModelRegistry([provider], [SCRIPTED_MODEL]))
    work = asyncio.ensure_future(rig.harness.resume())
    await asyncio.wait_for(provider.stuck.wait(), 20)
    assert (await rig.harness.abort()).ok
    assert (await asyncio.wait_for(work, BOUND_S + 5)).unwrap().kind == "aborted"
    assert provider.cancels == [HANDLE]
    await assert_sound(session)
    await turns()
    assert provider.open == 0


async def test_hooks_inside_a_request_run_in_the_task_of_the_operation(repo: SessionRepo) -> None:
    """The gate knows a nested hook by its task: with manual drive it parks in front and can be released."""
    provider = DeafProvider()
    provider.deaf = False
    rig = await rig_with(repo, provider, drive="manual")
    seen: list[asyncio.Task[object] | None] = []

    def hook(event: BeforePayload) -> BeforePayloadResult | None:
        seen.append(asyncio.current_task())
        return None

    rig.harness.hooks.on("before_payload", hook)
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, "stream_assistant")
    async with asyncio.timeout(20):  # parked behind its own request it would never be released
        nested = await rig.harness.execute_action()
    assert nested is not None
    assert (nested.kind, seen) == ("hook", [])
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"
    assert len(seen) == 1


async def test_a_hook_that_fails_inside_a_request_fails_the_request_and_not_the_harness(repo: SessionRepo) -> None:
    async def closes(event: BeforePayload) -> None:
        await harness.close()

    provider = DeafProvider()
    provider.deaf = False
    rig = await rig_with(repo, provider)
    harness: AgentHarness = rig.harness
    harness.hooks.on("before_payload", closes)
    work = asyncio.ensure_future(harness.prompt("go"))
    await asyncio.wait({work}, timeout=20)
    assert work.done()
    assert provider.asked == 1
