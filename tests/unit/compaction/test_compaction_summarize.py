"""Summary requests: everything dropped is in them, instructions reach every part, answers are read (A-7, case 68)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.compaction.estimate import text_tokens
from agent_harness.compaction.summarize import (
    RESULT_CHARS,
    TURN_HEADING,
    SummaryLimits,
    branch_prompts,
    compaction_prompts,
    join_summaries,
    parse_summary,
    part_tokens,
    serialise,
)
from agent_harness.testing import answer, call
from agent_harness.types.messages import (
    AssistantMessage,
    BashExecutionMessage,
    CustomMessage,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserMessage,
)
from agent_harness.types.structural import CompactionPreparation


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def plan(*history: UserMessage | AssistantMessage, prefix: tuple[UserMessage, ...] = (), previous: str | None = None):
    return CompactionPreparation(
        messages_to_summarize=history,
        turn_prefix=prefix,
        retained_tail=(),
        previous_summary=previous,
        tokens_before=1,
    )


def conversation(text: str) -> str:
    return text.split("<conversation>\n", 1)[1].split("\n</conversation>", 1)[0]


def test_every_dropped_message_is_in_the_request() -> None:
    shown = ToolResultMessage(
        tool_call_id="c", tool_name="measure", content=(TextContent(text="12 cm"),), is_error=True, timestamp=1
    )
    thinking = AssistantMessage(
        content=(ThinkingContent(thinking="perhaps the left one"),),
        api="s",
        provider="p",
        model="m",
        stop_reason="stop",
        timestamp=1,
    )
    texts = serialise(
        [
            user("measure bed 1"),
            answer("I will.", calls=[call("measure", {"bed": 1})]),
            shown,
            thinking,
            CustomMessage(custom_type="n", content="a note", timestamp=1),
            BashExecutionMessage(command="ls beds", output="bed-1", timestamp=1),
        ]
    )
    assert texts[:4] == [
        "[User]: measure bed 1",
        '[Agent]: I will.\n[Agent calls]: measure({"bed":1})',
        "[Tool error of measure]: 12 cm",
        "[Agent's thoughts]: perhaps the left one",
    ]
    assert texts[4] == "[User]: a note"
    assert "ls beds" in texts[5]
    assert "bed-1" in texts[5]


def test_what_the_model_never_saw_is_not_summarised() -> None:
    hidden = BashExecutionMessage(command="secret", output="x", exclude_from_context=True, timestamp=1)
    assert serialise([hidden, answer("partial", stop_reason="aborted"), answer(error_message="no")]) == []


def test_tool_results_are_shortened_at_code_points() -> None:
    long = ToolResultMessage(
        tool_call_id="c", tool_name="read", content=(TextContent(text="🌱" * 5_000),), is_error=False, timestamp=1
    )
    (text,) = serialise([long])
    assert text.count("🌱") == RESULT_CHARS
    assert f"{5_000 - RESULT_CHARS} characters left out" in text
    text.encode()


def test_a_whole_history_is_one_request_with_its_instructions() -> None:
    (prompt,) = compaction_prompts(plan(user("q"), answer("a")), SummaryLimits(), "mention the beds")
    assert conversation(prompt.text) == "[User]: q\n\n[Agent]: a"
    assert "mention the beds" in prompt.text
    assert "previous-summary" not in prompt.text


def test_a_split_turn_is_summarised_on_its_own() -> None:
    prompts = compaction_prompts(plan(user("old"), prefix=(user("task"),)), SummaryLimits(), "be brief")
    assert [conversation(p.text) for p in prompts] == ["[User]: old", "[User]: task"]
    assert all("be brief" in p.text for p in prompts)
    assert join_summaries(prompts, ["History.", "Turn."]) == f"History.\n\n{TURN_HEADING}\n\nTurn."


def test_without_a_history_the_turn_continues_the_earlier_summary() -> None:
    (prompt,) = compaction_prompts(plan(prefix=(user("task"),), previous="Earlier."), SummaryLimits())
    assert "<previous-summary>\nEarlier.\n</previous-summary>" in prompt.text
    assert conversation(prompt.text) == "[User]: task"


@given(
    st.lists(st.text(min_size=1, max_size=3_000), min_size=1, max_size=8),
    st.integers(min_value=0, max_value=4),
    st.one_of(st.none(), st.integers(min_value=100, max_value=2_000)),
)
def test_parts_hold_the_whole_conversation_in_order_and_every_part_its_instructions(
    texts: list[str], splits: int, size: int | None
) -> None:
    history = [user(f"<{n}>{text}") for n, text in enumerate(texts)]
    prompts = compaction_prompts(
        plan(*history, previous="Earlier."), SummaryLimits(part_tokens=size, splits=splits), "INSTRUCTED"
    )
    joined = "".join("".join(p.text.split("<conversation>\n", 1)[1].rsplit("\n</conversation>", 1)[0] for p in prompts))
    whole = "".join(f"[User]: <{n}>{text}" for n, text in enumerate(texts))
    assert joined.replace("\n", "") == whole.replace("\n", "")
    assert all("INSTRUCTED" in p.text for p in prompts)
    assert ["<previous-summary>" in p.text for p in prompts] == [True, *[False] * (len(prompts) - 1)]


def test_a_window_bounds_every_part() -> None:
    history = [user("word " * 700) for _ in range(40)]  # 40,000 tokens
    prompts = branch_prompts(history, SummaryLimits(part_tokens=9_000))
    assert len(prompts) >= 5
    assert all(text_tokens(conversation(p.text)) <= 9_100 for p in prompts)


def test_each_split_makes_smaller_parts_even_of_one_message() -> None:
    history = (user("word " * 2_000),)
    sizes = [
        max(len(conversation(p.text)) for p in compaction_prompts(plan(*history), SummaryLimits(splits=splits)))
        for splits in range(4)
    ]
    assert all(later <= earlier * 0.6 for earlier, later in pairwise(sizes))


def test_how_much_fits_beside_the_answer() -> None:
    assert part_tokens(0, 8_000) is None
    assert part_tokens(100_000, 8_000) == 90_500
    assert part_tokens(4_000, 8_000) == 1_000  # never nothing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Done.\n", "Done."),
        ("<analysis>let me see</analysis>\n<summary>\nDone.\n</summary>", "Done."),
        ("Here it is: <summary>One.</summary> and <summary>Two.</summary>", "One.\n\nTwo."),
        ("<thinking>hm</thinking>Done.", "Done."),
        ("", None),
        ("<summary>  </summary>", None),
        ("<analysis>only thoughts</analysis>", None),
    ],
)
def test_answers_are_read(text: str, expected: str | None) -> None:
    assert parse_summary(answer(text)) == expected


@pytest.mark.parametrize("stop", ["length", "toolUse", "error", "aborted"])
def test_an_incomplete_answer_is_no_summary(stop: str) -> None:
    assert parse_summary(answer("Half a summ", stop_reason=stop)) is None
