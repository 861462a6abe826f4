"""Subagents apart from crashes: abort, close, failure, deferred answers, shared context, and what is refused."""

import asyncio
import re
from collections.abc import Callable

import pytest

from agent_harness import (
    AgentHarness,
    AgentTool,
    AgentToolResult,
    AssistantMessage,
    ModelRegistry,
    Ok,
    Session,
    ToolInvocation,
    ToolOrigin,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agent_harness.extensions.subagent import ChildHarness, child_id, lane_subagent_tool, subagent_tool
from agent_harness.loop import AgentContext, AgentLoopConfig, run_agent_loop
from agent_harness.outcomes import RunAborted, RunCompleted
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ManualClock, ScriptedProvider, ScriptedRequest, answer, call
from agent_harness.types.messages import DeferredHandle
from tests.support.scenarios import text_of

ORIGIN = ToolOrigin(session_id="parent", lane="main", run_id="r", assistant_entry_id="a", tool_index=0)
COSTLY = Usage(input=100, output=50, total_tokens=150)


def hand_out(request: ScriptedRequest) -> AssistantMessage:
    """The parent: one task, then its result in its own words."""
    newest = request.context.messages[-1]
    if isinstance(newest, ToolResultMessage):
        return answer(f"heard: {text_of(newest)}")
    return answer(calls=[call("research", {"task": "look"}, id="call_0")])


async def harness_on(session: Session, provider: ScriptedProvider, *tools: AgentTool) -> AgentHarness:
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([provider], [SCRIPTED_MODEL]),
        model=SCRIPTED_MODEL,
        tools=tools,
        clock=ManualClock(),
    )
    return created.harness


class Family:
    """A parent with one subagent, on a child session or on a lane; `clock` is the subagent tool's."""

    def __init__(self, repo: SessionRepo, child: ScriptedProvider, *child_tools: AgentTool, on_lane: bool) -> None:
        self.repo = repo
        self.child = child
        self.child_tools = child_tools
        self.on_lane = on_lane
        self.clock = ManualClock()

    async def open(self, session: Session, share_context: bool = False) -> AgentHarness:
        async def respond(request: ScriptedRequest) -> AssistantMessage:
            users = [text_of(m) for m in request.context.messages if isinstance(m, UserMessage)]
            if users[-1] == "look":
                return next_answer(self.child, request)
            if users[-1] == "and now?":
                return answer("nothing new")
            return hand_out(request)

        provider = ScriptedProvider(respond=respond, fetches=self.child.fetches)

        async def open_child(child: Session, _invocation: ToolInvocation) -> ChildHarness:
            return await harness_on(child, provider, *self.child_tools)

        if self.on_lane:
            tool = lane_subagent_tool(
                name="research",
                description="Looks.",
                session=session,
                harness=lambda: parent,
                share_context=share_context,
                clock=self.clock,
            )
            parent = await harness_on(session, provider, tool, *self.child_tools)
            return parent
        tool = subagent_tool(
            name="research", description="Looks.", repo=self.repo, open_child=open_child, clock=self.clock
        )
        return await harness_on(session, provider, tool)

    async def child_view(self, parent: Session) -> tuple[Session, str]:
        """The session and the lane of the only child."""
        if self.on_lane:
            (lane,) = [pointer.lane for pointer in await parent.get_lanes() if pointer.lane != "main"]
            return parent, lane
        (found,) = [m.id for m in await self.repo.list() if m.id != parent.id]
        return await self.repo.open(found, read_only=True), "main"


def next_answer(script: ScriptedProvider, request: ScriptedRequest) -> AssistantMessage:
    """The script's next answer; its requests are kept over any number of harnesses."""
    script.requests.append(request)
    given = script.answers[len(script.requests) - 1]
    return answer(given) if isinstance(given, str) else given


async def ended(session: Session, lane: str) -> list[str]:
    records = await session.find_records(lane=lane, type="operation_finished", order="oldestFirst")
    return [record.body.outcome for record in records]


class Hanging:
    """The child's tool: it runs until it is stopped, once; afterwards it returns."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.runs = 0

    @property
    def tool(self) -> AgentTool:
        async def execute(_invocation: ToolInvocation) -> AgentToolResult:
            self.runs += 1
            self.running.set()
            if self.runs == 1:
                await asyncio.Event().wait()
            return AgentToolResult()

        return AgentTool(
            name="hang", description="Hangs.", parameters={"type": "object"}, execute=execute, replay="safe"
        )


@pytest.fixture(params=[False, True], ids=["child session", "child lane"])
def on_lane(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_an_abort_of_the_parent_aborts_the_child(repo: SessionRepo, on_lane: bool) -> None:
    hanging = Hanging()
    family = Family(repo, ScriptedProvider(answers=[answer(calls=[call("hang")])]), hanging.tool, on_lane=on_lane)
    session = await repo.create(id="parent")
    async with await family.open(session) as parent:
        work = asyncio.ensure_future(parent.prompt("go"))
        await hanging.running.wait()
        await parent.abort()
        outcome = (await work).unwrap()
        assert isinstance(outcome, RunAborted)
        child, lane = await family.child_view(session)
        assert await ended(child, lane) == ["aborted"]
        results = [e.message for e in await session.find_entries() if isinstance(e.message, ToolResultMessage)]
        assert [m.is_error for m in results if m.tool_name == "research"] == [True]
    await repo.close()


async def test_closing_the_parent_only_detaches_the_child(repo: SessionRepo, on_lane: bool) -> None:
    hanging = Hanging()
    script = ScriptedProvider(answers=[answer("Well", calls=[call("hang")]), "seen"])
    family = Family(repo, script, hanging.tool, on_lane=on_lane)
    session = await repo.create(id="parent")
    parent = await family.open(session)
    work = asyncio.ensure_future(parent.prompt("go"))
    await hanging.running.wait()
    await parent.close()
    await asyncio.wait([work])
    assert work.exception() is not None

    session = await repo.open("parent")
    async with await family.open(session) as parent:
        child, lane = await family.child_view(session)
        assert await ended(child, lane) == []
        outcome = (await parent.resume()).unwrap()
        assert isinstance(outcome, RunCompleted)
        assert outcome.final_message.text == "heard: seen"
        child, lane = await family.child_view(session)
        assert await ended(child, lane) == ["completed"]
    assert len(script.requests) == 2  # the first answer was durable
    assert hanging.runs == 2
    await repo.close()


async def test_a_child_that_fails_is_an_error_result_with_its_cost(repo: SessionRepo, on_lane: bool) -> None:
    failure = answer(error_message="no key", error_code="auth", usage=COSTLY)
    family = Family(repo, ScriptedProvider(answers=[failure]), on_lane=on_lane)
    session = await repo.create(id="parent")
    async with await family.open(session) as parent:
        outcome = (await parent.prompt("go")).unwrap()
        assert outcome.final_message.text == "heard: The subagent's run failed: no key"
        (result,) = [e.message for e in await session.find_entries() if isinstance(e.message, ToolResultMessage)]
        assert result.is_error
        assert result.details["subagent"]["outcome"] == "failed"
        assert result.usage == (None if on_lane else COSTLY)
        assert (await session.get_stats()).usage.input == 120  # two requests of the parent's, and the child's once
    await repo.close()


async def test_a_deferred_child_is_asked_again_when_its_provider_said(repo: SessionRepo, on_lane: bool) -> None:
    handle = DeferredHandle(
        provider="scripted", model_id=SCRIPTED_MODEL.id, api=SCRIPTED_MODEL.api, id="h1", poll_after_ms=750
    )
    later = answer(deferred=handle)
    family = Family(repo, ScriptedProvider(answers=[later], fetches=[later, answer("at last")]), on_lane=on_lane)
    session = await repo.create(id="parent")
    async with await family.open(session) as parent:
        outcome = (await parent.prompt("go")).unwrap()
        assert outcome.final_message.text == "heard: at last"
    assert family.clock.slept_ms == [750, 750]
    await repo.close()


@pytest.mark.parametrize("share", [False, True])
async def test_a_lane_begins_at_the_root_or_where_its_parent_stands(repo: SessionRepo, share: bool) -> None:
    script = ScriptedProvider(answers=["seen"])
    family = Family(repo, script, on_lane=True)
    session = await repo.create(id="parent")
    async with await family.open(session, share_context=share) as parent:
        outcome = (await parent.prompt("go")).unwrap()
        assert outcome.final_message.text == "heard: seen"
    told = [text_of(m) for m in script.requests[0].context.messages if isinstance(m, UserMessage)]
    assert told == (["go", "look"] if share else ["look"])
    await repo.close()


async def test_a_later_talk_with_the_child_does_not_change_its_answer(repo: SessionRepo) -> None:
    """The answer of a call is that of the child's first run, even when the lane went on."""
    script = ScriptedProvider(answers=["seen"])
    family = Family(repo, script, on_lane=True)
    session = await repo.create(id="parent")
    async with await family.open(session) as parent:
        assert isinstance(await parent.prompt("go"), Ok)
        _, name = await family.child_view(session)
        lane = await parent.lane(name)
        assert lane is not None
        assert isinstance(await lane.prompt("and now?"), Ok)
        tool = lane_subagent_tool(name="again", description="", session=session, harness=lambda: parent)
        entries = await session.find_entries(order="oldestFirst")
        first = next(e for e in entries if isinstance(e.message, AssistantMessage) and e.message.tool_calls)
        origin = ToolOrigin(session_id="parent", lane="main", run_id="r", assistant_entry_id=first.id, tool_index=0)
        assert tool.execute is not None
        again = await tool.execute(invocation(origin))
        assert again.content[0].text == "seen"
    await repo.close()


def invocation(origin: ToolOrigin | None, aborted: Callable[[], bool] = lambda: False) -> ToolInvocation:
    class Signal:
        @property
        def aborted(self) -> bool:
            return aborted()

        def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
            return lambda: None

    return ToolInvocation(tool_call_id="call_0", args={"task": "look"}, signal=Signal(), origin=origin)


async def test_a_child_that_cannot_be_opened_leaves_its_session_free(repo: SessionRepo) -> None:
    async def broken(_session: Session, _invocation: ToolInvocation) -> ChildHarness:
        raise OSError("no model")

    tool = subagent_tool(name="research", description="", repo=repo, open_child=broken)
    assert tool.execute is not None
    for _ in range(2):  # the second time it exists and has to be free
        with pytest.raises(OSError, match="no model"):
            await tool.execute(invocation(ORIGIN))
    assert [m.id for m in await repo.list()] == [child_id(ORIGIN)]
    await repo.close()


def test_the_name_of_a_child_depends_on_the_call_and_on_nothing_else() -> None:
    def named(session_id: str = "parent", entry: str = "a", index: int = 0, run_id: str = "r") -> str:
        origin = ToolOrigin(
            session_id=session_id, lane="main", run_id=run_id, assistant_entry_id=entry, tool_index=index
        )
        return child_id(origin)

    assert named() == named(run_id="other") == "sub-" + named()[4:]
    assert len({named(), named(session_id="p"), named(entry="b"), named(index=1), named("paren", "ta")}) == 5
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", named("x" * 500, "é"))


@pytest.mark.parametrize("args", [{}, {"task": ""}, {"task": " "}, {"task": 1}, {"task": "x", "more": 1}])
def test_a_call_without_a_task_is_refused(args: dict[str, object]) -> None:
    async def never(_session: Session, _invocation: ToolInvocation) -> ChildHarness:
        raise AssertionError

    tool = subagent_tool(name="research", description="", repo=None, open_child=never)
    assert tool.validate is not None
    with pytest.raises(ValueError, match="task"):
        tool.validate(args)
    assert tool.validate({"task": "look"}) == {"task": "look"}


async def test_without_a_session_a_subagent_says_that_it_needs_one(repo: SessionRepo) -> None:
    async def never(_session: Session, _invocation: ToolInvocation) -> ChildHarness:
        raise AssertionError

    tool = subagent_tool(name="research", description="", repo=repo, open_child=never)
    provider = ScriptedProvider(respond=hand_out)
    config = AgentLoopConfig(model=SCRIPTED_MODEL, models=ModelRegistry([provider], [SCRIPTED_MODEL]))
    context = AgentContext(tools=[tool])
    added = await run_agent_loop([UserMessage(content="go", timestamp=0)], context, config, lambda _event: None)
    assert text_of(added[-1]) == "heard: RuntimeError: a subagent needs a session: its parent runs in none"
    assert await repo.list() == []
    await repo.close()
