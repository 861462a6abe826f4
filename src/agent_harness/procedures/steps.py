"""The assistant step: attempts with a durable count, each with its ledger record (harness-v2 §15 "Steps").

A failed attempt appends nothing. Besides the answer, only a deferred handle, a terminal message or the give-up error
enters the tree.
"""

from functools import partial

from ..effects.base import AssistantRequest, Effects
from ..hooks.catalog import BeforeRequest
from ..providers.base import Model, is_retryable
from ..reducer.overflow import is_context_overflow, is_recoverable_length
from ..telemetry.attributes import StepEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..types.messages import AssistantMessage
from ..types.records import OperationError, RunIntent, StepAttempt
from .build import assistant_entry, give_up_message, message_error, request_usage
from .retrying import Retrying
from .scopes import end_step, step_scope
from .signals import Aborted, Overflow, Park, RunFailed

RETRIES_EXHAUSTED = "retries_exhausted"


async def assistant_step(fx: Effects, turn_id: str, parent: TelemetryContext) -> AssistantMessage:
    """Produce one assistant message, retrying what may be retried.

    Raises:
        Park, RunFailed, Aborted, Overflow: see `signals`.
    """
    reads = fx.reads
    retrying = Retrying(reads, "assistant")
    while True:
        step = reads.op.step
        if reads.aborting:
            retrying.end(step.attempts if step is not None else 1, "aborted")
            raise Aborted
        attempt = (step.attempts if step is not None and step.kind == "assistant" else 0) + 1
        if attempt > reads.retry.max_attempts:
            assert step is not None
            error = OperationError(code=RETRIES_EXHAUSTED, message=f"no answer after {attempt - 1} attempts")
            retrying.end(attempt - 1, error.message)
            raise RunFailed(error, await give_up(fx, step.result_entry_id, error, parent))
        retrying.begin(attempt)
        work = partial(_attempted, fx, attempt, turn_id, retrying=retrying)
        answer = await step_scope(reads, parent, work, kind="assistant", attempt=attempt)
        if answer is not None:
            return answer


async def _attempted(
    fx: Effects, attempt: int, turn_id: str, span: Span[StepEnd], *, retrying: Retrying
) -> AssistantMessage | None:
    """One attempt to its end, the delay before the next one included; None when there is to be one."""
    reads = fx.reads
    entry_id, final, max_tokens = await _request(fx, attempt, turn_id, span)
    if is_overflow(reads.model(), max_tokens, final):
        retrying.end(attempt, final.error_message or "the context does not fit")
        raise Overflow
    if final.stop_reason == "error" and is_retryable(final) and attempt < reads.retry.max_attempts:
        end_step(span, "retry", final.error_code)
        delay_ms = reads.retry.delay_ms(attempt, final.retry_after_ms)
        retrying.schedule(attempt, delay_ms, final.error_message or "")
        await fx.sleep(delay_ms, span)
        return None
    failed = final.stop_reason in ("error", "aborted")
    retrying.end(attempt, final.error_message or final.stop_reason if failed else None)
    await fx.append_entry(assistant_entry(entry_id, final), span)
    if final.stop_reason == "deferred":
        assert final.deferred is not None
        raise Park(final.deferred, final)
    if final.stop_reason == "error":
        raise RunFailed(message_error(final), final)
    end_step(span, "aborted" if final.stop_reason == "aborted" else "succeeded")
    return final


async def _request(
    fx: Effects, attempt: int, turn_id: str, parent: TelemetryContext
) -> tuple[str, AssistantMessage, int | None]:
    """One request: the provisioned id, the settled answer, and the output cap that was intended, hooks included."""
    reads = fx.reads
    op = reads.op
    options = await fx.before_request(
        BeforeRequest(
            lane=reads.lane,
            model=reads.model(),
            step="assistant",
            attempt=attempt,
            stream_options=reads.stream_options,
        ),
        parent,
    )
    entry_id = reads.new_id()
    await fx.append_record(
        StepAttempt(run_id=op.id, step="assistant", attempt=attempt, result_entry_id=entry_id), parent
    )
    override = op.intent.system_prompt_override if isinstance(op.intent, RunIntent) else None
    final = await fx.stream_assistant(
        AssistantRequest(
            step="assistant",
            attempt=attempt,
            run_id=op.id,
            turn_id=turn_id,
            options=options,
            system_prompt=override,
        ),
        parent,
    )
    # The ledger comes before any branch: cost durability must not depend on result durability (harness-v2 §5).
    await fx.append_record(request_usage("assistant", op.id, entry_id, attempt, final), parent)
    return entry_id, final, options.max_tokens


def is_overflow(model: Model, max_tokens: int | None, message: AssistantMessage) -> bool:
    """Whether the request did not fit, so that the response is discarded and the context compacted."""
    desired = max_tokens if max_tokens is not None else model.max_tokens
    return is_context_overflow(message, model.context_window) or is_recoverable_length(message, desired)


async def give_up(fx: Effects, entry_id: str, error: OperationError, parent: TelemetryContext) -> AssistantMessage:
    """Make a failure durable: the entry fulfils the last attempt's provisioned id. Returns its message."""
    model = fx.reads.model()
    message = give_up_message(model.ref, model.api, error, fx.reads.now_ms())
    await fx.append_entry(assistant_entry(entry_id, message), parent)
    return message
