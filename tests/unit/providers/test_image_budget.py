"""Images that grow beyond the provider's byte limit: one compaction, and the session goes on (case 64, threat T25)."""

import re
from dataclasses import replace

from adapters import Adapter
from provider_fakes import Connection, FakeServer
from strict import CHECKS

from agent_harness import AgentHarness, AgentTool, AgentToolResult, ImageContent, ToolInvocation
from agent_harness.providers.base import ModelRegistry
from agent_harness.types.messages import AssistantMessage
from session_backends import MemorySessionRepo

LIMIT = 200_000
PICTURE = ImageContent(data="QUJD" * 7_500, mime_type="image/png")
"""30,000 characters of base64: ten of them are more than the limit."""
SUMMARY = re.compile(rb"<conversation>")


class Strict:
    """A server with a byte limit. The model takes pictures, then tells what it saw."""

    def __init__(self, adapter: Adapter, pictures: int, *, limit: int = LIMIT) -> None:
        self.adapter = adapter
        self.pictures = pictures
        self.limit = limit
        self.refused = 0
        self.summaries = 0

    async def __call__(self, connection: Connection) -> None:
        a = self.adapter
        if len(connection.body) > self.limit:
            self.refused += 1
            await connection.reply(413, a.error_body(413, "Request Entity Too Large"))
            return
        await connection.head()
        if SUMMARY.search(connection.body):
            self.summaries += 1
            await connection.send(a.start(), a.text("There were pictures."), a.finish("stop"))
        elif self.pictures:
            self.pictures -= 1
            await connection.send(a.start(), *a.call(f"c{self.pictures}", "look", "{}"), a.finish("toolUse"))
        else:
            await connection.send(a.start(), a.text("Seen."), a.finish("stop"))
        await connection.end()


async def look(invocation: ToolInvocation) -> AgentToolResult:
    return AgentToolResult(content=(PICTURE,))


LOOK = AgentTool(name="look", description="Takes a picture.", parameters={"type": "object"}, execute=look)


async def test_too_many_images_are_compacted_once_and_the_next_prompt_works(adapter: Adapter) -> None:
    strict = Strict(adapter, pictures=10)
    model = replace(adapter.model(), context_window=1_000_000)
    session = await MemorySessionRepo().create()
    async with FakeServer(strict) as server:
        models = ModelRegistry([adapter.provider(server.url)], [model])
        async with AgentHarness.open(session=session, models=models, model=model, tools=[LOOK]) as harness:
            outcome = (await harness.prompt("Look at all beds.")).unwrap()
            assert outcome.kind == "completed"
            assert isinstance(outcome.final_message, AssistantMessage)
            assert outcome.final_message.text == "Seen."
            assert (strict.refused, strict.summaries) == (1, 1)
            assert (await harness.prompt("And now?")).unwrap().kind == "completed"
            assert strict.refused == 1
            CHECKS[adapter.name](server.requests[-1].json)
            assert len(await session.find_entries(type="compaction")) == 1
            assert await session.verify() == []


async def test_a_single_result_that_does_not_fit_gives_way_to_a_summary(adapter: Adapter) -> None:
    strict = Strict(adapter, pictures=1, limit=len(PICTURE.data) // 2)
    model = replace(adapter.model(), context_window=1_000_000)
    session = await MemorySessionRepo().create()
    async with FakeServer(strict) as server:
        models = ModelRegistry([adapter.provider(server.url)], [model])
        async with AgentHarness.open(session=session, models=models, model=model, tools=[LOOK]) as harness:
            outcome = (await harness.prompt("Look.")).unwrap()
            assert outcome.kind == "completed"
            assert (await harness.prompt("And now?")).unwrap().kind == "completed"
            assert (strict.refused, strict.summaries, len(server.requests)) == (1, 1, 5)
            assert await session.verify() == []


async def test_a_prompt_that_never_fits_fails_cleanly_and_the_next_one_works(adapter: Adapter) -> None:
    strict = Strict(adapter, pictures=0, limit=len(PICTURE.data) // 2)
    model = replace(adapter.model(), context_window=1_000_000)
    session = await MemorySessionRepo().create()
    async with FakeServer(strict) as server:
        models = ModelRegistry([adapter.provider(server.url)], [model])
        async with AgentHarness.open(session=session, models=models, model=model) as harness:
            outcome = (await harness.prompt("Look.", [PICTURE])).unwrap()
            assert outcome.kind == "failed"
            assert strict.refused == 2
            following = (await harness.prompt("And without it?")).unwrap()
            assert following.kind == "completed"
            assert await session.verify() == []
