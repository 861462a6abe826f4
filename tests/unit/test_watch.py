"""Watches: buffered from the snapshot on, delivered once and in order, and never a burden to a run (harness-v2 §9)."""

import asyncio
from collections.abc import Callable

import pytest

from agent_harness import (
    AgentHarness,
    HarnessClosed,
    HarnessEvent,
    HarnessFault,
    Ok,
    Session,
    WatchOverflow,
    reduce_lane_snapshot,
)
from agent_harness.events.bus import Listener
from agent_harness.events.catalog import Fault, HandlerError
from agent_harness.session.queries import BranchBounds, EntryQuery
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, call, log_lines
from agent_harness.types.entries import Entry
from session_backends import MemorySessionRepo
from session_backends.faults import Faults, FaultyRepo, FaultyStorage
from tests.support.prefix import Prefix
from tests.support.rig import Calls, Rig, open_rig, turns, until

ONE_TOOL = (answer("Working.", calls=[call("measure")]), answer("Done."))


async def one_tool_rig(*, session: Session | None = None) -> Rig:
    session = session or await MemorySessionRepo().create()
    return await open_rig(session, *ONE_TOOL, tools=[Calls().tool()])


def collect(into: list[HarnessEvent]) -> Listener:
    def listener(event: HarnessEvent) -> None:
        into.append(event)

    return listener


# Delivery ------------------------------------------------------------------------------------------------------------


async def test_start_delivers_the_buffer_in_order_and_then_what_follows() -> None:
    rig = await one_tool_rig()
    everything: list[HarnessEvent] = []
    rig.harness.events.on(None, collect(everything))
    watch = await rig.harness.watch()
    await rig.harness.next_run("Before the start.")
    seen: list[HarnessEvent] = []
    watch.start(collect(seen))
    await rig.harness.prompt("Go.")
    await rig.harness.events.flush()
    assert [event.type for event in seen][:2] == ["queue_update", "run_start"]
    assert seen == everything
    await rig.harness.close()


async def test_a_watch_that_never_starts_buffers_everything() -> None:
    rig = await one_tool_rig()
    watch = await rig.harness.watch()
    for number in range(300):
        await rig.harness.next_run(f"Message {number}.")
    seen: list[HarnessEvent] = []
    watch.start(collect(seen))
    await rig.harness.events.flush()
    assert [len(event.next_run) for event in seen if event.type == "queue_update"] == list(range(1, 301))
    await rig.harness.close()


async def test_nothing_is_delivered_after_unsubscribe() -> None:
    rig = await one_tool_rig()
    dropped, ending = await rig.harness.watch(), await rig.harness.watch()
    never: list[HarnessEvent] = []
    once: list[HarnessEvent] = []

    def first_only(event: HarnessEvent) -> None:
        once.append(event)
        ending.unsubscribe()

    ending.start(first_only)
    await rig.harness.next_run("One.")
    dropped.unsubscribe()
    dropped.unsubscribe()
    dropped.start(collect(never))
    await rig.harness.prompt("Go.")
    await rig.harness.events.flush()
    assert never == []
    assert len(once) == 1
    await dropped.wait_ended()
    await rig.harness.close()


async def test_watchers_are_independent() -> None:
    rig = await one_tool_rig()
    early, late = await rig.harness.watch(), await rig.harness.watch()
    first: list[HarnessEvent] = []
    second: list[HarnessEvent] = []
    early.start(collect(first))
    await rig.harness.prompt("Go.")
    await rig.harness.events.flush()
    assert first
    assert second == []
    late.start(collect(second))
    await rig.harness.events.flush()
    assert second == first
    await rig.harness.close()


async def test_iteration_gives_the_same_events_and_ends_with_the_harness() -> None:
    rig = await one_tool_rig()
    everything: list[HarnessEvent] = []
    rig.harness.events.on(None, collect(everything))
    watch = await rig.harness.watch()
    seen: list[HarnessEvent] = []

    async def consume() -> None:
        async with watch:
            async for event in watch:
                seen.append(event)

    consumer = asyncio.ensure_future(consume())
    await rig.harness.prompt("Go.")
    await rig.harness.close()
    await consumer
    assert seen == everything
    assert seen[-1].type == "run_end"


async def test_leaving_an_iteration_early_drops_the_watch() -> None:
    rig = await one_tool_rig()
    async with await rig.harness.watch() as watch:
        await rig.harness.next_run("One.")
        await rig.harness.next_run("Two.")
        async for event in watch:
            assert event.type == "queue_update"
            break
    assert [event async for event in watch] == []
    await rig.harness.close()


async def test_a_watch_has_one_consumer() -> None:
    rig = await one_tool_rig()
    watch = await rig.harness.watch()
    watch.start(collect([]))
    with pytest.raises(RuntimeError, match="has a listener"):
        watch.start(collect([]))
    with pytest.raises(RuntimeError, match="delivers to its listener"):
        await anext(watch)
    await rig.harness.close()


# Bounds (A-13) -------------------------------------------------------------------------------------------------------


async def test_past_max_buffer_the_watch_ends_and_a_new_one_starts_fresh() -> None:
    rig = await one_tool_rig()
    watch = await rig.harness.watch(max_buffer=3)
    for number in range(3):
        await rig.harness.next_run(f"{number}")
    assert watch.overflow is None
    await rig.harness.next_run("One too many.")
    assert isinstance(watch.overflow, WatchOverflow)
    with pytest.raises(WatchOverflow, match="more than 3 events"):
        watch.start(collect([]))
    with pytest.raises(WatchOverflow):
        await watch.wait_ended()
    with pytest.raises(WatchOverflow):
        await anext(watch)
    fresh = await rig.harness.watch(max_buffer=3)
    assert len(fresh.snapshot.queues.next_run) == 4
    await rig.harness.close()


async def test_exactly_max_buffer_events_are_kept() -> None:
    rig = await one_tool_rig()
    watch = await rig.harness.watch(max_buffer=2)
    await rig.harness.next_run("One.")
    await rig.harness.next_run("Two.")
    assert [(await anext(watch)).type, (await anext(watch)).type] == ["queue_update", "queue_update"]
    await rig.harness.next_run("Three.")
    assert (await anext(watch)).type == "queue_update"
    await rig.harness.close()


async def test_a_listener_that_falls_behind_overflows_alone() -> None:
    rig = await one_tool_rig()
    stuck, healthy = await rig.harness.watch(max_buffer=2), await rig.harness.watch()
    entered = asyncio.Event()
    seen: list[HarnessEvent] = []

    async def hang(event: HarnessEvent) -> None:
        entered.set()
        await asyncio.Event().wait()

    stuck.start(hang)
    healthy.start(collect(seen))
    result = await rig.harness.prompt("Go.")
    assert isinstance(result, Ok)
    await entered.wait()
    with pytest.raises(WatchOverflow):
        await stuck.wait_ended()
    await until(lambda: bool(seen) and seen[-1].type == "run_end")
    await rig.harness.close()


@pytest.mark.parametrize("bound", [0, -1])
async def test_a_bound_below_one_is_refused(bound: int) -> None:
    rig = await one_tool_rig()
    with pytest.raises(ValueError, match="at least 1"):
        await rig.harness.watch(max_buffer=bound)
    with pytest.raises(ValueError, match="at least 1"):
        await rig.harness.watch_session(max_buffer=bound)
    await rig.harness.close()


# Passive -------------------------------------------------------------------------------------------------------------


def throwing(_rig: Rig) -> Listener:
    def listener(event: HarnessEvent) -> None:
        raise ValueError("sk-secret")

    return listener


def hanging(_rig: Rig) -> Listener:
    async def listener(event: HarnessEvent) -> None:
        await asyncio.Event().wait()

    return listener


def watching(rig: Rig) -> Listener:
    async def listener(event: HarnessEvent) -> None:
        watch = await rig.harness.watch()
        watch.start(lambda _event: None)

    return listener


def unsubscribing(rig: Rig) -> Listener:
    async def listener(event: HarnessEvent) -> None:
        (await rig.harness.watch_session()).unsubscribe()

    return listener


def cancelling(_rig: Rig) -> Listener:
    def listener(event: HarnessEvent) -> None:
        raise asyncio.CancelledError

    return listener


@pytest.mark.parametrize("make", [throwing, hanging, watching, unsubscribing, cancelling])
async def test_no_listener_changes_a_run(make: Callable[[Rig], Listener]) -> None:
    alone = await one_tool_rig()
    await alone.harness.prompt("Go.")
    expected = log_lines(await alone.session.get_log(), usage=True)
    await alone.harness.close()
    rig = await one_tool_rig()
    (await rig.harness.watch()).start(make(rig))
    rig.harness.events.on(None, make(rig))
    result = await rig.harness.prompt("Go.")
    assert isinstance(result, Ok)
    assert log_lines(await rig.session.get_log(), usage=True) == expected
    await rig.harness.close()


async def test_a_listener_that_throws_is_reported_without_its_text_and_served_on() -> None:
    rig = await one_tool_rig()
    reported: list[HandlerError] = []
    rig.harness.events.on("handler_error", reported.append)
    calls: list[HarnessEvent] = []

    def listener(event: HarnessEvent) -> None:
        calls.append(event)
        raise ValueError("sk-secret")

    (await rig.harness.watch()).start(listener)
    await rig.harness.next_run("One.")
    await rig.harness.next_run("Two.")
    await turns()
    own = HandlerError(lane="main", kind="event", name="queue_update", error="ValueError")
    assert reported == [own, own]
    assert [event.type for event in calls] == ["queue_update", "handler_error", "queue_update", "handler_error"]
    assert "sk-secret" not in repr(reported)
    await rig.harness.close()


# What is watched -----------------------------------------------------------------------------------------------------


async def test_the_session_watch_lists_lanes_and_sees_everything() -> None:
    session = await MemorySessionRepo().create()
    await Prefix(session).batch(1)
    rig = await open_rig(session, answer("Side done."), tools=[Calls().tool()])
    watch = await rig.harness.watch_session()
    (main,) = watch.snapshot.lanes
    assert (main.name, main.leaf_id, watch.snapshot.faulted) == ("main", "a1", False)
    assert main.operation is not None
    assert (main.operation.kind, main.operation.status) == ("run", "suspended")
    assert main.suspended == rig.suspended[0]
    created = await rig.harness.create_lane("side", "u1")
    assert isinstance(created, Ok)
    await created.value.prompt("Beside it.")
    seen = [await anext(watch) for _ in range(3)]
    assert [(event.type, getattr(event, "lane", None)) for event in seen][:2] == [
        ("lane_created", "side"),
        ("run_start", "side"),
    ]
    fresh = await rig.harness.watch_session()
    assert [(lane.name, lane.operation is None, lane.suspended is None) for lane in fresh.snapshot.lanes] == [
        ("main", False, False),
        ("side", True, True),
    ]
    await rig.harness.close()


async def test_a_suspended_lane_shows_what_create_returned() -> None:
    session = await MemorySessionRepo().create()
    await Prefix(session).batch(1)
    rig = await open_rig(session)  # without its tool
    operation = (await rig.harness.watch()).snapshot.operation
    assert operation is not None
    assert operation.status == "suspended"
    assert operation.suspended == rig.suspended[0]
    assert operation.started_at == rig.suspended[0].started_at
    await rig.harness.set_tools([Calls().tool()])
    operation = (await rig.harness.watch()).snapshot.operation
    assert operation is not None
    assert operation.suspended is not None
    assert not operation.suspended.missing
    await rig.harness.close()


async def test_usage_and_faults_reach_the_watchers_of_every_lane(repo: SessionRepo) -> None:
    faults = Faults()
    session = await FaultyRepo(repo, faults).create()
    rig = await open_rig(session, answer("One."), answer("Two."))
    created = await rig.harness.create_lane("side", None)
    assert isinstance(created, Ok)
    seen: list[HarnessEvent] = []
    (await created.value.watch()).start(collect(seen))
    await rig.harness.prompt("On main.")
    await rig.harness.events.flush()
    assert [event.type for event in seen] == ["usage"]
    faults.at = faults.writes + 1
    with pytest.raises(HarnessFault):
        await rig.harness.prompt("Fails.")
    await rig.harness.events.flush()
    assert [event.type for event in seen] == ["usage", "fault"]
    watch = await rig.harness.watch()
    assert watch.snapshot.faulted
    assert len(watch.snapshot.transcript) == 2
    assert (await rig.harness.watch_session()).snapshot.faulted
    await rig.harness.close()


async def test_a_fault_event_holds_no_content_of_a_foreign_exception() -> None:
    rig = await one_tool_rig()
    seen: list[HarnessEvent] = []
    rig.harness.events.on("fault", collect(seen))
    rig.harness._env.fail(RuntimeError("key sk-secret was refused"))
    await rig.harness.events.flush()
    assert seen == [Fault(code="RuntimeError", message="the harness stopped: RuntimeError")]
    await rig.harness.close()


async def test_a_closed_harness_is_not_watched() -> None:
    rig = await one_tool_rig()
    watch = await rig.harness.watch()
    await rig.harness.next_run("Buffered.")
    await rig.harness.close()
    with pytest.raises(HarnessClosed):
        await rig.harness.watch()
    with pytest.raises(HarnessClosed):
        await rig.harness.watch_session()
    assert [event.type async for event in watch] == ["queue_update"]
    await watch.wait_ended()


# The moment of the snapshot ------------------------------------------------------------------------------------------


class SlowReads(FaultyStorage):
    """The next read of a branch is held after it looked, until it is let go."""

    looked: asyncio.Event | None = None
    go_on: asyncio.Event

    def hold(self) -> None:
        self.looked, self.go_on = asyncio.Event(), asyncio.Event()

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        found = await super().find_entries_on_branch(query, bounds)
        if self.looked is not None and not self.looked.is_set():
            self.looked.set()
            await self.go_on.wait()
        return found


async def test_what_is_committed_while_the_transcript_is_read_is_in_the_snapshot_and_not_an_event(
    repo: SessionRepo,
) -> None:
    storage = SlowReads(await repo.create(), Faults())
    rig = await open_rig(Session(storage))
    await rig.harness.session.append_custom_entry("before")
    storage.hold()
    task = asyncio.ensure_future(rig.harness.watch())
    assert storage.looked is not None
    await storage.looked.wait()
    meanwhile = await rig.harness.session.append_custom_entry("meanwhile")
    storage.go_on.set()
    watch = await task
    after = await rig.harness.session.append_custom_entry("after")
    assert watch.snapshot.transcript[-1].id == watch.snapshot.leaf_id == meanwhile
    assert len(watch.snapshot.transcript) == 2
    event = await anext(watch)
    assert event.type == "entry_added"
    assert event.entry.id == after
    now = reduce_lane_snapshot(watch.snapshot, event)
    assert now == (await rig.harness.watch()).snapshot
    await rig.harness.close()


async def test_a_first_watch_at_any_turn_of_a_run_misses_and_repeats_nothing(repo: SessionRepo) -> None:
    for late in range(0, 60, 3):
        rig = await one_tool_rig(session=await repo.create())
        run = asyncio.ensure_future(rig.harness.prompt("Go."))
        await turns(late)
        watch = await rig.harness.watch()
        await run
        snapshot, final = watch.snapshot, (await rig.harness.watch()).snapshot
        await rig.harness.close()
        async for event in watch:
            snapshot = reduce_lane_snapshot(snapshot, event)
        assert snapshot == final
        assert len(final.transcript) == 4


async def test_harness_watch_is_the_main_lanes() -> None:
    rig = await one_tool_rig()
    assert isinstance(rig.harness, AgentHarness)
    watch = await rig.harness.watch()
    assert watch.snapshot.lane == "main"
    assert watch.snapshot.transcript == ()
    await rig.harness.close()
