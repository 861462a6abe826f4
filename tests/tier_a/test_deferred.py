"""Recovery of runs that are parked on a deferred handle (harness-v2 §6, §15)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from agent_harness.errors import HarnessFault
from agent_harness.providers.base import Model, ModelRegistry, RequestContext
from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import RecordItem
from agent_harness.telemetry.context import NoopSpan, SpanAttributes, TelemetrySpan
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, answer, drive_until, start
from agent_harness.types.messages import DeferredHandle, Usage
from tests.support.prefix import HANDLE, Prefix, calls, errored
from tests.support.rig import Calls, Rig, assert_sound, open_rig, turns

T = TypeVar("T")
PARKED = ["R operation_started", "E user", "R step_attempt", "E assistant deferred"]
NOTHING = Usage()


async def parked(repo: SessionRepo, *fetches, handle=HANDLE, **options) -> Rig:
    session = await repo.create()
    await Prefix(session).deferred(handle)
    rig = await open_rig(session, "done", fetches=fetches, tools=[Calls().tool()], **options)
    assert rig.suspended[0].reason == "deferred"
    assert rig.suspended[0].deferred == handle
    return rig


async def test_pending_writes_nothing_and_stays_suspended(repo: SessionRepo) -> None:
    rig = await parked(repo, answer(deferred=HANDLE, usage=NOTHING), answer(deferred=HANDLE, usage=NOTHING))
    for fetched in (1, 2):
        outcome = (await rig.harness.resume()).unwrap()
        assert (outcome.kind, outcome.deferred, outcome.leaf_id) == ("suspended", HANDLE, "a1")
        assert await rig.lines(usage=True) == PARKED
        assert rig.provider.fetched == fetched


async def test_pending_with_usage_writes_its_usage_only(repo: SessionRepo) -> None:
    rig = await parked(repo, answer(deferred=HANDLE))
    assert (await rig.harness.resume()).unwrap().kind == "suspended"
    assert await rig.lines(usage=True) == [*PARKED, "R usage"]


async def test_ready_is_appended_and_the_run_goes_on(repo: SessionRepo) -> None:
    rig = await parked(repo, answer("here it is"))
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert await rig.lines() == [*PARKED, "E assistant stop", "R operation_finished"]
    assert rig.provider.requests == []
    await assert_sound(rig.session)


async def test_a_ready_answer_with_calls_runs_its_batch(repo: SessionRepo) -> None:
    rig = await parked(repo, answer(calls=calls(2)))
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert (await rig.lines())[4:] == [
        "E assistant toolUse",
        "R tool_started",
        "R tool_started",
        "E toolResult",
        "E toolResult",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    await assert_sound(rig.session)


async def test_a_terminal_answer_fails_the_run_and_asks_nobody_else(repo: SessionRepo) -> None:
    rig = await parked(repo, errored("unknown_job", "gone"))
    outcome = (await rig.harness.resume()).unwrap()
    assert (outcome.kind, outcome.error.code) == ("failed", "unknown_job")
    assert await rig.lines() == [*PARKED, "E assistant error", "R operation_finished"]
    assert rig.provider.requests == []


async def test_a_rejected_fetch_is_a_terminal_answer(repo: SessionRepo) -> None:
    rig = await parked(repo)  # the script has no answer: the provider raises
    outcome = (await rig.harness.resume()).unwrap()
    assert (outcome.kind, outcome.error.code) == ("failed", "transport")
    assert await rig.lines() == [*PARKED, "E assistant error", "R operation_finished"]


async def test_the_failure_of_a_redemption_is_durable(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.deferred()
    await prefix.entry("a2", errored("unknown_job", "gone"))
    rig = await open_rig(session, "must not be asked", fetches=[answer("must not be fetched")])
    assert (await rig.harness.resume()).unwrap().kind == "failed"
    assert (rig.provider.fetched, rig.provider.requests) == (0, [])


async def test_input_accepted_while_parked_can_start_a_turn_after_a_failed_redemption(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.deferred()
    rig = await open_rig(session, "done", fetches=[errored("unknown_job")])
    assert (await rig.harness.steer("then answer directly")).ok
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert (await rig.lines())[4:] == [
        "R queue_enqueued",
        "E assistant error",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]


@pytest.mark.parametrize("returned", [replace(HANDLE, id="job-2"), replace(HANDLE, data={"more": 1}), None])
async def test_a_pending_answer_with_another_handle_is_a_defect(repo: SessionRepo, returned) -> None:
    pending = replace(answer("x", stop_reason="deferred"), deferred=returned, content=(), usage=NOTHING)
    rig = await parked(repo, pending)
    with pytest.raises(HarnessFault):
        await rig.harness.resume()
    assert await rig.lines(usage=True) == PARKED


async def test_an_expired_handle_fails_once_and_is_never_fetched(repo: SessionRepo) -> None:
    rig = await parked(repo, answer("too late"), handle=replace(HANDLE, expires_at=5))
    outcome = (await rig.harness.resume()).unwrap()
    assert (outcome.kind, outcome.error.code) == ("failed", "deferred_expired")
    assert rig.provider.fetched == 0
    assert await rig.lines() == [*PARKED, "E assistant error", "R operation_finished"]
    assert not (await rig.harness.resume()).ok


async def test_abort_cancels_the_handle_and_keeps_the_deferred_entry(repo: SessionRepo) -> None:
    rig = await parked(repo)
    assert (await rig.harness.abort()).ok
    await rig.harness.wait_for_idle()
    assert rig.provider.cancelled == [HANDLE]
    assert await rig.lines() == [*PARKED, "R abort_requested", "E assistant aborted", "R operation_finished"]
    await assert_sound(rig.session)


class Refusing(ScriptedProvider):
    """Answers nothing about deferred work any more."""

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> None:
        raise ConnectionError("down")


async def test_a_refused_cancellation_does_not_stop_the_abort(repo: SessionRepo) -> None:
    rig = await parked(repo, models=ModelRegistry([Refusing()], [SCRIPTED_MODEL]))
    assert (await rig.harness.abort()).ok
    await rig.harness.wait_for_idle()
    assert (await rig.lines())[-2:] == ["E assistant aborted", "R operation_finished"]


async def test_an_aborted_fetch_ends_the_run_as_aborted(repo: SessionRepo) -> None:
    rig = await parked(repo, answer("cut", stop_reason="aborted"))
    assert (await rig.harness.resume()).unwrap().kind == "aborted"
    await assert_sound(rig.session)


async def test_an_abort_while_the_fetch_runs_drops_its_answer_and_keeps_its_bill(repo: SessionRepo) -> None:
    rig = await parked(repo, answer("unwanted"), drive="manual")
    work = await start(rig.harness.resume())
    await drive_until(rig.harness, lambda action: action.kind == "append_record")
    assert (await rig.harness.abort()).ok
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "aborted"
    assert await rig.lines(usage=True) == [
        *PARKED,
        "R abort_requested",
        "R usage",
        "E assistant aborted",
        "R operation_finished",
    ]
    usage = [i.record.body for i in await rig.session.get_log() if isinstance(i, RecordItem)]
    assert [body.cause for body in usage if body.type == "usage"] == ["deferred_fetch"]


MOMENTS = (*range(60), *(round(60 * 1.1**n) for n in range(1, 45)))
"""Loop turns: each of the sixty that take in all of it on memory; then ever more, while a thread works elsewhere."""


async def test_an_abort_at_any_moment_of_parking_is_acted_on(repo: SessionRepo) -> None:
    """An abort that is accepted finds somebody to reconcile, however late the procedure is in going to sleep."""
    suspended_first = 0
    for k in MOMENTS:
        rig = await open_rig(await repo.create(id=f"s{k}"), answer(deferred=HANDLE))
        work = await start(rig.harness.prompt("go"))
        await turns(k)
        if not (await rig.harness.abort()).ok:
            continue
        outcome = (await work).unwrap()
        assert outcome.kind in ("aborted", "suspended")
        suspended_first += outcome.kind == "suspended"
        await asyncio.wait_for(rig.harness.wait_for_idle(), 5)
        assert (await rig.lines())[-2:] == ["E assistant aborted", "R operation_finished"]
        await assert_sound(rig.session)
    assert 0 < suspended_first < len(MOMENTS)


async def test_an_abort_at_any_moment_of_a_pending_resume_is_acted_on(repo: SessionRepo) -> None:
    for k in MOMENTS:
        session = await repo.create(id=f"s{k}")
        await Prefix(session).deferred()
        rig = await open_rig(session, fetches=[answer(deferred=HANDLE, usage=NOTHING)])
        work = await start(rig.harness.resume())
        await turns(k)
        assert (await rig.harness.abort()).ok
        assert (await work).unwrap().kind in ("aborted", "suspended")
        await asyncio.wait_for(rig.harness.wait_for_idle(), 5)
        assert (await rig.lines())[-2:] == ["E assistant aborted", "R operation_finished"]


class SlowToEnd(NoopSpan):
    """Telemetry that takes a while to close the span of an invocation."""

    async def start_span(
        self, name: str, attributes: SpanAttributes, callback: Callable[[TelemetrySpan], Awaitable[T]]
    ) -> T:
        result = await callback(self)
        if name == "pi.harness.run":
            await turns(20)
        return result


async def test_an_abort_while_the_span_of_a_parked_run_ends_is_acted_on(repo: SessionRepo) -> None:
    for k in MOMENTS[::3]:
        session = await repo.create(id=f"s{k}")
        rig = await open_rig(session, answer(deferred=HANDLE), telemetry_context=SlowToEnd())
        work = await start(rig.harness.prompt("go"))
        await turns(k)
        if not (await rig.harness.abort()).ok:
            continue
        assert (await work).unwrap().kind in ("aborted", "suspended")
        await asyncio.wait_for(rig.harness.wait_for_idle(), 5)
        assert (await rig.lines())[-2:] == ["E assistant aborted", "R operation_finished"]
