"""LaneRuntime: one lane's live state, its mutation line, its commits and the procedure that runs (harness-v2 §15)."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from itertools import takewhile
from typing import Literal, TypeAlias, TypeVar

from ..abort_signal import AbortSignal
from ..effects.gate import Gate
from ..errors import CorruptLog, HarnessClosed, HarnessFault, StorageError
from ..events.catalog import (
    ConfigUpdate,
    EntryAdded,
    HarnessEvent,
    MessageEnd,
    MessageStart,
    QueueUpdate,
    RunAbort,
    RunEnd,
    RunStart,
    RunSuspend,
    UsageEvent,
    WritePending,
)
from ..outcomes import OperationOutcome, RunSuspended
from ..reducer.fold import Fact, apply
from ..session.context import project_entries, project_entry
from ..telemetry.attributes import WriteEnd, WriteStart
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from ..telemetry.vocabulary import SessionMutation
from ..types.entries import Entry, MessageBody, ProvisionedEntry
from ..types.messages import AgentMessage, AssistantMessage
from ..types.records import (
    AbortRequested,
    AdjustmentUsage,
    HookUsage,
    LaneRecord,
    NewRecord,
    OperationFinished,
    OperationStarted,
    RecordBody,
    RequestUsage,
    RunIntent,
    ToolUsage,
    WriteDeferred,
)
from ..types.state import EffectiveLaneConfiguration, LaneMoved, LaneReductionResult, OperationState, Reconfigured
from ..types.usage import add_usage
from .environment import Environment
from .invocation import operation_span
from .line import MutationLine
from .live import LiveView, queues
from .restore import RestoredLane, differences, newest_answer, restore_lane

Procedure: TypeAlias = Callable[[TelemetryContext], Awaitable[OperationOutcome]]
"""An operation's work, under the span of its invocation."""
T = TypeVar("T")
HOOK_OF: ContextVar[str | None] = ContextVar("HOOK_OF", default=None)
"""The operation whose hook is running here, whatever task the handler started: it must not wait for that operation."""


class LaneRuntime:
    """State changes only in the commit callbacks here, whatever happens to a caller (decisions section 5)."""

    def __init__(self, name: str, env: Environment, restored: RestoredLane) -> None:
        self.name = name
        self.env = env
        self.line = MutationLine()
        self.gate: Gate | None = None
        self.state: LaneReductionResult = restored.reduction
        self.answer = newest_answer(restored.own_entries)
        self.signal = AbortSignal()
        self.recovery = False
        self.admitting = 0  # calls that may start an operation and have not been decided yet
        self.procedure: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # the procedure, and one before it that is still ending
        self.outcome: asyncio.Future[OperationOutcome] | None = None
        self.view = LiveView(env, lambda: self.state)
        self.idle = asyncio.Event()
        self._projection: list[AgentMessage] | None = None
        self._inherited = 0  # how many messages of the projection come from the newest compaction
        self._settle_idle()
        if env.drive == "manual":
            self.gate = Gate()
            self.gate.working = lambda: self.admitting > 0 or self.procedure is not None

    # State -----------------------------------------------------------------

    @property
    def operation(self) -> OperationState | None:
        """The open operation."""
        return self.state.lane_state.operation

    def op(self) -> OperationState:
        """The open operation, which a caller knows to exist."""
        operation = self.operation
        assert operation is not None, f"lane {self.name!r} has no open operation"
        return operation

    @property
    def executing(self) -> bool:
        """A procedure is running."""
        return self.procedure is not None

    @property
    def suspended(self) -> bool:
        """An open operation waits for resume or abort."""
        shown = self.view.operation
        return self.operation is not None and shown is not None and shown.suspended is not None

    def emit(self, event: HarnessEvent) -> None:
        """Publish. Every event of the lane goes this way, so that snapshots and watchers agree."""
        self.env.events.publish(self.view.told(event))

    def _settle_idle(self) -> None:
        if self.operation is None and self.procedure is None:
            self.idle.set()
        else:
            self.idle.clear()

    # Writes: called inside line jobs only ----------------------------------

    # `parent` None is the application's telemetry context: a write that no operation's work makes.

    async def write_entry(self, entry: ProvisionedEntry, parent: TelemetryContext | None = None) -> Entry:
        """Append one entry; live state follows in the commit's own callback."""

        async def write(span: Span[WriteEnd]) -> Entry:
            committed = await self.guard(
                self.env.session.append_entry(entry, self.name, on_commit=self._entry_committed)
            )
            span.set_attributes({"pi.session.seq": committed.seq})
            return committed

        return await self._span_write(parent, "entry", entry.body.type, write)

    async def write_record(self, body: RecordBody, parent: TelemetryContext | None = None) -> LaneRecord:
        """Append one record under a fresh id."""
        record = NewRecord(id=self.env.session.id_generator.next(), lane=self.name, body=body)

        async def write(span: Span[WriteEnd]) -> LaneRecord:
            committed = await self.guard(self.env.session.append_record(record, on_commit=self._record_committed))
            span.set_attributes({"pi.session.seq": committed.seq})
            return committed

        starts = record.id if isinstance(body, OperationStarted) else None
        return await self._span_write(parent, "record", body.type, write, starts)

    async def write_fact(
        self,
        item_type: Literal["label", "name"],
        write: Callable[[], Awaitable[None]],
        parent: TelemetryContext | None = None,
    ) -> None:
        """Write a fact of the session; `write` hands it to the session."""
        await self._span_write(parent, "fact", item_type, lambda _span: self.guard(write()))

    async def _span_write(
        self,
        parent: TelemetryContext | None,
        mutation: SessionMutation,
        item_type: str | None,
        write: Callable[[Span[WriteEnd]], Awaitable[T]],
        starts: str | None = None,
    ) -> T:
        operation = self.operation
        attributes: WriteStart = {
            "pi.lane.name": self.name,
            "pi.operation.id": operation.id if operation is not None else starts,
            "pi.session.mutation": mutation,
            "pi.session.item_type": item_type,
        }
        return await start_harness_span(parent or self.env.telemetry, "pi.session.write", attributes, write)

    async def write_move(self, to: str | None, parent: TelemetryContext | None = None) -> None:
        """Jump the leaf."""

        path = await self.view.path_to(to)
        source = self.state.lane_state.leaf_id

        def committed(_seq: int) -> None:
            self.apply_fact(LaneMoved(lane=self.name, to=to))
            self.view.moved(source, path)
            self._projection = None

        async def write(span: Span[WriteEnd]) -> None:
            def told(seq: int) -> None:
                span.set_attributes({"pi.session.seq": seq})
                committed(seq)

            await self.guard(self.env.session.move_lane(self.name, to, on_commit=told))

        await self._span_write(parent, "lane", None, write)

    def reconfigure(self, configuration: EffectiveLaneConfiguration) -> None:
        """Take over the configuration of the path that a closed navigation left the lane on."""
        before = self.state.effective_configuration
        self.apply_fact(Reconfigured(configuration=configuration))
        self._report_configuration(before)

    async def guard(self, write: Awaitable[T]) -> T:
        """Await a session write; a failed one faults the harness, since its outcome is unknown."""
        try:
            return await write
        except StorageError as error:
            raise self.env.fail(error) from error

    def apply_fact(self, fact: Fact) -> None:
        """Fold a committed fact into live state; a fact that does not fold is a defect of the writer."""
        try:
            self.state = apply(self.state, fact)
        except CorruptLog as error:
            self.env.fail(error)
        self._settle_idle()

    def _entry_committed(self, entry: Entry) -> None:
        operation = self.operation
        run_id = operation.id if operation is not None else None
        before = self.state.effective_configuration
        self.apply_fact(entry)
        self.view.entry_committed(entry)
        if self._projection is not None:
            projected = project_entry(entry, self.env.entry_projectors)
            if entry.type == "compaction":
                self._projection = []
                self._inherited = len(projected)
            self._projection += projected
        message = entry.message
        if message is None:
            self.emit(EntryAdded(lane=self.name, run_id=run_id, entry=entry))
        else:
            noted = operation is not None and any(write.id == entry.id for write in operation.pending_writes)
            self._message_committed(entry, message, run_id, noted=noted)
        self._report_configuration(before)

    def _message_committed(self, entry: Entry, message: AgentMessage, run_id: str | None, *, noted: bool) -> None:
        if isinstance(message, AssistantMessage) and self.view.message_open and not noted:
            self.view.message_open = False  # its message_start came with the first delta
        else:
            self.emit(MessageStart(lane=self.name, run_id=run_id, message=message))
        if isinstance(message, AssistantMessage) and message.stop_reason != "deferred" and run_id is not None:
            self.answer = entry.id, message
        self.emit(
            MessageEnd(
                lane=self.name,
                run_id=run_id,
                message=message,
                entry_id=entry.id,
                parent_id=entry.parent_id,
                seq=entry.seq,
                timestamp=entry.timestamp,
                terminate=isinstance(entry.body, MessageBody) and entry.body.terminate is True,
            )
        )
        if run_id is not None:
            self._report_queues_if_consumed(entry.id)

    def _report_queues_if_consumed(self, entry_id: str) -> None:
        operation = self.operation
        if operation is not None and entry_id in operation.queued_ids:
            self.emit(self.queue_update())

    def _report_configuration(self, before: EffectiveLaneConfiguration) -> None:
        after = self.state.effective_configuration
        if after.model != before.model:
            self.emit(
                ConfigUpdate(
                    lane=self.name,
                    property="model",
                    value={"provider": after.model.provider, "modelId": after.model.model_id},
                    previous={"provider": before.model.provider, "modelId": before.model.model_id},
                )
            )
        if after.thinking_level != before.thinking_level:
            self.emit(
                ConfigUpdate(
                    lane=self.name,
                    property="thinkingLevel",
                    value=after.thinking_level,
                    previous=before.thinking_level,
                )
            )
        if after.active_tool_names != before.active_tool_names:
            self.emit(
                ConfigUpdate(
                    lane=self.name,
                    property="activeTools",
                    value=list(after.active_tool_names),
                    previous=list(before.active_tool_names),
                )
            )

    def _record_committed(self, record: LaneRecord) -> None:
        if isinstance(record.body, OperationStarted):
            self.answer = None
        before = queues(self.state.lane_state)
        operation = self.operation
        self.apply_fact(record)
        # Here and not in the jobs: no await may stand between a change of state and the event that tells it.
        match record.body:
            case RequestUsage() | ToolUsage() | HookUsage() | AdjustmentUsage() as body:
                self.env.totals = add_usage(self.env.totals, body.usage)
                self.emit(UsageEvent(lane=self.name, record=record, totals=self.env.totals))
            case OperationStarted(intent=RunIntent()):
                self.view.message_open = False
                self.emit(RunStart(lane=self.name, run_id=record.id, started_at=record.timestamp))
            case AbortRequested(run_id=run_id):
                assert operation is not None
                self._abort_accepted(run_id, operation.pending_steer, operation.pending_follow_up)
            case WriteDeferred() as body:
                self.emit(WritePending(lane=self.name, run_id=body.run_id, entry_id=body.target.id, entry=body.target))
            case OperationFinished() as body if operation is not None and operation.kind == "run":
                self._run_finished(body)
            case _:
                pass
        if queues(self.state.lane_state) != before:
            self.emit(self.queue_update())

    def _abort_accepted(
        self, run_id: str, steer: tuple[ProvisionedEntry, ...], follow_up: tuple[ProvisionedEntry, ...]
    ) -> None:
        self.emit(RunAbort(lane=self.name, run_id=run_id, steer=messages_of(steer), follow_up=messages_of(follow_up)))

    def _run_finished(self, body: OperationFinished) -> None:
        assert body.outcome != "declined", "a run is never declined"
        answer = self.answer
        self.emit(
            RunEnd(
                lane=self.name,
                run_id=body.run_id,
                outcome=body.outcome,
                leaf_id=self.state.lane_state.leaf_id,
                final_entry_id=answer[0] if answer is not None else None,
                final_message=answer[1] if answer is not None else None,
                error=body.error,
                recovery=self.recovery,
            )
        )

    def queue_update(self) -> QueueUpdate:
        """The queues as they are now."""
        now = queues(self.state.lane_state)
        return QueueUpdate(lane=self.name, steer=now.steer, follow_up=now.follow_up, next_run=now.next_run)

    # Context ---------------------------------------------------------------

    async def context_messages(self) -> list[AgentMessage]:
        """The projected context of the leaf, kept incrementally: history is read once, not per request."""
        if self._projection is None:
            leaf_id = self.state.lane_state.leaf_id
            entries: list[Entry] = []
            if leaf_id is not None:
                entries = await self.env.session.find_entries_on_branch(start=leaf_id, stop_at_type="compaction")
            self._projection = project_entries(reversed(entries), self.env.entry_projectors)
            checkpoint = entries[-1:] if entries and entries[-1].type == "compaction" else []
            self._inherited = len(project_entries(checkpoint, self.env.entry_projectors))
        return list(self._projection)

    async def inherited_messages(self) -> int:
        """How many leading messages of `context_messages` come from the newest compaction."""
        await self.context_messages()
        return self._inherited

    async def abandoned(self, source: str | None, target: str | None) -> tuple[Entry, ...]:
        """What a move from `source` to `target` leaves behind: the path down to their common ancestor, oldest first."""
        if source is None:
            return ()
        kept: set[str] = set()
        if target is not None:
            kept = {entry.id for entry in await self.env.session.find_entries_on_branch(start=target)}
        left = takewhile(
            lambda entry: entry.id not in kept, await self.env.session.find_entries_on_branch(start=source)
        )
        return tuple(left)[::-1]

    # The procedure ---------------------------------------------------------

    def start(self, procedure: Procedure, *, recovery: bool) -> asyncio.Future[OperationOutcome]:
        """Run `procedure` in a task that the lane owns; its outcome outlives any caller.

        The lane is idle as soon as `operation_finished` is committed, so the task of the operation before may still be
        on its way out: the new one waits for it.
        """
        before = self.procedure
        self.recovery = recovery
        self.signal = AbortSignal()
        if self.op().aborting:
            self.signal.abort()
        outcome: asyncio.Future[OperationOutcome] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_retrieve)
        self.outcome = outcome
        task = asyncio.get_running_loop().create_task(self._drive(procedure, outcome, before))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, outcome))
        self.procedure = task
        self._settle_idle()
        return outcome

    async def _drive(
        self, procedure: Procedure, outcome: asyncio.Future[OperationOutcome], before: asyncio.Task[None] | None
    ) -> None:
        error: BaseException | None = None
        result: OperationOutcome | None = None
        recovery, op = self.recovery, self.op()

        async def invocation(span: TelemetryContext) -> OperationOutcome:
            ended = await procedure(span)
            if recovery:
                await self.check_fixed_point()
            while self._aborted_late(op.id):
                ended = await procedure(span)
            return ended

        try:
            if before is not None:
                await asyncio.wait({before})
            result = await operation_span(self.env, self.name, op.kind, op.id, invocation, recovery=recovery)
            while self._aborted_late(op.id):  # while telemetry ended the span
                result = await operation_span(self.env, self.name, op.kind, op.id, invocation, recovery=recovery)
        except asyncio.CancelledError as cancelled:
            error = self._cancelled(cancelled)
        except (HarnessClosed, HarnessFault) as closed:
            error = self.env.fault or closed
        except BaseException as defect:
            error = HarnessClosed() if self.env.closed else self.env.fail(defect)
            if isinstance(defect, KeyboardInterrupt | SystemExit):
                raise
        finally:
            if self.procedure is asyncio.current_task():
                self.procedure = None  # at once: whoever learns the outcome may start the next operation
            self._settle_idle()
            if isinstance(result, RunSuspended) and error is None:
                self._report_suspension(result)
            if not outcome.done():
                if result is not None and error is None:
                    outcome.set_result(result)
                else:
                    outcome.set_exception(error or HarnessClosed())
            if self.gate is not None:
                self.gate.poke()

    def _report_suspension(self, outcome: RunSuspended) -> None:
        suspended = self.view.suspended()
        assert suspended is not None
        self.emit(
            RunSuspend(
                lane=self.name,
                run_id=outcome.run_id,
                deferred=outcome.deferred,
                suspended=suspended,
                recovery=self.recovery,
            )
        )

    def _ended(self, task: asyncio.Task[None], outcome: asyncio.Future[OperationOutcome]) -> None:
        """A task that is cancelled before its first step runs nothing of `_drive`, not even its `finally`."""
        self._tasks.discard(task)
        if self.procedure is task:
            self.procedure = None
            self._settle_idle()
        if not outcome.done():
            outcome.set_exception(self.env.fault or HarnessClosed())
            if self.gate is not None:
                self.gate.poke()

    def _aborted_late(self, run_id: str) -> bool:
        """An abort was accepted after the procedure parked its lane: it found a procedure and left the work to it."""
        operation = self.operation
        return operation is not None and operation.id == run_id and operation.aborting

    def _cancelled(self, cancelled: asyncio.CancelledError) -> BaseException:
        """Closed, faulted, or the loop is ending: detach, the operation stays resumable. Else somebody's own leaked."""
        task = asyncio.current_task()
        if self.env.fault is None and not self.env.closed and (task is None or not task.cancelling()):
            return self.env.fail(cancelled)
        return self.env.fault or HarnessClosed()

    async def check_fixed_point(self) -> None:
        """Compare live state with the reduction of what is stored (harness-v2 §15 "Fixed-point self-check").

        Raises:
            HarnessFault: writer and reducer drifted apart.
        """

        async def job() -> None:
            leaf_id = await self.env.session.view(self.name).get_leaf_id()
            stored = await restore_lane(self.env.session, self.name, leaf_id, self.env.defaults)
            unequal = differences(self.state, stored.reduction)
            if unequal:
                drift = CorruptLog("fixed_point", f"live state differs in {', '.join(unequal)}", lane=self.name)
                raise self.env.fail(drift)

        await self.line.run(job)

    async def detach(self, reason: BaseException, timeout: float, spared: asyncio.Task[object] | None) -> None:
        """Stop executing without writing anything more; a write in progress ends by itself.

        `spared` is the task that closes: a procedure cannot be waited for by itself.
        """
        self.line.close(reason)
        if self.gate is not None:
            self.gate.close(reason)
        tasks = [task for task in self._tasks if task is not spared]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        await self.line.drain(timeout)


def messages_of(items: tuple[ProvisionedEntry, ...]) -> tuple[AgentMessage, ...]:
    """The messages that provisioned entries carry."""
    return tuple(item.body.message for item in items if isinstance(item.body, MessageBody))


def _retrieve(future: asyncio.Future[OperationOutcome]) -> None:
    # An outcome nobody waits for is no error: it reached events and wait_for_idle.
    if not future.cancelled():
        future.exception()
