"""Keys in, lines out; and what a row of the terminal shows of a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_harness.cli.chat.commands import HELP, Command, UnknownCommand, help_text, parse
from agent_harness.cli.chat.editor import Editor, cells
from agent_harness.cli.chat.inputs import EndOfInput, Line

HISTORY = ["first", "second"]


def typed(*keys: str) -> Editor:
    editor = Editor(history=list(HISTORY))
    for key in keys:
        assert editor.feed(key) == []
    return editor


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("abc", "abc|"),
        ("abc\x7f", "ab|"),
        ("\x7fa", "a|"),
        ("abc\x1b[D\x1b[DX", "aX|bc"),
        ("abc\x01X\x05Y", "XabcY|"),
        ("abc\x1b[H\x1b[CX", "aX|bc"),
        ("abc\x02\x04", "ab|"),
        ("abc\x01\x1b[3~", "|bc"),
        ("one two\x17", "one |"),
        ("one two  \x17three", "one three|"),
        ("one two\x15", "|"),
        ("one two\x02\x02\x02\x0b", "one |"),
        ("one two\x1bbX\x1bfY", "one XtwoY|"),
        ("draft\x1b[A", "second|"),
        ("draft\x1b[A\x1bOA\x1b[A", "first|"),
        ("draft\x1b[A\x1b[B", "draft|"),
        ("draft\x1b[B", "draft|"),
        ("a\x1b\rb", "a\nb|"),
        ("a\x1b[200~x\r\ny\rz\x1b[31m\x03\x1b[201~b", "ax\ny\nz[31mb|"),
        ("a\x1b[5~\x1b[99;5u\x00b", "ab|"),
        ("é日\u0301", "é日\u0301|"),
    ],
)
def test_each_key_does_its_work_however_the_bytes_are_cut(keys: str, shown: str) -> None:
    for pieces in ([keys], list(keys)):
        editor = typed(*pieces)
        assert editor.text[: editor.cursor] + "|" + editor.text[editor.cursor :] == shown


def test_enter_finishes_a_line_and_ctrl_d_the_input() -> None:
    editor = Editor()
    assert editor.feed("one\rtwo\nth") == [Line("one"), Line("two")]
    assert editor.text == "th"
    assert editor.feed("\x04") == []
    assert editor.feed("\r\x04") == [Line("th"), EndOfInput()]
    assert editor.feed("\x1b[200~a\nb\x1b[201~\r") == [Line("a\nb")]


@given(
    st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b[~ABCD\x7f\x17日\u0301\n"))), st.integers(2, 40)
)
def test_no_typing_breaks_the_row(text: str, width: int) -> None:
    editor = Editor(history=["日本語 \x1b"])
    editor.feed(text)
    assert 0 <= editor.cursor <= len(editor.text)
    shown, column = editor.visible(width)
    assert "\n" not in shown
    assert sum(map(cells, shown)) <= width
    assert column < width or width < 3


def test_a_long_line_shows_the_part_around_its_cursor() -> None:
    editor = typed("0123456789" * 3)
    assert editor.visible(10) == ("123456789", 9)
    editor.feed("\x01")
    assert editor.visible(10) == ("0123456789", 0)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("/help", Command("help", "")),
        ("/model openai/gpt-5 ", Command("model", "openai/gpt-5")),
        ("/compact keep\nthe plan", Command("compact", "keep\nthe plan")),
        ("/Q", Command("quit", "")),
        ("/?", Command("help", "")),
        ("/frobnicate now", UnknownCommand("/frobnicate")),
        ("/usr/bin/env is missing", None),
        ("what is /help", None),
        ("hello", None),
    ],
)
def test_a_slash_begins_a_command_and_a_path_does_not(line: str, meant: object) -> None:
    assert parse(line) == meant


def test_help_names_every_command() -> None:
    assert all(f"/{name}" in help_text() for name in HELP)
