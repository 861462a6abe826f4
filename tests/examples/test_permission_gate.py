"""The permission gate at every crash point: what is refused never starts, what was cleared is not asked about again."""

import asyncio
from pathlib import Path

from agent_harness import AssistantMessage, ToolResultMessage
from agent_harness.hooks.catalog import BeforeTool
from agent_harness.testing import ScriptedRequest, World, answer, call, crash_points
from examples.permission_gate import PermissionGate
from tests.examples.example_support import on_memory_and_sqlite, outcome, recovered, results, scenario
from tests.support.backends import make_repo
from tests.support.scenarios import counting_tool, text_of


def three_calls(world: World, request: ScriptedRequest) -> AssistantMessage:
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("Done.")
    return answer(calls=[call("look", id="c1"), call("buy", id="c2"), call("erase", id="c3")])


def tools(world: World):
    return [counting_tool(world, name, "safe") for name in ("look", "buy", "erase")]


def gate(world: World) -> PermissionGate:
    async def ask(event: BeforeTool) -> bool:
        world.bump(f"asked about {event.tool_name}")
        return event.tool_name == "buy"

    return PermissionGate({"look": "allow", "erase": "refuse"}, ask=ask)


@on_memory_and_sqlite
async def test_a_refused_tool_never_starts_and_an_allowed_one_is_asked_about_until_it_started(
    store: str, tmp_path: Path
) -> None:
    asked_again = 0
    work = scenario("gate", three_calls, tools=tools, extensions=lambda world: [gate(world)])
    async for point in recovered(work, store, tmp_path):
        world = point.world
        assert await outcome(point.session) == "completed"
        look, buy, erase = await results(point.session)
        assert (look.is_error, buy.is_error, erase.is_error) == (False, False, True), point.label
        assert "does not allow erase" in text_of(erase)
        assert world.count("erase") == 0, point.label
        started = await point.session.find_records(type="tool_started")
        assert {record.body.tool_name for record in started} == {"look", "buy"}
        assert 1 <= world.count("asked about buy") <= 1 + point.depth, point.label
        asked_again += world.count("asked about buy") > 1
        assert world.count("asked about look") == world.count("asked about erase") == 0
    assert asked_again > 0  # a crash between the answer and `tool_started`


@on_memory_and_sqlite
async def test_a_gate_that_gets_no_answer_refuses(store: str, tmp_path: Path) -> None:
    async def never(event: BeforeTool) -> bool:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    def silent(world: World) -> PermissionGate:
        return PermissionGate({"look": "allow", "erase": "refuse"}, ask=never, timeout_ms=1)

    work = scenario("silent gate", three_calls, tools=tools, extensions=lambda world: [silent(world)])
    seen = 0
    async for point in crash_points(work, lambda path: make_repo(store, path), tmp_path, depth=1):
        await point.recover()
        assert point.world.count("buy") == point.world.count("erase") == 0, point.label
        if await point.session.find_records(type="operation_finished"):
            assert [result.is_error for result in await results(point.session)] == [False, True, True], point.label
            seen += 1
    assert seen > 10
