"""The run procedure. A live prompt and a resume run this same code (harness-v2 §15 "Dispatch", "The loop")."""

from functools import partial
from typing import Literal

from ..effects.base import Effects
from ..events.catalog import TurnEnd, TurnStart
from ..hooks.catalog import BeforeRunEnd
from ..outcomes import RunCompleted, RunFailed, RunOutcome, RunSuspended
from ..reducer.predicates import ended_by_abort, has_pending_input, has_pending_work, needs_assistant, pick
from ..telemetry.context import TelemetryContext
from ..types.entries import ProvisionedEntry
from ..types.records import CompactionReason, OperationError
from . import signals
from .abort import abort_path
from .build import message_error, user_entry
from .compaction import auto_compact, context_over_limit, require_auto_reason
from .deferred import redeem_deferred
from .scopes import checkpoint_scope, turn_scope
from .steps import assistant_step, give_up
from .tools import Turn, abort_tool_batch, reconcile_tool_batch, run_tool_batch

TRUNCATION = OperationError(
    code="context_overflow", message="the response was truncated before completion: the context does not fit"
)

UNKNOWN_MODEL = "unknown_model"


async def run_procedure(fx: Effects, parent: TelemetryContext) -> RunOutcome:
    """Drive the open run from wherever its records end, to its close or its next suspension.

    Raises:
        whatever is a defect or a failed write: the harness faults.
    """
    return await _Run(fx, parent).from_the_start()


class _Run:
    def __init__(self, fx: Effects, parent: TelemetryContext) -> None:
        self._fx = fx
        self._reads = fx.reads
        self._parent = parent
        self._run_id = fx.reads.op.id
        self._tried_threshold = False  # also when a hook declined, which leaves no fact

    async def from_the_start(self) -> RunOutcome:
        try:
            return await self._resume_point()
        except (signals.Park, signals.Aborted, signals.RunFailed) as signal:
            return await self._signalled(signal)

    async def _resume_point(self) -> RunOutcome:
        for item in self._reads.op.missing_initial_messages:
            await self._fx.append_entry(item, self._parent)  # accepted input is never dropped, even when aborting
        if self._reads.aborting or ended_by_abort(self._reads.op):
            return await self._aborted()
        if self._reads.op.deferred is not None:
            await self._redeem()
        batch = self._reads.op.tool_batch
        if batch is not None and batch.unresolved:
            await self._reconcile()
        step = self._reads.op.step
        if step is not None and step.kind == "assistant":
            # A crash in mid-step resumes that step before new input is consumed (harness-v2 §7).
            await self._turn()
        elif step is not None:
            await self._compact(require_auto_reason(step))
        failure = self._reads.state.terminal_failure
        if failure is not None:
            return await self._drain_failed(message_error(failure.message))
        return await self._loop()

    async def _signalled(self, signal: BaseException) -> RunOutcome:
        match signal:
            case signals.Park():
                if self._reads.aborting:  # accepted while the handle was on its way into the tree
                    return await self._aborted()
                return self._suspended(signal)
            case signals.Aborted():
                return await self._aborted()
            case signals.RunFailed():
                return await self._drain_failed(signal.error)
            case _:
                raise signal

    # The loop --------------------------------------------------------------

    async def _loop(self) -> RunOutcome:
        while True:
            match await checkpoint_scope(self._reads, "normal", self._parent, self._checkpoint):
                case "aborted":
                    return await self._aborted()
                case "again":
                    continue
                case "turn":
                    await self._turn()
                    self._tried_threshold = False
                    continue
                case "finish":
                    pass
            await self._finish_boundary()
            if has_pending_work(self._reads.op) or self._reads.aborting:
                continue
            completed = self._completed()  # read before the close: the next run may begin right behind it
            if await self._fx.try_finish_run(self._run_id, "completed", self._parent) == "finished":
                return completed

    async def _checkpoint(self, span: TelemetryContext) -> Literal["aborted", "again", "turn", "finish"]:
        """The work between two turns, and what comes after it."""
        await self._apply_writes(span)
        await self._consume("steer", span)
        if self._reads.aborting:
            return "aborted"
        if needs_assistant(self._reads.op):
            self._require_model()
            tried = self._tried_threshold or self._reads.op.threshold_tried
            if tried or not await context_over_limit(self._fx):
                return "turn"
            # At most one threshold compaction between two answers, declined or not.
            self._tried_threshold = True
            await auto_compact(self._fx, "threshold", span)
            return "again"  # a fresh checkpoint: input may have arrived meanwhile
        await self._consume("followUp", span)
        return "again" if has_pending_work(self._reads.op) or self._reads.aborting else "finish"

    def _require_model(self) -> None:
        """A message that was written meanwhile may name a model that nobody knows here: the run ends, and says so.

        Raises:
            RunFailed: no request can be made.
        """
        try:
            self._reads.model()
        except LookupError as unknown:
            raise signals.RunFailed(OperationError(code=UNKNOWN_MODEL, message=str(unknown))) from unknown

    async def _compact(self, reason: CompactionReason) -> None:
        """A compaction that no threshold asked for, as a checkpoint of its own."""
        await checkpoint_scope(self._reads, "normal", self._parent, lambda span: auto_compact(self._fx, reason, span))

    async def _apply_writes(self, parent: TelemetryContext) -> None:
        for write in self._reads.op.pending_writes:
            await self._fx.apply_pending_write(self._run_id, write.id, parent)

    async def _finish_boundary(self) -> None:
        if not self._reads.has_hook("before_run_end"):
            return
        event = BeforeRunEnd(lane=self._reads.lane, run_id=self._run_id, messages=await self._reads.run_messages())
        for text in await self._fx.before_run_end(event, self._parent):
            item: ProvisionedEntry = user_entry(self._reads.new_id(), text, self._reads.now_ms())
            await self._fx.commit_run_end_follow_up(self._run_id, item, self._parent)

    # Turns -----------------------------------------------------------------

    async def _turn(self) -> None:
        """One assistant step and its complete tool batch.

        Raises:
            Aborted: the answer was cut, or an abort came.
        """
        turn = Turn(id=self._reads.new_id())
        self._reads.emit(
            TurnStart(lane=self._reads.lane, run_id=self._run_id, turn_id=turn.id, recovery=self._reads.recovery)
        )
        overflow = await turn_scope(self._reads, turn.id, self._parent, partial(self._in_turn, turn))
        if overflow:  # outside the turn: a compaction has its own bracket
            await self._recover_overflow()

    async def _in_turn(self, turn: Turn, span: TelemetryContext) -> bool:
        """Whether the answer was an overflow, and discarded."""
        overflow = False
        try:
            await self._step_and_batch(turn, span)
        except signals.Overflow:
            overflow = True
        except signals.Aborted:
            await abort_tool_batch(self._fx, span, turn)  # its results belong to this turn
            self._end_turn(turn)
            raise
        except (signals.Park, signals.RunFailed) as signal:
            turn.message = signal.message
            self._end_turn(turn)
            raise
        self._end_turn(turn)
        return overflow

    async def _step_and_batch(self, turn: Turn, span: TelemetryContext) -> None:
        answer = turn.message = await assistant_step(self._fx, turn.id, span)
        if answer.stop_reason == "aborted" or self._reads.aborting:
            raise signals.Aborted
        if answer.tool_calls:
            batch = self._reads.op.tool_batch
            assert batch is not None
            await run_tool_batch(self._fx, batch.assistant_entry_id, answer, turn, span)
            if self._reads.aborting:
                raise signals.Aborted

    def _end_turn(self, turn: Turn) -> None:
        self._reads.emit(
            TurnEnd(
                lane=self._reads.lane,
                run_id=self._run_id,
                turn_id=turn.id,
                message=turn.message,
                tool_results=tuple(turn.results),
                recovery=self._reads.recovery,
            )
        )

    async def _recover_overflow(self) -> None:
        """Compact and retry, once per conversational input (harness-v2 §6)."""
        if self._reads.aborting:
            raise signals.Aborted
        op = self._reads.op
        if op.overflow_recovery_used:
            assert op.step is not None
            await give_up(self._fx, op.step.result_entry_id, TRUNCATION, self._parent)
            raise signals.RunFailed(TRUNCATION)
        await self._compact("overflow")

    async def _redeem(self) -> None:
        answer = await redeem_deferred(self._fx, self._parent)
        batch = self._reads.op.tool_batch
        if answer.tool_calls and batch is not None:
            await run_tool_batch(self._fx, batch.assistant_entry_id, answer, None, self._parent)
            if self._reads.aborting:
                raise signals.Aborted

    async def _reconcile(self) -> None:
        batch = self._reads.op.tool_batch
        assert batch is not None
        await reconcile_tool_batch(self._fx, batch, self._parent)
        if self._reads.aborting:
            raise signals.Aborted

    # Endings ---------------------------------------------------------------

    async def _drain_failed(self, error: OperationError) -> RunOutcome:
        """Drain accepted input; only consumed conversational input starts new work (harness-v2 §6, A-15)."""
        try:
            while True:
                consumed = await checkpoint_scope(self._reads, "failure_drain", self._parent, self._drain)
                if self._reads.aborting:
                    return await self._aborted()
                if consumed:
                    return await self._loop()
                if has_pending_input(self._reads.op):
                    continue
                failed = self._failed(error)
                if await self._fx.try_finish_run(self._run_id, "failed", self._parent, error) == "finished":
                    return failed
        except (signals.Park, signals.Aborted, signals.RunFailed) as signal:
            return await self._signalled(signal)

    async def _drain(self, span: TelemetryContext) -> bool:
        await self._apply_writes(span)
        return await self._consume_input(span)

    async def _aborted(self) -> RunOutcome:
        """Close as aborted, unless input that no abort cleared starts new work."""
        while True:
            outcome = await abort_path(self._fx, self._parent)
            if outcome is not None:
                return outcome
            if await checkpoint_scope(self._reads, "abort_reconcile", self._parent, self._consume_input):
                try:
                    return await self._loop()
                except (signals.Park, signals.Aborted, signals.RunFailed) as signal:
                    return await self._signalled(signal)

    async def _consume_input(self, span: TelemetryContext) -> bool:
        return await self._consume("steer", span) or await self._consume("followUp", span)

    async def _consume(self, queue: Literal["steer", "followUp"], parent: TelemetryContext) -> bool:
        """One checkpoint's share of a queue; whether anything came of it."""
        op, reads, consumed = self._reads.op, self._reads, False
        steer = queue == "steer"
        pending, mode = (
            (op.pending_steer, reads.steering_mode) if steer else (op.pending_follow_up, reads.follow_up_mode)
        )
        for item in pick(pending, mode):
            done = await self._fx.consume_queue_item(self._run_id, queue, item.id, parent)
            consumed = consumed or done == "consumed"
        return consumed

    def _completed(self) -> RunCompleted:
        answer, leaf_id = self._reads.answer, self._reads.state.lane_state.leaf_id
        assert answer is not None
        assert leaf_id is not None
        return RunCompleted(run_id=self._run_id, leaf_id=leaf_id, final_entry_id=answer[0], final_message=answer[1])

    def _failed(self, error: OperationError) -> RunFailed:
        answer = self._reads.answer
        return RunFailed(
            run_id=self._run_id,
            leaf_id=self._reads.state.lane_state.leaf_id,
            error=error,
            final_entry_id=answer[0] if answer else None,
            final_message=answer[1] if answer else None,
        )

    def _suspended(self, park: signals.Park) -> RunSuspended:
        newest, leaf_id = self._reads.op.newest_own, self._reads.state.lane_state.leaf_id
        assert newest is not None
        assert leaf_id is not None
        return RunSuspended(run_id=self._run_id, leaf_id=leaf_id, final_entry_id=newest.entry_id, deferred=park.handle)
