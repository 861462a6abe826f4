"""Each cell of the replay table of hooks, by counting the calls of a handler (harness-v2 §11, A-4)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_harness.hooks.catalog import REPLAY, HookName
from agent_harness.session.session import Session
from agent_harness.testing import answer, call
from agent_harness.types.entries import BranchSummaryBody, CompactionBody
from agent_harness.types.messages import AssistantMessage
from agent_harness.types.records import (
    CompactionIntent,
    NavigationIntent,
    OperationStarted,
    Replay,
    StepAttempt,
)
from agent_harness.types.structural import NavigateOptions
from session_backends import MemorySessionRepo
from tests.support.prefix import RUN, Prefix, errored, real, user
from tests.support.rig import Calls, Rig, open_rig

OVERLOADED = answer(error_message="overloaded", error_code="overloaded")
BATCH = answer("Two.", calls=[call("measure", {"bed": 1}, id="c1"), call("measure", {"bed": 2}, id="c2")])
STRUCTURAL: set[HookName] = {"before_compaction", "before_navigation"}


async def counting(
    session: Session, name: HookName, *answers: object, replay: Replay = "safe"
) -> tuple[Rig, list[Any]]:
    """A harness whose handler of `name` only notes that it was called."""
    rig = await open_rig(session, *answers, tools=[Calls().tool(replay=replay)])
    called: list[Any] = []
    options = {"id": "counts"} if name in {"before_run", "before_resume"} else {}
    rig.harness.hooks.on(name, called.append, **options)
    return rig, called


async def live(name: HookName, *failed: AssistantMessage) -> int:
    """The calls while a run of two requests and two tool calls, or a structural operation with one request, is done.

    `failed` are the answers of attempts before the first that succeeds.
    """
    session = await MemorySessionRepo().create()
    if name not in STRUCTURAL:
        rig, called = await counting(session, name, *failed, BATCH, "Done.")
        await rig.harness.prompt("Measure.")
        return len(called)
    rig, called = await counting(session, name, "First answer.", "Second answer.", *failed, "Summary.")
    await rig.harness.prompt("First question.")
    target = await rig.harness.get_leaf_id()
    await rig.harness.prompt("Second question.")
    if name == "before_compaction":
        await rig.harness.compact()
    else:
        await rig.harness.navigate_tree(target, NavigateOptions(summarize=True))
    assert rig.provider.played == 3 + len(failed)
    return len(called)


# Resumed: crash states by hand ---------------------------------------------------------------------------------------


async def accepted(p: Prefix) -> None:
    await p.start()


async def attempted(p: Prefix) -> None:
    await p.start()
    await p.attempt()


async def answered(p: Prefix) -> None:
    await attempted(p)
    await p.entry("a1", answer("Done."))


async def answered_then_aborted(p: Prefix) -> None:
    await answered(p)
    await p.aborted()


async def failed(p: Prefix) -> None:
    await attempted(p)
    await p.entry("a1", errored())


async def batch(p: Prefix) -> None:
    await p.batch(1)


async def started(p: Prefix) -> None:
    await p.batch(1)
    await p.tool_started(1, replay="safe")


async def started_never(p: Prefix) -> None:
    await p.batch(1)
    await p.tool_started(1, replay="never")


async def settled(p: Prefix) -> None:
    await started_never(p)
    await p.tool_settled(1, real("kept"))


async def resulted(p: Prefix) -> None:
    await started_never(p)
    await p.result(1)


async def talked(p: Prefix) -> None:
    for number in (1, 2):
        await p.entry(f"q{number}", user(f"Question {number}."))
        await p.entry(f"e{number}", answer(f"Answer {number}."))


async def compacting(p: Prefix) -> None:
    await talked(p)
    await p.record(OperationStarted(source_leaf_id="e2", intent=CompactionIntent(result_entry_id="s1")), RUN)


async def compaction_attempted(p: Prefix) -> None:
    await compacting(p)
    await p.record(
        StepAttempt(run_id=RUN, step="compaction", attempt=1, result_entry_id="s1", compaction_reason="manual")
    )


async def compacted(p: Prefix) -> None:
    await compacting(p)
    await p.body("s1", CompactionBody(summary="Kept.", retained_tail=(), tokens_before=9))


async def navigating(p: Prefix) -> None:
    await talked(p)
    intent = NavigationIntent(target_id="e1", summarize=True, summary_entry_id="s1")
    await p.record(OperationStarted(source_leaf_id="e2", intent=intent), RUN)


async def navigation_attempted(p: Prefix) -> None:
    await navigating(p)
    await p.record(StepAttempt(run_id=RUN, step="branch_summary", attempt=1, result_entry_id="s1"))


async def navigated(p: Prefix) -> None:
    await navigating(p)
    await p.session.move_lane("main", "e1")
    await p.body("s1", BranchSummaryBody(from_id="e2", summary="Kept."))


State = Callable[[Prefix], Awaitable[None]]
EACH_REQUEST: dict[State, int] = {accepted: 1, attempted: 1, batch: 1, answered: 0}

# What the cells of the table say: calls of a handler per crash state.
RESUMED: dict[tuple[HookName, str], dict[State, int]] = {
    ("before_run", "no: its output is in `operation_started`"): {accepted: 0, attempted: 0, batch: 0, answered: 0},
    ("before_resume", "yes: must be idempotent"): {accepted: 1, batch: 1, answered: 1, compacting: 1, navigating: 1},
    (
        "before_run_end",
        "at the boundary that recovery reaches, so it may repeat; never for abort or failure",
    ): {answered: 1, batch: 1, answered_then_aborted: 0, failed: 0},
    ("transform_context", "yes"): EACH_REQUEST,
    ("before_request", "yes"): EACH_REQUEST,
    ("before_payload", "yes"): EACH_REQUEST,
    ("after_response", "per response"): EACH_REQUEST,
    ("before_tool", "not when `tool_started` exists"): {
        batch: 1,
        started: 0,
        started_never: 0,
        settled: 0,
        resulted: 0,
    },
    (
        "after_tool",
        "on safe replay, and for a settled call whose entry is missing",
    ): {batch: 1, started: 1, started_never: 0, settled: 1, resulted: 0},
    (
        "before_compaction",
        "not when the result entry or a `step_attempt` of this work exists",
    ): {compacting: 1, compaction_attempted: 0, compacted: 0},
    (
        "before_navigation",
        "not when the result entry or a `step_attempt` of this work exists",
    ): {navigating: 1, navigation_attempted: 0, navigated: 0},
}

FRESH: dict[str, int] = {
    "once": 1,
    "no": 0,
    "at a normal finish boundary": 1,
    "per request": 2,
    "per response": 2,
    "once per call": 2,
    "once per executed result": 2,
    "once per operation": 1,
}
RETRIED: dict[str, int] = {"no": 0, "yes": 1, "per response": 1}  # more calls per failed attempt


@pytest.mark.parametrize("name", REPLAY)
async def test_fresh(name: HookName) -> None:
    assert await live(name) == FRESH[REPLAY[name].fresh]


@pytest.mark.parametrize("name", REPLAY)
async def test_retry(name: HookName) -> None:
    more = await live(name, OVERLOADED, OVERLOADED) - await live(name)
    assert more == 2 * RETRIED[REPLAY[name].retry]


@pytest.mark.parametrize("name", REPLAY)
async def test_resume(name: HookName) -> None:
    expected = RESUMED[name, REPLAY[name].resume]
    seen: dict[State, int] = {}
    for state in expected:
        session = await MemorySessionRepo().create()
        await state(Prefix(session))
        rig, called = await counting(session, name, "Went on.")
        await rig.harness.resume()
        await rig.harness.wait_for_idle()
        assert await session.find_open_operations("main", limit=1) == []
        seen[state] = len(called)
    assert seen == expected


def test_the_cells_that_are_counted_are_those_of_the_table() -> None:
    assert set(RESUMED) == {(name, row.resume) for name, row in REPLAY.items()}
    assert set(FRESH) == {row.fresh for row in REPLAY.values()}
    assert set(RETRIED) == {row.retry for row in REPLAY.values()}
