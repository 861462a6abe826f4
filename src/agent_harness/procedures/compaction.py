"""Compaction: the operation of its own, and the one inside a run (harness-v2 §15 "Structural operations", A-6, A-7)."""

from dataclasses import replace

from ..compaction.estimate import context_limit, context_tokens
from ..compaction.prepare import prepare_compaction
from ..compaction.summarize import compaction_prompts, serialise
from ..effects.base import Effects, Reads
from ..events.catalog import CompactionEnd, CompactionStart
from ..hooks.catalog import BeforeCompaction
from ..outcomes import CompactionCompleted, CompactionEnded, CompactionOutcome
from ..telemetry.context import TelemetryContext
from ..types.entries import CompactionBody, Entry, ProvisionedEntry
from ..types.records import CompactionIntent, CompactionReason, HookUsage, OperationError, Outcome, StepAttempt
from ..types.state import StepState
from ..types.structural import CompactionPreparation, CompactResult
from .signals import Aborted, RunFailed
from .steps import give_up
from .structural import drive_to_close
from .summary import SummaryStep, summary_step

CONTEXT_OVERFLOW = OperationError(
    code="context_overflow", message="the context does not fit and could not be compacted"
)
NOTHING_TO_COMPACT = OperationError(code="nothing_to_compact", message="nothing is left that a summary could replace")


async def context_over_limit(fx: Effects) -> bool:
    """Whether the request that is about to be made would not fit (A-6)."""
    reads = fx.reads
    settings = reads.compaction
    limit = context_limit(reads.model().context_window, settings.reserve_tokens)
    return settings.enabled and limit is not None and await context_size(reads) > limit


async def context_size(reads: Reads) -> int:
    """Estimated tokens of the lane's context."""
    messages = reads.as_said(await reads.context_messages())
    return context_tokens(messages, await reads.inherited_messages())


async def prepare(reads: Reads, reason: CompactionReason) -> CompactionPreparation:
    """The plan for the lane's context as it is; `empty` when no summary could replace anything."""
    settings = reads.compaction
    limit = context_limit(reads.model().context_window, settings.reserve_tokens)
    keep = settings.keep_recent_tokens if limit is None else min(settings.keep_recent_tokens, limit // 2)
    preparation = prepare_compaction(
        await reads.context_messages(),
        keep_recent_tokens=keep,
        tokens_before=await context_size(reads),
        refused=reason == "overflow",
    )
    dropped = (*preparation.messages_to_summarize, *preparation.turn_prefix)
    if dropped and not serialise(reads.as_said(dropped)):
        # What says nothing to the model takes no room, and a summary of it would be made up.
        return replace(preparation, messages_to_summarize=(), turn_prefix=())
    return preparation


# One compaction ------------------------------------------------------------------------------------------------------


class _Compaction:
    """One compaction: hook, durable attempts, entry; its start and end events always come in pairs."""

    def __init__(self, fx: Effects, reason: CompactionReason, entry_id: str, parent: TelemetryContext) -> None:
        self._fx = fx
        self._reads = fx.reads
        self._reason: CompactionReason = reason
        self._entry_id = entry_id
        self._parent = parent
        self._run_id = fx.reads.op.id
        self._recovery = fx.reads.recovery
        self._from_hook = False
        intent = fx.reads.op.intent
        self._instructions = intent.custom_instructions if isinstance(intent, CompactionIntent) else None
        self.entry: Entry | None = None

    def begin(self) -> None:
        """Tell the watchers."""
        self._reads.emit(
            CompactionStart(lane=self._reads.lane, run_id=self._run_id, reason=self._reason, recovery=self._recovery)
        )

    def end(self, outcome: Outcome, error: OperationError | None = None) -> CompactionEnd:
        """The event that closes the bracket."""
        return CompactionEnd(
            lane=self._reads.lane,
            run_id=self._run_id,
            reason=self._reason,
            outcome=outcome,
            entry=self.entry if outcome == "completed" else None,
            from_hook=self._from_hook,
            error=error,
            recovery=self._recovery,
        )

    async def make(self, preparation: CompactionPreparation) -> None:
        """Append the compaction entry; `entry` stays None when a hook declines.

        The hook decides once: any attempt for this work takes its place (harness-v2 §11).

        Raises:
            RunFailed, Aborted: see `signals`.
        """
        result: CompactResult | None = None
        step = self._reads.op.step
        if step is None or step.kind != "compaction":
            event = BeforeCompaction(
                lane=self._reads.lane,
                run_id=self._run_id,
                reason=self._reason,
                preparation=preparation,
                custom_instructions=self._instructions,
            )
            decision = await self._fx.before_compaction(event, self._parent)
            if self._reads.aborting:
                raise Aborted
            if decision.decline:
                return
            result = decision.compaction
            if result is not None:
                self._from_hook = True
                await self._record_supplied(result)
        if result is None:
            result = await self._generate(preparation)
        if self._reads.aborting:
            raise Aborted
        tail = preparation.retained_tail if result.retained_tail is None else result.retained_tail
        body = CompactionBody(
            summary=result.summary,
            retained_tail=tail,
            tokens_before=preparation.tokens_before,
            details=result.details,
            usage=result.usage,
        )
        self.entry = await self._fx.append_entry(ProvisionedEntry(id=self._entry_id, body=body), self._parent)

    async def _record_supplied(self, result: CompactResult) -> None:
        if self._reason == "overflow":  # the once-per-input guard counts attempts
            attempt = StepAttempt(
                run_id=self._run_id,
                step="compaction",
                attempt=1,
                result_entry_id=self._entry_id,
                compaction_reason="overflow",
            )
            await self._fx.append_record(attempt, self._parent)
        if result.usage is not None:
            usage = HookUsage(run_id=self._run_id, entry_id=self._entry_id, usage=result.usage)
            await self._fx.append_record(usage, self._parent)

    async def _generate(self, preparation: CompactionPreparation) -> CompactResult:
        said = replace(
            preparation,
            messages_to_summarize=tuple(self._reads.as_said(preparation.messages_to_summarize)),
            turn_prefix=tuple(self._reads.as_said(preparation.turn_prefix)),
        )
        step = SummaryStep(
            kind="compaction",
            reason=self._reason,
            entry_id=self._entry_id,
            prompts=lambda limits: compaction_prompts(said, limits, self._instructions),
        )
        made = await summary_step(self._fx, step, self._parent)
        return CompactResult(summary=made.summary, usage=made.usage)


# The operation -------------------------------------------------------------------------------------------------------


async def compaction_procedure(fx: Effects, parent: TelemetryContext) -> CompactionOutcome:
    """Drive the open compaction from wherever its records end to its close.

    Raises:
        whatever is a defect or a failed write: the harness faults.
    """
    run_id, intent = fx.reads.op.id, fx.reads.op.intent
    assert isinstance(intent, CompactionIntent)
    work = _Compaction(fx, "manual", intent.result_entry_id, parent)
    work.begin()
    ended = await drive_to_close(
        fx, lambda: _manual(fx, intent, work), lambda ended: work.end(ended.outcome, ended.error), parent
    )
    if ended.outcome == "completed":
        assert work.entry is not None
        assert ended.leaf_id is not None
        return CompactionCompleted(run_id=run_id, leaf_id=ended.leaf_id, entry=work.entry)
    return CompactionEnded(kind=ended.outcome, run_id=run_id, leaf_id=ended.leaf_id, error=ended.error)


async def _manual(fx: Effects, intent: CompactionIntent, work: _Compaction) -> Outcome:
    reads = fx.reads
    if reads.aborting:
        raise Aborted
    if reads.op.targets.result:
        work.entry = await reads.get_entry(intent.result_entry_id)
    else:
        preparation = await prepare(reads, "manual")
        if preparation.empty:  # accepted with something to compact; a converter or a setting is another one now
            raise RunFailed(NOTHING_TO_COMPACT)
        await work.make(preparation)
    return "completed" if work.entry is not None else "declined"


# Inside a run --------------------------------------------------------------------------------------------------------


def require_auto_reason(step: StepState) -> CompactionReason:
    """The recorded reason of an interrupted compaction step of a run.

    Raises:
        AssertionError: the step is none that a run can have.
    """
    if step.kind != "compaction" or step.compaction_reason is None or step.compaction_reason == "manual":
        raise AssertionError(f"a run has a {step.compaction_reason or step.kind} step")
    return step.compaction_reason


async def auto_compact(fx: Effects, reason: CompactionReason, parent: TelemetryContext) -> None:
    """Compact inside the run, under the run's own records.

    For "overflow", a decline or nothing to compact is terminal: without compaction the request cannot fit. For
    "threshold" the request is then sent as it is (A-15).

    Raises:
        RunFailed: attempts are exhausted, the error is final, or the overflow stays.
        Aborted: an abort came.
    """
    reads = fx.reads
    step = reads.op.step
    resumed = step is not None and step.kind == "compaction"
    preparation = await prepare(reads, reason)
    if preparation.empty or (reason == "overflow" and not resumed and not reads.compaction.enabled):
        await _without(fx, reason, parent)
        return
    entry_id = step.result_entry_id if step is not None and resumed else reads.new_id()
    work = _Compaction(fx, reason, entry_id, parent)
    work.begin()
    try:
        await work.make(preparation)
    except Aborted:
        reads.emit(work.end("aborted"))
        raise
    except RunFailed as failed:
        reads.emit(work.end("failed", failed.error))
        raise
    if work.entry is not None:
        reads.emit(work.end("completed"))
        return
    reads.emit(work.end("declined"))
    await _without(fx, reason, parent)


async def _without(fx: Effects, reason: CompactionReason, parent: TelemetryContext) -> None:
    """No compaction: an overflow fails the run durably, so that no recovery completes it."""
    if reason != "overflow":
        return
    step = fx.reads.op.step
    if step is not None and step.kind == "assistant":
        await give_up(fx, step.result_entry_id, CONTEXT_OVERFLOW, parent)
    raise RunFailed(CONTEXT_OVERFLOW)
