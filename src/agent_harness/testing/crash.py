"""Crash points, derived: a scenario is driven by hand, and its store and world are copied at every durable prefix.

No site is listed. Copies are taken before the first action, after every action and after every call on the lane
surface; each is reopened as a new process would find it (harness-v2 §19 Tier C, decisions section 5).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ..errors import HarnessClosed
from ..harness import AgentHarness
from ..options import Drive
from ..session.repo import SessionRepo
from ..session.session import Session
from ..types.actions import ActionInfo, ExecuteToolAction
from .drive import start
from .fixed_point import check_fixed_point
from .world import World

Build: TypeAlias = Callable[[Session, World, Drive], Awaitable[AgentHarness]]
Act: TypeAlias = Callable[[AgentHarness], Awaitable[object]]
RepoFactory: TypeAlias = Callable[[Path], SessionRepo]
"""Makes an empty repository in an empty folder."""
SESSION_ID = "crash"
TURNS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is driven.

    `build` opens a harness whose tools and models act on the world. `act` is the live work, usually a prompt.
    `interventions` maps the number of released actions to a call made at that point (steer, abort, ...). `act` may make
    several calls, one after the other. `settle_order` names calls of a parallel batch in the order they settle in.
    """

    name: str
    build: Build
    act: Act
    interventions: Mapping[int, Act] = field(default_factory=dict[int, Act])
    settle_order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """One durable prefix, reopened. Closed by the generator when the next point is asked for."""

    label: str  # where the process died, e.g. "3 after append_entry" or "3 after append_entry / 1 after hook"
    depth: int  # 1: the live run died here; 2: its recovery died here as well
    harness: AgentHarness
    session: Session
    world: World

    async def recover(self) -> None:
        """Resume every suspended lane to its end."""
        for operation in self.harness.suspended:
            lane = await self.harness.lane(operation.lane)
            assert lane is not None
            result = await lane.resume()
            assert result.ok, f"{self.label}: {result}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    label: str
    repo: SessionRepo
    world: World


async def crash_points(
    scenario: Scenario, make_repo: RepoFactory, directory: Path, *, depth: int = 2
) -> AsyncGenerator[CrashPoint]:
    """Every durable prefix of the scenario, and with `depth` 2 every prefix of every recovery.

    `make_repo` makes an empty repository in a folder. The fixed-point law is checked after every released action.
    """
    copier = _Copier(directory)
    repo = make_repo(copier.folder())
    session = await repo.create(id=SESSION_ID)
    world = World(copier.folder() / "world", repo)
    copies = await _drive(scenario, copier, _Live(repo=repo, session=session, world=world), scenario.act, "")
    for copy in copies:
        async with aclosing(_reopened(scenario, copier, copy, depth, 1)) as points:  # a caller may leave early
            async for point in points:
                yield point


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    repo: SessionRepo
    session: Session
    world: World


class _Copier:
    """Copies stores and worlds into numbered folders."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def folder(self) -> Path:
        """A fresh empty folder."""
        self._count += 1
        path = self._directory / str(self._count)
        path.mkdir(parents=True)
        return path

    async def copy(self, label: str, repo: SessionRepo, world: World) -> _Copy:
        """The committed data without claims, and the world beside it."""
        folder = self.folder()
        store = folder / "store"
        store.mkdir()
        twin = await repo.snapshot(store)
        return _Copy(label=label, repo=twin, world=world.copy(folder / "world", twin))


async def _drive(scenario: Scenario, copier: _Copier, live: _Live, act: Act, prefix: str) -> list[_Copy]:
    """Drive `act` action by action and return a copy of every durable prefix."""
    repo, world = live.repo, live.world
    harness = await scenario.build(live.session, world, "manual")
    copies = [await copier.copy(f"{prefix}0 before acceptance", repo, world)]
    work = await start(_settled(act(harness)))
    action = await _next_action(harness, work)
    copies.append(await copier.copy(f"{prefix}0 after acceptance", repo, world))
    released = 0
    settling: tuple[str, ...] = () if prefix else scenario.settle_order
    while action is not None:
        intervene = scenario.interventions.get(released) if not prefix else None
        if intervene is not None:
            await intervene(harness)
            copies.append(await copier.copy(f"{prefix}{released} after a call", repo, world))
        label: str = action.kind
        call_id: str | None = None
        if isinstance(action, ExecuteToolAction) and settling:
            call_id, settling = settling[0], settling[1:]
            label = f"{label} {call_id}"
        await harness.execute_action(call_id)
        if call_id is not None:
            await _told()
        released += 1
        await check_fixed_point(harness)
        copies.append(await copier.copy(f"{prefix}{released} after {label}", repo, world))
        action = await _next_action(harness, work)
    await work
    await harness.close()
    await repo.close()
    return copies


async def _told() -> None:
    """Let a settled call reach its next action: others of its batch are parked, so the gate does not wait for it."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def _next_action(harness: AgentHarness, work: asyncio.Task[None]) -> ActionInfo | None:
    """The next parked action; None when the work ends without one. It may take turns of the loop between its calls."""
    while True:
        try:
            action = await harness.peek_action()
        except HarnessClosed:
            return None  # a scenario may close its own harness
        if action is not None or work.done():
            return action
        await asyncio.sleep(0)


async def _settled(work: Awaitable[object]) -> None:
    try:
        await work
    except HarnessClosed:
        pass  # a scenario may close its own harness


async def _reopened(
    scenario: Scenario, copier: _Copier, copy: _Copy, depth: int, level: int
) -> AsyncGenerator[CrashPoint]:
    again = await copier.copy(copy.label, copy.repo, copy.world) if level < depth else None
    session = await copy.repo.open(SESSION_ID)
    harness = await scenario.build(session, copy.world, "automatic")
    try:
        yield CrashPoint(label=copy.label, depth=level, harness=harness, session=session, world=copy.world)
    finally:
        await harness.close()
        await copy.repo.close()
    if again is None:
        return
    session = await again.repo.open(SESSION_ID)
    live = _Live(repo=again.repo, session=session, world=again.world)
    for nested in await _drive(scenario, copier, live, _resume_all, f"{copy.label} / "):
        async with aclosing(_reopened(scenario, copier, nested, depth, level + 1)) as points:
            async for point in points:
                yield point


async def _resume_all(harness: AgentHarness) -> None:
    """Recovery, as an application does it on start."""
    work: list[asyncio.Task[object]] = []
    for operation in harness.suspended:
        lane = await harness.lane(operation.lane)
        assert lane is not None
        work.append(await start(lane.resume()))
    await asyncio.gather(*work)
