"""An operation's procedure in a task that the lane owns, and the outcome that outlives any caller (harness-v2 §15)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ..abort_signal import AbortSignal
from ..errors import CorruptLog, HarnessClosed, HarnessFault
from ..events.catalog import RunSuspend
from ..outcomes import OperationOutcome, RunSuspended
from ..telemetry.context import TelemetryContext
from .invocation import operation_span
from .lane import LaneRuntime
from .line import retrieve
from .restore import differences, restore_lane

Procedure: TypeAlias = Callable[[TelemetryContext], Awaitable[OperationOutcome]]
"""An operation's work, under the span of its invocation."""


def start(lane: LaneRuntime, procedure: Procedure, *, recovery: bool) -> asyncio.Future[OperationOutcome]:
    """Run `procedure` for the open operation.

    The lane is idle as soon as `operation_finished` is committed, so the task of the operation before may still be on
    its way out: the new one waits for it.
    """
    before = lane.procedure
    lane.recovery = recovery
    lane.signal = AbortSignal()
    if lane.op().aborting:
        lane.signal.abort()
    outcome: asyncio.Future[OperationOutcome] = asyncio.get_running_loop().create_future()
    outcome.add_done_callback(retrieve)  # nobody waiting is no error: it reached events and wait_for_idle
    lane.outcome = outcome
    task = asyncio.get_running_loop().create_task(_drive(lane, procedure, outcome, before))
    lane.tasks.add(task)
    task.add_done_callback(lambda ended: _ended(lane, ended, outcome))
    lane.procedure = task
    lane.settle_idle()
    return outcome


async def outcome_of(lane: LaneRuntime) -> OperationOutcome:
    """Wait for what was started last. Cancelling one who waits does not cancel what others wait for."""
    assert lane.outcome is not None
    return await asyncio.shield(lane.outcome)


async def _drive(
    lane: LaneRuntime,
    procedure: Procedure,
    outcome: asyncio.Future[OperationOutcome],
    before: asyncio.Task[None] | None,
) -> None:
    env = lane.env
    error: BaseException | None = None
    result: OperationOutcome | None = None
    recovery, op = lane.recovery, lane.op()

    async def invocation(span: TelemetryContext) -> OperationOutcome:
        ended = await procedure(span)
        if recovery:
            await check_fixed_point(lane)
        while _aborted_late(lane, op.id):
            ended = await procedure(span)
        return ended

    try:
        if before is not None:
            await asyncio.wait({before})
        result = await operation_span(env, lane.name, op.kind, op.id, invocation, recovery=recovery)
        while _aborted_late(lane, op.id):  # while telemetry ended the span
            result = await operation_span(env, lane.name, op.kind, op.id, invocation, recovery=recovery)
    except asyncio.CancelledError as cancelled:
        error = _cancelled(lane, cancelled)
    except (HarnessClosed, HarnessFault) as closed:
        error = env.fault or closed
    except BaseException as defect:
        error = HarnessClosed() if env.closed else env.fail(defect)
        if isinstance(defect, KeyboardInterrupt | SystemExit):
            raise
    finally:
        if lane.procedure is asyncio.current_task():
            lane.procedure = None  # at once: whoever learns the outcome may start the next operation
        lane.settle_idle()
        if isinstance(result, RunSuspended) and error is None:
            _tell_suspension(lane, result)
        if not outcome.done():
            if result is not None and error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error or HarnessClosed())
        lane.poke()


def _tell_suspension(lane: LaneRuntime, outcome: RunSuspended) -> None:
    suspended = lane.view.suspended()
    assert suspended is not None
    lane.emit(
        RunSuspend(
            lane=lane.name,
            run_id=outcome.run_id,
            deferred=outcome.deferred,
            suspended=suspended,
            recovery=lane.recovery,
        )
    )


def _ended(lane: LaneRuntime, task: asyncio.Task[None], outcome: asyncio.Future[OperationOutcome]) -> None:
    """A task that is cancelled before its first step runs nothing of `_drive`, not even its `finally`."""
    lane.tasks.discard(task)
    if lane.procedure is task:
        lane.procedure = None
        lane.settle_idle()
    if not outcome.done():
        outcome.set_exception(lane.env.fault or HarnessClosed())
        lane.poke()


def _aborted_late(lane: LaneRuntime, run_id: str) -> bool:
    """An abort was accepted after the procedure parked its lane: it found a procedure and left the work to it."""
    operation = lane.operation
    return operation is not None and operation.id == run_id and operation.aborting


def _cancelled(lane: LaneRuntime, cancelled: asyncio.CancelledError) -> BaseException:
    """Closed, faulted, or the loop is ending: detach, the operation stays resumable. Else somebody's own leaked."""
    task = asyncio.current_task()
    if lane.env.fault is None and not lane.env.closed and (task is None or not task.cancelling()):
        return lane.env.fail(cancelled)
    return lane.env.fault or HarnessClosed()


async def check_fixed_point(lane: LaneRuntime) -> None:
    """Compare live state with the reduction of what is stored (harness-v2 §15 "Fixed-point self-check").

    Raises:
        HarnessFault: writer and reducer drifted apart.
    """
    env = lane.env

    async def job() -> None:
        leaf_id = await env.session.view(lane.name).get_leaf_id()
        stored = await restore_lane(env.session, lane.name, leaf_id, env.defaults)
        unequal = differences(lane.state, stored.reduction)
        if unequal:
            raise env.fail(CorruptLog("fixed_point", f"live state differs in {', '.join(unequal)}", lane=lane.name))

    await lane.line.run(job)
