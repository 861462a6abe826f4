"""The retry events of one step, in pairs whatever becomes of the retrying (harness-v2 §9, §15 "Steps")."""

from ..effects.base import Reads
from ..events.catalog import RetryEnd, RetryScheduled, RetryStart
from ..types.records import StepKind


class Retrying:
    """Tells nothing until an attempt is scheduled to be repeated."""

    def __init__(self, reads: Reads, step: StepKind) -> None:
        self._reads = reads
        self._step: StepKind = step
        self._scheduled = False

    def schedule(self, attempt: int, delay_ms: int, error: str) -> None:
        """`attempt` (1-based) failed; the next one begins `delay_ms` from now."""
        self._scheduled = True
        reads = self._reads
        reads.emit(
            RetryScheduled(
                lane=reads.lane,
                run_id=reads.op.id,
                step=self._step,
                attempt=attempt,
                max_attempts=reads.retry.max_attempts,
                delay_ms=delay_ms,
                next_attempt_at=reads.now_ms() + delay_ms,
                error_message=error,
            )
        )

    def begin(self, attempt: int) -> None:
        """`attempt` begins."""
        if self._scheduled:
            reads = self._reads
            reads.emit(RetryStart(lane=reads.lane, run_id=reads.op.id, step=self._step, attempt=attempt))

    def end(self, attempt: int, error: str | None) -> None:
        """No attempt follows `attempt`: it succeeded, or retrying ended with `error`."""
        if self._scheduled:
            self._scheduled = False
            reads = self._reads
            reads.emit(
                RetryEnd(
                    lane=reads.lane,
                    run_id=reads.op.id,
                    step=self._step,
                    attempt=attempt,
                    success=error is None,
                    final_error=error,
                )
            )
