"""The abort path of a run: close what is open, keep what is finished, apply accepted writes (harness-v2 §15)."""

from functools import partial

from ..effects.base import Effects
from ..outcomes import RunAborted
from ..reducer.predicates import ended_by_abort, has_queued_input
from ..telemetry.context import TelemetryContext
from ..types.messages import DeferredHandle
from .build import assistant_entry, closing_message
from .scopes import checkpoint_scope
from .tools import abort_tool_batch


async def abort_path(fx: Effects, parent: TelemetryContext) -> RunAborted | None:
    """Reconcile an aborting run and close it.

    Loops while deferred writes arrive: facts survive abort, and come before the close.

    Returns:
        None when nobody asked for the abort (the provider cut its own answer) and queued input waits: it is not lost.
    """
    reads = fx.reads
    op = reads.op
    handle = op.deferred
    while True:
        await checkpoint_scope(reads, "abort_reconcile", parent, partial(_reconcile, fx, handle))
        handle = None
        if not reads.aborting and has_queued_input(reads.op):
            return None
        answer, leaf_id = reads.answer, reads.state.lane_state.leaf_id
        if await fx.finish_operation(op.id, "aborted", parent) == "finished":
            assert answer is not None
            assert leaf_id is not None
            return RunAborted(run_id=op.id, leaf_id=leaf_id, final_entry_id=answer[0], final_message=answer[1])


async def _reconcile(fx: Effects, handle: DeferredHandle | None, parent: TelemetryContext) -> None:
    reads = fx.reads
    run_id = reads.op.id
    if handle is not None:
        await _cancel_deferred(fx, handle, parent)
    await abort_tool_batch(fx, parent)
    for write in reads.op.pending_writes:
        await fx.apply_pending_write(run_id, write.id, parent)
    if not ended_by_abort(reads.op):
        await _append_closing_message(fx, parent)


async def _cancel_deferred(fx: Effects, handle: DeferredHandle, parent: TelemetryContext) -> None:
    """Best effort: an unknown model or a refusing provider does not stop the abort."""
    try:
        model = fx.reads.model()
    except LookupError:
        return
    await fx.cancel_deferred(model, handle, parent)


async def _append_closing_message(fx: Effects, parent: TelemetryContext) -> None:
    reads = fx.reads
    configured = reads.state.effective_configuration.model
    try:
        api = reads.model().api
    except LookupError:  # abort never needs the model
        api = "unknown"
    message = closing_message(configured, api, reads.now_ms())
    await fx.append_entry(assistant_entry(reads.new_id(), message), parent)
