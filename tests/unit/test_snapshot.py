"""A snapshot and the events behind it always equal a fresh snapshot (harness-v2 §9, A-13)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from agent_harness import (
    AgentHarness,
    AgentLane,
    AgentTool,
    AgentToolResult,
    LaneSnapshot,
    Ok,
    RetryPolicy,
    Session,
    TextContent,
    ToolInvocation,
    reduce_lane_snapshot,
)
from agent_harness.events.catalog import (
    CompactionStart,
    EntryAdded,
    Fault,
    MessageUpdate,
    NavigationEnd,
    RunAbort,
    RunStart,
    ToolEnd,
    ToolStart,
    ToolUpdate,
)
from agent_harness.events.snapshot import QueueSnapshot
from agent_harness.hooks.catalog import CompactionDecision, NavigationDecision
from agent_harness.outcomes import NavigationCompleted, RunSuspended
from agent_harness.providers.base import ModelRegistry, StreamDelta
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ManualClock, answer, call, check_fixed_point, start
from agent_harness.types.entries import CompactionBody, CustomBody, Entry
from agent_harness.types.messages import AssistantMessage, DeferredHandle, UserMessage
from agent_harness.types.structural import NavigateOptions
from session_backends import MemorySessionRepo
from session_backends.faults import Faults, FaultyRepo
from tests.support.event_schema import assert_balanced
from tests.support.prefix import Prefix
from tests.support.rig import turns
from tests.support.watching import Dripping, Followers

HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")
OVERLOADED = answer("half an answer that is lost", error_message="overloaded", error_code="overloaded")
TOO_LARGE = answer("begins and", error_message="prompt is too long", error_code="overflow")
BATCH = answer("I look at two.", calls=[call("measure", {"bed": 1}, id="c1"), call("measure", {"bed": 2}, id="c2")])
Act = Callable[[AgentHarness], Awaitable[object]]


def reporting_tool(name: str) -> AgentTool:
    """Reports progress twice, with turns of the loop in between."""

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        for step in ("began", "half"):
            invocation.update(AgentToolResult(content=(TextContent(text=step),)))
            await turns(3)
        return AgentToolResult(content=(TextContent(text="done"),))

    return AgentTool(name=name, description=name, parameters={"type": "object"}, execute=execute)


def waiting_tool() -> AgentTool:
    """Never returns by itself."""

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        invocation.update(AgentToolResult(content=(TextContent(text="waiting"),)))
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return AgentTool(name="wait", description="waits", parameters={"type": "object"}, execute=execute)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a harness is asked while it is followed; `at` are calls made once that many actions were released."""

    answers: Sequence[AssistantMessage] = ()
    fetches: Sequence[AssistantMessage] = ()
    act: Act
    at: dict[int, Act] = field(default_factory=dict)
    before: Callable[[Prefix], Awaitable[None]] | None = None
    events: frozenset[str] = frozenset()  # that it must bring about, or it shows nothing


async def open_harness(session: Session, case: Case, drive: str) -> AgentHarness:
    provider = Dripping(answers=case.answers, fetches=case.fetches)
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([provider], [SCRIPTED_MODEL]),
        model=SCRIPTED_MODEL,
        tools=[reporting_tool("measure"), waiting_tool()],
        retry=RetryPolicy(max_attempts=3),
        clock=ManualClock(),
        drive=drive,
    )
    return created.harness


async def prompt(lane: AgentLane) -> object:
    return await lane.prompt("Look at the beds.")


async def resume(harness: AgentHarness) -> object:
    return await harness.resume()


async def steer(harness: AgentHarness) -> object:
    return await harness.steer("Only the first.")


async def queue_all(harness: AgentHarness) -> None:
    assert isinstance(await harness.steer("First."), Ok)
    assert isinstance(await harness.follow_up("Then."), Ok)
    queued = await harness.steer("Never mind.")
    assert isinstance(queued, Ok)
    assert isinstance(await harness.next_run("Tomorrow."), Ok)
    assert isinstance(await harness.cancel_queued(queued.value.entry_id), Ok)


async def write_beside(harness: AgentHarness) -> None:
    await harness.session.append_message(UserMessage(content="By the way.", timestamp=1))
    await harness.session.append_custom_entry("note", {"a": 1})
    await harness.set_thinking_level("high")


async def abort(harness: AgentHarness) -> object:
    return await harness.abort()


async def two_prompts(harness: AgentHarness) -> None:
    await harness.next_run("Kept for later.")
    await harness.prompt("One.")
    await harness.prompt("Two.")


async def suspend_poll_finish(harness: AgentHarness) -> None:
    suspended = await harness.prompt("Think long.")
    assert isinstance(suspended, Ok)
    assert isinstance(suspended.value, RunSuspended)
    assert isinstance(await harness.resume(), Ok)
    assert isinstance(await harness.resume(), Ok)


async def suspend_abort(harness: AgentHarness) -> None:
    await harness.prompt("Think long.")
    await harness.abort()
    await harness.wait_for_idle()


async def talk_and_compact(harness: AgentHarness) -> None:
    for number in range(3):
        await harness.prompt(f"Number {number}. " + "Words fill the context. " * 400)
    await harness.compact()
    await harness.prompt("And on.")


async def talk_and_navigate(harness: AgentHarness) -> None:
    await harness.prompt("One.")
    first = (await harness.session.find_entries(order="oldestFirst"))[1]
    await harness.prompt("Two.")
    await harness.navigate_tree(first.id)
    await harness.prompt("Another way.")
    await harness.navigate_tree(None)
    await harness.prompt("From the root.")


async def overflow(harness: AgentHarness) -> None:
    for number in range(3):
        await harness.prompt(f"Number {number}. " + "Words fill the context. " * 400)
    await harness.prompt("One more.")


async def navigate_with_summary(harness: AgentHarness) -> None:
    await harness.prompt("One.")
    first = (await harness.session.find_entries(order="oldestFirst"))[1]
    await harness.prompt("Two.")
    moved = await harness.navigate_tree(first.id, NavigateOptions(summarize=True, label="fork"))
    assert isinstance(moved, Ok)
    assert isinstance(moved.value, NavigationCompleted)
    await harness.prompt("Another way.")


async def decline_both(harness: AgentHarness) -> None:
    harness.hooks.on("before_compaction", lambda event: CompactionDecision(decline=True))
    harness.hooks.on("before_navigation", lambda event: NavigationDecision(decline=True))
    await talk_and_compact(harness)
    first = (await harness.session.find_entries(order="oldestFirst"))[1]
    declined = await harness.navigate_tree(first.id, NavigateOptions(summarize=True))
    assert isinstance(declined, Ok)
    assert declined.value.kind == "declined"


async def batch_left_open(prefix: Prefix) -> None:
    await prefix.batch(2)
    await prefix.tool_started(1)
    await prefix.queued("steer", "s1", "Hurry.")


async def abort_left_open(prefix: Prefix) -> None:
    await prefix.batch(1)
    await prefix.tool_started(1)
    await prefix.aborted()


async def abort_and_wait(harness: AgentHarness) -> None:
    assert isinstance(await harness.abort(), Ok)
    await harness.wait_for_idle()


def told(names: str) -> frozenset[str]:
    return frozenset(names.split())


CASES: dict[str, Case] = {
    "one tool": Case(
        answers=[BATCH, answer("All done here.")],
        act=prompt,
        events=told("message_update tool_update tool_end"),
    ),
    "retry": Case(
        answers=[OVERLOADED, OVERLOADED, answer("At last.")],
        act=prompt,
        events=told("retry_scheduled retry_start retry_end"),
    ),
    "failure": Case(answers=[OVERLOADED, OVERLOADED, OVERLOADED], act=prompt),
    "queues": Case(
        answers=[BATCH, answer("First."), answer("Then."), answer("End.")],
        act=prompt,
        at={3: queue_all, 7: steer},
        events=told("queue_update tool_update"),
    ),
    "deferred writes": Case(
        answers=[BATCH, answer("Noted."), answer("End.")],
        act=prompt,
        at={2: write_beside},
        events=told("write_pending entry_added"),
    ),
    "abort between": Case(
        answers=[BATCH, answer("Never.")], act=prompt, at={2: queue_all, 4: abort}, events=told("run_abort")
    ),
    "abort while a tool runs": Case(
        answers=[answer(calls=[call("wait")])],
        act=prompt,
        at={6: abort},
        events=told("run_abort tool_update"),
    ),
    "abort in a back-off": Case(
        answers=[OVERLOADED, answer("Never.")],
        act=prompt,
        at={4: abort},
        events=told("run_abort retry_scheduled retry_end"),
    ),
    "two runs": Case(answers=[answer("One."), answer("Two.")], act=two_prompts),
    "suspended, polled, ready": Case(
        answers=[answer(deferred=HANDLE), answer("Done.")],
        fetches=[answer(deferred=HANDLE), answer("Ready.")],
        act=suspend_poll_finish,
        events=told("run_suspend run_resume run_end"),
    ),
    "suspended, aborted": Case(
        answers=[answer(deferred=HANDLE)], act=suspend_abort, events=told("run_suspend run_abort run_end")
    ),
    "compaction": Case(
        answers=[*[answer("Words. " * 400)] * 3, answer("## Goal\nA summary of it all."), answer("Going on.")],
        act=talk_and_compact,
        events=told("compaction_start compaction_end entry_added"),
    ),
    "navigation": Case(
        answers=[answer(f"Answer {n}.") for n in range(4)],
        act=talk_and_navigate,
        events=told("navigation_start navigation_end"),
    ),
    "overflow": Case(
        answers=[
            *[answer("Words. " * 400)] * 3,
            TOO_LARGE,
            answer("## Goal\nA summary of it all."),
            answer("It fits."),
        ],
        act=overflow,
        events=told("compaction_start compaction_end entry_added"),
    ),
    "navigation with a summary": Case(
        answers=[answer("One."), answer("Two."), answer("What was left behind."), answer("Other.")],
        act=navigate_with_summary,
        events=told("navigation_start entry_added fact_update navigation_end"),
    ),
    "declined": Case(
        answers=[*[answer("Words. " * 400)] * 3, answer("Going on.")],
        act=decline_both,
        events=told("compaction_start compaction_end navigation_start navigation_end"),
    ),
    "resumed batch": Case(
        answers=[answer("Went on."), answer("Hurried.")],
        act=resume,
        before=batch_left_open,
        events=told("run_resume tool_update"),
    ),
    "restored abort": Case(act=abort_and_wait, before=abort_left_open, events=told("run_abort tool_end run_end")),
}


def assert_steady(case: Case, followers: Followers) -> None:
    """A lane that began idle and is idle has closed every bracket."""
    if case.before is None:
        assert_balanced(followers.all[0].seen)


async def drive(harness: AgentHarness, case: Case, followers: Followers) -> int:
    """Release everything, one action at a time, with one more follower per action."""
    work = await start(case.act(harness))
    released = 0
    while not work.done():
        followers.require()
        await turns(3)
        if await harness.peek_action() is None:
            continue
        if released in case.at:
            await case.at[released](harness)
        await followers.add()
        await harness.execute_action()
        await check_fixed_point(harness)
        released += 1
    await work
    return released


@pytest.mark.parametrize("name", CASES)
async def test_snapshot_and_events_equal_a_fresh_snapshot_at_every_turn_of_the_loop(name: str) -> None:
    case = CASES[name]
    session = await MemorySessionRepo().create()
    if case.before is not None:
        await case.before(Prefix(session))
    harness = await open_harness(session, case, "manual")
    async with Followers(harness) as followers:
        if name == "abort while a tool runs":
            await abort_a_running_tool(harness, followers)
        else:
            released = await drive(harness, case, followers)
            assert released > 0
            assert followers.turns > released
        assert (await harness.watch()).snapshot.operation is None
    assert_steady(case, followers)
    if name != "abort in a back-off":  # by hand, the abort may come before
        assert {event.type for event in followers.all[0].seen} >= case.events
    await harness.close()


async def abort_a_running_tool(harness: AgentHarness, followers: Followers) -> None:
    run = await start(harness.prompt("Wait."))
    while (action := await harness.peek_action()) is not None and action.kind != "execute_tool":
        await harness.execute_action()
    released = await start(harness.execute_action())  # it does not settle by itself
    await turns()
    await followers.add()
    operation = (await harness.watch()).snapshot.operation
    assert operation is not None
    assert [tool.tool_name for tool in operation.running_tools] == ["wait"]
    assert operation.running_tools[0].partial_result == AgentToolResult(content=(TextContent(text="waiting"),))
    await harness.abort()
    await released
    await harness.run_to_completion()
    await run


@pytest.mark.parametrize("name", CASES)
async def test_the_same_holds_when_nothing_parks(name: str, repo: SessionRepo) -> None:
    case = CASES[name]
    session = await repo.create()
    if case.before is not None:
        await case.before(Prefix(session))
    harness = await open_harness(session, case, "automatic")
    async with Followers(harness) as followers:
        work = await start(case.act(harness))
        if name == "abort while a tool runs":
            while "tool_update" not in [event.type for event in followers.all[0].seen]:
                followers.require()
                await turns(1)
            await harness.abort()
        await work
        await followers.add()
        assert (await harness.watch()).snapshot.operation is None
    assert_steady(case, followers)
    if not case.at:  # calls at an action need a parked action
        assert {event.type for event in followers.all[0].seen} >= case.events
    await harness.close()


async def test_two_lanes_do_not_leak_into_each_other() -> None:
    session = await MemorySessionRepo().create()
    case = Case(answers=[BATCH, BATCH, answer("One done."), answer("Two done.")], act=prompt)
    harness = await open_harness(session, case, "automatic")
    created = await harness.create_lane("side", None)
    assert isinstance(created, Ok)
    async with Followers(harness) as followers:
        assert [follower.lane.name for follower in followers.all] == ["main", "side"]
        await asyncio.gather(prompt(harness), prompt(created.value))
        await followers.add()
    main, side = (await harness.watch()).snapshot, (await created.value.watch()).snapshot
    assert {e.id for e in main.transcript}.isdisjoint({e.id for e in side.transcript})
    assert len(main.transcript) == len(side.transcript) == 5
    lanes = [getattr(event, "lane", None) for event in followers.all[0].seen if event.type != "usage"]
    assert set(lanes) == {"main"}
    usage = [event.lane for event in followers.all[0].seen if event.type == "usage"]
    assert sorted(usage) == ["main", "main", "side", "side"]
    await harness.close()


async def test_a_fault_reaches_every_lane_and_ends_live_progress(repo: SessionRepo) -> None:
    faults = Faults()
    session = await FaultyRepo(repo, faults).create()
    case = Case(answers=[BATCH], act=prompt)
    harness = await open_harness(session, case, "automatic")
    created = await harness.create_lane("side", None)
    assert isinstance(created, Ok)
    async with Followers(harness) as followers:
        run = await start(harness.prompt("Go."))
        while "message_update" not in [event.type for event in followers.all[0].seen]:
            followers.require()
            await turns(1)
        faults.at, faults.forever = faults.writes + 1, True
        await asyncio.wait([run])
        assert run.exception() is not None
        await turns()
        await followers.add()
        for follower in followers.all:
            assert follower.snapshot.faulted
        assert "fault" in [event.type for event in followers.all[1].seen]
        operation = (await harness.watch()).snapshot.operation
        assert operation is not None
        assert (operation.streaming_message, operation.running_tools, operation.retry) == (None, (), None)
    await harness.close()


# The pure step -------------------------------------------------------------------------------------------------------

EMPTY = LaneSnapshot(
    lane="main",
    transcript=(),
    leaf_id=None,
    operation=None,
    queues=QueueSnapshot(),
    pending_writes=(),
    faulted=False,
)
RUNNING = reduce_lane_snapshot(EMPTY, RunStart(lane="main", run_id="r1", started_at=5))


def entry(entry_id: str, seq: int, parent: str | None, body: object = None) -> Entry:
    return Entry(id=entry_id, seq=seq, parent_id=parent, timestamp=1, body=body or CustomBody(custom_type="n"))


def test_another_lanes_events_change_nothing() -> None:
    assert reduce_lane_snapshot(RUNNING, RunAbort(lane="side", run_id="r1", steer=(), follow_up=())) is RUNNING
    assert reduce_lane_snapshot(EMPTY, RunStart(lane="side", run_id="r", started_at=1)) is EMPTY


def test_a_compaction_entry_replaces_the_transcript() -> None:
    summary = entry("e2", 2, "e1", CompactionBody(summary="s", retained_tail=(), tokens_before=1))
    snapshot = reduce_lane_snapshot(EMPTY, EntryAdded(lane="main", run_id=None, entry=entry("e1", 1, None)))
    snapshot = reduce_lane_snapshot(snapshot, EntryAdded(lane="main", run_id=None, entry=summary))
    assert (snapshot.transcript, snapshot.leaf_id) == ((summary,), "e2")


def test_a_navigation_shows_the_new_path_when_it_ends() -> None:
    first, second, on_target = entry("e1", 1, None), entry("e2", 2, "e1"), entry("e3", 4, "e1")
    snapshot = replace(EMPTY, transcript=(first, second), leaf_id="e2")
    behind = reduce_lane_snapshot(snapshot, EntryAdded(lane="main", run_id="n", entry=on_target))
    assert behind.transcript == (first, second)
    ended = NavigationEnd(
        lane="main",
        run_id="n",
        outcome="completed",
        old_leaf_id="e2",
        new_leaf_id="e3",
        transcript=(first, on_target),
    )
    moved = reduce_lane_snapshot(behind, ended)
    assert (moved.transcript, moved.leaf_id) == ((first, on_target), "e3")


def test_calls_with_one_id_are_told_apart_by_their_index() -> None:
    snapshot = RUNNING
    for index in (0, 1):
        begun = ToolStart(
            lane="main", run_id="r1", turn_id="t", tool_index=index, tool_call_id="", tool_name="x", args={"n": index}
        )
        snapshot = reduce_lane_snapshot(snapshot, begun)
    report = AgentToolResult(content=(TextContent(text="half"),))
    told = ToolUpdate(
        lane="main", run_id="r1", turn_id="t", tool_index=1, tool_call_id="", tool_name="x", partial_result=report
    )
    snapshot = reduce_lane_snapshot(snapshot, told)
    over = ToolEnd(
        lane="main",
        run_id="r1",
        turn_id="t",
        tool_index=0,
        tool_call_id="",
        tool_name="x",
        result=report,
        is_error=False,
        terminate=False,
    )
    snapshot = reduce_lane_snapshot(snapshot, over)
    assert snapshot.operation is not None
    assert [(tool.tool_index, tool.partial_result) for tool in snapshot.operation.running_tools] == [(1, report)]


def test_a_compaction_inside_a_run_does_not_replace_the_run() -> None:
    begun = CompactionStart(lane="main", run_id="r1", reason="threshold")
    assert reduce_lane_snapshot(RUNNING, begun) == RUNNING


def test_nothing_streams_behind_a_fault() -> None:
    partial = answer("late", stop_reason="stop")
    delta = StreamDelta(type="text_delta", index=0, delta="late", partial=partial)
    snapshot = reduce_lane_snapshot(RUNNING, Fault(code="StorageError", message="stopped"))
    late = MessageUpdate(lane="main", run_id="r1", message=partial, event=delta)
    snapshot = reduce_lane_snapshot(snapshot, late)
    assert snapshot.faulted
    assert snapshot.operation is not None
    assert snapshot.operation.streaming_message is None
