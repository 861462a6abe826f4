"""The to-do list at every crash point: the newest entry is what the model last wrote, and it is shown to it."""

from contextlib import aclosing
from pathlib import Path

from agent_harness import AssistantMessage, ToolResultMessage
from agent_harness.testing import ScriptedRequest, World, answer, call
from examples.todo_list import CUSTOM_TYPE, PROJECTORS, Item, TodoList
from tests.examples.example_support import on_memory_and_sqlite, outcome, recovered, scenario

FIRST = [{"text": "dig", "state": "doing"}, {"text": "plant", "state": "open"}]
SECOND = [{"text": "dig", "state": "done"}, {"text": "plant", "state": "doing"}]


def texts(request: ScriptedRequest) -> list[str]:
    return [m.content for m in request.context.messages if isinstance(m.content, str)]


def plan_then_tick(world: World, request: ScriptedRequest) -> AssistantMessage:
    assert [tool.name for tool in request.context.tools] == ["todo"]
    done = sum(isinstance(message, ToolResultMessage) for message in request.context.messages)
    shown = [text for text in texts(request) if text.startswith("The to-do list is now:")]
    match done:
        case 0:
            assert shown == []
            return answer(calls=[call("todo", {"items": FIRST}, id="c1")])
        case 1:
            assert shown[-1] == "The to-do list is now:\n- [doing] dig\n- [open] plant"
            return answer(calls=[call("todo", {"items": SECOND}, id="c2")])
        case _:
            assert shown[-1] == "The to-do list is now:\n- [done] dig\n- [doing] plant"
            world.bump("finished")
            return answer("Done.")


WORK = scenario(
    "to-do list",
    plan_then_tick,
    tools=lambda world: [],
    extensions=lambda world: [TodoList()],
    entry_projectors=PROJECTORS,
)


@on_memory_and_sqlite
async def test_the_list_survives_every_crash(store: str, tmp_path: Path) -> None:
    written_again = 0
    async for point in recovered(WORK, store, tmp_path):
        assert await outcome(point.session) == "completed", point.label
        assert point.world.count("finished") >= 1
        assert await TodoList.items(point.harness) == [Item.model_validate(item) for item in SECOND], point.label
        entries = await point.session.find_entries(type="custom", custom_type=CUSTOM_TYPE, order="oldestFirst")
        lists = [entry.body.data["items"] for entry in entries]
        assert [items for n, items in enumerate(lists) if n == 0 or items != lists[n - 1]] == [FIRST, SECOND]
        assert len(lists) <= 2 + point.depth, point.label
        written_again += len(lists) > 2
    assert written_again > 0  # a crash between the entry and the tool's result


@on_memory_and_sqlite
async def test_each_branch_has_its_own_list(store: str, tmp_path: Path) -> None:
    async with aclosing(recovered(WORK, store, tmp_path)) as points:
        point = await anext(points)
        other = (await point.harness.create_lane("other", None)).unwrap()
        assert await TodoList.items(other) == []
        assert len(await TodoList.items(point.harness)) == 2
