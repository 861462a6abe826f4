"""Recovery outside of tool batches: input, queues, deferred writes, failures, attempts (harness-v2 §7)."""

import pytest

from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import EntryItem
from agent_harness.testing import answer
from agent_harness.types.messages import AssistantMessage, UserMessage
from agent_harness.types.records import QueueName
from tests.support.prefix import Prefix, calls, errored
from tests.support.rig import Calls, Rig, assert_sound, open_rig


async def resumed(rig: Rig, kind: str = "completed") -> list[str]:
    assert (await rig.harness.resume()).unwrap().kind == kind
    await assert_sound(rig.session)
    return await rig.lines()


async def users(rig: Rig) -> list[str]:
    log = await rig.session.get_log()
    return [
        str(i.entry.message.content)
        for i in log
        if isinstance(i, EntryItem) and isinstance(i.entry.message, UserMessage)
    ]


def asked(rig: Rig, request: int = 0) -> list[str]:
    """What the provider was told by users in its n-th request."""
    messages = rig.provider.requests[request].context.messages
    return [str(m.content) for m in messages if isinstance(m, UserMessage)]


async def test_opening_writes_nothing_and_starts_nothing(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    prefix = Prefix(session)
    await prefix.batch(2)
    await prefix.tool_started(1, "safe")
    await prefix.queued("steer", "q1", "and quickly")
    await prefix.write()
    before = await session.get_log()
    rig = await open_rig(session, "done", tools=[tools.tool(replay="safe")])
    assert await session.get_log() == before
    assert (rig.provider.requests, tools.made) == ([], [])
    await rig.harness.close()


@pytest.mark.parametrize("written", [0, 1, 2])
async def test_missing_initial_messages_are_appended_in_order(repo: SessionRepo, written: int) -> None:
    session = await repo.create()
    await Prefix(session).start("one", "two", "three", written=written)
    rig = await open_rig(session, "done")
    lines = await resumed(rig)
    assert lines == ["R operation_started", *["E user"] * 3, "R step_attempt", "E assistant stop", lines[-1]]
    assert asked(rig) == ["one", "two", "three"]


async def test_missing_initial_messages_are_appended_even_when_aborting(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start("one", "two", written=1)
    await prefix.aborted()
    rig = await open_rig(session)
    lines = await resumed(rig, "aborted")
    assert lines == [
        "R operation_started",
        "E user",
        "R abort_requested",
        "E user",
        "E assistant aborted",
        "R operation_finished",
    ]
    assert rig.provider.requests == []


@pytest.mark.parametrize("queue", ["steer", "followUp"])
async def test_a_pending_item_is_consumed_at_its_checkpoint(repo: SessionRepo, queue: QueueName) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.entry("a1", answer("hello"))
    await prefix.queued(queue, "q1", "and this")
    rig = await open_rig(session, "done")
    lines = await resumed(rig)
    assert lines[3:] == [
        "E assistant stop",
        "R queue_enqueued",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    assert asked(rig) == ["go", "and this"]


async def test_an_unfinished_step_resumes_before_new_input_is_consumed(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt(1, "a1")
    await prefix.queued("steer", "q1", "and this")
    rig = await open_rig(session, "first", "second")
    lines = await resumed(rig)
    assert lines == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R queue_enqueued",
        "R step_attempt",
        "E assistant stop",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    assert [asked(rig, 0), asked(rig, 1)] == [["go"], ["go", "and this"]]


async def test_a_cancelled_item_is_never_appended(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.queued("steer", "q1", "cancelled")
    await prefix.queued("followUp", "q2", "kept")
    await prefix.cancelled("q1")
    rig = await open_rig(session, "one", "two")
    await resumed(rig)
    assert await users(rig) == ["go", "kept"]


async def test_items_that_an_abort_killed_are_offered_and_not_appended(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.queued("steer", "q1", "steer")
    await prefix.queued("followUp", "q2", "follow")
    await prefix.queued("nextRun", "n1", "later")
    await prefix.aborted()
    rig = await open_rig(session)
    aborting = rig.suspended[0]
    assert [m.content for m in aborting.aborting_steer or ()] == ["steer"]
    assert [m.content for m in aborting.aborting_follow_up or ()] == ["follow"]
    assert (await rig.harness.resume()).unwrap().kind == "aborted"
    assert await users(rig) == ["go"]
    rig.provider.answers = ["next"]
    assert (await rig.harness.prompt("now")).unwrap().kind == "completed"
    assert await users(rig) == ["go", "later", "now"]
    await assert_sound(session)


@pytest.mark.parametrize("modes", ["one-at-a-time", "all"])
async def test_queue_modes_hold_in_recovery(repo: SessionRepo, modes: str) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.queued("steer", "q1", "s1")
    await prefix.queued("steer", "q2", "s2")
    rig = await open_rig(session, "a", "b", "c", steering_mode=modes)
    await resumed(rig)
    expected = [["go", "s1"], ["go", "s1", "s2"]] if modes == "one-at-a-time" else [["go", "s1", "s2"]]
    assert [asked(rig, n) for n in range(len(rig.provider.requests))] == expected


async def test_a_next_run_item_waits_for_the_next_run(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.queued("nextRun", "n1", "cancelled")
    await prefix.queued("nextRun", "n2", "kept")
    await prefix.cancelled("n1", next_run=True)
    rig = await open_rig(session, "done")
    assert rig.suspended == []
    (await rig.harness.prompt("now")).unwrap()
    assert await users(rig) == ["kept", "now"]


async def test_deferred_writes_come_before_steering_and_are_never_lost(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.entry("a1", answer("hello"))
    await prefix.queued("steer", "q1", "and this")
    await prefix.write("w1")
    await prefix.write("w2")
    rig = await open_rig(session, "done")
    lines = await resumed(rig)
    assert lines[-6:] == [
        "E custom",
        "E custom",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]


# Failures ------------------------------------------------------------------------------------------------------------


async def test_a_terminal_failure_is_closed_as_failed_and_never_completed(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.entry("a1", errored("auth", "no key"))
    rig = await open_rig(session, "must not be asked")
    lines = await resumed(rig, "failed")
    assert lines == ["R operation_started", "E user", "R step_attempt", "E assistant error", "R operation_finished"]
    assert rig.provider.requests == []
    finished = await session_finish(rig)
    assert (finished.outcome, finished.error.code, finished.error.message) == ("failed", "auth", "no key")


async def session_finish(rig: Rig):
    log = await rig.session.get_log()
    return log[-1].record.body


@pytest.mark.parametrize("queue", ["steer", "followUp"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_input_accepted_around_a_failure_starts_new_work(repo: SessionRepo, queue: QueueName, when: str) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    if when == "before":
        await prefix.queued(queue, "q1", "try again")
    await prefix.entry("a1", errored())
    if when == "after":
        await prefix.queued(queue, "q1", "try again")
    rig = await open_rig(session, "done")
    lines = await resumed(rig)
    assert lines[-4:] == ["E user", "R step_attempt", "E assistant stop", "R operation_finished"]


async def test_input_consumed_after_a_failure_clears_it_for_good(repo: SessionRepo) -> None:
    """The process died after the steer was consumed: the failure is history, the run goes on."""
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.queued("steer", "q1", "try again")
    await prefix.entry("a1", errored())
    from tests.support.prefix import user

    await prefix.entry("q1", user("try again"))
    rig = await open_rig(session, "done")
    lines = await resumed(rig)
    assert lines[-3:] == ["R step_attempt", "E assistant stop", "R operation_finished"]


@pytest.mark.parametrize("applied", [False, True])
async def test_deferred_writes_do_not_clear_a_failure(repo: SessionRepo, applied: bool) -> None:
    """A-15, pending or applied before the crash."""
    from agent_harness.types.entries import CustomBody

    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.write("w1")
    await prefix.entry("a1", errored())
    if applied:
        await prefix.body("w1", CustomBody(custom_type="note", data={"id": "w1"}))
    rig = await open_rig(session, "must not be asked")
    lines = await resumed(rig, "failed")
    assert lines[-3:] == ["E assistant error", "E custom", "R operation_finished"]
    assert rig.provider.requests == []


@pytest.mark.parametrize("used", [1, 2])
async def test_the_attempt_count_goes_on_after_a_restart(repo: SessionRepo, used: int) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    for number in range(1, used + 1):
        await prefix.attempt(number, f"x{number}")
    rig = await open_rig(session, *[errored("overloaded")] * 5, attempts=3)
    lines = await resumed(rig, "failed")
    assert lines.count("R step_attempt") == 3
    assert len(rig.provider.requests) == 3 - used


async def test_an_exhausted_step_fails_without_another_request(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    for number in (1, 2, 3):
        await prefix.attempt(number, f"x{number}")
    rig = await open_rig(session, "must not be asked", attempts=3)
    lines = await resumed(rig, "failed")
    assert lines[-2:] == ["E assistant error", "R operation_finished"]
    assert rig.provider.requests == []
    entry = await session_entry(rig, "x3")  # the give-up entry fulfils the last attempt's provisioned id
    assert isinstance(entry, AssistantMessage)
    assert entry.error_code == "retries_exhausted"


async def session_entry(rig: Rig, entry_id: str):
    for item in await rig.session.get_log():
        if isinstance(item, EntryItem) and item.entry.id == entry_id:
            return item.entry.message
    return None


async def test_a_finished_run_without_its_finish_record_is_completed_without_a_request(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.entry("a1", answer("hello"))
    rig = await open_rig(session, "must not be asked")
    outcome = (await rig.harness.resume()).unwrap()
    assert (outcome.kind, outcome.final_entry_id, outcome.leaf_id) == ("completed", "a1", "a1")
    assert rig.provider.requests == []


# Identities (A-12) ---------------------------------------------------------------------------------------------------


async def test_a_missing_tool_stops_resume_and_writes_nothing(repo: SessionRepo) -> None:
    session = await repo.create()
    await Prefix(session).batch(1, name="measure")
    rig = await open_rig(session, "done", active_tool_names=["measure"])
    assert rig.suspended[0].missing.tools == ("measure",)
    before = await session.get_log()
    rejected = await rig.harness.resume()
    assert not rejected.ok
    assert (type(rejected.error).__name__, rejected.error.tools) == ("MissingIdentities", ("measure",))
    assert await session.get_log() == before
    assert (await rig.harness.abort()).ok  # abort never needs them
    await rig.harness.wait_for_idle()
    assert (await rig.lines())[-1] == "R operation_finished"


@pytest.mark.parametrize(("replay", "missing"), [("safe", ("measure",)), ("never", ())])
async def test_a_started_call_needs_its_tool_only_for_a_replay(
    repo: SessionRepo, replay: str, missing: tuple[str, ...]
) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(1, replay)
    rig = await open_rig(session, "done", active_tool_names=["measure"])
    assert rig.suspended[0].missing.tools == missing
    assert (await rig.harness.resume()).ok is (not missing)


async def test_a_call_of_a_tool_that_never_existed_needs_nothing(repo: SessionRepo) -> None:
    """The model invented it: an error result, live and in recovery."""
    session = await repo.create()
    await Prefix(session).batch(1, name="invented")
    rig = await open_rig(session, "done", tools=[Calls().tool()])
    assert not rig.suspended[0].missing
    await resumed(rig)


async def test_a_missing_model_stops_resume_and_not_abort(repo: SessionRepo) -> None:
    from agent_harness.types.entries import ModelChangeBody

    session = await repo.create()
    prefix = Prefix(session)
    await prefix.body("m1", ModelChangeBody(provider="elsewhere", model_id="other"))
    await prefix.start()
    rig = await open_rig(session, "done")
    assert rig.suspended[0].missing.models == ("elsewhere/other",)
    rejected = await rig.harness.resume()
    assert not rejected.ok
    assert rejected.error.models == ("elsewhere/other",)
    assert (await rig.harness.abort()).ok
    await rig.harness.wait_for_idle()
    await assert_sound(session)


# Half-done recovery --------------------------------------------------------------------------------------------------


async def _settled_behind_running(prefix: Prefix) -> None:
    from tests.support.prefix import real

    await prefix.batch(3)
    for number in (1, 2, 3):
        await prefix.tool_started(number, "safe" if number == 1 else "never")
    await prefix.tool_settled(2, real("settled"))


async def _input_and_writes(prefix: Prefix) -> None:
    await prefix.start("one", "two", written=1)
    await prefix.queued("steer", "q1", "s1")
    await prefix.queued("followUp", "q2", "f1")
    await prefix.write("w1")


async def _failed_with_input(prefix: Prefix) -> None:
    await prefix.start()
    await prefix.attempt()
    await prefix.write("w1")
    await prefix.queued("followUp", "q1", "again")
    await prefix.entry("a1", errored())


async def _aborting(prefix: Prefix) -> None:
    from tests.support.prefix import real

    await prefix.batch(3)
    for number in (1, 2):
        await prefix.tool_started(number)
    await prefix.tool_settled(2, real("settled"))
    await prefix.write("w1")
    await prefix.queued("steer", "q1", "s1")
    await prefix.aborted()


async def _parked(prefix: Prefix) -> None:
    await prefix.deferred()
    await prefix.queued("steer", "q1", "s1")
    await prefix.write("w1")


HALF_DONE = [_settled_behind_running, _input_and_writes, _failed_with_input, _aborting, _parked]


@pytest.mark.parametrize("prefix", HALF_DONE, ids=lambda prefix: prefix.__name__.strip("_"))
async def test_recovery_stopped_after_any_action_is_finished_by_the_next_one(repo: SessionRepo, prefix) -> None:
    """Stop the recovery after k actions, open again, and let it run: the same conversation for every k."""
    transcripts: list[list[str]] = []
    for k in range(60):
        session = await repo.create(id=f"s{k}")
        await prefix(Prefix(session))
        ready = answer(calls=calls(1))
        first = await open_rig(
            session, "one", "two", "three", "four", fetches=[ready], drive="manual", tools=[Calls().tool(replay="safe")]
        )
        from agent_harness.testing import start

        work = await start(first.harness.resume())
        left = await first.harness.peek_action()
        for _ in range(k):
            if left is None:
                break
            left = await first.harness.execute_action()
        await first.harness.close()
        await _ended(work)
        session = await repo.open(f"s{k}")
        second = await open_rig(
            session, "one", "two", "three", "four", fetches=[ready], tools=[Calls().tool(replay="safe")]
        )
        if second.suspended:
            outcome = (await second.harness.resume()).unwrap()
            assert outcome.kind in ("completed", "aborted")
        await assert_sound(session)
        lines = [line for line in await second.lines() if line.startswith("E ")]
        transcripts.append(lines)
        await second.harness.close()
        if left is None:
            break
    else:
        raise AssertionError("the recovery never ended")
    assert len(transcripts) > 6
    assert all(lines == transcripts[0] for lines in transcripts), transcripts


async def _ended(work) -> None:
    from agent_harness.errors import HarnessClosed

    try:
        await work
    except HarnessClosed:
        pass
