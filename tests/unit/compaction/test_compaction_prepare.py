"""Cuts: pairs stay together, nothing is lost, every compaction makes progress (A-7, cases 67 and 68)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.compaction.estimate import message_tokens, messages_tokens
from agent_harness.compaction.prepare import (
    cut_points,
    keeps_pairs,
    prepare_compaction,
    require_usable,
    shorten_text,
)
from agent_harness.session.context import to_provider_messages
from agent_harness.testing import answer, call
from agent_harness.types.messages import (
    AgentMessage,
    AssistantMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ExtensionMessage,
    ImageContent,
    TextContent,
    ToolResultMessage,
    UserMessage,
)
from agent_harness.types.structural import CompactionPreparation, CompactResult


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def result(call_id: str, text: str = "ok") -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id, tool_name="measure", content=(TextContent(text=text),), is_error=False, timestamp=1
    )


def batch(size: int, text: str, *, name: str = "c") -> list[AgentMessage]:
    """An assistant message with `size` calls and their results."""
    ids = [f"{name}{n}" for n in range(size)]
    return [answer("Working.", calls=[call("measure", id=i) for i in ids]), *(result(i, text) for i in ids)]


def dropped(plan: CompactionPreparation) -> tuple[AgentMessage, ...]:
    return (*plan.messages_to_summarize, *plan.turn_prefix)


@st.composite
def turns(draw: st.DrawFn) -> list[AgentMessage]:
    """A context as a lane has it: prompts, batches of any shape, answers, notes beside them; call ids repeat."""
    sizes = st.integers(min_value=0, max_value=4_000)
    messages: list[AgentMessage] = []
    for _ in range(draw(st.integers(min_value=0, max_value=5))):
        kind = draw(st.sampled_from(["user", "custom", "none"]))
        if kind == "user":
            messages.append(user("p" * draw(sizes)))
        elif kind == "custom":
            messages.append(CustomMessage(custom_type="n", content="c" * draw(sizes), timestamp=1))
        for _ in range(draw(st.integers(min_value=0, max_value=3))):
            messages += batch(draw(st.integers(min_value=1, max_value=4)), "r" * draw(sizes))
        if draw(st.booleans()):
            stop = draw(st.sampled_from(["stop", "length", "aborted", "error"]))
            messages.append(answer("a" * draw(sizes), stop_reason=stop))
    return messages


@given(turns(), st.integers(min_value=0, max_value=6_000))
def test_any_plan_keeps_pairs_and_loses_nothing(messages: list[AgentMessage], keep: int) -> None:
    plan = prepare_compaction(messages, keep_recent_tokens=keep, tokens_before=1)
    tail = plan.retained_tail
    assert not tail or not isinstance(tail[0], ToolResultMessage)
    assert keeps_pairs(tail)
    assert keeps_pairs(dropped(plan))
    kept_at = len(messages) - len(tail)
    assert [*dropped(plan)] == messages[:kept_at]
    for before, after in zip(messages[kept_at:], tail, strict=True):
        if not isinstance(before, ToolResultMessage):
            assert after == before
        else:  # cut down at most, never parted from its identity
            assert isinstance(after, ToolResultMessage)
            assert (after.tool_call_id, after.is_error) == (before.tool_call_id, before.is_error)
            assert message_tokens(after) <= message_tokens(before)
    assert [m for m in plan.turn_prefix[:1] if isinstance(m, ToolResultMessage)] == []


@given(turns(), st.integers(min_value=0, max_value=6_000))
def test_any_plan_makes_progress_or_is_empty_because_one_unit_is_all_there_is(
    messages: list[AgentMessage], keep: int
) -> None:
    plan = prepare_compaction(messages, keep_recent_tokens=keep, tokens_before=1)
    if plan.empty:
        assert len(cut_points(messages)) <= 1
        return
    assert len(plan.retained_tail) < len(messages)
    kept = [m for m in plan.retained_tail if not isinstance(m, ToolResultMessage)]
    newest_unit = messages[cut_points(messages)[-1] :]
    others = messages_tokens([m for m in newest_unit if not isinstance(m, ToolResultMessage)])
    assert messages_tokens(kept) <= max(keep, others)


@given(turns(), st.data())
def test_cutting_at_any_allowed_point_needs_no_synthetic_result(
    messages: list[AgentMessage], data: st.DataObject
) -> None:
    points = cut_points(messages)
    if not points:
        return
    cut = data.draw(st.sampled_from(points))
    for part in (messages[:cut], messages[cut:]):
        sent = [m for m in to_provider_messages(part) if isinstance(m, ToolResultMessage)]
        given_results = [m for m in part if isinstance(m, ToolResultMessage)]
        assert sent == given_results


@given(turns(), st.integers(min_value=0, max_value=6_000))
def test_what_is_sent_after_any_compaction_is_valid_for_a_provider(messages: list[AgentMessage], keep: int) -> None:
    """Case 49: no empty content, each call answered at once, no result without its call."""
    plan = prepare_compaction(messages, keep_recent_tokens=keep, tokens_before=1)
    summary = CompactionSummaryMessage(summary="S.", tokens_before=1, timestamp=1)
    sent = to_provider_messages([summary, *plan.retained_tail])
    assert keeps_pairs(sent)
    assert all(message.content for message in sent)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_position_inside_a_batch_is_a_cut_point(size: int) -> None:
    messages = [user("go"), *batch(size, "r"), answer("done")]
    assert cut_points(messages) == [0, 1, size + 2]


def test_a_message_between_a_call_and_its_result_does_not_open_a_cut() -> None:
    first, late = batch(1, "r")
    assert cut_points([first, user("meanwhile"), late, answer("done")]) == [0, 3]


def test_a_result_without_its_call_never_starts_a_tail() -> None:
    assert cut_points([user("go"), result("lost"), answer("done")]) == [0, 2]


def test_old_turns_go_and_the_newest_ones_that_fit_stay() -> None:
    messages = [m for n in range(10) for m in (user(f"q{n} " + "x" * 346), answer(f"a{n} " + "x" * 346))]
    plan = prepare_compaction(messages, keep_recent_tokens=420, tokens_before=2_000)
    assert plan.retained_tail == tuple(messages[-4:])
    assert plan.messages_to_summarize == tuple(messages[:-4])
    assert plan.turn_prefix == ()
    assert plan.tokens_before == 2_000


def test_a_turn_that_alone_exceeds_what_is_kept_is_split() -> None:
    turn = [user("the task"), *(m for n in range(8) for m in batch(1, "r" * 350, name=f"b{n}-"))]
    messages = [user("before"), answer("said"), *turn]
    plan = prepare_compaction(messages, keep_recent_tokens=400, tokens_before=1)
    assert plan.messages_to_summarize == tuple(messages[:2])
    assert plan.turn_prefix[0] == user("the task")
    assert isinstance(plan.retained_tail[0], AssistantMessage)
    assert messages_tokens(plan.retained_tail) <= 400
    assert (*plan.turn_prefix, *plan.retained_tail) == tuple(turn)


def test_results_that_alone_exceed_what_is_kept_are_cut_down_fairly() -> None:
    small, huge = "s" * 400, "h" * 200_000
    messages = [user("go"), answer(calls=[call("measure", id="a"), call("measure", id="b")]), result("a", small)]
    messages.append(result("b", huge))
    plan = prepare_compaction(messages, keep_recent_tokens=2_000, tokens_before=1)
    assert plan.turn_prefix == (user("go"),)
    kept_small, kept_huge = plan.retained_tail[1:]
    assert kept_small == result("a", small)
    assert isinstance(kept_huge, ToolResultMessage)
    assert 1_000 < messages_tokens(plan.retained_tail) < 2_200
    text = kept_huge.content[0]
    assert isinstance(text, TextContent)
    assert "characters of this result were cut" in text.text


def test_images_in_cut_results_give_way_to_a_word() -> None:
    picture = ImageContent(data="A" * 1_000, mime_type="image/png")
    shown = ToolResultMessage(
        tool_call_id="a", tool_name="see", content=(picture, picture), is_error=False, timestamp=1
    )
    plan = prepare_compaction(
        [user("go"), answer(calls=[call("see", id="a")]), shown], keep_recent_tokens=500, tokens_before=1
    )
    kept = plan.retained_tail[-1]
    assert isinstance(kept, ToolResultMessage)
    assert [part.type for part in kept.content] == ["text"]
    assert "2 images removed" in "".join(p.text for p in kept.content if isinstance(p, TextContent))


def test_a_context_smaller_than_what_is_kept_still_shrinks() -> None:
    """A provider that says "too large" is right, whatever the estimate says."""
    messages = [user("q1"), answer("a1"), user("q2"), answer("a2")]
    plan = prepare_compaction(messages, keep_recent_tokens=20_000, tokens_before=1)
    assert plan.messages_to_summarize == tuple(messages[:2])
    assert plan.retained_tail == tuple(messages[2:])


@pytest.mark.parametrize(
    "messages",
    [[], [user("x" * 900_000)], [CompactionSummaryMessage(summary="s", tokens_before=1, timestamp=1), user("only")]],
    ids=["nothing", "one huge prompt", "just compacted"],
)
def test_a_lone_prompt_is_nothing_to_compact(messages: Sequence[AgentMessage]) -> None:
    plan = prepare_compaction(messages, keep_recent_tokens=100, tokens_before=1)
    assert plan.empty
    assert dropped(plan) == ()


def test_custom_messages_alone_can_be_compacted() -> None:
    notes = [CustomMessage(custom_type="n", content=f"note {n}", timestamp=1) for n in range(3)]
    plan = prepare_compaction(notes, keep_recent_tokens=20_000, tokens_before=1)
    assert dropped(plan) == (notes[0], notes[1])


def test_a_second_compaction_starts_from_the_first_ones_tail() -> None:
    summary = CompactionSummaryMessage(summary="First.", tokens_before=9, timestamp=1)
    first_tail = [user("kept question"), answer("kept answer")]
    later = [user("x" * 7_000), answer("y" * 7_000)]
    plan = prepare_compaction([summary, *first_tail, *later], keep_recent_tokens=2_100, tokens_before=1)
    assert plan.previous_summary == "First."
    assert (*dropped(plan), *plan.retained_tail) == (*first_tail, *later)
    assert set(map(id, first_tail)) <= set(map(id, dropped(plan)))


def test_the_system_message_of_an_old_file_stays_in_front() -> None:
    system = ExtensionMessage(role="system", fields={"content": "be kind"})
    plan = prepare_compaction(
        [system, user("q1"), answer("a1"), user("q2"), answer("a2")], keep_recent_tokens=0, tokens_before=1
    )
    assert plan.retained_tail[0] == system
    assert system not in dropped(plan)


@given(st.text(max_size=300), st.integers(min_value=1, max_value=100))
def test_shortened_text_keeps_whole_code_points_and_counts_the_rest(text: str, limit: int) -> None:
    short = shorten_text(text, limit, "[{}]")
    assert len(short) <= len(text)
    if len(text) <= limit + len(f"[{len(text) - limit}]"):
        assert short == text
        return
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    assert short == f"{text[:head]}[{len(text) - limit}]{text[len(text) - tail :]}"
    short.encode()  # no half of a surrogate pair


@pytest.mark.parametrize(
    "tail",
    [
        (result("c0"),),
        (answer(calls=[call("measure", id="c0")]),),
        (answer(calls=[call("measure", id="c0"), call("measure", id="c1")]), result("c0")),
        (answer(calls=[call("measure", id="c0")]), user("and"), result("c0")),
    ],
    ids=["starts with a result", "no result", "half a batch", "parted"],
)
def test_a_supplied_tail_obeys_the_same_rules(tail: tuple[AgentMessage, ...]) -> None:
    with pytest.raises(ValueError, match="separates"):
        require_usable(CompactResult(summary="ok", retained_tail=tail))


def test_a_blank_supplied_summary_is_refused_and_a_sound_one_is_not() -> None:
    with pytest.raises(ValueError, match="blank"):
        require_usable(CompactResult(summary=" \n"))
    require_usable(CompactResult(summary="ok"))
    require_usable(CompactResult(summary="ok", retained_tail=(user("q"), *batch(2, "r"))))
