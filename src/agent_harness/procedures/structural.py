"""How a compaction or a navigation closes: with what became of its work, unless an abort came first (§15)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..effects.base import Effects
from ..events.catalog import HarnessEvent
from ..telemetry.context import TelemetryContext
from ..types.records import OperationError, Outcome
from .signals import Aborted, RunFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a structural operation."""

    outcome: Outcome
    leaf_id: str | None
    error: OperationError | None = None


async def drive_to_close(
    fx: Effects,
    work: Callable[[], Awaitable[Outcome]],
    event: Callable[[Ended], HarnessEvent],
    parent: TelemetryContext,
) -> Ended:
    """Do `work` and close the open operation with its outcome; `event` is told in the job of the close."""
    run_id = fx.reads.op.id
    error: OperationError | None = None
    try:
        outcome = await work()
    except Aborted:
        outcome = "aborted"
    except RunFailed as failed:
        outcome, error = "failed", failed.error
    leaf_id = fx.reads.state.lane_state.leaf_id  # before the close: the next operation may begin right behind it
    ended = Ended(outcome=outcome, leaf_id=leaf_id, error=error)
    if await fx.finish_operation(run_id, outcome, parent, error, event(ended)) == "continue":
        ended = Ended(outcome="aborted", leaf_id=leaf_id)  # an abort won the ordering
        await fx.finish_operation(run_id, "aborted", parent, None, event(ended))
    return ended
