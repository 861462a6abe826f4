"""The spans that procedures own: checkpoint, turn and step (harness-v2 §18 "Effects and nesting").

Control-flow signals cross a span as normal outcomes; what else is raised ends it as an error.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar, assert_never

from ..effects.base import Reads
from ..telemetry.attributes import NoEnd, StepEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.recording import OK_STATUS
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from ..telemetry.status import error_label, error_status
from ..telemetry.vocabulary import CheckpointKind, StepOutcome
from ..types.records import CompactionReason, StepKind
from .signals import Aborted, Overflow, Park, RunFailed

T = TypeVar("T")
Scoped = Callable[[TelemetryContext], Awaitable[T]]


async def checkpoint_scope(reads: Reads, kind: CheckpointKind, parent: TelemetryContext, work: Scoped[T]) -> T:
    """Run `work` in a checkpoint's span, which it gets as the parent of what it does."""
    return await start_harness_span(
        parent,
        "pi.harness.checkpoint",
        {"pi.lane.name": reads.lane, "pi.operation.id": reads.op.id, "pi.checkpoint.kind": kind},
        lambda span: _through(span, work),
    )


async def turn_scope(reads: Reads, turn_id: str, parent: TelemetryContext, work: Scoped[T]) -> T:
    """Run `work` in a turn's span, which it gets as the parent of what it does."""
    return await start_harness_span(
        parent,
        "pi.harness.turn",
        {"pi.lane.name": reads.lane, "pi.operation.id": reads.op.id, "pi.turn.id": turn_id},
        lambda span: _through(span, work),
    )


async def _through(span: Span[NoEnd], work: Scoped[T]) -> T:
    try:
        return await work(span)
    except (Park, Aborted, RunFailed, Overflow):
        span.set_status(OK_STATUS)
        raise


async def step_scope(
    reads: Reads,
    parent: TelemetryContext,
    work: Callable[[Span[StepEnd]], Awaitable[T]],
    *,
    kind: StepKind,
    attempt: int,
    reason: CompactionReason | None = None,
) -> T:
    """Run `work`, one attempt at a step, in its span.

    `work` tells the outcome with `end_step`; a signal is an outcome by itself.
    """

    async def attempted(span: Span[StepEnd]) -> T:
        try:
            return await work(span)
        except (Park, Aborted, RunFailed, Overflow) as signal:
            end_step(span, _outcome(signal), signal.error.code if isinstance(signal, RunFailed) else None)
            raise

    return await start_harness_span(
        parent,
        "pi.harness.step",
        {
            "pi.lane.name": reads.lane,
            "pi.operation.id": reads.op.id,
            "pi.step.kind": kind,
            "pi.step.attempt": attempt,
            "pi.compaction.reason": reason,
        },
        attempted,
    )


def end_step(span: Span[StepEnd], outcome: StepOutcome, code: str | None = None) -> None:
    """Tell how an attempt ended. `code` is the error's, for an attempt that failed or is tried again."""
    span.set_attributes({"pi.step.outcome": outcome})
    failed = outcome in ("retry", "failed")
    span.set_status(error_status(error_label(code) or outcome, "the attempt failed") if failed else OK_STATUS)


def _outcome(signal: Park | Aborted | RunFailed | Overflow) -> StepOutcome:
    match signal:
        case Park():
            return "deferred"
        case Aborted():
            return "aborted"
        case RunFailed():
            return "failed"
        case Overflow():
            return "overflow"
        case _:
            assert_never(signal)
