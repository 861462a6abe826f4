"""The operation span: one per admitted invocation of an operation's work (harness-v2 §18 "Span lifetime")."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias, assert_never

from ..outcomes import (
    CompactionCompleted,
    CompactionEnded,
    NavigationCompleted,
    NavigationEnded,
    OperationOutcome,
    RunFailed,
    RunSuspended,
)
from ..telemetry.attributes import OperationStart, RunEnd, StructuralEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from ..telemetry.status import error_label, error_status
from ..types.records import OperationError, OperationKind
from .environment import Environment

Work: TypeAlias = Callable[[TelemetryContext], Awaitable[OperationOutcome]]


async def operation_span(
    env: Environment, lane: str, kind: OperationKind, run_id: str, work: Work, *, recovery: bool
) -> OperationOutcome:
    """Run `work` in the span of its operation, under the application's context. Its outcome passes through."""
    invocation = _Invocation(env, work)
    common: OperationStart = {"pi.session.id": env.session.id, "pi.operation.recovery": recovery}
    match kind:
        case "run":
            return await start_harness_span(
                env.telemetry,
                "pi.harness.run",
                {**common, "pi.lane.name": lane, "pi.operation.id": run_id, "pi.operation.kind": kind},
                invocation.run,
            )
        case "compaction":
            return await start_harness_span(
                env.telemetry,
                "pi.harness.compaction",
                {**common, "pi.lane.name": lane, "pi.operation.id": run_id, "pi.operation.kind": kind},
                invocation.structural,
            )
        case "navigation":
            return await start_harness_span(
                env.telemetry,
                "pi.harness.navigation",
                {**common, "pi.lane.name": lane, "pi.operation.id": run_id, "pi.operation.kind": kind},
                invocation.structural,
            )
        case _:
            assert_never(kind)


class _Invocation:
    def __init__(self, env: Environment, work: Work) -> None:
        self._env = env
        self._work = work

    async def run(self, span: Span[RunEnd]) -> OperationOutcome:
        outcome = await self._told(span)
        match outcome:
            case CompactionCompleted() | CompactionEnded() | NavigationCompleted() | NavigationEnded():
                raise AssertionError("a run ended as another kind of operation")
            case _:
                span.set_attributes({"pi.operation.outcome": outcome.kind})
        if isinstance(outcome, RunFailed):
            _failed(span, outcome.error)
        return outcome

    async def structural(self, span: Span[StructuralEnd]) -> OperationOutcome:
        outcome = await self._told(span)
        assert not isinstance(outcome, RunSuspended), "only a run suspends"
        span.set_attributes({"pi.operation.outcome": outcome.kind})
        if isinstance(outcome, CompactionEnded | NavigationEnded) and outcome.kind == "failed":
            _failed(span, outcome.error)
        return outcome

    async def _told(self, span: Span[RunEnd] | Span[StructuralEnd]) -> OperationOutcome:
        try:
            return await self._work(span)
        except BaseException as error:
            code, name, message = self._stopped(error)
            span.set_attributes({"pi.error.code": code, "pi.error.type": name})
            span.set_status(error_status(name, message))
            raise

    def _stopped(self, error: BaseException) -> tuple[str, str, str]:
        """Code, class and sentence of a close or a fault; `error` may be but the cancellation that follows from it."""
        fault = self._env.fault
        if fault is None and self._env.closed:
            return "closed", "HarnessClosed", "the harness was closed; the operation stays resumable"
        cause = error if fault is None else fault.__cause__ or fault
        return "fault", type(cause).__name__, "the harness stopped"


def _failed(span: Span[RunEnd] | Span[StructuralEnd], error: OperationError | None) -> None:
    code = error_label(error.code if error is not None else None)
    span.set_attributes({"pi.error.code": code})
    span.set_status(error_status(code or "failed", "the operation failed"))
