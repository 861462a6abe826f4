"""A conversation begun with one provider goes on with another: cases 46, 49, 55 and 56 over every pair of adapters."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from adapters import ADAPTERS, Adapter, Anthropic, Google, OpenAIChat, OpenAIResponses
from provider_fakes import DEADLINE_S, Connection, FakeServer
from strict import CHECKS

from agent_harness import AgentHarness, AgentTool, AgentToolResult, TextContent, ToolInvocation
from agent_harness.providers.base import Model, ModelRegistry
from agent_harness.providers.call_ids import CallIds
from agent_harness.session.context import NO_RESULT, unique_call_ids
from agent_harness.session.storage import EntryItem
from agent_harness.types.codec import dump
from agent_harness.types.entries import MessageBody, ProvisionedEntry
from agent_harness.types.messages import AgentMessage, AssistantMessage, ToolCall, ToolResultMessage, UserMessage
from session_backends import MemorySessionRepo

PRIVATE = "PRIVATE-thoughts"
SIGNATURE = "c2lnbmF0dXJl"  # the APIs take base64
LONG = "call|x:1/" + "long-" * 12
"""An id with characters and a length that some APIs refuse."""
PAIRS = list(permutations(ADAPTERS, 2))


def thinking(adapter: Adapter) -> bytes:
    """What the model thought, in the form that only its own API takes back."""
    match adapter:
        case OpenAIChat():
            return adapter._chunk({"reasoning_content": PRIVATE})
        case Anthropic():
            deltas = [
                {"type": "thinking_delta", "thinking": PRIVATE},
                {"type": "signature_delta", "signature": SIGNATURE},
            ]
            return adapter.block({"type": "thinking", "thinking": "", "signature": ""}, deltas)
        case OpenAIResponses():
            summary = [{"type": "summary_text", "text": PRIVATE}]
            item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": SIGNATURE}
            opened = adapter.added({"type": "reasoning", "id": "rs_1", "summary": []})
            return opened + adapter.event("response.output_item.done", output_index=0, item=item)
        case Google():
            return adapter.chunk({"text": PRIVATE, "thought": True}) + adapter.chunk(
                {"text": "", "thoughtSignature": SIGNATURE}
            )
    raise AssertionError(adapter)


def private_again(adapter: Adapter, body: bytes) -> bool:
    """Whether the thoughts went back to the API that made them."""
    return (PRIVATE if isinstance(adapter, OpenAIChat) else SIGNATURE).encode() in body


Script = Callable[[Connection], Awaitable[None]]


def plays(*pieces: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.send(*pieces)
        await connection.end()

    return script


class Talk:
    """The server of one adapter: a script per request, in order."""

    def __init__(self, adapter: Adapter, *scripts: Callable[[], Script]) -> None:
        self.adapter = adapter
        self.scripts: Iterator[Callable[[], Script]] = iter(scripts)
        self.cut = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        await next(self.scripts)()(connection)

    def says(self, text: str) -> Script:
        a = self.adapter
        return plays(a.start(), a.text(text), a.finish("stop"))

    def thinks_and_calls(self) -> Script:
        """Two calls of one id, or of none where the API has none."""
        a, same = self.adapter, "" if isinstance(self.adapter, Google) else "x"
        calls = [piece for n in "12" for piece in a.call(same, "look", f'{{"at": "first {n}"}}')]
        return plays(a.start(), thinking(a), *calls, a.finish("toolUse"))

    def calls_again(self) -> Script:
        """The id of the turn before once more, and one that others refuse."""
        a = self.adapter
        calls = [*a.call("x", "look", '{"at": "second"}'), *a.call(LONG, "look", '{"at": "third"}')]
        return plays(a.start(), *calls, a.finish("toolUse"))

    def holds(self, *pieces: bytes) -> Script:
        """Sends this and then nothing more."""

        async def script(connection: Connection) -> None:
            await connection.head()
            await connection.send(*pieces)
            self.cut.set()
            await connection.until_closed()

        return script


async def look(invocation: ToolInvocation) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text=f"saw {invocation.args['at']}"),))


LOOK = AgentTool(name="look", description="Looks.", parameters={"type": "object"}, execute=look)


def entry(id: str, message: AgentMessage) -> ProvisionedEntry:
    return ProvisionedEntry(id=id, body=MessageBody(message=message))


async def aborted_once(harness: AgentHarness, talk: Talk) -> None:
    """Prompt, abort when the server holds, and see the run end."""
    talk.cut.clear()
    work = asyncio.create_task(harness.prompt("never mind"))
    async with asyncio.timeout(DEADLINE_S):
        await talk.cut.wait()
        assert (await harness.abort()).ok
        assert (await work).unwrap().kind == "aborted"


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS])
async def test_a_conversation_goes_on_with_another_provider_and_comes_back(
    one: type[Adapter], other: type[Adapter]
) -> None:
    first, second = one(), other()
    talk = Talk(first)
    broken = first.call("y", "look", '{"at": ')[0] if first.args_are_text else first.text("half")
    talk.scripts = iter(
        [
            talk.thinks_and_calls,
            talk.calls_again,
            lambda: talk.says("seen it all"),
            lambda: talk.holds(first.start()),
            lambda: talk.holds(first.start(), broken),
            lambda: talk.says("back again"),
        ]
    )
    answers = Talk(second)
    answers.scripts = iter([lambda: answers.says("taken over")])
    here: Model = replace(first.model(), provider=first.name)
    there: Model = replace(second.model(), provider=second.name)
    session = await MemorySessionRepo().create()
    lost = ToolCall(id="lost|x:1", name="look", arguments={"at": "orphan"})
    asked = AssistantMessage(
        content=(lost,), api=here.api, provider=here.provider, model=here.id, stop_reason="toolUse", timestamp=2
    )
    await session.append_entry(entry("e1", UserMessage(content="zero", timestamp=1)), "main")
    await session.append_entry(entry("e2", asked), "main")  # as a converted session of another program may hold it

    async with FakeServer(talk) as home, FakeServer(answers) as abroad:
        models = ModelRegistry([first.provider(home.url), second.provider(abroad.url)], [here, there])
        async with AgentHarness.open(session=session, models=models, model=here, tools=[LOOK]) as harness:
            assert (await harness.prompt("begin")).unwrap().kind == "completed"
            await aborted_once(harness, talk)
            await aborted_once(harness, talk)
            before = [dump(i.entry.body) for i in await session.get_log() if isinstance(i, EntryItem)]

            await harness.set_model(there)
            assert (await harness.prompt("go on")).unwrap().kind == "completed"
            request = abroad.requests[0]
            results = [("look", NO_RESULT), *(("look", f"saw {n}") for n in ("first 1", "first 2", "second", "third"))]
            assert CHECKS[second.name](request.json) == results
            assert PRIVATE.encode() not in request.body
            assert SIGNATURE.encode() not in request.body
            assert b"seen it all" in request.body

            await harness.set_model(here)
            assert (await harness.prompt("come back")).unwrap().kind == "completed"
            request = home.requests[-1]
            assert CHECKS[first.name](request.json) == results
            assert private_again(first, request.body)
            assert b"taken over" in request.body
            after = [dump(i.entry.body) for i in await session.get_log() if isinstance(i, EntryItem)]
            assert after[: len(before)] == before
            assert await session.verify() == []


def test_ids_that_become_equal_when_they_are_cleaned_stay_apart() -> None:
    ids = CallIds(8)
    given = ["a:b", "a/b", "a_b", "", "call", "12345678-1", "12345678-2", "a:b"]
    sent = [ids(one) for one in given]
    assert sent == ["a_b", "a_b_1", "a_b_2", "call_1", "call", "12345678", "123456_1", "a_b"]
    assert CallIds(8)("functions.look:0", keep=True) == "functions.look:0"


def test_the_ids_of_a_longer_conversation_begin_like_those_of_a_shorter_one() -> None:
    given = [f"{'long' * 9}:{n % 3}/{n}" for n in range(12)]
    shorter, longer = CallIds(10), CallIds(10)
    assert [longer(one) for one in given][:7] == [shorter(one) for one in given[:7]]


def test_a_made_up_id_meets_no_id_of_the_provider() -> None:
    def answer(*ids: str) -> AssistantMessage:
        calls = tuple(ToolCall(id=one, name="look", arguments={}) for one in ids)
        return AssistantMessage(content=calls, api="a", provider="p", model="m", stop_reason="toolUse", timestamp=1)

    def results(*ids: str) -> list[ToolResultMessage]:
        return [
            ToolResultMessage(tool_call_id=i, tool_name="look", content=(), is_error=False, timestamp=1) for i in ids
        ]

    messages: list[Any] = [answer("call_2_0"), *results("call_2_0"), answer(""), *results("")]
    sent = unique_call_ids(messages)
    ids = [call.id for message in sent if isinstance(message, AssistantMessage) for call in message.tool_calls]
    assert len(set(ids)) == 2
    assert [m.tool_call_id for m in sent if isinstance(m, ToolResultMessage)] == ids
