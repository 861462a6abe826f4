"""Navigation: move first, then everything that chains off the moved leaf (harness-v2 §6 "Navigation", §15, A-1)."""

from ..compaction.summarize import branch_prompts
from ..effects.base import Effects, LabelWrite
from ..events.catalog import NavigationEnd, NavigationStart
from ..hooks.catalog import BeforeNavigation
from ..outcomes import NavigationCompleted, NavigationEnded, NavigationOutcome
from ..telemetry.context import TelemetryContext
from ..types.entries import BranchSummaryBody, Entry, ProvisionedEntry
from ..types.records import HookUsage, NavigationIntent, Outcome
from ..types.structural import NavigationPreparation, SummaryResult
from .signals import Aborted
from .structural import Ended, drive_to_close
from .summary import SummaryStep, summary_step


async def navigation_procedure(fx: Effects, parent: TelemetryContext) -> NavigationOutcome:
    """Drive the open navigation from wherever its records end to its close.

    Raises:
        whatever is a defect or a failed write: the harness faults.
    """
    return await _Navigation(fx, parent).run()


class _Navigation:
    def __init__(self, fx: Effects, parent: TelemetryContext) -> None:
        self._fx = fx
        self._reads = fx.reads
        self._parent = parent
        op = fx.reads.op
        assert isinstance(op.intent, NavigationIntent)
        self._intent = op.intent
        self._run_id = op.id
        self._source = op.source_leaf_id
        self._recovery = fx.reads.recovery
        self._summary_entry: Entry | None = None

    async def run(self) -> NavigationOutcome:
        self._reads.emit(
            NavigationStart(
                lane=self._reads.lane,
                run_id=self._run_id,
                target_id=self._intent.target_id,
                recovery=self._recovery,
            )
        )
        ended = await drive_to_close(self._fx, self._navigate, self._end, self._parent)
        if ended.outcome == "completed":
            entry = self._summary_entry
            return NavigationCompleted(run_id=self._run_id, new_leaf_id=ended.leaf_id, summary_entry=entry)
        return NavigationEnded(kind=ended.outcome, run_id=self._run_id, leaf_id=ended.leaf_id, error=ended.error)

    def _end(self, ended: Ended) -> NavigationEnd:
        return NavigationEnd(
            lane=self._reads.lane,
            run_id=self._run_id,
            outcome=ended.outcome,
            old_leaf_id=self._source,
            new_leaf_id=ended.leaf_id,
            summary_entry=self._summary_entry if ended.outcome == "completed" else None,
            error=ended.error,
            recovery=self._recovery,
        )

    async def _navigate(self) -> Outcome:
        if self._reads.aborting:
            raise Aborted
        intent, summarised = self._intent, self._reads.op.targets.summary
        # Acceptance refused target == source, and only the summary chains to a moved leaf: the move is decidable.
        moved = summarised is True or self._reads.state.lane_state.leaf_id == intent.target_id
        summary: SummaryResult | None = None
        if summarised is False:
            summary = await self._summary(moved)
            if summary is None:
                return "declined"
        if not moved:
            if self._reads.aborting:
                raise Aborted
            await self._fx.move_lane(intent.target_id, self._parent)  # the commit point
        if intent.summary_entry_id is not None:
            self._summary_entry = await self._summary_committed(intent.summary_entry_id, summary)
        if intent.label is not None and intent.target_id is not None:
            await self._fx.set_fact(LabelWrite(target_id=intent.target_id, label=intent.label), self._parent)
        return "completed"

    async def _summary(self, moved: bool) -> SummaryResult | None:
        """The hook's summary, else a generated one; None: a hook vetoed the move before its effect.

        Text that a crash lost is generated, never asked for again.
        """
        abandoned = await self._reads.abandoned(self._source, self._intent.target_id)
        if not moved and self._reads.op.step is None:
            event = BeforeNavigation(
                lane=self._reads.lane,
                run_id=self._run_id,
                target_id=self._intent.target_id,
                preparation=NavigationPreparation(source_leaf_id=self._source, abandoned=abandoned),
            )
            decision = await self._fx.before_navigation(event, self._parent)
            if self._reads.aborting:
                raise Aborted
            if decision.decline:
                return None
            if decision.summary is not None:
                await self._record_supplied(decision.summary)
                return decision.summary
        messages = self._reads.as_said(self._reads.project(abandoned))
        instructions = self._intent.custom_instructions
        assert self._intent.summary_entry_id is not None
        step = SummaryStep(
            kind="branch_summary",
            reason=None,
            entry_id=self._intent.summary_entry_id,
            prompts=lambda limits: branch_prompts(messages, limits, instructions),
        )
        return await summary_step(self._fx, step, self._parent)

    async def _record_supplied(self, summary: SummaryResult) -> None:
        if summary.usage is not None:
            assert self._intent.summary_entry_id is not None
            usage = HookUsage(run_id=self._run_id, entry_id=self._intent.summary_entry_id, usage=summary.usage)
            await self._fx.append_record(usage, self._parent)

    async def _summary_committed(self, entry_id: str, summary: SummaryResult | None) -> Entry | None:
        if summary is None:
            return await self._reads.get_entry(entry_id)
        assert self._source is not None
        body = BranchSummaryBody(
            from_id=self._source, summary=summary.summary, details=summary.details, usage=summary.usage
        )
        return await self._fx.append_entry(ProvisionedEntry(id=entry_id, body=body), self._parent)
