"""The summary step: durable attempts at a compaction or branch summary (harness-v2 §15 "Steps", A-7).

An attempt makes one request, two for a split turn, more when the text was split; each leaves its ledger record. None
is ever deferred. What came back cut is asked for again in smaller parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ..compaction.summarize import (
    SYSTEM_PROMPT,
    SummaryLimits,
    SummaryPrompt,
    join_summaries,
    parse_summary,
    part_tokens,
)
from ..effects.base import AssistantRequest, Effects
from ..hooks.catalog import BeforeRequest
from ..providers.base import Model, is_retryable
from ..reducer.overflow import is_context_overflow
from ..telemetry.attributes import StepEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..types.messages import AssistantMessage, Usage, UserMessage
from ..types.records import CompactionReason, OperationError, StepAttempt
from ..types.structural import SummaryResult
from ..types.usage import sum_usage
from .build import message_error, request_usage
from .retrying import Retrying
from .scopes import end_step, step_scope
from .signals import Aborted, RunFailed

SUMMARY_EXHAUSTED = "summary_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryStep:
    """What is summarised, and under which provisioned id."""

    kind: Literal["compaction", "branch_summary"]
    reason: CompactionReason | None
    entry_id: str
    prompts: Callable[[SummaryLimits], list[SummaryPrompt]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    answer: AssistantMessage
    cut: bool  # too long on either side: smaller parts can help


async def summary_step(fx: Effects, step: SummaryStep, parent: TelemetryContext) -> SummaryResult:
    """Produce a summary, retrying what may be retried; the caller appends it under the step's id.

    Raises:
        RunFailed: attempts are exhausted, or the provider's error is final.
        Aborted: an abort came.
    """
    reads = fx.reads
    # One lost attempt is a crash; more of them may be answers that came back cut.
    splits = max(_attempts_used(fx, step) - 1, 0)
    retrying = Retrying(reads, step.kind)
    try:
        while True:
            if reads.aborting:
                raise Aborted
            attempt = _attempts_used(fx, step) + 1
            if attempt > reads.retry.max_attempts:
                error = OperationError(code=SUMMARY_EXHAUSTED, message=f"no summary after {attempt - 1} attempts")
                retrying.end(attempt - 1, error.message)
                raise RunFailed(error)
            retrying.begin(attempt)
            work = partial(_attempted, fx, step, attempt, splits, retrying=retrying)
            done = await step_scope(reads, parent, work, kind=step.kind, attempt=attempt, reason=step.reason)
            if isinstance(done, SummaryResult):
                return done
            splits += done.cut
    except Aborted:
        retrying.end(_attempts_used(fx, step), "aborted")
        raise


async def _attempted(
    fx: Effects, step: SummaryStep, attempt: int, splits: int, span: Span[StepEnd], *, retrying: Retrying
) -> SummaryResult | _Failed:
    """One attempt to its end, the delay before the next one included."""
    reads = fx.reads
    done = await _attempt(fx, step, attempt, splits, span)
    if isinstance(done, SummaryResult):
        retrying.end(attempt, None)
        end_step(span, "succeeded")
        return done
    final = done.answer.stop_reason == "error" and not (done.cut or is_retryable(done.answer))
    last = attempt >= reads.retry.max_attempts
    if final or last:
        retrying.end(attempt, done.answer.error_message or _why(done))
    if final:
        raise RunFailed(message_error(done.answer))
    end_step(span, "failed" if last else "retry", done.answer.error_code)
    if not last:
        # Smaller parts are another request: there is nothing to wait for.
        delay_ms = 0 if done.cut else reads.retry.delay_ms(attempt, done.answer.retry_after_ms)
        retrying.schedule(attempt, delay_ms, done.answer.error_message or _why(done))
        if delay_ms:
            await fx.sleep(delay_ms, span)
    return done


def _attempts_used(fx: Effects, step: SummaryStep) -> int:
    unfinished = fx.reads.op.step
    return unfinished.attempts if unfinished is not None and unfinished.kind == step.kind else 0


async def _attempt(
    fx: Effects, step: SummaryStep, attempt: int, splits: int, parent: TelemetryContext
) -> SummaryResult | _Failed:
    reads = fx.reads
    model = reads.model()
    await fx.append_record(
        StepAttempt(
            run_id=reads.op.id,
            step=step.kind,
            attempt=attempt,
            result_entry_id=step.entry_id,
            compaction_reason=step.reason,
        ),
        parent,
    )
    limits = SummaryLimits(part_tokens=part_tokens(model.context_window, model.max_tokens), splits=splits)
    prompts = step.prompts(limits)
    answers: list[str] = []
    usages: list[Usage] = []
    for prompt in prompts:
        if reads.aborting:
            raise Aborted
        final = await _request(fx, step, attempt, prompt, parent)
        if reads.aborting or final.stop_reason == "aborted":
            raise Aborted
        text = parse_summary(final)
        if text is None:
            return _Failed(answer=final, cut=_is_cut(final, model))
        answers.append(text)
        usages.append(final.usage)
    return SummaryResult(summary=join_summaries(prompts, answers), usage=sum_usage(usages))


async def _request(
    fx: Effects, step: SummaryStep, attempt: int, prompt: SummaryPrompt, parent: TelemetryContext
) -> AssistantMessage:
    reads = fx.reads
    model = reads.model()
    # The harness's cap and schema are meant for answers; a summary may be as long as the model writes.
    options = replace(reads.stream_options, max_tokens=model.max_tokens or None, response_schema=None, deferred=False)
    options = await fx.before_request(
        BeforeRequest(lane=reads.lane, model=model, step=step.kind, attempt=attempt, stream_options=options), parent
    )
    final = await fx.stream_assistant(
        AssistantRequest(
            step=step.kind,
            attempt=attempt,
            run_id=reads.op.id,
            options=options,
            system_prompt=SYSTEM_PROMPT,
            messages=(UserMessage(content=prompt.text, timestamp=reads.now_ms()),),
        ),
        parent,
    )
    await fx.append_record(request_usage(step.kind, reads.op.id, step.entry_id, attempt, final), parent)
    return final


def _is_cut(final: AssistantMessage, model: Model) -> bool:
    return final.stop_reason == "length" or is_context_overflow(final, model.context_window)


def _why(failed: _Failed) -> str:
    return "the summary was truncated before completion" if failed.cut else "the answer holds no summary"
