"""Followers: each keeps a snapshot up to date from events alone; at every loop turn it is compared with a fresh one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from agent_harness import AgentHarness, AgentLane, HarnessEvent, LaneSnapshot, LaneWatch, reduce_lane_snapshot
from agent_harness.providers.base import (
    AssistantMessageEvent,
    Model,
    ProviderContext,
    RequestContext,
    StreamDelta,
    StreamOptions,
)
from agent_harness.testing import ScriptedProvider
from agent_harness.types.messages import TextContent
from tests.support.event_schema import assert_on_the_wire, assert_snapshot_on_the_wire


class Dripping(ScriptedProvider):
    """Text comes word by word, with turns of the loop in between."""

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        async for event in super().stream(model, context, options, request):
            if not isinstance(event, StreamDelta):
                yield event
                continue
            words = event.delta.split(" ")
            for count, word in enumerate(words, start=1):
                part = TextContent(text=" ".join(words[:count]))
                partial = replace(event.partial, content=(*event.partial.content[:-1], part))
                yield StreamDelta(type=event.type, index=event.index, delta=word, partial=partial)
                await asyncio.sleep(0)
                await asyncio.sleep(0)


class Follower:
    """One watch and the snapshot that its events make of the first one."""

    def __init__(self, lane: AgentLane, watch: LaneWatch) -> None:
        self.lane = lane
        self.watch = watch
        self.snapshot: LaneSnapshot = watch.snapshot
        self.seen: list[HarnessEvent] = []

    @classmethod
    async def of(cls, lane: AgentLane) -> "Follower":
        return cls(lane, await lane.watch())

    async def check(self) -> None:
        """Compare with a snapshot that is taken now."""
        fresh = await self.lane.watch()
        fresh.unsubscribe()
        # Once the transcript is loaded `watch()` does not suspend: nothing may come between it and this look at what is
        # buffered, which no public call offers without waiting.
        waiting = self.watch._subscription.waiting
        while waiting:
            event = waiting.popleft()
            self.seen.append(event)
            self.snapshot = reduce_lane_snapshot(self.snapshot, event)
        trail = [event.type for event in self.seen[-6:]]
        for name in LaneSnapshot.__dataclass_fields__:
            told, now = getattr(self.snapshot, name), getattr(fresh.snapshot, name)
            assert told == now, f"{self.lane.name}: {name} differs after {trail}: {told!r} != {now!r}"


class Followers:
    """Followers of all lanes, compared at every turn of the loop while the block runs."""

    def __init__(self, harness: AgentHarness) -> None:
        self._harness = harness
        self._lanes: list[AgentLane] = []
        self.all: list[Follower] = []
        self.turns = 0
        self._task: asyncio.Task[None] | None = None

    async def add(self) -> None:
        """One more follower per lane, from here on."""
        for lane in self._lanes:
            self.all.append(await Follower.of(lane))

    async def check(self) -> None:
        for follower in self.all:
            await follower.check()

    def require(self) -> None:
        """Raise what differed, if something did already."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _tick(self) -> None:
        while True:
            await self.check()
            self.turns += 1
            await asyncio.sleep(0)

    async def __aenter__(self) -> "Followers":
        for info in await self._harness.lanes():
            lane = await self._harness.lane(info.name)
            assert lane is not None
            self._lanes.append(lane)
        await self.add()
        self._task = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._task is not None
        self.require()
        self._task.cancel()
        await asyncio.wait([self._task])
        if kind is None:
            await self.check()
            for follower in self.all[: len(self._lanes)]:
                assert_on_the_wire(follower.seen)
                assert_snapshot_on_the_wire(follower.snapshot)
