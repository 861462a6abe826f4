"""A restored harness is followed like any other: at every crash site, from the snapshot of the suspended lane on."""

from pathlib import Path

import pytest

from agent_harness import AgentHarness
from agent_harness.testing import Scenario, ScriptedRequest, World, answer, crash_points
from agent_harness.types.messages import AssistantMessage, UserMessage
from agent_harness.types.structural import NavigateOptions
from session_backends import MemorySessionRepo
from tests.support.scenarios import (
    BLOCKED,
    ONE_TOOL_NEVER,
    ONE_TOOL_SAFE,
    RETRY,
    TERMINAL_FAILURE,
    harness_builder,
)
from tests.support.watching import Followers


def answer_all(world: World, request: ScriptedRequest) -> AssistantMessage:
    return answer("A summary, or an answer.")


async def fill(harness: AgentHarness) -> str:
    """Three long exchanges; returns the first entry's id."""
    ids = []
    for number in range(3):
        ids.append(await harness.session.append_message(UserMessage(content=f"Question {number}.", timestamp=1)))
        await harness.session.append_message(answer("Words fill the context. " * 400))
    return ids[0]


async def compact(harness: AgentHarness) -> object:
    await fill(harness)
    return await harness.compact()


async def navigate(harness: AgentHarness) -> object:
    return await harness.navigate_tree(await fill(harness), NavigateOptions(summarize=True, label="mark"))


COMPACTION = Scenario(name="compaction", build=harness_builder(answer_all, attempts=9), act=compact)
NAVIGATION = Scenario(name="navigation", build=harness_builder(answer_all, attempts=9), act=navigate)
SCENARIOS = [ONE_TOOL_NEVER, ONE_TOOL_SAFE, RETRY, TERMINAL_FAILURE, BLOCKED, COMPACTION, NAVIGATION]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_recovery_from_every_crash_site_is_followed(scenario: Scenario, tmp_path: Path) -> None:
    sites = 0
    async for point in crash_points(scenario, lambda _folder: MemorySessionRepo(), tmp_path, depth=2):
        async with Followers(point.harness) as followers:
            operation = followers.all[0].snapshot.operation
            assert (operation is not None) == bool(point.harness.suspended), point.label
            if operation is not None:
                assert operation.suspended == point.harness.suspended[0]
            await point.recover()
            await followers.add()
        assert followers.all[0].snapshot.operation is None
        sites += 1
    assert sites > 20, f"only {sites} crash points were derived"
