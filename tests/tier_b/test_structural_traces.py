"""Compaction and navigation write exactly the traces of harness-v2 §6, letter by letter."""

import pytest

from agent_harness import Ok
from agent_harness.hooks.catalog import BeforeCompaction, BeforeNavigation, CompactionDecision, NavigationDecision
from agent_harness.outcomes import (
    CompactionCompleted,
    CompactionEnded,
    NavigationCompleted,
    NavigationEnded,
    RunCompleted,
    RunFailed,
)
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import Trace, answer, call
from agent_harness.types.entries import BranchSummaryBody, CompactionBody
from agent_harness.types.messages import Usage
from agent_harness.types.records import HookUsage, StepAttempt
from agent_harness.types.structural import CompactResult, NavigateOptions, SummaryResult
from tests.support.rig import Calls, Rig, open_rig

OVERLOADED = answer(error_message="overloaded", error_code="overloaded")
FULL = Usage(input=90_000, output=10)  # of a window of 100,000 with 16,384 reserved
SUPPLIED = CompactionDecision(compaction=CompactResult(summary="From a hook.", usage=Usage(input=7, output=3)))


async def rig_for(repo: SessionRepo, *answers: object, **options: object) -> Rig:
    return await open_rig(await repo.create(id="trace"), *answers, tools=[Calls().tool()], **options)


async def talked(repo: SessionRepo, *answers: object, **options: object) -> tuple[Rig, int]:
    """A lane with two finished turns; also where its log ends."""
    rig = await rig_for(repo, "First answer.", "Second answer.", *answers, **options)
    assert isinstance(await rig.harness.prompt("First question."), Ok)
    assert isinstance(await rig.harness.prompt("Second question."), Ok)
    return rig, len(await rig.lines(usage=True))


async def attempts(rig: Rig) -> list[StepAttempt]:
    found = await rig.session.find_records(type="step_attempt", order="oldestFirst")
    return [record.body for record in found if isinstance(record.body, StepAttempt)]


# Inside a run --------------------------------------------------------------------------------------------------------


async def test_auto_compaction_at_a_checkpoint(repo: SessionRepo) -> None:
    rig = await rig_for(repo, answer("On it.", calls=[call("measure")], usage=FULL), "Summary.", "Done.")
    trace = Trace(rig.session)
    trace.watch(rig.harness, "before_compaction", "before_run_end")
    result = await rig.harness.prompt("Measure.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert await trace.lines(usage=True) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R usage",
        "E assistant toolUse",
        "R tool_started",
        "E toolResult",
        "H before_compaction",  # the checkpoint: the next request would not fit
        "R step_attempt",
        "R usage",
        "E compaction",
        "R step_attempt",
        "R usage",
        "E assistant stop",
        "H before_run_end",
        "R operation_finished",
    ]
    assert [(a.step, a.attempt, a.compaction_reason) for a in await attempts(rig)] == [
        ("assistant", 1, None),
        ("compaction", 1, "threshold"),
        ("assistant", 1, None),
    ]
    await rig.harness.close()


async def test_a_supplied_auto_compaction_writes_no_attempt(repo: SessionRepo) -> None:
    rig = await rig_for(repo, answer("On it.", calls=[call("measure")], usage=FULL), "Done.")
    rig.harness.hooks.on("before_compaction", lambda _: SUPPLIED)
    await rig.harness.prompt("Measure.")
    assert (await rig.lines(usage=True))[6:] == [
        "E toolResult",
        "R usage",
        "E compaction",
        "R step_attempt",
        "R usage",
        "E assistant stop",
        "R operation_finished",
    ]
    assert [a.step for a in await attempts(rig)] == ["assistant", "assistant"]
    await rig.harness.close()


async def test_a_declined_threshold_sends_the_request_as_it_is_and_asks_once_between_two_answers(
    repo: SessionRepo,
) -> None:
    working = [answer("On it.", calls=[call("measure", id=f"c{n}")], usage=FULL) for n in range(2)]
    rig = await rig_for(repo, *working, "Done.")
    asked: list[BeforeCompaction] = []
    rig.harness.hooks.on("before_compaction", lambda e: asked.append(e) or CompactionDecision(decline=True))
    result = await rig.harness.prompt("Measure.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert len(asked) == 2
    assert await rig.session.find_entries(type="compaction") == []
    await rig.harness.close()


async def test_no_pressure_is_judged_after_the_last_answer(repo: SessionRepo) -> None:
    rig = await rig_for(repo, answer("Done.", usage=FULL))
    await rig.harness.prompt("Measure.")
    assert await rig.session.find_entries(type="compaction") == []
    assert len(rig.provider.requests) == 1
    await rig.harness.close()


async def test_pressure_is_judged_before_the_first_request_of_a_run(repo: SessionRepo) -> None:
    rig = await rig_for(repo, answer("Long.", usage=FULL), "Summary.", "Done.")
    await rig.harness.prompt("First.")
    await rig.harness.prompt("Second.")
    assert (await rig.lines())[5:] == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "E compaction",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    await rig.harness.close()


async def test_a_compaction_that_did_not_help_is_not_repeated_before_the_next_answer(repo: SessionRepo) -> None:
    """The retained prompt alone is larger than the window: the request goes out as it is (A-15)."""
    rig = await rig_for(repo, "Short.", "Summary.", "Done.")
    await rig.harness.prompt("First.")
    await rig.harness.prompt("word " * 90_000)
    assert [a.step for a in await attempts(rig)] == ["assistant", "compaction", "assistant"]
    await rig.harness.close()


async def test_exhausted_auto_compaction_fails_the_run_without_before_run_end(repo: SessionRepo) -> None:
    rig = await rig_for(repo, answer("On it.", calls=[call("measure")], usage=FULL), OVERLOADED, OVERLOADED, OVERLOADED)
    trace = Trace(rig.session)
    trace.watch(rig.harness, "before_compaction", "before_run_end")
    result = await rig.harness.prompt("Measure.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert result.value.error.code == "summary_failed"
    assert (await trace.lines(usage=True))[6:] == [
        "E toolResult",
        "H before_compaction",
        *["R step_attempt", "R usage"] * 3,
        "R operation_finished",
    ]
    ids = {a.result_entry_id for a in await attempts(rig) if a.step == "compaction"}
    assert len(ids) == 1  # all attempts of one step share the provisioned id
    await rig.harness.close()


# Manual compaction ---------------------------------------------------------------------------------------------------


async def test_manual_compaction(repo: SessionRepo) -> None:
    rig, before = await talked(repo, "Summary.")
    trace = Trace(rig.session)
    trace.watch(rig.harness, "before_compaction")
    result = await rig.harness.compact("Mention beds.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionCompleted)
    assert (await trace.lines(usage=True))[before:] == [
        "R operation_started",
        "H before_compaction",
        "R step_attempt",
        "R usage",
        "E compaction",
        "R operation_finished",
    ]
    body = result.value.entry.body
    assert isinstance(body, CompactionBody)
    assert body.summary == "Summary."
    assert result.value.leaf_id == result.value.entry.id == await rig.harness.get_leaf_id()
    (attempt,) = [a for a in await attempts(rig) if a.step == "compaction"]
    assert (attempt.compaction_reason, attempt.result_entry_id) == ("manual", result.value.entry.id)
    await rig.harness.close()


async def test_manual_compaction_retries_with_a_durable_count(repo: SessionRepo) -> None:
    rig, before = await talked(repo, OVERLOADED, "Summary.")
    await rig.harness.compact()
    assert (await rig.lines(usage=True))[before:] == [
        "R operation_started",
        "R step_attempt",
        "R usage",
        "R step_attempt",
        "R usage",
        "E compaction",
        "R operation_finished",
    ]
    assert rig.clock.slept_ms == [100]
    await rig.harness.close()


async def test_a_supplied_manual_compaction_makes_no_request(repo: SessionRepo) -> None:
    rig, before = await talked(repo)
    rig.harness.hooks.on("before_compaction", lambda _: SUPPLIED)
    result = await rig.harness.compact()
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionCompleted)
    assert (await rig.lines(usage=True))[before:] == [
        "R operation_started",
        "R usage",
        "E compaction",
        "R operation_finished",
    ]
    (usage,) = [r.body for r in await rig.session.find_records(type="usage") if isinstance(r.body, HookUsage)]
    assert usage.entry_id == result.value.entry.id
    body = result.value.entry.body
    assert isinstance(body, CompactionBody)
    assert body.usage == usage.usage == Usage(input=7, output=3)
    assert len(body.retained_tail) == 2  # the preparation's, since the hook gave none
    await rig.harness.close()


@pytest.mark.parametrize("code", ["auth", "overloaded"])
async def test_a_failed_manual_compaction_leaves_the_context_as_it_was(repo: SessionRepo, code: str) -> None:
    failing = [answer(error_message="no", error_code=code)] * 3
    rig, before = await talked(repo, *failing, "Third answer.")
    result = await rig.harness.compact()
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionEnded)
    assert result.value.kind == "failed"
    assert result.value.error is not None
    tries = 1 if code == "auth" else 3
    assert (await rig.lines())[before - 2 :] == [
        "R operation_started",
        *["R step_attempt"] * tries,
        "R operation_finished",
    ]
    assert await rig.session.find_entries(type="compaction") == []
    await rig.harness.close()


async def test_a_declined_manual_compaction(repo: SessionRepo) -> None:
    rig, before = await talked(repo)
    rig.harness.hooks.on("before_compaction", lambda _: CompactionDecision(decline=True))
    result = await rig.harness.compact()
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionEnded)
    assert result.value.kind == "declined"
    assert (await rig.lines(usage=True))[before:] == ["R operation_started", "R operation_finished"]
    await rig.harness.close()


async def test_a_split_turn_makes_two_requests_and_two_usage_records_in_one_attempt(repo: SessionRepo) -> None:
    calls = [answer(f"Step {n}. " + "x" * 700, calls=[call("measure", id=f"c{n}")]) for n in range(6)]
    rig = await rig_for(
        repo,
        "First answer.",
        *calls,
        "Done.",
        answer("Of history.", usage=Usage(input=1_000, output=50)),
        answer("Of the turn.", usage=Usage(input=2_000, output=60)),
    )
    await rig.harness.prompt("First.")
    await rig.harness.prompt("Second.")
    before = await rig.session.get_stats()
    at = len(await rig.lines(usage=True))
    result = await rig.harness.compact()
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionCompleted)
    assert (await rig.lines(usage=True))[at:] == [
        "R operation_started",
        "R step_attempt",
        "R usage",
        "R usage",
        "E compaction",
        "R operation_finished",
    ]
    body = result.value.entry.body
    assert isinstance(body, CompactionBody)
    assert body.usage == Usage(input=3_000, output=110)
    assert body.summary.startswith("Of history.")
    assert body.summary.endswith("Of the turn.")
    after = await rig.session.get_stats()
    assert after.usage.input - before.usage.input == 3_000
    await rig.harness.close()


# Navigation ----------------------------------------------------------------------------------------------------------


async def first_answer(rig: Rig) -> str:
    """The entry at which the first turn ended."""
    return (await rig.session.find_entries(type="message", order="oldestFirst"))[1].id


async def test_navigation_moves_first(repo: SessionRepo) -> None:
    rig, before = await talked(repo, "What was left.")
    trace = Trace(rig.session)
    trace.watch(rig.harness, "before_navigation")
    source, target = await rig.harness.get_leaf_id(), await first_answer(rig)
    result = await rig.harness.navigate_tree(target, NavigateOptions(summarize=True, label="before-refactor"))
    assert isinstance(result, Ok)
    assert isinstance(result.value, NavigationCompleted)
    assert (await trace.lines(usage=True))[before:] == [
        "R operation_started",
        "H before_navigation",
        "R step_attempt",
        "R usage",
        "L move",
        "E branch_summary",
        "G label",
        "R operation_finished",
    ]
    entry = result.value.summary_entry
    assert entry is not None
    assert entry.parent_id == target
    assert entry.body == BranchSummaryBody(
        from_id=source or "", summary="What was left.", usage=Usage(input=10, output=5, total_tokens=15)
    )
    assert result.value.new_leaf_id == entry.id == await rig.harness.get_leaf_id()
    assert await rig.session.get_label(target) == "before-refactor"
    await rig.harness.close()


async def test_a_plain_navigation_is_one_move(repo: SessionRepo) -> None:
    rig, before = await talked(repo)
    for target in (None, await first_answer(rig)):
        result = await rig.harness.navigate_tree(target)
        assert isinstance(result, Ok)
        assert isinstance(result.value, NavigationCompleted)
        assert result.value.new_leaf_id == target == await rig.harness.get_leaf_id()
    assert (await rig.lines(usage=True))[before:] == ["R operation_started", "L move", "R operation_finished"] * 2
    assert len(rig.provider.requests) == 2
    await rig.harness.close()


async def test_a_supplied_branch_summary_makes_no_request(repo: SessionRepo) -> None:
    rig, before = await talked(repo)
    supplied = NavigationDecision(summary=SummaryResult(summary="From a hook.", usage=Usage(input=4)))
    seen: list[BeforeNavigation] = []
    rig.harness.hooks.on("before_navigation", lambda e: seen.append(e) or supplied)
    result = await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True))
    assert isinstance(result, Ok)
    assert (await rig.lines(usage=True))[before:] == [
        "R operation_started",
        "R usage",
        "L move",
        "E branch_summary",
        "R operation_finished",
    ]
    assert [e.type for e in seen[0].preparation.abandoned] == ["message", "message"]
    await rig.harness.close()


async def test_a_declined_navigation_moves_nothing(repo: SessionRepo) -> None:
    rig, before = await talked(repo)
    leaf = await rig.harness.get_leaf_id()
    rig.harness.hooks.on("before_navigation", lambda _: NavigationDecision(decline=True))
    result = await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True, label="x"))
    assert isinstance(result, Ok)
    assert isinstance(result.value, NavigationEnded)
    assert (result.value.kind, result.value.leaf_id) == ("declined", leaf)
    assert (await rig.lines(usage=True))[before:] == ["R operation_started", "R operation_finished"]
    await rig.harness.close()


async def test_a_failed_branch_summary_moves_nothing(repo: SessionRepo) -> None:
    rig, before = await talked(repo, OVERLOADED, OVERLOADED, OVERLOADED)
    leaf = await rig.harness.get_leaf_id()
    result = await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True))
    assert isinstance(result, Ok)
    assert isinstance(result.value, NavigationEnded)
    assert (result.value.kind, result.value.leaf_id) == ("failed", leaf)
    assert (await rig.lines())[before - 2 :] == [
        "R operation_started",
        *["R step_attempt"] * 3,
        "R operation_finished",
    ]
    await rig.harness.close()


async def test_nothing_said_on_the_branch_is_nothing_to_summarise(repo: SessionRepo) -> None:
    """Back down to where the lane came from: the path that is left holds nothing."""
    rig, before = await talked(repo)
    leaf = await rig.harness.get_leaf_id()
    await rig.harness.navigate_tree(await first_answer(rig))
    asked: list[object] = []
    rig.harness.hooks.on("before_navigation", asked.append)
    result = await rig.harness.navigate_tree(leaf, NavigateOptions(summarize=True))
    assert isinstance(result, Ok)
    assert (await rig.lines(usage=True))[before:] == ["R operation_started", "L move", "R operation_finished"] * 2
    assert asked == []
    await rig.harness.close()


async def test_the_configuration_follows_the_path_the_lane_stands_on(repo: SessionRepo) -> None:
    rig, _ = await talked(repo)
    target = await first_answer(rig)
    await rig.harness.set_thinking_level("high")
    await rig.harness.navigate_tree(target)
    assert await rig.harness.get_thinking_level() == "off"
    await rig.harness.close()


async def test_a_label_is_one_line(repo: SessionRepo) -> None:
    rig, _ = await talked(repo)
    target = await first_answer(rig)
    await rig.harness.navigate_tree(target, NavigateOptions(label="two\nlines"))
    assert await rig.session.get_label(target) == "two lines"
    await rig.harness.close()
