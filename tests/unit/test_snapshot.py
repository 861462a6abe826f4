"""A snapshot and the events behind it always equal a fresh snapshot (harness-v2 §9, A-13)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, fields, replace

import pytest

from agent_harness import (
    AgentHarness,
    AgentLane,
    AgentTool,
    AgentToolResult,
    HarnessFault,
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
from agent_harness.events.snapshot import OperationSnapshot, QueueSnapshot, RunningTool, ScheduledRetry
from agent_harness.hooks.catalog import CompactionDecision, NavigationDecision
from agent_harness.options import Drive
from agent_harness.outcomes import NavigationCompleted, RunSuspended
from agent_harness.providers.base import (
    AssistantMessageEvent,
    Model,
    ModelRegistry,
    ProviderContext,
    RequestContext,
    StreamDelta,
    StreamOptions,
)
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import (
    SCRIPTED_MODEL,
    ManualClock,
    ScriptedProvider,
    answer,
    call,
    check_fixed_point,
    drive_until,
    start,
)
from agent_harness.types.entries import CompactionBody, CustomBody, Entry
from agent_harness.types.messages import AssistantMessage, DeferredHandle, UserMessage
from agent_harness.types.structural import NavigateOptions
from session_backends import MemorySessionRepo
from session_backends.faults import Faults, FaultyRepo
from tests.support.event_schema import assert_balanced
from tests.support.prefix import Prefix
from tests.support.rig import Held, turns, until
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


# Attaching in the middle ---------------------------------------------------------------------------------------------
#
# The tests above compare what the same reducer made on both sides, so that a field it never sets is equal too. Here
# each field of a snapshot has a moment at which it must hold a value that is written down.

NOW = 1_700_000_000_000
ASKED = UserMessage(content="Go.", timestamp=NOW)


class Pausing(ScriptedProvider):
    """Stops behind the first delta of the answer that says "half", as a slow model does."""

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        async for event in super().stream(model, context, options, request):
            yield event
            if isinstance(event, StreamDelta) and event.delta == "half":
                await asyncio.Event().wait()


class Attached:
    """A harness at work, and one that attaches to it."""

    def __init__(self, session: Session, faults: Faults) -> None:
        self.session = session
        self.faults = faults
        self.held = Held()

    async def open(self, *answers: AssistantMessage, drive: Drive = "automatic") -> AgentHarness:
        created = await AgentHarness.create(
            session=self.session,
            models=ModelRegistry([Pausing(answers=answers)], [SCRIPTED_MODEL]),
            model=SCRIPTED_MODEL,
            tools=[self.held.tool(), waiting_tool()],
            retry=RetryPolicy(max_attempts=4, base_delay_ms=250),
            clock=ManualClock(NOW, auto_advance=False),
            drive=drive,
        )
        self.harness = created.harness
        return self.harness

    async def begin(self, call: Coroutine[object, object, object], *, until_event: str) -> None:
        """Start a call and return once the harness told of `until_event`; the call goes on."""
        told: list[str] = []
        off = self.harness.events.on(None, lambda event: told.append(event.type))
        self.call = await start(call)
        await until(lambda: until_event in told)
        off()

    async def snapshot(self) -> LaneSnapshot:
        return (await self.harness.watch()).snapshot


def now(message: AssistantMessage, **changes: object) -> AssistantMessage:
    return replace(message, timestamp=NOW, **changes)


def report(text: str) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text=text),))


async def while_streaming(at: Attached) -> None:
    harness = await at.open(answer("half"))
    await at.begin(harness.prompt("Go."), until_event="message_update")


async def while_backing_off(at: Attached) -> None:
    harness = await at.open(OVERLOADED, OVERLOADED)
    await at.begin(harness.prompt("Go."), until_event="retry_scheduled")


async def while_tools_run(at: Attached) -> None:
    calls = [call("measure", {"bed": 7}, id="c1"), call("wait", {"for": "rain"}, id="c2")]
    harness = await at.open(answer("Two.", calls=calls))
    await at.begin(harness.prompt("Go."), until_event="tool_update")


async def while_inputs_wait(at: Attached) -> None:
    await while_tools_run(at)
    assert isinstance(await at.harness.steer("Turn left."), Ok)
    assert isinstance(await at.harness.follow_up("Then stop."), Ok)
    assert isinstance(await at.harness.follow_up("Then rest."), Ok)
    assert isinstance(await at.harness.next_run("Tomorrow."), Ok)
    await at.harness.session.append_custom_entry("note", {"a": 1})


async def while_compacting(at: Attached) -> None:
    harness = await at.open(*[answer("Words. " * 400)] * 3, answer("half"))
    for number in range(3):
        await harness.prompt(f"Number {number}. " + "Words fill the context. " * 400)
    await at.begin(harness.compact(), until_event="compaction_start")


async def while_navigating(at: Attached) -> None:
    harness = await at.open(answer("One."), answer("Two."), answer("half"))
    await harness.prompt("Go.")
    first = await harness.get_leaf_id()
    await harness.prompt("And again.")
    moved = harness.navigate_tree(first, NavigateOptions(summarize=True))
    await at.begin(moved, until_event="navigation_start")


async def while_suspended(at: Attached) -> None:
    harness = await at.open(answer(deferred=HANDLE))
    assert isinstance(await harness.prompt("Go."), Ok)


async def while_aborting(at: Attached) -> None:
    harness = await at.open(answer(calls=[call("measure", id="c1")]), drive="manual")
    at.call = await start(harness.prompt("Go."))
    await drive_until(harness, "execute_tool")
    assert isinstance(await harness.abort(), Ok)


async def after_a_crash(at: Attached) -> None:
    await Prefix(at.session).batch(1)
    await at.open()


async def after_a_fault(at: Attached) -> None:
    harness = await at.open()
    at.faults.at = at.faults.writes + 1
    with pytest.raises(HarnessFault):
        await harness.next_run("Never stored.")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When somebody attaches, and what the snapshot shows, by dotted name."""

    arrange: Callable[[Attached], Awaitable[None]]
    shows: dict[str, object]


RUN = {"operation.kind": "run", "operation.status": "running", "operation.started_at": NOW}
QUIET: dict[str, object] = {
    "operation.streaming_message": None,
    "operation.running_tools": (),
    "operation.retry": None,
    "operation.suspended": None,
}
NOTHING_WAITS: dict[str, object] = {"queues": QueueSnapshot(), "pending_writes": ()}

MOMENTS: dict[str, Moment] = {
    "a message streams": Moment(
        arrange=while_streaming,
        shows=RUN
        | QUIET
        | NOTHING_WAITS
        | {
            "lane": "main",
            "faulted": False,
            "operation.streaming_message": now(answer("half"), stop_reason="pending"),
        },
    ),
    "a retry is waited for": Moment(
        arrange=while_backing_off,
        shows=RUN | QUIET | {"operation.retry": ScheduledRetry(attempt=1, max_attempts=4, next_attempt_at=NOW + 250)},
    ),
    "tools run": Moment(
        arrange=while_tools_run,
        shows=RUN
        | QUIET
        | {
            "operation.running_tools": (
                RunningTool(tool_index=0, tool_call_id="c1", tool_name="measure", args={"bed": 7}),
                RunningTool(
                    tool_index=1,
                    tool_call_id="c2",
                    tool_name="wait",
                    args={"for": "rain"},
                    partial_result=report("waiting"),
                ),
            )
        },
    ),
    "inputs wait": Moment(
        arrange=while_inputs_wait,
        shows={
            "queues.steer": ["Turn left."],
            "queues.follow_up": ["Then stop.", "Then rest."],
            "queues.next_run": ["Tomorrow."],
            "pending_writes": [CustomBody(custom_type="note", data={"a": 1})],
        },
    ),
    "a compaction runs": Moment(
        arrange=while_compacting,
        shows=QUIET | {"operation.kind": "compaction", "operation.status": "running", "operation.started_at": NOW},
    ),
    "a navigation runs": Moment(
        arrange=while_navigating,
        shows=QUIET | {"operation.kind": "navigation", "operation.status": "running", "operation.started_at": NOW},
    ),
    "the run is suspended": Moment(
        arrange=while_suspended,
        shows=QUIET
        | {
            "operation.kind": "run",
            "operation.status": "suspended",
            "operation.started_at": NOW,
            "operation.suspended": {"reason": "deferred", "deferred": HANDLE, "prompt": (ASKED,)},
        },
    ),
    "the run is being aborted": Moment(
        arrange=while_aborting,
        shows={"operation.kind": "run", "operation.status": "aborting", "operation.started_at": NOW},
    ),
    "a crash left a batch open": Moment(
        arrange=after_a_crash,
        shows=QUIET
        | NOTHING_WAITS
        | {
            "lane": "main",
            "operation.id": "run-1",
            "operation.status": "suspended",
            "operation.suspended": {"reason": "crash", "deferred": None, "id": "run-1", "lane": "main"},
            "leaf_id": "a1",
            "transcript": [("u1", None), ("a1", "u1")],
        },
    ),
    "the harness is faulted": Moment(
        arrange=after_a_fault,
        shows={"faulted": True, "operation": None, "transcript": [], "leaf_id": None},
    ),
}


def shown(snapshot: LaneSnapshot, name: str, expected: object) -> object:
    """What the snapshot holds under a dotted name, as plain as the expectation is written."""
    value: object = snapshot
    for part in name.split("."):
        value = getattr(value, part)
    if isinstance(expected, dict) and not isinstance(value, dict):
        return {key: getattr(value, key) for key in expected}
    if name == "transcript":
        return [(entry.id, entry.parent_id) for entry in snapshot.transcript]
    if name.startswith("queues."):
        return [item.message.content for item in value]
    if name == "pending_writes" and isinstance(expected, list):
        return [write.entry.body for write in snapshot.pending_writes]
    return value


@pytest.mark.parametrize("name", MOMENTS)
async def test_who_attaches_in_the_middle_is_shown(name: str) -> None:
    moment = MOMENTS[name]
    faults = Faults()
    at = Attached(await FaultyRepo(MemorySessionRepo(clock=ManualClock(NOW)), faults).create(), faults)
    await moment.arrange(at)
    snapshot = await at.snapshot()
    assert {key: shown(snapshot, key, expected) for key, expected in moment.shows.items()} == moment.shows
    await at.harness.close()


async def test_ids_of_what_waits_are_those_that_cancel_it_and_appear_later() -> None:
    at = Attached(await MemorySessionRepo(clock=ManualClock(NOW)).create(), Faults())
    await while_tools_run(at)
    queued = await at.harness.steer("Turn left.")
    written = await at.harness.session.append_custom_entry("note")
    snapshot = await at.snapshot()
    assert isinstance(queued, Ok)
    assert [item.entry_id for item in snapshot.queues.steer] == [queued.value.entry_id]
    (pending,) = snapshot.pending_writes
    assert (pending.id, pending.entry.id) == (written, written)
    (record,) = await at.session.find_records(type="operation_started")
    assert snapshot.operation is not None
    assert snapshot.operation.id == record.id
    await at.harness.close()


def test_every_field_of_a_snapshot_is_shown_at_some_moment() -> None:
    parts = {"operation": OperationSnapshot, "queues": QueueSnapshot}
    every = {field.name for field in fields(LaneSnapshot)} - set(parts)
    every |= {f"{part}.{field.name}" for part, kind in parts.items() for field in fields(kind)}
    held = {name for moment in MOMENTS.values() for name, value in moment.shows.items() if value}
    assert held - set(parts) == every


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
