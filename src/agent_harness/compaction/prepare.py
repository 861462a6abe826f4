"""What a compaction summarises and what it keeps (A-7). Pure.

A cut is a position in the context: everything before it is summarised, everything from it on is retained word for
word. A cut never separates a tool call from its results, and every compaction makes progress: it drops something, or
there is nothing to compact and the preparation is `empty`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

from ..session.context import UNSENT, is_system
from ..types.entries import BranchSummaryBody, CompactionBody
from ..types.messages import (
    AgentMessage,
    AssistantMessage,
    CompactionSummaryMessage,
    ImageContent,
    TextContent,
    ToolResultMessage,
)
from ..types.structural import CompactionPreparation, CompactResult, SummaryResult
from .estimate import CHARS_PER_TOKEN, message_tokens, messages_tokens

LEAST_RESULT_CHARS = 400
"""What stays of a tool result that is cut down, however many there are."""
CUT_MARK = "\n[... {} characters of this result were cut when the conversation was compacted ...]\n"


def prepare_compaction(
    messages: Sequence[AgentMessage], *, keep_recent_tokens: int, tokens_before: int, refused: bool = False
) -> CompactionPreparation:
    """Plan a compaction of a projected context.

    An earlier compaction's summary becomes `previous_summary`, and its retained tail is context like any other:
    nothing is lost between two compactions. `keep_recent_tokens` bounds the retained tail; when the whole context is
    smaller, or the newest messages alone are larger, the plan still makes progress. `refused`: a provider did not take
    the context, so even a lone prompt is summarised; it stays beside its summary when it is small, since then what did
    not fit was something else.
    """
    system = list(takewhile(is_system, messages))
    body = list(messages[len(system) :])
    previous: str | None = None
    if body and isinstance(head := body[0], CompactionSummaryMessage):
        previous = head.summary
        del body[0]
    plan = _plan(body, keep_recent_tokens)
    if refused and plan.cut == 0:
        fits = messages_tokens(body) <= keep_recent_tokens
        plan = _Plan(cut=len(body), turn_start=len(body), tail=tuple(body) if fits else ())
    split = plan.turn_start if plan.turn_start < plan.cut else plan.cut
    return CompactionPreparation(
        messages_to_summarize=tuple(body[:split]),
        turn_prefix=tuple(body[split : plan.cut]),
        retained_tail=(*system, *(body[plan.cut :] if plan.tail is None else plan.tail)),
        previous_summary=previous,
        tokens_before=tokens_before,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    cut: int
    turn_start: int  # of the turn the cut falls into; equal to `cut` when it falls between turns
    tail: tuple[AgentMessage, ...] | None = None  # instead of what follows the cut


def _plan(body: Sequence[AgentMessage], keep: int) -> _Plan:
    cuts = [cut for cut in cut_points(body) if cut > 0]
    if not cuts:
        return _lone_unit(body)
    after = list(accumulate((message_tokens(m) for m in reversed(body)), initial=0))[::-1]  # after[i]: from i on
    starts = [cut for cut in cuts if starts_turn(body[cut])]
    if after[0] <= keep:  # everything could stay, yet somebody needs it smaller
        if starts and 4 * after[starts[-1]] <= 3 * after[0]:
            return _Plan(cut=starts[-1], turn_start=starts[-1])
        keep = after[0] // 2
    fitting = [cut for cut in cuts if after[cut] <= keep]
    if not fitting:
        cut = cuts[-1]
        tail = shorten_results(body[cut:], keep)
        return _Plan(cut=cut, turn_start=_turn_start(body, cut), tail=tail)
    cut = fitting[0]
    between = next((start for start in starts if start >= cut), None)
    if between is not None and 2 * after[between] >= after[cut]:
        cut = between  # a whole turn reads better than half of one, if it does not cost much of the tail
    return _Plan(cut=cut, turn_start=_turn_start(body, cut))


def _lone_unit(body: Sequence[AgentMessage]) -> _Plan:
    """Nothing to cut at: a batch with its results is summarised whole; a lone prompt cannot be replaced."""
    if body and isinstance(body[0], AssistantMessage) and len(body) > 1:
        return _Plan(cut=len(body), turn_start=len(body))
    return _Plan(cut=0, turn_start=0)


def starts_turn(message: AgentMessage) -> bool:
    """Whether a turn begins here: whatever is neither an answer nor a result."""
    return not isinstance(message, AssistantMessage | ToolResultMessage)


def _turn_start(body: Sequence[AgentMessage], cut: int) -> int:
    """Where the turn of `body[cut]` begins; a tail of an earlier split turn begins in the middle of one."""
    return next((index for index in range(cut, -1, -1) if starts_turn(body[index])), 0)


def cut_points(messages: Sequence[AgentMessage]) -> list[int]:
    """Positions at which `messages` may be cut: no result starts the tail, no call is parted from its results."""
    inside: set[int] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, AssistantMessage) or not message.tool_calls:
            continue
        ids = {call.id for call in message.tool_calls}
        last = index
        for position in range(index + 1, len(messages)):
            other = messages[position]
            if isinstance(other, AssistantMessage):
                break
            if isinstance(other, ToolResultMessage) and other.tool_call_id in ids:
                last = position
        inside.update(range(index + 1, last + 1))
    return [
        index
        for index, message in enumerate(messages)
        if index not in inside and not isinstance(message, ToolResultMessage)
    ]


# Cutting results down ------------------------------------------------------------------------------------------------


def shorten_results(messages: Sequence[AgentMessage], keep: int) -> tuple[AgentMessage, ...]:
    """`messages` with their tool results cut down, so that they take about `keep` tokens.

    Only results give way: what a person or the model said stays as it is.
    """
    sizes = [message_tokens(m) if isinstance(m, ToolResultMessage) else 0 for m in messages]
    share = _fair_share(sizes, keep - (messages_tokens(messages) - sum(sizes)))
    return tuple(
        shorten_result(message, round(share * CHARS_PER_TOKEN))
        if isinstance(message, ToolResultMessage) and size > share
        else message
        for message, size in zip(messages, sizes, strict=True)
    )


def _fair_share(sizes: Sequence[int], budget: int) -> int:
    """The cap per result at which all of them together fit the budget: small ones leave room to large ones."""
    waiting = sorted(size for size in sizes if size > 0)
    left = max(budget, 0)
    for index, size in enumerate(waiting):
        share = left // (len(waiting) - index)
        if size > share:
            return share
        left -= size
    return max(waiting, default=0)


def shorten_result(message: ToolResultMessage, max_chars: int) -> ToolResultMessage:
    """The head and the tail of a result's text; images give way to a word that says so."""
    text = "\n".join(part.text for part in message.content if isinstance(part, TextContent))
    images = sum(isinstance(part, ImageContent) for part in message.content)
    shown = shorten_text(text, max(max_chars, LEAST_RESULT_CHARS))
    if images:
        shown += f"\n[{images} image{'s' if images > 1 else ''} removed when the conversation was compacted]"
    return replace(message, content=(TextContent(text=shown),))


def shorten_text(text: str, max_chars: int, mark: str = CUT_MARK) -> str:
    """`text`, or its head and tail around a mark that counts what is missing; never longer than before."""
    said = mark.format(max(len(text) - max_chars, 0))
    if len(text) <= max_chars + len(said):
        return text
    head = max_chars * 2 // 3
    return text[:head] + said + text[len(text) - (max_chars - head) :]


# What a hook may supply ----------------------------------------------------------------------------------------------


def supplied_body(result: CompactResult | SummaryResult) -> CompactionBody | BranchSummaryBody:
    """The entry a supplied summary would become, for checking that it can be stored."""
    if isinstance(result, SummaryResult):
        return BranchSummaryBody(from_id="source", summary=result.summary, details=result.details, usage=result.usage)
    tail = result.retained_tail or ()
    return CompactionBody(
        summary=result.summary, retained_tail=tail, tokens_before=0, details=result.details, usage=result.usage
    )


def require_usable(result: CompactResult | SummaryResult) -> None:
    """A supplied summary obeys the same rules as a generated one.

    Raises:
        ValueError: a blank summary, or a tail that separates a call from its results.
    """
    if not result.summary.strip():
        raise ValueError("the summary is blank")
    if not isinstance(result, CompactResult) or result.retained_tail is None:
        return
    if not keeps_pairs(result.retained_tail):
        raise ValueError("the retained tail separates a tool call from its results")


def keeps_pairs(messages: Sequence[AgentMessage]) -> bool:
    """Every result follows its call, and every call that is sent has its result before anything else is said."""
    awaiting: list[str] = []
    sent = True
    for message in messages:
        if isinstance(message, ToolResultMessage):
            if message.tool_call_id not in awaiting:
                return False
            awaiting.remove(message.tool_call_id)
            continue
        if awaiting and sent:
            return False
        awaiting = []
        if isinstance(message, AssistantMessage):
            awaiting = [call.id for call in message.tool_calls]
            sent = message.stop_reason not in UNSENT
    return not (awaiting and sent)
