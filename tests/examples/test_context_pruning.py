"""Context pruning at every crash point: requests are short, the session keeps everything."""

from pathlib import Path

from agent_harness import AssistantMessage, ToolResultMessage
from agent_harness.testing import ScriptedRequest, World, answer, call
from examples.context_pruning import ContextPruning
from tests.examples.example_support import on_memory_and_sqlite, outcome, recovered, results, scenario
from tests.support.scenarios import counting_tool, text_of

LONG = "soil " * 200
TURNS = 4


def measure_four_times(world: World, request: ScriptedRequest) -> AssistantMessage:
    seen = [text_of(m) for m in request.context.messages if isinstance(m, ToolResultMessage)]
    whole = [text == LONG for text in seen]
    # One kept, and two at a time let go: [1], [1, 1], [0, 0, 1], [0, 0, 1, 1].
    expected = [False] * (max(0, len(seen) - 1) // 2 * 2)
    assert whole == expected + [True] * (len(seen) - len(expected)), whole
    assert all("1000 characters, was left out" in text for text, kept in zip(seen, whole, strict=True) if not kept)
    world.bump(f"saw {len(seen)}")
    if len(seen) == TURNS:
        return answer("Done.")
    return answer(calls=[call("measure", id=f"c{len(seen)}")])


@on_memory_and_sqlite
async def test_old_results_are_sent_short_and_stay_whole_in_the_session(store: str, tmp_path: Path) -> None:
    work = scenario(
        "pruning",
        measure_four_times,
        tools=lambda world: [counting_tool(world, "measure", "safe", LONG)],
        extensions=lambda world: [ContextPruning(keep=1, step=2)],
    )
    async for point in recovered(
        work, store, tmp_path, depth=1
    ):  # the hook keeps nothing that a second crash could lose
        assert await outcome(point.session) == "completed"
        assert [text_of(result) for result in await results(point.session)] == [LONG] * TURNS, point.label
        assert all(point.world.count(f"saw {n}") >= 1 for n in range(TURNS + 1)), point.label


def test_short_results_and_other_messages_stay_as_they_are() -> None:
    def result(text: str) -> ToolResultMessage:
        from agent_harness import TextContent

        return ToolResultMessage(
            tool_call_id="c", tool_name="measure", content=(TextContent(text=text),), is_error=False, timestamp=1
        )

    messages = (answer("Hello."), result("short"), result("x" * 401), result("y" * 401))
    pruned = ContextPruning(keep=1, step=1).pruned(messages)
    assert pruned[:2] == messages[:2]
    assert pruned[3] == messages[3]
    assert "401 characters" in text_of(pruned[2])
