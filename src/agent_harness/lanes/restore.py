"""Restore: bounded reads of one lane -> `reduce_lane_state` (harness-v2 §7). It never writes and starts no effect."""

from dataclasses import dataclass, replace

from ..outcomes import Missing, SuspendedOperation
from ..providers.base import Models
from ..reducer.fold import LaneReductionInput, reduce_lane_state
from ..session.context import configuration_entries
from ..session.session import Session
from ..types.entries import Entry, MessageBody, ProvisionedEntry
from ..types.messages import AgentMessage, AssistantMessage
from ..types.records import LaneRecord, OperationStarted, RunIntent, ToolStarted
from ..types.state import EffectiveLaneConfiguration, LaneReductionResult, ModelRef, OperationState
from ..types.tools import AgentTool

NO_DEFAULTS = EffectiveLaneConfiguration(
    model=ModelRef(provider="none", model_id="none"), thinking_level="off", active_tool_names=()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredLane:
    """A lane as its facts say."""

    reduction: LaneReductionResult
    own_entries: tuple[Entry, ...]  # of the open operation, oldest first


async def restore_lane(
    session: Session, lane: str, leaf_id: str | None, defaults: EffectiveLaneConfiguration
) -> RestoredLane:
    """Read one lane. Every scan is bounded by the open operation or by the still relevant idle queue.

    Raises:
        CorruptLog: a validity rule is broken.
    """
    open_operations = await session.find_open_operations(lane, limit=2)
    start = open_operations[0] if open_operations else None
    anchor = leaf_id
    records: list[LaneRecord] = []
    own: list[Entry] = []
    if start is not None:
        assert isinstance(start.body, OperationStarted)
        records = await session.find_records(lane=lane, after_seq=start.seq, order="oldestFirst")
        if leaf_id is not None:
            own = await session.find_entries_on_branch(start=leaf_id, after_seq=start.seq, order="oldestFirst")
        anchor = start.body.source_leaf_id
    source = LaneReductionInput(
        lane=lane,
        leaf_id=leaf_id,
        open_operations=open_operations,
        queue_records=await _idle_queue(session, lane, start),
        records=records,
        own_entries=own,
        configuration_entries=await configuration_entries(session, anchor),
        defaults=defaults,
    )
    return RestoredLane(reduction=reduce_lane_state(source), own_entries=tuple(own))


async def _idle_queue(session: Session, lane: str, start: LaneRecord | None) -> list[LaneRecord]:
    """nextRun records above the newest run start; below an open structural operation (A-2), which folds the rest."""
    if start is not None and isinstance(start.body, OperationStarted) and isinstance(start.body.intent, RunIntent):
        return []  # an open run captured everything before it
    runs = await session.find_records(lane=lane, type="operation_started", operation_kind="run", limit=1)
    after = runs[0].seq if runs else 0
    found: list[LaneRecord] = []
    for kind in ("queue_enqueued", "queue_cancelled"):
        found += await session.find_records(lane=lane, type=kind, after_seq=after, order="oldestFirst")
    bound = start.seq if start is not None else None
    return sorted((r for r in found if bound is None or r.seq < bound), key=lambda record: record.seq)


async def inspect_lane(
    session: Session, lane: str = "main", defaults: EffectiveLaneConfiguration | None = None
) -> LaneReductionResult:
    """What a lane's facts reduce to, without opening a harness.

    Raises:
        UnknownLane: no such lane.
        CorruptLog: a validity rule is broken.
    """
    leaf_id = await session.view(lane).get_leaf_id()
    return (await restore_lane(session, lane, leaf_id, defaults or NO_DEFAULTS)).reduction


def suspended_operation(
    reduction: LaneReductionResult, tools: dict[str, AgentTool], models: Models
) -> SuspendedOperation | None:
    """What a caller needs to offer resume or abort; None for an idle lane."""
    state = reduction.lane_state
    op = state.operation
    if op is None:
        return None
    return SuspendedOperation(
        lane=state.lane,
        kind=op.kind,
        id=op.id,
        started_at=op.started_at,
        reason="deferred" if op.deferred is not None and not op.aborting else "crash",
        prompt=op.intent.original_prompt if isinstance(op.intent, RunIntent) else (),
        deferred=op.deferred,
        aborting_steer=messages_of(op.aborted_steer) if op.aborting else None,
        aborting_follow_up=messages_of(op.aborted_follow_up) if op.aborting else None,
        missing=missing_identities(reduction, tools, models),
    )


def messages_of(items: tuple[ProvisionedEntry, ...]) -> tuple[AgentMessage, ...]:
    """The messages that provisioned entries carry."""
    return tuple(item.body.message for item in items if isinstance(item.body, MessageBody))


def missing_identities(reduction: LaneReductionResult, tools: dict[str, AgentTool], models: Models) -> Missing:
    """What `resume()` needs and is not registered (A-12). Abort needs nothing.

    A call that no handler cleared yet needs its tool if the tool is active; a started one only if it may be replayed.
    """
    op = reduction.lane_state.operation
    if op is None or op.aborting:
        return Missing()
    needed: list[str] = []
    active = reduction.effective_configuration.active_tool_names
    batch = op.tool_batch
    for call in batch.calls if batch is not None and not batch.truncated else ():
        if call.result_exists or call.settled is not None:
            continue
        started = call.started.body if call.started is not None else None
        if isinstance(started, ToolStarted):
            if started.replay == "safe":
                needed.append(started.tool_name)
        elif call.tool_call.name in active:
            needed.append(call.tool_call.name)
    model = reduction.effective_configuration.model
    known = not requests_remain(op) or models.find(model) is not None
    return Missing(
        tools=tuple(dict.fromkeys(name for name in needed if name not in tools)),
        models=() if known else (f"{model.provider}/{model.model_id}",),
    )


def requests_remain(op: OperationState) -> bool:
    """Whether finishing `op` may take a request: no structural operation whose summary exists, or that needs none."""
    return op.kind == "run" or op.targets.result is False or op.targets.summary is False


def newest_answer(own_entries: tuple[Entry, ...]) -> tuple[str, AssistantMessage] | None:
    """The newest assistant message of an operation, deferred ones apart."""
    for entry in reversed(own_entries):
        message = entry.message
        if isinstance(message, AssistantMessage) and message.stop_reason != "deferred":
            return entry.id, message
    return None


def differences(live: LaneReductionResult, stored: LaneReductionResult) -> list[str]:
    """Names of what a fixed-point check finds unequal; content stays out of the text."""
    found: list[str] = []
    if live.effective_configuration != stored.effective_configuration:
        found.append("effective_configuration")
    left, right = live.lane_state, stored.lane_state
    if replace(left, operation=None) != replace(right, operation=None):
        found.append("lane_state")
    if left.operation != right.operation:
        found.append("operation")
    return found
