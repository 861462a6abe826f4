"""Every rule of harness-v2 §5 "Validity": create() refuses the log and names the rule; verify() lists it."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from agent_harness.errors import CorruptLog, OperationOpen
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer
from agent_harness.types.messages import TextContent, ToolResultMessage
from agent_harness.types.records import QueueCancelled, StepAttempt, ToolStarted
from tests.support.prefix import RUN, Prefix, real, user
from tests.support.rig import Calls, open_rig

Write = Callable[[Prefix], Awaitable[None]]
BROKEN: dict[str, tuple[str, Write]] = {}


def breaks(rule: str) -> Callable[[Write], Write]:
    def register(write: Write) -> Write:
        BROKEN[write.__name__] = (rule, write)
        return write

    return register


@breaks("unknown_operation")
async def record_of_another_run(p: Prefix) -> None:
    await p.start()
    await p.record(StepAttempt(run_id="run-9", step="assistant", attempt=1, result_entry_id="a1"))


@breaks("non_consecutive_attempt")
async def attempt_skipped(p: Prefix) -> None:
    await p.start()
    await p.attempt(1, "x1")
    await p.attempt(3, "x3")


@breaks("non_consecutive_attempt")
async def attempt_repeated(p: Prefix) -> None:
    await p.start()
    await p.attempt(1, "x1")
    await p.attempt(1, "x2")


@breaks("non_consecutive_attempt")
async def first_attempt_is_the_second(p: Prefix) -> None:
    await p.start()
    await p.attempt(2, "x1")


@breaks("invalid_compaction_reason")
async def compaction_without_reason(p: Prefix) -> None:
    await p.start()
    await p.record(StepAttempt(run_id=RUN, step="compaction", attempt=1, result_entry_id="k1"))


@breaks("invalid_compaction_reason")
async def reason_on_an_assistant_attempt(p: Prefix) -> None:
    await p.start()
    await p.record(
        StepAttempt(run_id=RUN, step="assistant", attempt=1, result_entry_id="a1", compaction_reason="threshold")
    )


@breaks("queue_after_abort")
async def steer_behind_the_marker(p: Prefix) -> None:
    await p.start()
    await p.aborted()
    await p.queued("steer", "q1", "late")


@breaks("queue_after_abort")
async def follow_up_behind_the_marker(p: Prefix) -> None:
    await p.start()
    await p.aborted()
    await p.queued("followUp", "q1", "late")


@breaks("invalid_queue_cancellation")
async def cancellation_of_nothing(p: Prefix) -> None:
    await p.start()
    await p.record(QueueCancelled(run_id=RUN, entry_id="q9"))


@breaks("invalid_queue_cancellation")
async def cancellation_of_a_consumed_item(p: Prefix) -> None:
    await p.start()
    await p.queued("steer", "q1", "s")
    await p.entry("q1", user("s"))
    await p.cancelled("q1")


@breaks("invalid_queue_cancellation")
async def cancellation_of_a_next_run_item_twice(p: Prefix) -> None:
    await p.queued("nextRun", "n1", "s")
    await p.cancelled("n1", next_run=True)
    await p.cancelled("n1", next_run=True)


@breaks("inconsistent_step")
async def compaction_attempts_with_two_results(p: Prefix) -> None:
    await p.start()
    for number, result in ((1, "k1"), (2, "k2")):
        await p.record(
            StepAttempt(
                run_id=RUN,
                step="compaction",
                attempt=number,
                result_entry_id=result,
                compaction_reason="threshold",
            )
        )


@breaks("inconsistent_step")
async def compaction_attempts_with_two_reasons(p: Prefix) -> None:
    await p.start()
    await p.record(
        StepAttempt(run_id=RUN, step="compaction", attempt=1, result_entry_id="k1", compaction_reason="threshold")
    )
    await p.record(
        StepAttempt(run_id=RUN, step="compaction", attempt=2, result_entry_id="k1", compaction_reason="overflow")
    )


@breaks("tool_call_mismatch")
async def start_of_a_call_that_is_not_there(p: Prefix) -> None:
    await p.batch(1)
    await p.tool_started(2)


@breaks("tool_call_mismatch")
async def start_under_another_name(p: Prefix) -> None:
    await p.batch(1)
    await p.tool_started(1, name="water")


@breaks("tool_call_mismatch")
async def start_with_the_index_of_another_call(p: Prefix) -> None:
    await p.batch(2)
    await p.record(
        ToolStarted(
            run_id=RUN,
            assistant_entry_id="a1",
            tool_index=0,
            tool_call_id="c2",
            tool_name="measure",
            effective_args={},
            result_entry_id="t2",
            replay="never",
        )
    )


@breaks("duplicate_tool_invocation")
async def call_started_twice(p: Prefix) -> None:
    await p.batch(1)
    await p.tool_started(1)
    await p.tool_started(1)


@breaks("tool_settled_mismatch")
async def settled_without_start(p: Prefix) -> None:
    await p.batch(1)
    await p.tool_settled(1, real("x"))


@breaks("tool_settled_mismatch")
async def settled_twice(p: Prefix) -> None:
    await p.batch(1)
    await p.tool_started(1)
    await p.tool_settled(1, real("x"))
    await p.tool_settled(1, real("x"))


@breaks("provisioned_entry_mismatch")
async def initial_message_with_other_content(p: Prefix) -> None:
    await p.start(written=0)
    await p.entry("u1", user("something else"))


@breaks("provisioned_entry_mismatch")
async def steer_with_other_content(p: Prefix) -> None:
    await p.start()
    await p.queued("steer", "q1", "s")
    await p.entry("q1", user("something else"))


@breaks("provisioned_entry_mismatch")
async def deferred_write_with_other_content(p: Prefix) -> None:
    await p.start()
    await p.write("w1")
    await p.entry("w1", user("something else"))


@breaks("provisioned_entry_mismatch")
async def attempt_result_that_is_no_answer(p: Prefix) -> None:
    await p.start()
    await p.attempt(1, "a1")
    await p.entry("a1", user("something else"))


@breaks("provisioned_entry_mismatch")
async def tool_result_of_another_call(p: Prefix) -> None:
    await p.batch(2)
    await p.tool_started(1)
    wrong = ToolResultMessage(
        tool_call_id="c2", tool_name="measure", content=(TextContent(text="x"),), is_error=False, timestamp=1
    )
    await p.entry("t1", wrong)


@breaks("invalid_deferred_handle")
async def deferred_answer_without_a_handle(p: Prefix) -> None:
    await p.start()
    await p.attempt()
    await p.entry("a1", replace(answer("x", stop_reason="deferred"), deferred=None))


@pytest.mark.parametrize("name", BROKEN)
async def test_create_refuses_a_broken_log_and_names_the_rule(repo: SessionRepo, name: str) -> None:
    rule, write = BROKEN[name]
    session = await repo.create()
    await write(Prefix(session))
    before = await session.get_log()
    with pytest.raises(CorruptLog) as caught:
        await open_rig(session, tools=[Calls().tool()])
    assert caught.value.rule == rule
    assert caught.value.lane == "main"
    assert caught.value.item_id
    assert await session.get_log() == before
    assert rule in {finding.rule for finding in await session.verify()}


async def test_the_rules_that_a_prefix_can_break_are_all_broken_here() -> None:
    """Two open operations and a record behind a finish are refused by the writer or found by verify() alone."""
    from agent_harness.reducer.validity import RULES

    assert set(RULES) - {rule for rule, _ in BROKEN.values()} == {"multiple_open_operations", "record_after_finish"}


async def test_a_second_start_is_refused_by_the_writer(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    from agent_harness.types.records import OperationStarted, RunIntent

    with pytest.raises(OperationOpen):
        await prefix.record(
            OperationStarted(source_leaf_id=None, intent=RunIntent(original_prompt=(), initial_messages=())), "run-2"
        )
    rig = await open_rig(session)
    assert [operation.id for operation in rig.suspended] == [RUN]


async def test_a_broken_lane_beside_a_sound_one_is_named(repo: SessionRepo) -> None:
    session = await repo.create()
    await session.create_lane("slack:1", None)
    prefix = Prefix(session, "slack:1")
    await prefix.start()
    await prefix.attempt(2, "x1")
    with pytest.raises(CorruptLog) as caught:
        await open_rig(session)
    assert caught.value.lane == "slack:1"
