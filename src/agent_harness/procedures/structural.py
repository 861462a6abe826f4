"""Compaction inside a run, and the structural operations (harness-v2 §15 "Structural operations")."""

from ..effects.base import Effects
from ..telemetry.context import TelemetryContext
from ..types.records import CompactionReason, OperationError
from ..types.state import StepState
from .signals import RunFailed

OVERFLOW = OperationError(code="context_overflow", message="the context does not fit and could not be compacted")


async def context_over_limit(fx: Effects) -> bool:
    """Whether the next request would not fit."""
    return False


def require_auto_reason(step: StepState) -> CompactionReason:
    """The recorded reason of an interrupted compaction step of a run.

    Raises:
        AssertionError: the step is none that a run can have.
    """
    if step.kind != "compaction" or step.compaction_reason is None:
        raise AssertionError(f"a run has a {step.kind} step")
    return step.compaction_reason


async def auto_compact(fx: Effects, reason: CompactionReason, parent: TelemetryContext) -> None:
    """Compact inside the run."""
    if reason == "overflow":
        raise RunFailed(OVERFLOW)
