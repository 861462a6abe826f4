"""Every crash row of compaction, overflow and navigation (harness-v2 §6), from a hand-written prefix, resumed."""

from collections.abc import Awaitable, Callable

import pytest
import pytest_asyncio

from agent_harness import Err, Ok
from agent_harness.errors import WriteRefused
from agent_harness.events.catalog import CompactionEnd, CompactionStart, HarnessEvent, NavigationEnd, NavigationStart
from agent_harness.outcomes import CompactionCompleted, MissingIdentities, NavigationCompleted, RunCompleted, RunFailed
from agent_harness.providers.base import Model, ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.session.session import Session
from agent_harness.testing import Trace, answer, call
from agent_harness.types.entries import BranchSummaryBody, CompactionBody
from agent_harness.types.messages import Usage
from agent_harness.types.records import (
    AbortRequested,
    CompactionIntent,
    CompactionReason,
    HookUsage,
    NavigationIntent,
    OperationStarted,
    StepAttempt,
    StepKind,
)
from tests.support.prefix import RUN, Prefix, user
from tests.support.rig import Rig, open_rig


@pytest_asyncio.fixture
async def session(repo: SessionRepo) -> Session:
    return await repo.create(id="recovery")


FULL = Usage(input=90_000, output=10)
TOO_LARGE = answer(error_message="prompt is too long", error_code="overflow")
SUMMARY = CompactionBody(summary="Before the crash.", retained_tail=(user("kept"),), tokens_before=9)


class Structural(Prefix):
    """A lane with two turns (`u1`, `a1`, `u2`, `a2`) and the prefixes of structural operations on it."""

    async def talked(self) -> None:
        for number in (1, 2):
            await self.entry(f"q{number}", user(f"Question {number}."))
            await self.entry(f"e{number}", answer(f"Answer {number}."))

    async def compaction(self) -> None:
        intent = CompactionIntent(result_entry_id="cp1", custom_instructions="mention beds")
        await self.record(OperationStarted(source_leaf_id="e2", intent=intent), RUN)

    async def navigation(self, *, summarize: bool = True, label: str | None = "mark") -> None:
        intent = NavigationIntent(
            target_id="e1", summarize=summarize, label=label, summary_entry_id="bs1" if summarize else None
        )
        await self.record(OperationStarted(source_leaf_id="e2", intent=intent), RUN)

    async def step(self, kind: StepKind, number: int, result_id: str, reason: CompactionReason | None = None) -> None:
        await self.record(
            StepAttempt(run_id=RUN, step=kind, attempt=number, result_entry_id=result_id, compaction_reason=reason)
        )

    async def moved(self) -> None:
        await self.session.move_lane(self.lane, "e1")

    async def overflowing(self) -> None:
        """A run whose first answer was discarded as an overflow."""
        await self.talked()
        await self.start("Big question.")
        await self.attempt(1, "x1")


async def resumed(session: Session, *answers: object, **options: object) -> tuple[Rig, Trace, list[HarnessEvent]]:
    rig = await open_rig(session, *answers, **options)
    trace = Trace(session)
    trace.watch(rig.harness, "before_compaction", "before_navigation")
    events: list[HarnessEvent] = []
    rig.harness.events.on(None, events.append)
    return rig, trace, events


# Manual compaction ---------------------------------------------------------------------------------------------------


async def no_more(_: Structural) -> None:
    """The crash came right after acceptance."""


async def attempted(p: Structural) -> None:
    await p.step("compaction", 1, "cp1", "manual")


async def appended(p: Structural) -> None:
    await p.step("compaction", 1, "cp1", "manual")
    await p.body("cp1", SUMMARY)


async def supplied(p: Structural) -> None:
    await p.record(HookUsage(run_id=RUN, entry_id="cp1", usage=Usage(input=3)))
    await p.body("cp1", SUMMARY)


COMPACTION_ROWS: dict[str, tuple[Callable[[Structural], Awaitable[None]], list[str]]] = {
    "operation_started": (
        no_more,
        ["H before_compaction", "R step_attempt", "E compaction", "R operation_finished"],
    ),
    "step_attempt": (attempted, ["R step_attempt", "E compaction", "R operation_finished"]),
    "compaction entry": (appended, ["R operation_finished"]),
    "supplied entry": (supplied, ["R operation_finished"]),
}


@pytest.mark.parametrize("row", COMPACTION_ROWS)
async def test_a_manual_compaction_is_completed_from_each_crash_site(session: Session, row: str) -> None:
    write, expected = COMPACTION_ROWS[row]
    prefix = Structural(session)
    await prefix.talked()
    await prefix.compaction()
    await write(prefix)
    before = len(await Trace(session).lines())
    rig, trace, events = await resumed(session, "Summary.")
    assert [(s.kind, s.reason) for s in rig.suspended] == [("compaction", "crash")]
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionCompleted)
    assert (await trace.lines())[before:] == expected
    assert result.value.leaf_id == result.value.entry.id == "cp1"
    await rig.harness.events.flush()
    starts = [e for e in events if isinstance(e, CompactionStart)]
    ends = [e for e in events if isinstance(e, CompactionEnd)]
    assert [(e.reason, e.recovery) for e in starts] == [("manual", True)]
    assert [(e.outcome, e.entry and e.entry.id, e.recovery) for e in ends] == [("completed", "cp1", True)]
    await rig.harness.close()


async def test_the_count_of_a_compaction_survives_restarts(session: Session) -> None:
    prefix = Structural(session)
    await prefix.talked()
    await prefix.compaction()
    for number in (1, 2, 3):
        await prefix.step("compaction", number, "cp1", "manual")
    rig, _, events = await resumed(session, "Never asked for.", attempts=3)
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert result.value.kind == "failed"
    assert rig.provider.requests == []
    await rig.harness.events.flush()
    assert [e.outcome for e in events if isinstance(e, CompactionEnd)] == ["failed"]
    await rig.harness.close()


@pytest.mark.parametrize("row", COMPACTION_ROWS)
@pytest.mark.parametrize("before_crash", [True, False], ids=["aborted before the crash", "aborted after it"])
async def test_an_aborted_compaction_is_closed_from_each_crash_site(
    session: Session, row: str, before_crash: bool
) -> None:
    prefix = Structural(session)
    await prefix.talked()
    await prefix.compaction()
    await COMPACTION_ROWS[row][0](prefix)
    if before_crash:
        await prefix.record(AbortRequested(run_id=RUN))
    rig, _, events = await resumed(session, "Never asked for.")
    if before_crash:
        result = await rig.harness.resume()
        assert isinstance(result, Ok)
        assert result.value.kind == "aborted"
    else:
        assert isinstance(await rig.harness.abort(), Ok)
        await rig.harness.wait_for_idle()
    assert (await rig.lines())[-2:] == ["R abort_requested", "R operation_finished"]
    assert rig.provider.requests == []
    await rig.harness.events.flush()
    assert [e.outcome for e in events if isinstance(e, CompactionEnd)] == ["aborted"]
    await rig.harness.close()


# Navigation ----------------------------------------------------------------------------------------------------------


async def nav_attempted(p: Structural) -> None:
    await p.step("branch_summary", 1, "bs1")


async def nav_moved(p: Structural) -> None:
    await p.step("branch_summary", 1, "bs1")
    await p.moved()


async def nav_moved_supplied(p: Structural) -> None:
    await p.record(HookUsage(run_id=RUN, entry_id="bs1", usage=Usage(input=3)))
    await p.moved()


async def nav_summarised(p: Structural) -> None:
    await nav_moved(p)
    await p.body("bs1", BranchSummaryBody(from_id="e2", summary="Left."))


async def nav_labelled(p: Structural) -> None:
    await nav_summarised(p)
    await p.session.set_label("e1", "mark")


REST = ["E branch_summary", "G label", "R operation_finished"]
NAVIGATION_ROWS: dict[str, tuple[Callable[[Structural], Awaitable[None]], list[str]]] = {
    "operation_started": (no_more, ["H before_navigation", "R step_attempt", "L move", *REST]),
    "summary generated": (nav_attempted, ["R step_attempt", "L move", *REST]),
    "lane move": (nav_moved, ["R step_attempt", *REST]),
    "lane move, supplied summary": (nav_moved_supplied, ["R step_attempt", *REST]),  # regenerated, never asked again
    "summary entry": (nav_summarised, ["G label", "R operation_finished"]),
    "label": (nav_labelled, ["R operation_finished"]),
}


@pytest.mark.parametrize("row", NAVIGATION_ROWS)
async def test_a_navigation_is_completed_from_each_crash_site(session: Session, row: str) -> None:
    write, expected = NAVIGATION_ROWS[row]
    prefix = Structural(session)
    await prefix.talked()
    await prefix.navigation()
    await write(prefix)
    before = len(await Trace(session).lines())
    rig, trace, events = await resumed(session, "Regenerated.")
    assert [s.kind for s in rig.suspended] == ["navigation"]
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, NavigationCompleted)
    assert (await trace.lines())[before:] == expected
    path = [e.id for e in await session.find_entries_on_branch(order="oldestFirst")]
    assert path == ["q1", "e1", "bs1"]
    assert result.value.new_leaf_id == "bs1"
    assert result.value.summary_entry is not None
    assert await session.get_label("e1") == "mark"
    if rig.provider.requests:  # what is summarised derives from the source, before and after the move
        assert "Question 2." in str(rig.provider.requests[0].context.messages[0].content)
        assert "Question 1." not in str(rig.provider.requests[0].context.messages[0].content)
    await rig.harness.events.flush()
    assert [e.recovery for e in events if isinstance(e, NavigationStart)] == [True]
    ends = [e for e in events if isinstance(e, NavigationEnd)]
    assert [(e.outcome, e.old_leaf_id, e.new_leaf_id, e.recovery) for e in ends] == [("completed", "e2", "bs1", True)]
    await rig.harness.close()


@pytest.mark.parametrize("moved", [False, True])
async def test_a_plain_navigation_needs_no_model_to_be_completed(session: Session, moved: bool) -> None:
    prefix = Structural(session)
    await prefix.talked()
    await prefix.navigation(summarize=False)
    if moved:
        await prefix.moved()
    other = Model(provider="other", id="m", api="other")
    rig, _, _ = await resumed(session, models=ModelRegistry([], [other]), model=other)
    assert not rig.suspended[0].missing
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, NavigationCompleted)
    assert (await rig.lines())[-3:] == ["L move", "G label", "R operation_finished"]
    await rig.harness.close()


async def test_a_summary_that_is_still_to_be_made_needs_its_model(session: Session) -> None:
    prefix = Structural(session)
    await prefix.talked()
    await prefix.navigation()
    other = Model(provider="other", id="m", api="other")
    rig, _, _ = await resumed(session, models=ModelRegistry([], [other]), model=other)
    result = await rig.harness.resume()
    assert isinstance(result, Err)
    assert isinstance(result.error, MissingIdentities)
    assert isinstance(await rig.harness.abort(), Ok)  # abort never needs it
    await rig.harness.wait_for_idle()
    await rig.harness.close()


async def test_a_write_on_a_suspended_structural_operation_is_refused_at_once(session: Session) -> None:
    prefix = Structural(session)
    await prefix.talked()
    await prefix.navigation()
    rig, _, _ = await resumed(session)
    size = len(await session.get_log())
    with pytest.raises(WriteRefused, match=f"suspended navigation {RUN}"):
        await rig.harness.session.append_message(user("now"))
    with pytest.raises(WriteRefused, match=f"suspended navigation {RUN}"):
        await rig.harness.set_thinking_level("high")
    assert len(await session.get_log()) == size
    await rig.harness.close()


@pytest.mark.parametrize("kind", ["compaction", "navigation"])
async def test_next_run_items_from_before_a_suspended_structural_operation_are_kept(
    session: Session, kind: str
) -> None:
    """A-2."""
    prefix = Structural(session)
    await prefix.talked()
    await prefix.queued("nextRun", "n1", "Queued before.")
    await (prefix.compaction() if kind == "compaction" else prefix.navigation())
    await prefix.queued("nextRun", "n2", "Queued during.")
    rig, _, _ = await resumed(session, "Summary.", "Answer.")
    assert isinstance(await rig.harness.resume(), Ok)
    assert isinstance(await rig.harness.prompt("Go."), Ok)
    sent = [m.content for m in rig.provider.requests[-1].context.messages]
    assert sent[-3:] == ["Queued before.", "Queued during.", "Go."]
    await rig.harness.close()


# Inside a run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["threshold", "overflow"])
async def test_an_unfinished_compaction_step_resumes_with_its_recorded_reason(
    session: Session, reason: CompactionReason
) -> None:
    prefix = Structural(session)
    await prefix.overflowing()
    await prefix.step("compaction", 1, "cp1", reason)
    await prefix.queued("steer", "s1", "Steered before the crash.")
    before = len(await Trace(session).lines())
    rig, trace, events = await resumed(session, "Summary.", "Fits now.")
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert (await trace.lines())[before:] == [
        "R step_attempt",  # the step comes before new input, and its hook is not asked again
        "E compaction",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    await rig.harness.events.flush()
    assert [(e.reason, e.recovery) for e in events if isinstance(e, CompactionStart)] == [(reason, True)]
    assert [e.entry and e.entry.id for e in events if isinstance(e, CompactionEnd)] == ["cp1"]
    await rig.harness.close()


async def test_an_overflowing_attempt_is_made_again_and_classified_live(session: Session) -> None:
    prefix = Structural(session)
    await prefix.overflowing()
    rig, _, _ = await resumed(session, TOO_LARGE, "Summary.", "Fits now.")
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    attempts = [r.body for r in await session.find_records(type="step_attempt", order="oldestFirst")]
    assert [(a.step, a.attempt) for a in attempts if isinstance(a, StepAttempt)] == [
        ("assistant", 1),
        ("assistant", 2),
        ("compaction", 1),
        ("assistant", 1),
    ]
    await rig.harness.close()


@pytest.mark.parametrize("reason", ["threshold", "overflow"])
async def test_after_the_compaction_entry_a_fresh_assistant_step_follows(
    session: Session, reason: CompactionReason
) -> None:
    prefix = Structural(session)
    await prefix.overflowing()
    await prefix.step("compaction", 1, "cp1", reason)
    await prefix.body("cp1", SUMMARY)
    rig, trace, _ = await resumed(session, "Fits now.")
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert (await trace.lines())[-3:] == ["R step_attempt", "E assistant stop", "R operation_finished"]
    await rig.harness.close()


async def test_a_compaction_from_before_the_crash_counts_between_two_answers(session: Session) -> None:
    """A-15: supplied by a hook, so no attempt says that it was tried; its entry does."""
    prefix = Structural(session)
    await prefix.talked()
    await prefix.start("word " * 90_000)
    tail = (user("An earlier question."), answer("Its answer."), user("word " * 90_000))  # could be cut again
    await prefix.body("cp1", CompactionBody(summary="Supplied.", retained_tail=tail, tokens_before=9))
    rig, trace, _ = await resumed(session, "Fits after all.")
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert (await trace.lines())[-3:] == ["R step_attempt", "E assistant stop", "R operation_finished"]
    await rig.harness.close()


async def test_the_guard_survives_the_crash_and_a_second_overflow_fails_durably(session: Session) -> None:
    prefix = Structural(session)
    await prefix.overflowing()
    await prefix.step("compaction", 1, "cp1", "overflow")
    await prefix.body("cp1", SUMMARY)
    await prefix.attempt(1, "x2")
    rig, trace, _ = await resumed(session, TOO_LARGE, "Never asked for.")
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert (await trace.lines())[-3:] == ["R step_attempt", "E assistant error", "R operation_finished"]
    await rig.harness.close()


async def test_a_run_that_gave_up_on_an_overflow_is_never_completed(session: Session) -> None:
    prefix = Structural(session)
    await prefix.overflowing()
    await prefix.step("compaction", 1, "cp1", "overflow")
    await prefix.body("cp1", SUMMARY)
    await prefix.attempt(1, "x2")
    await prefix.entry("x2", answer(error_message="does not fit", error_code="context_overflow"))
    await prefix.write("w1")
    rig, trace, _ = await resumed(session, "Never asked for.")
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert result.value.error.code == "context_overflow"
    assert (await trace.lines())[-2:] == ["E custom", "R operation_finished"]
    assert rig.provider.requests == []
    await rig.harness.close()


@pytest.mark.parametrize("reason", ["threshold", "overflow"])
async def test_an_exhausted_compaction_stays_terminal_and_queued_input_clears_it(
    session: Session, reason: CompactionReason
) -> None:
    """Also when the process dies between the consumed input and the new step."""
    prefix = Structural(session)
    await prefix.overflowing()
    await prefix.queued("followUp", "f1", "Try it shorter.")
    for number in (1, 2):
        await prefix.step("compaction", number, "cp1", reason)
    await prefix.session.append_entry(
        (await session.find_records(type="queue_enqueued"))[0].body.target,
        "main",
    )
    rig, trace, _ = await resumed(session, TOO_LARGE, "Summary.", "Fits now.", attempts=2)
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert (await trace.lines())[-7:] == [
        "R step_attempt",
        "H before_compaction",
        "R step_attempt",
        "E compaction",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    assert await session.verify() == []
    await rig.harness.close()


async def test_an_exhausted_compaction_fails_the_run_in_recovery_without_another_request(session: Session) -> None:
    prefix = Structural(session)
    await prefix.overflowing()
    for number in (1, 2):
        await prefix.step("compaction", number, "cp1", "overflow")
    rig, trace, _ = await resumed(session, "Never asked for.", attempts=2)
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert (await trace.lines())[-1] == "R operation_finished"
    assert rig.provider.requests == []
    await rig.harness.close()


async def test_pressure_between_two_batches_is_judged_by_the_answers_own_usage(session: Session) -> None:
    prefix = Structural(session)
    await prefix.talked()
    await prefix.start("Measure.")
    await prefix.attempt(1, "a1")
    await prefix.entry("a1", answer("On it.", calls=[call("measure", {}, id="c1")], usage=FULL))
    await prefix.tool_started()
    await prefix.result(text="12 cm")
    rig, trace, _ = await resumed(session, "Summary.", "Done.")
    result = await rig.harness.resume()
    assert isinstance(result, Ok)
    assert (await trace.lines())[-6:] == [
        "H before_compaction",
        "R step_attempt",
        "E compaction",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    kept = (await session.find_entries(type="compaction"))[0].body
    assert isinstance(kept, CompactionBody)
    assert [m.role for m in kept.retained_tail[-2:]] == ["assistant", "toolResult"]
    await rig.harness.close()
