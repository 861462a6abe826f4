"""Every crash site of compaction, overflow and navigation, derived, resumed, and crashed again in its recovery."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_harness import AgentHarness, Session
from agent_harness.hooks.catalog import BeforeCompaction, BeforeNavigation, CompactionDecision, NavigationDecision
from agent_harness.options import Drive
from agent_harness.session.storage import LabelItem, LaneItem, RecordItem
from agent_harness.testing import CrashPoint, Scenario, ScriptedRequest, World, answer, call, crash_points, start
from agent_harness.types.entries import BranchSummaryBody, CompactionBody, MessageBody, ProvisionedEntry
from agent_harness.types.messages import AssistantMessage, ToolResultMessage, Usage, UserMessage
from agent_harness.types.records import HookUsage, OperationFinished, RequestUsage, StepAttempt
from agent_harness.types.structural import CompactResult, NavigateOptions, SummaryResult
from agent_harness.types.usage import sum_usage
from tests.support.backends import make_repo
from tests.support.scenarios import Respond, harness_builder, prompt

FULL = Usage(input=90_000, output=10)
TOO_LARGE = answer(error_message="prompt is too long", error_code="overflow", usage=Usage(input=3))


def is_summary(request: ScriptedRequest) -> bool:
    return "You write summaries" in (request.context.system_prompt or "")


def builder(respond: Respond, *, supply: bool = False):
    """A lane that starts with two turns (`q1`, `e1`, `q2`, `e2`); `supply`: hooks write the summaries."""
    build = harness_builder(respond, replay="safe", attempts=12)

    async def seeded(session: Session, world: World, drive: Drive) -> AgentHarness:
        if await session.find_entries(limit=1) == []:
            for number in (1, 2):
                question = UserMessage(content=f"Question {number}.", timestamp=1)
                for entry_id, message in ((f"q{number}", question), (f"e{number}", answer(f"Answer {number}."))):
                    body = MessageBody(message=message)
                    await session.append_entry(ProvisionedEntry(id=entry_id, body=body), "main")
        harness = await build(session, world, drive)
        if supply:
            usage = Usage(input=7)

            def compaction(_: BeforeCompaction) -> CompactionDecision:
                world.bump("asked")
                return CompactionDecision(compaction=CompactResult(summary="Supplied.", usage=usage))

            def navigation(_: BeforeNavigation) -> NavigationDecision:
                world.bump("asked")
                return NavigationDecision(summary=SummaryResult(summary="Supplied.", usage=usage))

            harness.hooks.on("before_compaction", compaction)
            harness.hooks.on("before_navigation", navigation)
        return harness

    return seeded


def summarise(world: World, request: ScriptedRequest) -> AssistantMessage:
    assert is_summary(request)
    return answer("Summary.", usage=Usage(input=1_000, output=50))


def fill_then_tell(world: World, request: ScriptedRequest) -> AssistantMessage:
    if is_summary(request):
        return summarise(world, request)
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("Done.")
    return answer("On it.", calls=[call("measure", {"bed": 1}, id="c1")], usage=FULL)


def overflow_until_compacted(world: World, request: ScriptedRequest) -> AssistantMessage:
    if is_summary(request):
        return summarise(world, request)
    compacted = "Summary of the conversation so far" in str(request.context.messages[0].content)
    return answer("Fits now.") if compacted else TOO_LARGE


def always_overflow(world: World, request: ScriptedRequest) -> AssistantMessage:
    return summarise(world, request) if is_summary(request) else TOO_LARGE


async def compact(harness: AgentHarness) -> object:
    return await harness.compact("mention beds")


async def navigate(harness: AgentHarness) -> object:
    return await harness.navigate_tree("e1", NavigateOptions(summarize=True, label="mark"))


def scenario(name: str, respond: Respond, act=prompt, *, supply: bool = False) -> Scenario:
    return Scenario(name=name, build=builder(respond, supply=supply), act=act)


async def recovered(given: Scenario, backend: str, tmp_path: Path) -> AsyncIterator[CrashPoint]:
    """Each crash point with an accepted operation, resumed and found sound."""
    seen = 0
    async for point in crash_points(given, lambda path: make_repo(backend, path), tmp_path):
        await point.recover()
        session = point.session
        seen += 1
        assert await session.verify() == [], point.label
        started = await session.find_records(type="operation_started")
        finished = await session.find_records(type="operation_finished")
        assert [r.run_id for r in finished] == [r.id for r in started], point.label
        ledger = sum_usage(r.body.usage for r in await session.find_records(type="usage") if r.body.type == "usage")
        assert (await session.get_stats()).usage == ledger, point.label
        if started == []:
            assert point.label.startswith("0 before acceptance")
            assert len(await session.get_log()) == 4
            continue
        yield point
    assert seen > 20, f"only {seen} crash points were derived"


async def attempts_of(point: CrashPoint, kind: str) -> list[StepAttempt]:
    found = [r.body for r in await point.session.find_records(type="step_attempt", order="oldestFirst")]
    return [body for body in found if isinstance(body, StepAttempt) and body.step == kind]


async def path_of(point: CrashPoint) -> list[str]:
    lines: list[str] = []
    for entry in await point.session.find_entries_on_branch(order="oldestFirst"):
        message = entry.message
        lines.append(entry.type if message is None else message.role)
    return lines


async def outcome_of(point: CrashPoint) -> str:
    (finished,) = await point.session.find_records(type="operation_finished")
    assert isinstance(finished.body, OperationFinished)
    return finished.body.outcome


async def one_compaction(point: CrashPoint) -> CompactionBody:
    (entry,) = await point.session.find_entries(type="compaction")
    assert isinstance(entry.body, CompactionBody)
    return entry.body


SEED = ["user", "assistant"] * 2


async def test_auto_compaction_happens_once_and_the_run_completes(backend: str, tmp_path: Path) -> None:
    async for point in recovered(scenario("auto", fill_then_tell), backend, tmp_path):
        assert await outcome_of(point) == "completed", point.label
        assert await path_of(point) == [
            *SEED,
            "user",
            "assistant",
            "toolResult",
            "compaction",
            "assistant",
        ], point.label
        body = await one_compaction(point)
        assert [m.role for m in body.retained_tail[-2:]] == ["assistant", "toolResult"], point.label
        made = await attempts_of(point, "compaction")
        assert [a.attempt for a in made] == list(range(1, len(made) + 1)), point.label
        assert len({a.result_entry_id for a in made}) == 1, point.label
        # Each crash costs at most one more attempt.
        assert 1 <= len(made) <= 1 + point.depth, point.label


async def test_an_overflow_is_recovered_once_and_never_twice(backend: str, tmp_path: Path) -> None:
    async for point in recovered(scenario("overflow", overflow_until_compacted), backend, tmp_path):
        assert await outcome_of(point) == "completed", point.label
        assert await path_of(point) == [*SEED, "user", "compaction", "assistant"], point.label
        made = await attempts_of(point, "compaction")
        assert {a.compaction_reason for a in made} == {"overflow"}, point.label
        assert 1 <= len(made) <= 1 + point.depth, point.label
        body = await one_compaction(point)
        assert body.usage == Usage(input=1_000, output=50), point.label


async def test_an_overflow_that_stays_fails_durably_from_every_crash_site(backend: str, tmp_path: Path) -> None:
    async for point in recovered(scenario("always", always_overflow), backend, tmp_path):
        assert await outcome_of(point) == "failed", point.label
        assert await path_of(point) == [*SEED, "user", "compaction", "assistant"], point.label
        # Two requests and one summary, and for every crash one of them again.
        assert point.world.count("requests") <= 3 + point.depth, point.label


async def test_a_supplied_overflow_compaction_is_counted_by_the_guard(backend: str, tmp_path: Path) -> None:
    async for point in recovered(scenario("supplied", overflow_until_compacted, supply=True), backend, tmp_path):
        assert await outcome_of(point) == "completed", point.label
        body = await one_compaction(point)
        assert body.summary in ("Supplied.", "Summary."), point.label
        assert len(await attempts_of(point, "compaction")) >= 1, point.label
        # Once its attempt is durable the hook is not asked again.
        assert point.world.count("asked") <= 1 + point.depth, point.label


async def test_a_manual_compaction_is_completed_from_every_crash_site(backend: str, tmp_path: Path) -> None:
    async for point in recovered(scenario("manual", summarise, compact), backend, tmp_path):
        assert await outcome_of(point) == "completed", point.label
        assert await path_of(point) == [*SEED, "compaction"], point.label
        body = await one_compaction(point)
        assert (body.summary, len(body.retained_tail)) == ("Summary.", 2), point.label
        made = await attempts_of(point, "compaction")
        requests = [r.body for r in await point.session.find_records(type="usage") if isinstance(r.body, RequestUsage)]
        # One record per settled request; a crash between the answer and its record loses that one item.
        assert len(made) - point.depth <= len(requests) <= point.world.count("requests"), point.label
        assert {a.result_entry_id for a in made} == {r.entry_id for r in requests}, point.label


async def test_a_supplied_manual_compaction_makes_no_request(backend: str, tmp_path: Path) -> None:
    async for point in recovered(scenario("manual, supplied", summarise, compact, supply=True), backend, tmp_path):
        assert await outcome_of(point) == "completed", point.label
        assert (await one_compaction(point)).summary == "Supplied.", point.label
        assert point.world.count("requests") == 0, point.label
        supplied = [r.body for r in await point.session.find_records(type="usage") if isinstance(r.body, HookUsage)]
        assert 1 <= len(supplied) <= 1 + point.depth, point.label  # honestly billed again when asked again


async def assert_navigated(point: CrashPoint, summaries: set[str]) -> None:
    assert await outcome_of(point) == "completed", point.label
    assert await path_of(point) == ["user", "assistant", "branch_summary"], point.label
    (entry,) = await point.session.find_entries(type="branch_summary")
    assert isinstance(entry.body, BranchSummaryBody)
    assert (entry.parent_id, entry.body.from_id) == ("e1", "e2"), point.label
    assert entry.body.summary in summaries, point.label
    log = await point.session.get_log()
    moves = [item for item in log if isinstance(item, LaneItem) and item.leaf_id == "e1"]
    labels = [item for item in log if isinstance(item, LabelItem)]
    assert (len(moves), len(labels)) == (1, 1), point.label  # an equal rerun writes nothing
    assert await point.session.get_label("e1") == "mark", point.label
    finished = [item.seq for item in log if isinstance(item, RecordItem) and item.record.type == "operation_finished"]
    assert moves[0].seq < entry.seq < labels[0].seq < finished[0], point.label


async def test_a_navigation_is_completed_from_every_crash_site(backend: str, tmp_path: Path) -> None:
    async for point in recovered(scenario("navigation", summarise, navigate), backend, tmp_path):
        await assert_navigated(point, {"Summary."})
        made = await attempts_of(point, "branch_summary")
        assert [a.attempt for a in made] == list(range(1, len(made) + 1)), point.label
        assert 1 <= len(made) <= 1 + point.depth, point.label


async def test_a_supplied_branch_summary_that_a_crash_lost_is_regenerated(backend: str, tmp_path: Path) -> None:
    lost = 0
    given = scenario("navigation, supplied", summarise, navigate, supply=True)
    async for point in recovered(given, backend, tmp_path):
        await assert_navigated(point, {"Supplied.", "Summary."})
        (entry,) = await point.session.find_entries(type="branch_summary")
        assert isinstance(entry.body, BranchSummaryBody)
        lost += entry.body.summary == "Summary."
    assert lost > 0


ALL = {
    "auto": scenario("auto", fill_then_tell),
    "overflow": scenario("overflow", overflow_until_compacted),
    "supplied": scenario("supplied", overflow_until_compacted, supply=True),
    "always": scenario("always", always_overflow),
    "manual": scenario("manual", summarise, compact),
    "navigation": scenario("navigation", summarise, navigate),
}


@pytest.mark.parametrize("name", ALL)
async def test_automatic_and_manual_drive_write_the_same_log(name: str, backend: str, tmp_path: Path) -> None:
    given = ALL[name]
    logs: list[object] = []
    for drive in ("automatic", "manual"):
        folder = tmp_path / drive
        folder.mkdir()
        repo = make_repo(backend, folder)
        session = await repo.create(id="same")
        harness = await given.build(session, World(folder / "world"), drive)
        work = await start(given.act(harness))
        if drive == "manual":
            await harness.run_to_completion()
        await work
        logs.append(await session.get_log())
        await harness.close()
        await repo.close()
    assert logs[0] == logs[1]
