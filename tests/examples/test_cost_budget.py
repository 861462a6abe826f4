"""The cost budget at every crash point: the run stops at the limit, and recovery does not spend past it."""

from pathlib import Path

from agent_harness import AssistantMessage, Usage
from agent_harness.testing import ScriptedRequest, World, answer, call
from agent_harness.types.messages import Cost
from examples.cost_budget import CostBudget
from tests.examples.example_support import count, on_memory_and_sqlite, outcome, recovered, results, scenario
from tests.support.scenarios import counting_tool

LIMIT = 2.0


def never_done(world: World, request: ScriptedRequest) -> AssistantMessage:
    usage = Usage(input=10, output=5, total_tokens=15, cost=Cost(total=1.0))
    return answer(calls=[call("measure", id=f"c{world.count('requests')}")], usage=usage)


WORK = scenario(
    "budget",
    never_done,
    tools=lambda world: [counting_tool(world, "measure")],
    extensions=lambda world: [CostBudget(LIMIT)],
)


@on_memory_and_sqlite
async def test_the_run_is_aborted_at_the_limit_and_stays_so(store: str, tmp_path: Path) -> None:
    async for point in recovered(WORK, store, tmp_path):
        assert await outcome(point.session) == "aborted", point.label
        assert (await point.session.get_stats()).usage.cost.total == LIMIT, point.label
        # Each crash can lose one answer that was paid for.
        assert 2 <= point.world.count("requests") <= 2 + point.depth, point.label
        assert point.world.count("measure") <= 1, point.label  # the second answer's call was not started
        assert all(result.is_error for result in (await results(point.session))[1:]), point.label

        again = (await point.harness.prompt("And now?")).unwrap()
        assert again.kind == "aborted", point.label
        assert point.world.count("requests") <= 2 + point.depth
        assert await count(point.session, "operation_finished") == 2


async def test_below_the_limit_nothing_changes(tmp_path: Path) -> None:
    def done(world: World, request: ScriptedRequest) -> AssistantMessage:
        return answer("Done.", usage=Usage(input=1, output=1, total_tokens=2, cost=Cost(total=0.5)))

    work = scenario("cheap", done, tools=lambda world: [], extensions=lambda world: [CostBudget(LIMIT)])
    async for point in recovered(work, "memory", tmp_path):
        assert await outcome(point.session) == "completed"
