"""Parents and their subagents under crash points: the children are driven by hand too, and every action of theirs is a
place where the whole store is copied."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_harness import AgentHarness, AgentLane, AgentTool, RetryPolicy, Session, ToolInvocation
from agent_harness.errors import HarnessClosed
from agent_harness.extensions.subagent import lane_subagent_tool, subagent_tool
from agent_harness.options import Drive
from agent_harness.outcomes import CreateLaneRejected, LaneBusy, NothingToResume
from agent_harness.providers.base import ModelRegistry
from agent_harness.result import Result
from agent_harness.testing import (
    SCRIPTED_MODEL,
    ManualClock,
    Scenario,
    ScriptedProvider,
    ScriptedRequest,
    World,
    answer,
    call,
)
from agent_harness.types.messages import AssistantMessage, ToolResultMessage, UserMessage
from tests.support.scenarios import counting_tool, text_of

TASKS = ("bed 1", "bed 2", "bed 3")


@dataclass
class Copies:
    """Copies of the store and the world, taken while `taking`."""

    directory: Path
    taking: bool = True
    worlds: list[tuple[str, World]] = field(default_factory=list)

    async def take(self, label: str, world: World) -> None:
        if not self.taking:
            return
        folder = self.directory / f"child-{len(self.worlds)}"
        (folder / "store").mkdir(parents=True)
        twin = await world.repo.snapshot(folder / "store")
        self.worlds.append((label, world.copy(folder / "world", twin)))


class Driver:
    """Releases the actions of a child's lane, one after the other, and copies after each."""

    def __init__(self, world: World, copies: Copies) -> None:
        self._world = world
        self._copies = copies
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def drive(self, key: str, lane: AgentLane) -> None:
        if key not in self._tasks:
            self._tasks[key] = asyncio.ensure_future(self._drive(key, lane))

    async def _drive(self, key: str, lane: AgentLane) -> None:
        try:
            while True:
                action = await lane.peek_action()
                if action is None:
                    await asyncio.sleep(0)
                    continue
                await lane.execute_action()
                await self._copies.take(f"{key} after {action.kind}", self._world)
        except HarnessClosed:
            pass


def parent_answers(batches: Sequence[Sequence[str]]) -> Callable[[ScriptedRequest], AssistantMessage]:
    """One batch of tasks per turn, every call with the same id, then "Done."."""

    def respond(request: ScriptedRequest) -> AssistantMessage:
        done = sum(isinstance(m, AssistantMessage) and bool(m.tool_calls) for m in request.context.messages)
        if done == len(batches):
            return answer("Done.")
        return answer(calls=[call("research", {"task": task}, id="call_0") for task in batches[done]])

    return respond


def child_answers(request: ScriptedRequest) -> AssistantMessage:
    """Measures once, then tells."""
    newest = request.context.messages[-1]
    if isinstance(newest, ToolResultMessage):
        task = next(text_of(m) for m in request.context.messages if isinstance(m, UserMessage))
        return answer(f"{task} is dry")
    return answer(calls=[call("measure", {}, id="call_0")])


def family(name: str, batches: Sequence[Sequence[str]], copies: Copies, *, on_lane: bool = False) -> Scenario:
    """A parent that hands out tasks, to child sessions or to lanes of its own session."""

    async def build(session: Session, world: World, drive: Drive) -> AgentHarness:
        driver = Driver(world, copies)
        asked = parent_answers(batches)

        def respond(request: ScriptedRequest) -> AssistantMessage:
            first = next(m for m in request.context.messages if isinstance(m, UserMessage))
            child = text_of(first) in TASKS
            world.bump("child requests" if child else "parent requests")
            return child_answers(request) if child else asked(request)

        async def create(on: Session, tools: list[AgentTool]) -> AgentHarness:
            created = await AgentHarness.create(
                session=on,
                models=ModelRegistry([ScriptedProvider(respond=respond)], [SCRIPTED_MODEL]),
                model=SCRIPTED_MODEL,
                tools=tools,
                retry=RetryPolicy(max_attempts=3, base_delay_ms=100),
                clock=ManualClock(),
                drive=drive,
            )
            return created.harness

        async def open_child(child: Session, _invocation: ToolInvocation) -> AgentHarness:
            harness_of_child = await create(child, [counting_tool(world, "measure", "safe")])
            if drive == "manual":
                driver.drive(child.id, harness_of_child)
            return harness_of_child

        class Host:
            async def lane(self, name: str) -> AgentLane | None:
                lane = await parent.lane(name)
                if lane is not None and drive == "manual":
                    driver.drive(name, lane)
                return lane

            async def create_lane(self, name: str, at: str | None) -> Result[AgentLane, CreateLaneRejected]:
                created = await parent.create_lane(name, at)
                await self.lane(name)
                return created

        description = "Hands a task to an assistant."
        if on_lane:
            tool = lane_subagent_tool(name="research", description=description, session=session, harness=Host)
        else:
            tool = subagent_tool(name="research", description=description, repo=world.repo, open_child=open_child)
        measure = [counting_tool(world, "measure", "safe")] if on_lane else []
        parent = await create(session, [tool, *measure])
        return parent

    return Scenario(name=name, build=build, act=lambda harness: harness.prompt("Look after the garden."))


async def resume_all(harness: AgentHarness) -> None:
    """Recovery as an application does it on start: every suspended lane at once. A parent's tool may be first."""
    lanes = [await harness.lane(operation.lane) for operation in harness.suspended]
    results = await asyncio.gather(*(lane.resume() for lane in lanes if lane is not None))
    for result in results:
        assert result.ok or isinstance(result.error, NothingToResume | LaneBusy), result
    await asyncio.gather(*(lane.wait_for_idle() for lane in lanes if lane is not None))
