"""The line jobs: check live state, at most one durable write, nothing else (harness-v2 §15 "The lane mutation line").

Each function is the body of one job; callers run it with `lane.line.run`. Because jobs run one at a time, two
concurrent calls have exactly two histories.
"""

from collections.abc import Callable
from typing import Literal

from ..compaction.summarize import serialise
from ..effects.base import Reads
from ..errors import InvalidPayload
from ..events.catalog import FactUpdate, HarnessEvent, RunAbort
from ..hooks.catalog import BeforeRunOutcome
from ..outcomes import (
    AbortAccepted,
    AbortRejected,
    CancelQueued,
    CancelQueuedRejected,
    InvalidMessage,
    LaneBusy,
    MissingIdentities,
    NoActiveOperation,
    NoActiveRun,
    NothingToCompact,
    NothingToResume,
    Queued,
    QueueRejected,
    ResumeRejected,
    UnknownQueueItem,
    UnknownTarget,
)
from ..procedures.compaction import prepare
from ..reducer.fold import configuration_from
from ..reducer.predicates import has_pending_input, has_pending_work, has_queued_input
from ..result import Err, Ok, Result
from ..session.context import configuration_entries
from ..telemetry.context import TelemetryContext
from ..types.entries import MessageBody, ProvisionedEntry
from ..types.messages import AgentMessage
from ..types.records import (
    AbortRequested,
    AdjustmentUsage,
    CompactionIntent,
    NavigationIntent,
    OperationError,
    OperationFinished,
    OperationStarted,
    Outcome,
    QueueCancelled,
    QueueEnqueued,
    QueueName,
    RunIntent,
    WriteDeferred,
)
from ..types.state import OperationState
from ..types.structural import NavigateOptions
from .commits import reconfigure, write_entry, write_fact, write_record
from .lane import LaneRuntime
from .restore import messages_of, missing_identities

# Lane surface --------------------------------------------------------------------------------------------------------


def busy(lane: LaneRuntime) -> LaneBusy | None:
    """The rejection for a lane that has an operation."""
    op = lane.operation
    if op is None:
        return None
    status = "running" if lane.executing else "suspended: resume or abort it"
    return LaneBusy(
        lane=lane.name,
        operation_id=op.id,
        operation_kind=op.kind,
        message=f"lane {lane.name!r} has an open {op.kind} ({status})",
    )


def invalid_message(lane: LaneRuntime, reason: object, what: str = "message") -> InvalidMessage:
    """The rejection for input that cannot be stored, or that says nothing to the model."""
    return InvalidMessage(lane=lane.name, reason=str(reason), message=f"the {what} was refused: {reason}")


async def accept_run(
    lane: LaneRuntime, prompt: tuple[AgentMessage, ...], prepared: BeforeRunOutcome, begin: Callable[[], None]
) -> Result[str, LaneBusy | InvalidMessage | MissingIdentities]:
    """Accept a run: capture the pending nextRun items, write `operation_started`, start the procedure.

    The procedure starts here and not in the caller, who may be gone by now (decisions section 3).
    """
    rejected = busy(lane)
    if rejected is not None:
        return Err(rejected)
    unknown = missing_model(lane)
    if unknown is not None:
        return Err(unknown)
    new_id = lane.env.session.id_generator.next
    messages = tuple(ProvisionedEntry(id=new_id(), body=MessageBody(message=m)) for m in (*prompt, *prepared.messages))
    intent = RunIntent(
        original_prompt=prompt,
        initial_messages=(*lane.state.lane_state.pending_next_run, *messages),
        system_prompt_override=prepared.system_prompt,
        resume_data=dict(prepared.resume_data) or None,
    )
    started = OperationStarted(source_leaf_id=lane.state.lane_state.leaf_id, intent=intent)
    try:
        record = await write_record(lane, started)
    except InvalidPayload as error:
        return Err(invalid_message(lane, error, "prompt"))
    begin()
    return Ok(record.id)


async def accept_compaction(
    lane: LaneRuntime, reads: Reads, custom_instructions: str | None, begin: Callable[[], None]
) -> Result[str, LaneBusy | NothingToCompact | MissingIdentities]:
    """Accept a compaction of a context that has something to compact."""
    rejected = busy(lane) or missing_model(lane)
    if rejected is not None:
        return Err(rejected)
    if (await prepare(reads, "manual")).empty:
        message = f"lane {lane.name!r} holds nothing that a summary could replace"
        return Err(NothingToCompact(lane=lane.name, message=message))
    intent = CompactionIntent(
        custom_instructions=custom_instructions, result_entry_id=lane.env.session.id_generator.next()
    )
    started = OperationStarted(source_leaf_id=lane.state.lane_state.leaf_id, intent=intent)
    record = await write_record(lane, started)
    begin()
    return Ok(record.id)


async def accept_navigation(
    lane: LaneRuntime, reads: Reads, target_id: str | None, options: NavigateOptions, begin: Callable[[], None]
) -> Result[str, LaneBusy | UnknownTarget | MissingIdentities]:
    """Accept a move to another entry. Nothing said on the branch that is left: nothing is summarised."""
    rejected = busy(lane)
    if rejected is not None:
        return Err(rejected)
    source_id = lane.state.lane_state.leaf_id
    if target_id == source_id:
        return Err(UnknownTarget(target_id=target_id, message=f"lane {lane.name!r} stands there already"))
    if target_id is not None and await lane.env.session.get_entry(target_id) is None:
        return Err(UnknownTarget(target_id=target_id, message=f"the session has no entry {target_id!r}"))
    if target_id is None and options.label is not None:
        return Err(UnknownTarget(target_id=None, message="the root is no entry and cannot carry a label"))
    summarize = False
    if options.summarize:
        abandoned = await reads.abandoned(source_id, target_id)
        summarize = bool(serialise(reads.as_said(reads.project(abandoned))))
    if summarize and (unknown := missing_model(lane)) is not None:
        return Err(unknown)
    intent = NavigationIntent(
        target_id=target_id,
        summarize=summarize,
        label=options.label,
        summary_entry_id=lane.env.session.id_generator.next() if summarize else None,
        custom_instructions=options.custom_instructions if summarize else None,
    )
    record = await write_record(lane, OperationStarted(source_leaf_id=source_id, intent=intent))
    begin()
    return Ok(record.id)


def missing_model(lane: LaneRuntime) -> MissingIdentities | None:
    """The rejection for a lane whose effective model is not known here."""
    ref = lane.state.effective_configuration.model
    if lane.env.models.find(ref) is not None:
        return None
    name = f"{ref.provider}/{ref.model_id}"
    message = f"model {name} is not known here: add it to models, or call set_model"
    return MissingIdentities(lane=lane.name, tools=(), models=(name,), message=message)


async def admit_resume(lane: LaneRuntime, begin: Callable[[], None]) -> Result[str, ResumeRejected]:
    """Reserve the lane's single execution slot; no write."""
    op = lane.operation
    if op is None:
        return Err(NothingToResume(lane=lane.name, message=f"lane {lane.name!r} has nothing to resume"))
    if lane.executing:
        rejected = busy(lane)
        assert rejected is not None
        return Err(rejected)
    missing = missing_identities(lane.state, lane.env.tools, lane.env.models)
    if missing:
        names = ", ".join((*missing.tools, *missing.models))
        return Err(
            MissingIdentities(
                lane=lane.name,
                tools=missing.tools,
                models=missing.models,
                message=f"register what the open {op.kind} needs before resuming it: {names}",
            )
        )
    begin()
    return Ok(op.id)


def accepting_run(lane: LaneRuntime) -> OperationState | None:
    """The run that takes steer and follow-up messages now: running, suspended or draining, not aborting (A-10)."""
    op = lane.operation
    return op if op is not None and op.kind == "run" and not op.aborting else None


async def enqueue(lane: LaneRuntime, queue: QueueName, message: AgentMessage) -> Result[Queued, QueueRejected]:
    """Accept a queue item. nextRun needs no run and is always accepted."""
    run_id: str | None = None
    if queue != "nextRun":
        op = accepting_run(lane)
        if op is None:
            text = f"lane {lane.name!r} has no run that takes messages; next_run keeps them for the next one"
            return Err(NoActiveRun(lane=lane.name, message=text))
        run_id = op.id
    target = ProvisionedEntry(id=lane.env.session.id_generator.next(), body=MessageBody(message=message))
    try:
        await write_record(lane, QueueEnqueued(queue=queue, run_id=run_id, target=target))
    except InvalidPayload as error:
        return Err(invalid_message(lane, error))
    return Ok(Queued(entry_id=target.id))


async def cancel_queued(lane: LaneRuntime, entry_id: str) -> Result[CancelQueued, CancelQueuedRejected]:
    """Retract a pending item: cancelled, already consumed, or already cleared."""
    op = lane.operation
    pending_run = (*op.pending_steer, *op.pending_follow_up) if op is not None else ()
    if any(item.id == entry_id for item in pending_run):
        assert op is not None
        await write_record(lane, QueueCancelled(run_id=op.id, entry_id=entry_id))
        return Ok(CancelQueued(outcome="cancelled"))
    if any(item.id == entry_id for item in lane.state.lane_state.pending_next_run):
        await write_record(lane, QueueCancelled(entry_id=entry_id))
        return Ok(CancelQueued(outcome="cancelled"))
    enqueued = await lane.env.session.find_records(lane=lane.name, type="queue_enqueued")
    if not any(isinstance(r.body, QueueEnqueued) and r.body.target.id == entry_id for r in enqueued):
        message = f"lane {lane.name!r} never queued an item {entry_id!r}"
        return Err(UnknownQueueItem(lane=lane.name, entry_id=entry_id, message=message))
    captured = op is not None and any(item.id == entry_id for item in op.missing_initial_messages)
    if captured or await lane.env.session.get_entry(entry_id) is not None:
        return Ok(CancelQueued(outcome="already_consumed"))
    return Ok(CancelQueued(outcome="already_cleared"))


async def request_abort(lane: LaneRuntime, begin: Callable[[], None]) -> Result[AbortAccepted, AbortRejected]:
    """Write the marker, drain the queues, signal the running effect; reconciliation is the procedure's work.

    A second abort of the same operation writes nothing and returns no payloads.
    """
    op = lane.operation
    if op is None:
        return Err(NoActiveOperation(lane=lane.name, message=f"lane {lane.name!r} has no operation to abort"))
    accepted = AbortAccepted(run_id=op.id, steer=(), follow_up=())
    if not op.aborting:
        steer, follow_up = messages_of(op.pending_steer), messages_of(op.pending_follow_up)
        await write_record(lane, AbortRequested(run_id=op.id))
        accepted = AbortAccepted(run_id=op.id, steer=steer, follow_up=follow_up)
    elif not lane.executing:  # a restored abort whose reconciliation begins now
        lane.emit(RunAbort(lane=lane.name, run_id=op.id, steer=(), follow_up=()))
    if lane.executing:
        lane.signal.abort()
    else:
        begin()
    return Ok(accepted)


async def accept_write(lane: LaneRuntime, target: ProvisionedEntry) -> Literal["appended", "deferred", "wait"]:
    """A tree or configuration write: direct on an idle lane, deferred in a run, waiting for a structural operation."""
    op = lane.operation
    if op is None:
        await write_entry(lane, target)
        return "appended"
    if op.kind != "run":
        return "wait"
    await write_record(lane, WriteDeferred(run_id=op.id, target=target))
    return "deferred"


async def record_usage(lane: LaneRuntime, adjustment: AdjustmentUsage) -> None:
    """The application's own ledger entry."""
    await write_record(lane, adjustment)


# Procedures, through `fx` --------------------------------------------------------------------------------------------


async def try_finish_run(
    lane: LaneRuntime,
    run_id: str,
    outcome: Literal["completed", "failed"],
    error: OperationError | None,
    parent: TelemetryContext,
) -> Literal["finished", "continue"]:
    """Close the run if nothing is pending; a failed one looks at queues and writes only (A-15)."""
    op = _own(lane, run_id)
    pending = has_pending_work(op) if outcome == "completed" else has_pending_input(op)
    if op.aborting or pending:
        return "continue"
    await _finish(lane, op, outcome, error, parent)
    return "finished"


async def finish_operation(
    lane: LaneRuntime,
    run_id: str,
    outcome: Outcome,
    error: OperationError | None,
    parent: TelemetryContext,
    *,
    event: HarnessEvent | None = None,
) -> Literal["finished", "continue"]:
    """Terminal record unless something comes first: an abort marker, or for an abort a deferred write or kept input."""
    op = _own(lane, run_id)
    waiting = op.pending_writes or has_queued_input(op)
    if (outcome != "aborted" and op.aborting) or (outcome == "aborted" and waiting):
        return "continue"
    await _finish(lane, op, outcome, error, parent)
    if event is not None:
        lane.emit(event)
    return "finished"


async def _finish(
    lane: LaneRuntime, op: OperationState, outcome: Outcome, error: OperationError | None, parent: TelemetryContext
) -> None:
    await write_record(lane, OperationFinished(run_id=op.id, outcome=outcome, error=error), parent)
    if op.kind == "navigation":
        entries = await configuration_entries(lane.env.session, lane.state.lane_state.leaf_id)
        reconfigure(lane, configuration_from(entries, lane.env.defaults))


async def set_label(
    lane: LaneRuntime, target_id: str, label: str | None, parent: TelemetryContext | None = None, *, rerun: bool = False
) -> None:
    """Write a label; the latest wins. A `rerun` that finds it as it should be writes nothing."""
    if rerun and await lane.env.session.get_label(target_id) == label:
        return
    await write_fact(lane, "label", lambda: lane.env.session.set_label(target_id, label), parent)
    lane.emit(FactUpdate(fact="label", value=label, target_id=target_id))


async def set_name(lane: LaneRuntime, name: str | None) -> None:
    """Write the session's name; the latest wins."""
    tree = lane.env.session.view(lane.name)
    await write_fact(lane, "name", lambda: tree.set_name(name))
    lane.emit(FactUpdate(fact="name", value=await tree.get_name()))


async def commit_run_end_follow_up(
    lane: LaneRuntime, run_id: str, item: ProvisionedEntry, parent: TelemetryContext
) -> Literal["committed", "dropped"]:
    """Queue a follow-up only while the run is not aborting: nothing is written behind the marker."""
    if _own(lane, run_id).aborting:
        return "dropped"
    await write_record(lane, QueueEnqueued(queue="followUp", run_id=run_id, target=item), parent)
    return "committed"


async def consume_queue_item(
    lane: LaneRuntime, run_id: str, queue: Literal["steer", "followUp"], entry_id: str, parent: TelemetryContext
) -> Literal["consumed", "skipped"]:
    """Append a queued message if it is still pending."""
    op = _own(lane, run_id)
    items = op.pending_steer if queue == "steer" else op.pending_follow_up
    item = next((item for item in items if item.id == entry_id), None)
    if item is None or op.aborting:
        return "skipped"
    await write_entry(lane, item, parent)
    return "consumed"


async def apply_pending_write(
    lane: LaneRuntime, run_id: str, entry_id: str, parent: TelemetryContext
) -> Literal["applied", "skipped"]:
    """Append a deferred write if it is still pending; also while aborting."""
    item = next((item for item in _own(lane, run_id).pending_writes if item.id == entry_id), None)
    if item is None:
        return "skipped"
    await write_entry(lane, item, parent)
    return "applied"


def _own(lane: LaneRuntime, run_id: str) -> OperationState:
    op = lane.op()
    assert op.id == run_id, "a procedure outlived its operation"
    return op
