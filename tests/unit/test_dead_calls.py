"""What every public call answers on a closed and on a faulted harness (harness-v2 §8), derived from the surface itself.

A method that is added to the surface and not to the tables below fails the first test.
"""

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_harness import AgentHarness, CompactionSettings, RetryPolicy
from agent_harness.errors import HarnessClosed, HarnessFault
from agent_harness.lanes.surface import AgentLane
from agent_harness.lanes.view import LaneSession
from agent_harness.outcomes import Closed
from agent_harness.providers.base import StreamOptions
from agent_harness.result import Err, Ok
from agent_harness.session.repo import SessionRepo
from agent_harness.session.views import SessionTree
from agent_harness.testing import SCRIPTED_MODEL, answer
from agent_harness.types.messages import Usage, UserMessage
from agent_harness.types.structural import Resources
from session_backends.faults import Faults, FaultyRepo
from tests.support.backends import make_repo
from tests.support.rig import Rig, close_rigs, open_rig

Call = Callable[[Any], Awaitable[object]]
MESSAGE = UserMessage(content="x", timestamp=1)


class Nothing:
    """An extension that does nothing."""

    async def setup(self, harness: AgentHarness) -> None: ...


def plain(name: str) -> Call:
    return lambda target: getattr(target, name)()


LANE: Mapping[str, Call] = {
    "prompt": lambda lane: lane.prompt("x"),
    "skill": lambda lane: lane.skill("x"),
    "prompt_from_template": lambda lane: lane.prompt_from_template("x"),
    "navigate_tree": lambda lane: lane.navigate_tree(None),
    "steer": lambda lane: lane.steer("x"),
    "follow_up": lambda lane: lane.follow_up("x"),
    "next_run": lambda lane: lane.next_run("x"),
    "cancel_queued": lambda lane: lane.cancel_queued("x"),
    "record_usage": lambda lane: lane.record_usage(Usage(input=1)),
    "set_model": lambda lane: lane.set_model(SCRIPTED_MODEL),
    "set_thinking_level": lambda lane: lane.set_thinking_level("high"),
    "set_active_tools": lambda lane: lane.set_active_tools([]),
    "run_when_idle": lambda lane: lane.run_when_idle(lambda: None),
} | {
    name: plain(name)
    for name in (
        *("compact", "resume", "abort", "get_leaf_id", "get_model", "get_thinking_level", "get_active_tools"),
        *("get_unavailable_tools", "wait_for_idle", "peek_action", "parked_actions", "execute_action"),
        "run_to_completion",
    )
}
HARNESS: Mapping[str, Call] = {
    "lane": lambda harness: harness.lane("main"),
    "create_lane": lambda harness: harness.create_lane("other", None),
    "use": lambda harness: harness.use(Nothing()),
    "set_tools": lambda harness: harness.set_tools([]),
    "set_resources": lambda harness: harness.set_resources(Resources()),
    "set_stream_options": lambda harness: harness.set_stream_options(StreamOptions()),
    "set_retry_policy": lambda harness: harness.set_retry_policy(RetryPolicy()),
    "set_compaction_settings": lambda harness: harness.set_compaction_settings(CompactionSettings()),
    "set_steering_mode": lambda harness: harness.set_steering_mode("all"),
    "set_follow_up_mode": lambda harness: harness.set_follow_up_mode("all"),
} | {
    name: plain(name)
    for name in (
        *("lanes", "get_tools", "get_resources", "get_stream_options", "get_retry_policy"),
        *("get_compaction_settings", "get_steering_mode", "get_follow_up_mode"),
    )
}
TREE: Mapping[str, Call] = {
    "get_entry": lambda tree: tree.get_entry("x"),
    "get_label": lambda tree: tree.get_label("x"),
    "set_label": lambda tree: tree.set_label("x", "label"),
    "set_name": lambda tree: tree.set_name("name"),
    "append_message": lambda tree: tree.append_message(MESSAGE),
    "append_custom_entry": lambda tree: tree.append_custom_entry("x"),
} | {
    name: plain(name)
    for name in (
        *("get_leaf_id", "get_stats", "get_name", "find_entries", "find_entry", "find_entries_on_branch"),
        "find_entry_on_branch",
    )
}
WATCHING = {"watch", "watch_session"}  # a faulted harness can still be looked at: its snapshot says so (§9)
OTHERWISE = {"close", "create", "open"} | WATCHING  # ends it, makes it, looks at it


def methods(cls: type) -> dict[str, Callable[..., object]]:
    """The public methods of a class, its bases included."""
    return {
        name: member
        for name, member in inspect.getmembers(cls, lambda m: inspect.isfunction(m) or inspect.ismethod(m))
        if not name.startswith("_")
    }


def answers_result(method: Callable[..., object]) -> bool:
    """Whether a method's annotation is an `Ok | Err` union."""
    returned = typing.get_type_hints(method)["return"]
    parts = typing.get_args(returned) if typing.get_origin(returned) in (typing.Union, types.UnionType) else ()
    return {typing.get_origin(part) for part in parts} == {Ok, Err}


def test_no_method_of_the_surface_is_forgotten() -> None:
    assert set(LANE) | WATCHING - {"watch_session"} == set(methods(AgentLane))
    assert set(LANE) | set(HARNESS) | OTHERWISE == set(methods(AgentHarness))
    assert set(TREE) == set(methods(LaneSession)) >= set(methods(SessionTree))
    properties = {name for name, _ in inspect.getmembers(AgentHarness, lambda m: isinstance(m, property))}
    assert {name for name in properties if not name.startswith("_")} == {"name", "session"}


RESULTS = {name for name, method in methods(AgentHarness).items() if name not in OTHERWISE and answers_result(method)}
CALLS = [
    *(pytest.param(lambda harness: harness, name, call, id=name) for name, call in {**LANE, **HARNESS}.items()),
    *(pytest.param(lambda harness: harness.session, name, call, id=f"session.{name}") for name, call in TREE.items()),
]
Pick = Callable[[AgentHarness], object]


def is_result(pick: Pick, name: str) -> bool:
    return name in RESULTS and name not in TREE


def test_the_calls_that_answer_with_results_are_those_of_the_specification() -> None:
    operations = {"prompt", "skill", "prompt_from_template", "compact", "navigate_tree", "resume", "abort"}
    queues = {"steer", "follow_up", "next_run", "cancel_queued", "record_usage"}
    assert operations | queues | {"create_lane"} == RESULTS


@pytest.fixture
async def closed(repo: SessionRepo) -> AgentHarness:
    rig = await open_rig(await repo.create(id="s"), answer("Done."), drive="manual")
    await close_rigs()
    return rig.harness


async def faulted_rig(backend: str, tmp_path: Path) -> tuple[Rig, HarnessFault]:
    faults = Faults(at=1, forever=True)
    session = await FaultyRepo(make_repo(backend, tmp_path), faults).create(id="s")
    faults.at = faults.writes + 1
    rig = await open_rig(session, answer("Done."), drive="manual")
    with pytest.raises(HarnessFault) as caught:
        await rig.harness.prompt("go")
    return rig, caught.value


@pytest.mark.parametrize(("pick", "name", "call"), CALLS)
async def test_a_closed_harness_answers(closed: AgentHarness, pick: Pick, name: str, call: Call) -> None:
    if is_result(pick, name):
        assert await call(pick(closed)) == Err(Closed())
    else:
        with pytest.raises(HarnessClosed):
            await call(pick(closed))


@pytest.mark.parametrize(("pick", "name", "call"), CALLS)
async def test_a_faulted_harness_raises_its_one_fault(
    backend: str, tmp_path: Path, pick: Pick, name: str, call: Call
) -> None:
    rig, fault = await faulted_rig(backend, tmp_path)
    for _ in range(2):
        with pytest.raises(HarnessFault) as caught:
            await call(pick(rig.harness))
        assert caught.value is fault
    await close_rigs()
    with pytest.raises(HarnessFault) as caught:  # closing does not hide why it stopped
        await call(pick(rig.harness))
    assert caught.value is fault


async def test_lane_facades_answer_as_the_harness_does(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(id="s"), drive="manual")
    lane = (await rig.harness.create_lane("other", None)).unwrap()
    await close_rigs()
    for name, call in LANE.items():
        if name in RESULTS:
            assert await call(lane) == Err(Closed()), name
        else:
            with pytest.raises(HarnessClosed):
                await call(lane)


async def test_watching_a_closed_harness_raises_and_a_faulted_one_is_shown(backend: str, tmp_path: Path) -> None:
    rig, _ = await faulted_rig(backend, tmp_path)
    assert (await rig.harness.watch()).snapshot.faulted
    assert (await rig.harness.watch_session()).snapshot.faulted
    await close_rigs()
    for watch in (rig.harness.watch, rig.harness.watch_session):
        with pytest.raises(HarnessClosed):
            await watch()


async def test_close_may_be_called_again_and_on_a_faulted_harness(backend: str, tmp_path: Path) -> None:
    rig, fault = await faulted_rig(backend, tmp_path)
    for _ in range(3):
        await rig.harness.close()
        with pytest.raises(HarnessFault) as caught:
            await rig.harness.prompt("x")
        assert caught.value is fault  # no close() puts another reason in its place
    await close_rigs()
