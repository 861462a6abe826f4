"""What may reach a terminal (T26), and how a log reads."""

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.cli.output import PrintableStream, note, one_line, printable, say, to_json
from agent_harness.cli.rendering import log_json, log_line
from agent_harness.session.storage import EntryItem, LabelItem, LaneItem, NameItem, RecordItem
from agent_harness.types.entries import (
    ActiveToolsBody,
    BranchSummaryBody,
    CompactionBody,
    CustomBody,
    Entry,
    EntryBody,
    MessageBody,
    ModelChangeBody,
    ProvisionedEntry,
    ThinkingLevelBody,
)
from agent_harness.types.messages import (
    AssistantMessage,
    BashExecutionMessage,
    CustomMessage,
    ExtensionMessage,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agent_harness.types.records import (
    AbortRequested,
    AdjustmentUsage,
    LaneRecord,
    NavigationIntent,
    OperationError,
    OperationFinished,
    OperationStarted,
    QueueCancelled,
    QueueEnqueued,
    RecordBody,
    RunIntent,
    StepAttempt,
    ToolSettled,
    ToolStarted,
    WriteDeferred,
)

USER = UserMessage(content="do\nit", timestamp=0)


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain é 😀\n\ttab", "plain é 😀\n\ttab"),
        ("\x1b]0;x\x07a", "a"),
        ("\x1b]52;c;aGk=\x1b\\a", "a"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b[?1049h\x1b[2J\x1b[Ha", "a"),
        ("\x9b31mred", "red"),
        ("\x9d0;title\x9ca", "a"),
        ("\x1bPq#0\x1b\\a", "a"),
        ("\x1b(0a\x1bc", "a"),
        ("unterminated \x1b]0;to the end of the line\nnext", "unterminated \nnext"),
        ("a\rb\x08c\x00\x7f", "abc"),
        ("a\r\nb", "a\nb"),
        ("rm \u202etxt.exe\u202c \u2066x\u2069\u200f", "rm txt.exe x"),
        ("lone \ud83d", "lone \ufffd"),
        ("\x1b\x1b[31mx", "x"),
    ],
)
def test_nothing_a_terminal_obeys_is_printed(given_text: str, shown: str) -> None:
    assert printable(given_text) == shown


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b[]0;m\x07\\\x9b\x9d\n\r\u202e"))))
def test_no_text_gets_a_control_character_through(text: str) -> None:
    kept = {c for c in printable(text) if unicodedata.category(c) in ("Cc", "Cs")}
    assert kept <= {"\n", "\t"}
    assert not {c for c in one_line(text) if unicodedata.category(c) in ("Cc", "Cs")}
    assert printable(printable(text)) == printable(text)
    assert json.loads(to_json(text)) == text
    assert to_json(text).isascii()


@given(st.lists(st.text(alphabet=st.sampled_from("ab\x1b[]0;1m\x07\\\x9b\x9d\n\rP")), max_size=6))
def test_text_in_pieces_is_shown_as_the_whole_would_be(pieces: list[str]) -> None:
    stream = PrintableStream()
    assert "".join(map(stream.feed, pieces)) + stream.end() == printable("".join(pieces))


def test_a_sequence_that_never_ends_is_not_waited_for() -> None:
    stream = PrintableStream()
    assert stream.feed("a\x1b]0;") == "a"
    assert stream.feed("x" * 100_000) == ""
    assert stream.feed("shown") == "shown"


def test_one_line_is_one_line_and_cut() -> None:
    assert one_line("  a \n\n b\u2028c\td ") == "a b c d"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    note("told to nobody")
    out = io.StringIO()
    say("line", file=out)
    assert out.getvalue() == "line\n"


def entry(body: EntryBody) -> EntryItem:
    return EntryItem(seq=7, entry=Entry(id="e", seq=7, parent_id=None, timestamp=3_600_001, body=body))


def record(body: RecordBody) -> RecordItem:
    return RecordItem(seq=8, record=LaneRecord(id="r", lane="main", seq=8, timestamp=3_600_001, body=body))


ASSISTANT = AssistantMessage(
    content=(TextContent(text="Let me."), ToolCall(id="1", name="read", arguments={})),
    api="a",
    provider="p",
    model="m",
    stop_reason="toolUse",
    timestamp=0,
)
FAILED = AssistantMessage(
    content=(), api="a", provider="p", model="m", stop_reason="error", timestamp=0, error_message="no\x1b[31m way"
)
RESULT = ToolResultMessage(
    tool_call_id="1",
    tool_name="read",
    content=(TextContent(text="one"), ImageContent(data="aa", mime_type="image/png")),
    is_error=False,
    timestamp=0,
)


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (entry(MessageBody(message=USER)), "E user: do it"),
        (entry(MessageBody(message=ASSISTANT)), "E assistant: Let me. [calls read]"),
        (entry(MessageBody(message=FAILED)), "E assistant: <error> (no way)"),
        (entry(MessageBody(message=RESULT)), "E result of read: one [image/png]"),
        (
            entry(MessageBody(message=BashExecutionMessage(command="ls", output="", timestamp=0))),
            "E command of the user: ls",
        ),
        (entry(MessageBody(message=CustomMessage(custom_type="c", content="x", timestamp=0))), "E c: x"),
        (entry(MessageBody(message=ExtensionMessage(role="mine", fields={}))), "E message of role mine"),
        (entry(ModelChangeBody(provider="p", model_id="m")), "E model p/m"),
        (entry(ThinkingLevelBody(thinking_level="high")), "E thinking level high"),
        (entry(ActiveToolsBody(active_tool_names=("a", "b"))), "E active tools a, b"),
        (entry(CompactionBody(summary="s", retained_tail=(), tokens_before=1)), "E compaction: s"),
        (entry(BranchSummaryBody(from_id="x", summary="s")), "E branch summary: s"),
        (entry(CustomBody(custom_type="note")), "E custom note"),
        (
            record(
                OperationStarted(source_leaf_id=None, intent=RunIntent(original_prompt=(USER,), initial_messages=()))
            ),
            "R operation_started run: user: do it",
        ),
        (
            record(OperationStarted(source_leaf_id="a", intent=NavigationIntent(target_id=None, summarize=False))),
            "R operation_started navigation",
        ),
        (record(OperationFinished(run_id="r", outcome="completed")), "R operation_finished completed"),
        (
            record(OperationFinished(run_id="r", outcome="failed", error=OperationError(code="c", message="m"))),
            "R operation_finished failed: c: m",
        ),
        (
            record(StepAttempt(run_id="r", step="assistant", attempt=2, result_entry_id="e")),
            "R step_attempt assistant 2",
        ),
        (
            record(
                ToolStarted(
                    run_id="r",
                    assistant_entry_id="a",
                    tool_index=0,
                    tool_call_id="1",
                    tool_name="read",
                    effective_args={},
                    result_entry_id="e",
                    replay="safe",
                )
            ),
            "R tool_started read (replay safe)",
        ),
        (
            record(
                ToolSettled(
                    run_id="r",
                    assistant_entry_id="a",
                    tool_index=0,
                    tool_call_id="1",
                    result_entry_id="e",
                    is_error=True,
                )
            ),
            "R tool_settled 1 (error)",
        ),
        (
            record(
                QueueEnqueued(
                    queue="steer", run_id="r", target=ProvisionedEntry(id="q", body=MessageBody(message=USER))
                )
            ),
            "R queue_enqueued steer: user: do it",
        ),
        (record(QueueCancelled(entry_id="q")), "R queue_cancelled q"),
        (
            record(WriteDeferred(run_id="r", target=ProvisionedEntry(id="q", body=CustomBody(custom_type="c")))),
            "R write_deferred custom",
        ),
        (record(AdjustmentUsage(usage=Usage(input=3, output=4))), "R usage adjustment: 3 in, 4 out"),
        (record(AbortRequested(run_id="r")), "R abort_requested"),
    ],
)
def test_each_item_reads_as_one_line(item: EntryItem | RecordItem, told: str) -> None:
    assert log_line(item) == f"{item.seq:>5}  01:00:00.001  {told}"
    assert json.loads(to_json(log_json(item)))["seq"] == item.seq


def test_lanes_and_facts_read_as_one_line() -> None:
    assert log_line(LaneItem(seq=1, lane="main", leaf_id=None)).split() == [
        "1",
        "L",
        "lane",
        "main",
        "at",
        "the",
        "root",
    ]
    assert "F name 'n'" in log_line(NameItem(seq=2, name="n"))
    assert "F label 'l' of e" in log_line(LabelItem(seq=3, target_id="e", label="l"))
    assert log_json(LabelItem(seq=3, target_id="e", label=None))["label"] is None
    assert log_json(LaneItem(seq=1, lane="main", leaf_id=None))["leafId"] is None
    assert log_json(NameItem(seq=2, name="n"))["fact"] == "name"


def test_a_timestamp_out_of_range_is_shown_as_unknown() -> None:
    late = Entry(id="e", seq=1, parent_id=None, timestamp=2**62, body=CustomBody(custom_type="c"))
    assert " ? " in log_line(EntryItem(seq=1, entry=late))
