"""Redeeming a deferred handle: one fetch per `resume()` (harness-v2 §15 "Deferred redemption")."""

from ..effects.base import Effects
from ..telemetry.context import TelemetryContext
from ..types.messages import AssistantMessage, DeferredHandle
from ..types.records import RequestUsage
from .build import assistant_entry, message_error, terminal
from .signals import Aborted, Park, RunFailed


async def redeem_deferred(fx: Effects, parent: TelemetryContext) -> AssistantMessage:
    """Ask the provider once; a ready answer is appended as the handle's successor.

    Raises:
        Park: still pending; nothing but reported usage was written.
        RunFailed: terminal; the error message is appended.
        Aborted: an abort came.
    """
    reads = fx.reads
    op, handle = reads.op, reads.op.deferred
    assert handle is not None
    final = await _fetch(fx, handle, parent)
    entry_id = reads.new_id()
    if final.stop_reason != "deferred" or _has_usage(final):
        await fx.append_record(
            RequestUsage(
                cause="deferred_fetch",
                run_id=op.id,
                entry_id=entry_id,
                attempt=1,
                usage=final.usage,
                stop_reason=terminal(final),
            ),
            parent,
        )
    if reads.aborting:
        raise Aborted
    if final.stop_reason == "deferred":
        require_same_handle(final.deferred, handle)
        raise Park(handle)
    if final.stop_reason == "aborted":
        raise Aborted
    await fx.append_entry(assistant_entry(entry_id, final), parent)
    if final.stop_reason == "error":
        raise RunFailed(message_error(final))
    return final


async def _fetch(fx: Effects, handle: DeferredHandle, parent: TelemetryContext) -> AssistantMessage:
    reads = fx.reads
    if handle.expires_at is not None and handle.expires_at <= reads.now_ms():
        return AssistantMessage(
            content=(),
            api=handle.api,
            provider=handle.provider,
            model=handle.model_id,
            stop_reason="error",
            error_message="the deferred answer expired before it was fetched",
            error_code="deferred_expired",
            timestamp=reads.now_ms(),
        )
    return await fx.fetch_deferred(reads.model(), handle, parent)


def _has_usage(message: AssistantMessage) -> bool:
    usage = message.usage
    return bool(usage.input or usage.output or usage.cache_read or usage.cache_write or usage.cost.total)


def require_same_handle(returned: DeferredHandle | None, persisted: DeferredHandle) -> None:
    """A provider cannot replace durable handle data without a write.

    Raises:
        AssertionError: a defect of the provider; the harness faults.
    """
    if returned != persisted:
        raise AssertionError("a pending deferred fetch returned a different handle than the persisted one")
