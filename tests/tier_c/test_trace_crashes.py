"""Crash sites of the traces that outside calls take part in (harness-v2 §6): derived, resumed, and compared.

Steering, cancellation, deferred writes and aborts come while an effect is held; deferred answers are fetched by later
calls; batches settle in every order. In memory each recovery is crashed again; on files, where a copy is dear, it is
not (the run and structural traces are crashed twice there).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import pytest

from agent_harness import AgentHarness, AgentTool, AgentToolResult, RetryPolicy, Session, TextContent, ToolInvocation
from agent_harness.hooks.catalog import BeforeRunEnd, BeforeRunEndResult
from agent_harness.options import Drive
from agent_harness.providers.base import Model, ModelRegistry, RequestContext
from agent_harness.session.storage import EntryItem, RecordItem
from agent_harness.testing import (
    SCRIPTED_MODEL,
    CrashPoint,
    ManualClock,
    Scenario,
    ScriptedProvider,
    ScriptedRequest,
    World,
    answer,
    call,
    crash_points,
    log_lines,
    start,
)
from agent_harness.types.messages import AssistantMessage, DeferredHandle, ToolResultMessage, Usage, UserMessage
from agent_harness.types.records import OperationFinished, RecordType, ToolSettled
from agent_harness.types.usage import sum_usage
from tests.support.backends import make_repo
from tests.support.rig import turns
from tests.support.scenarios import prompt, text_of

Act = Callable[[AgentHarness], Awaitable[object]]
Respond = Callable[[World, ScriptedRequest], AssistantMessage]
HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")
WORDS = "Look at bed 2."
NOTE = UserMessage(content="The bed was moved.", timestamp=7)


@dataclass
class Held:
    """What is done once, while an effect is held: `measure` or `answer` to the call that is made meanwhile."""

    during: dict[str, Act] = field(default_factory=dict)
    harness: AgentHarness | None = None

    async def reached(self, effect: str) -> None:
        if effect in self.during:
            assert self.harness is not None
            await self.during.pop(effect)(self.harness)


@dataclass
class DeferringProvider(ScriptedProvider):
    """Its fetches are counted in the world: the first finds the answer pending, the second what `outcome` says."""

    world: World | None = None
    outcome: str = "ready"

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> AssistantMessage:
        assert self.world is not None
        if self.world.bump("fetches") == 1:
            return answer(deferred=handle, usage=Usage())
        match self.outcome:
            case "ready":
                return answer("Here it is.")
            case "terminal":
                return answer(error_message="the job is unknown", error_code="not_found", usage=Usage())
            case _:
                raise ConnectionError("refused")


def builder(
    respond: Respond, held: Held | None = None, *, outcome: str = "ready"
) -> Callable[[Session, World, Drive], Awaitable[AgentHarness]]:
    async def build(session: Session, world: World, drive: Drive) -> AgentHarness:
        async def respond_once(request: ScriptedRequest) -> AssistantMessage:
            world.bump("requests")
            given = respond(world, request)
            if held is not None:
                await held.reached("answer")
            return given

        async def execute(invocation: ToolInvocation) -> AgentToolResult:
            world.bump(invocation.tool_call_id)
            if held is not None:
                await held.reached("measure")
            return AgentToolResult(content=(TextContent(text=f"real {invocation.tool_call_id}"),))

        provider = DeferringProvider(respond=respond_once, world=world, outcome=outcome)
        created = await AgentHarness.create(
            session=session,
            models=ModelRegistry([provider], [SCRIPTED_MODEL]),
            model=SCRIPTED_MODEL,
            tools=[AgentTool(name="measure", description="m", parameters={"type": "object"}, execute=execute)],
            retry=RetryPolicy(max_attempts=9, base_delay_ms=100),
            clock=ManualClock(),
            drive=drive,
        )
        if held is not None:
            held.harness = created.harness
        return created.harness

    return build


def tool_then_tell(world: World, request: ScriptedRequest) -> AssistantMessage:
    messages = request.context.messages
    if any(isinstance(message, ToolResultMessage) for message in messages):
        return answer("Done.")
    return answer("Working.", calls=[call("measure", {"bed": 1}, id="c1")])


def three_then_tell(world: World, request: ScriptedRequest) -> AssistantMessage:
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("Done.")
    return answer(calls=[call("measure", {"bed": n}, id=f"c{n}") for n in (1, 2, 3)])


def tell(world: World, request: ScriptedRequest) -> AssistantMessage:
    return answer("Done.")


def defer(world: World, request: ScriptedRequest) -> AssistantMessage:
    return answer(deferred=HANDLE, usage=Usage(input=1))


async def steer(harness: AgentHarness) -> None:
    (await harness.steer(WORDS)).unwrap()


async def cancel(harness: AgentHarness) -> None:
    (pending,) = (await harness.watch()).snapshot.queues.steer
    (await harness.cancel_queued(pending.entry_id)).unwrap()


async def note(harness: AgentHarness) -> None:
    await harness.session.append_message(NOTE)


async def abort(harness: AgentHarness) -> None:
    (await harness.abort()).unwrap()


async def ask_until_settled(harness: AgentHarness) -> None:
    """As an application polls a deferred answer."""
    outcome: object = (await harness.prompt("Measure bed 1.")).unwrap()
    while getattr(outcome, "kind", None) == "suspended":
        outcome = (await harness.resume()).unwrap()


# Released actions before the call is made: E user, R step_attempt, then the request (2); R usage, E assistant,
# R tool_started, then the tool (6); its entry (7).
IN_REQUEST, IN_TOOL, AFTER_TOOL = 2, 6, 7


def depth_on(backend: str) -> int:
    return 2 if backend == "memory" else 1


@dataclass(frozen=True)
class After:
    """A crash point whose operation is closed again: what its log says."""

    point: CrashPoint
    transcript: list[str]
    texts: list[str]
    log: list[object]
    wrote: set[RecordType]
    outcome: str


async def recovered(scenario: Scenario, backend: str, tmp_path: Path, at_least: int):
    """Every crash point with an accepted run, recovered as an application would, and sound."""
    seen = 0
    async for point in crash_points(scenario, lambda p: make_repo(backend, p), tmp_path, depth=depth_on(backend)):
        session, label = point.session, point.label
        before = {record.type for record in await session.find_records()}
        seen += 1
        await point.recover()
        while (await point.harness.lanes())[0].operation is not None:
            (await point.harness.resume()).unwrap()
            assert point.world.count("fetches") < 6, label
        assert await session.verify() == [], label
        log = await session.get_log()
        records = [item.record for item in log if isinstance(item, RecordItem)]
        if not any(record.type == "operation_started" for record in records):
            assert label.startswith("0 before acceptance")
            assert log == []
            continue
        (finished,) = [record.body for record in records if isinstance(record.body, OperationFinished)]
        ledger = sum_usage(record.body.usage for record in records if record.body.type == "usage")
        assert (await session.get_stats()).usage == ledger, label
        messages = [item.entry.message for item in log if isinstance(item, EntryItem)]
        results = [m.tool_call_id for m in messages if isinstance(m, ToolResultMessage)]
        assert results == [c.id for m in messages if isinstance(m, AssistantMessage) for c in m.tool_calls], label
        lines = [line.removeprefix("E ") for line in log_lines(log) if line.startswith("E ")]
        texts = [text_of(m) for m in messages if isinstance(m, UserMessage | ToolResultMessage | AssistantMessage)]
        yield After(point, lines, texts, list(log), before, finished.outcome)
    assert seen >= at_least, f"only {seen} crash points were derived"


TOOL_TURN = ["user", "assistant toolUse", "toolResult"]


@pytest.mark.parametrize("at", [IN_TOOL, AFTER_TOOL], ids=["tool runs", "tool ran"])
async def test_steering_that_was_accepted_is_seen_by_the_next_request(backend: str, tmp_path: Path, at: int) -> None:
    steered = 0
    scenario = Scenario(name="steer", build=builder(tool_then_tell), act=prompt, interventions={at: steer})
    async for after in recovered(scenario, backend, tmp_path, 16):
        accepted = "queue_enqueued" in after.wrote
        steered += accepted
        words = ["user"] if accepted else []
        assert after.transcript == [*TOOL_TURN, *words, "assistant stop"], after.point.label
        assert after.texts.count(WORDS) == accepted, after.point.label
        assert after.outcome == "completed"
        assert after.point.world.count("c1") <= 1
    assert steered > 5


async def test_a_cancelled_queue_item_never_becomes_an_entry(backend: str, tmp_path: Path) -> None:
    counted = {(False, False): 0, (True, False): 0, (True, True): 0}
    calls = {IN_TOOL: steer, AFTER_TOOL: cancel}
    scenario = Scenario(name="cancel", build=builder(tool_then_tell), act=prompt, interventions=calls)
    async for after in recovered(scenario, backend, tmp_path, 16):
        state = ("queue_enqueued" in after.wrote, "queue_cancelled" in after.wrote)
        counted[state] += 1
        words = ["user"] if state == (True, False) else []
        assert after.transcript == [*TOOL_TURN, *words, "assistant stop"], after.point.label
    assert all(counted.values()), counted


async def test_a_deferred_write_lands_behind_the_answer_in_flight(backend: str, tmp_path: Path) -> None:
    accepted = 0
    scenario = Scenario(name="note", build=builder(tool_then_tell), act=prompt, interventions={IN_REQUEST: note})
    async for after in recovered(scenario, backend, tmp_path, 16):
        accepted += "write_deferred" in after.wrote
        noted = ["user"] if "write_deferred" in after.wrote else []
        assert after.transcript == [*TOOL_TURN, *noted, "assistant stop"], after.point.label
        assert after.texts.count("The bed was moved.") == len(noted), after.point.label
    assert accepted > 5


@pytest.mark.parametrize("at", [IN_TOOL, AFTER_TOOL], ids=["tool runs", "tool ran"])
async def test_an_abort_closes_the_run_and_drops_what_was_queued(backend: str, tmp_path: Path, at: int) -> None:
    aborted = 0
    calls = {at - 1: steer, at: abort}
    scenario = Scenario(name="abort", build=builder(tool_then_tell), act=prompt, interventions=calls)
    async for after in recovered(scenario, backend, tmp_path, 12):
        label, ran = after.point.label, after.point.world.count("c1")
        if "abort_requested" not in after.wrote:
            assert after.outcome == "completed", label
            continue
        aborted += 1
        assert after.outcome == "aborted", label
        assert after.transcript == [*TOOL_TURN, "assistant aborted"], label
        assert WORDS not in after.texts, label
        result = after.texts[2]
        assert result == "real c1" or "interrupted" in result or "abort" in result.lower(), (label, result)
        assert ran == (at == AFTER_TOOL), label  # a tool that had not begun does not begin
    assert aborted > 3


@pytest.mark.parametrize("outcome", ["ready", "terminal", "rejected"])
async def test_a_deferred_answer_is_redeemed_once(backend: str, tmp_path: Path, outcome: str) -> None:
    scenario = Scenario(name=outcome, build=builder(defer, outcome=outcome), act=ask_until_settled)
    pending = 0
    async for after in recovered(scenario, backend, tmp_path, 10):
        label, world = after.point.label, after.point.world
        settled = "assistant stop" if outcome == "ready" else "assistant error"
        assert after.transcript == ["user", "assistant deferred", settled], label
        assert after.outcome == ("completed" if outcome == "ready" else "failed"), label
        assert after.texts[-1] == ("Here it is." if outcome == "ready" else ""), label
        # The first fetch found it pending; every crash costs at most one request and one fetch more.
        assert 2 <= world.count("fetches") <= 2 + after.point.depth, label
        assert 1 <= world.count("requests") <= 1 + after.point.depth, label
        pending += world.count("fetches") == 2
    assert pending > 0


async def abort_when_parked(harness: AgentHarness) -> None:
    """Ask for a deferred answer, and give it up."""
    (await harness.prompt("Measure bed 1.")).unwrap()
    (await harness.abort()).unwrap()
    await harness.wait_for_idle()


async def test_a_suspended_run_that_is_given_up_keeps_its_deferred_entry(backend: str, tmp_path: Path) -> None:
    aborted = 0
    scenario = Scenario(name="give up", build=builder(defer), act=abort_when_parked)
    async for after in recovered(scenario, backend, tmp_path, 8):
        label, world = after.point.label, after.point.world
        if "abort_requested" not in after.wrote:
            assert after.transcript == ["user", "assistant deferred", "assistant stop"], label
            continue
        aborted += 1
        assert after.outcome == "aborted", label
        assert after.transcript == ["user", "assistant deferred", "assistant aborted"], label
        assert world.count("fetches") == 0, label
        assert world.count("requests") == 1, label
    assert aborted > 2


# The finish boundary: `try_finish_run` is parked after these many actions of a run without calls.
AT_FINISH = 5


async def enqueue_follow_up(harness: AgentHarness) -> None:
    (await harness.follow_up(WORDS)).unwrap()


@pytest.mark.parametrize("call_it", [steer, enqueue_follow_up], ids=["steer", "follow-up"])
async def test_input_at_the_finish_boundary_is_answered_before_the_run_ends(
    backend: str, tmp_path: Path, call_it: Act
) -> None:
    accepted = 0
    scenario = Scenario(name="boundary", build=builder(tell), act=prompt, interventions={AT_FINISH: call_it})
    async for after in recovered(scenario, backend, tmp_path, 10):
        accepted += "queue_enqueued" in after.wrote
        more = ["user", "assistant stop"] if "queue_enqueued" in after.wrote else []
        assert after.transcript == ["user", "assistant stop", *more], after.point.label
        assert after.texts.count(WORDS) == bool(more), after.point.label
        assert after.outcome == "completed"
    assert accepted > 4


async def test_a_write_at_the_finish_boundary_is_applied_before_the_run_ends(backend: str, tmp_path: Path) -> None:
    async def fact(harness: AgentHarness) -> None:
        await harness.session.append_custom_entry("fact")

    accepted = 0
    scenario = Scenario(name="boundary", build=builder(tell), act=prompt, interventions={AT_FINISH: fact})
    async for after in recovered(scenario, backend, tmp_path, 8):
        accepted += "write_deferred" in after.wrote
        noted = ["custom"] if "write_deferred" in after.wrote else []
        assert after.transcript == ["user", "assistant stop", *noted], after.point.label
        assert log_lines(after.log)[-1] == "R operation_finished", after.point.label
    assert accepted > 1


async def test_a_follow_up_of_before_run_end_is_answered_once(backend: str, tmp_path: Path) -> None:
    """The handler asks again after a crash, and says the same: what was committed already is not asked for twice."""

    async def build(session: Session, world: World, drive: Drive) -> AgentHarness:
        harness = await builder(tell)(session, world, drive)

        def once_more(event: BeforeRunEnd) -> BeforeRunEndResult:
            asked = any(isinstance(m, UserMessage) and m.content == WORDS for m in event.messages)
            return BeforeRunEndResult(follow_up=None if asked else WORDS)

        harness.hooks.on("before_run_end", once_more)
        return harness

    async for after in recovered(Scenario(name="follow-up", build=build, act=prompt), backend, tmp_path, 12):
        assert after.transcript == ["user", "assistant stop", "user", "assistant stop"], after.point.label
        assert after.outcome == "completed"


@pytest.mark.parametrize("order", list(permutations(("c1", "c2", "c3"))), ids="-".join)
async def test_a_call_that_settled_is_kept_whatever_was_running(
    backend: str, tmp_path: Path, order: tuple[str, ...]
) -> None:
    kept = lost = overtaken = 0
    scenario = Scenario(name="batch", build=builder(three_then_tell), act=prompt, settle_order=order)
    async for after in recovered(scenario, backend, tmp_path, 20):
        label = after.point.label
        assert after.transcript == ["user", "assistant toolUse", *["toolResult"] * 3, "assistant stop"], label
        bodies = [item.record.body for item in after.log if isinstance(item, RecordItem)]
        settled = {body.tool_call_id for body in bodies if isinstance(body, ToolSettled)}
        for name, text in zip(("c1", "c2", "c3"), after.texts[2:5], strict=True):
            assert after.point.world.count(name) <= 1, label
            if text == f"real {name}":
                assert after.point.world.count(name) == 1, label
                kept += 1
            else:
                assert "interrupted" in text, label
                assert name not in settled, label  # a finished effect is never reported as interrupted
                lost += 1
                ran = after.point.world.count(name)
                overtaken += ran == 0 and any(other > name for other in settled)
    assert kept > 0
    assert lost > 0
    assert (overtaken > 0) == (order != ("c1", "c2", "c3"))  # kept, though an earlier one never ran


# Automatic and manual drive -------------------------------------------------------------------------------------------

SAME: dict[str, tuple[Respond, Act, dict[str, Act], dict[int, Act]]] = {
    "steer": (tool_then_tell, prompt, {"measure": steer}, {IN_TOOL: steer}),
    "note": (tell, prompt, {"answer": note}, {IN_REQUEST: note}),
    "deferred": (defer, ask_until_settled, {}, {}),
}


@pytest.mark.parametrize("name", SAME)
async def test_automatic_and_manual_drive_write_the_same_log(name: str, backend: str, tmp_path: Path) -> None:
    respond, act, during, interventions = SAME[name]
    logs: list[object] = []
    for drive in ("automatic", "manual"):
        folder = tmp_path / drive
        folder.mkdir()
        repo = make_repo(backend, folder)
        session = await repo.create(id="same")
        held = Held(dict(during) if drive == "automatic" else {})
        harness = await builder(respond, held)(session, World(folder / "world"), drive)
        work = await start(act(harness))
        released = 0
        while drive == "manual" and not work.done():
            if await harness.peek_action() is None:
                await turns(1)
                continue
            if released in interventions:
                await interventions[released](harness)
            await harness.execute_action()
            released += 1
        await work
        logs.append(await session.get_log())
        await harness.close()
        await repo.close()
    assert logs[0] == logs[1]
