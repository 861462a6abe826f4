"""The prompt history: damage costs its own lines, and reading never writes (case 86)."""

import json
import os
import stat
from pathlib import Path

import pytest

from agent_harness.cli.chat.history import KEPT, READ_BYTES, History, Memory, Remembered

DAMAGED = b'"one"\n"cut' + b"\n" + b"\0" * 64 + b"\n" + b'{"text": 1}\n\n"t\\u001b[31mwo"\n'


def test_a_damaged_file_gives_its_readable_lines_and_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(DAMAGED)
    remembered = History(path).read()
    assert remembered.lines == ["one", "two"]
    assert remembered.warning == f"{path}: 3 damaged lines left out"
    assert path.read_bytes() == DAMAGED


def test_an_append_leaves_a_cut_line_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'"one"\n"cut')
    History(path).append("two\n\udc9f")
    assert path.read_bytes() == b'"one"\n"cut\n"two\\n\\udc9f"\n'
    assert History(path).read().lines == ["one", "two\n\ufffd"]


def test_a_new_file_is_private_and_stands_in_the_projects_folder(tmp_path: Path) -> None:
    path = tmp_path / ".agent-harness" / "history.jsonl"
    before = os.umask(0)
    try:
        History(path).append("one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (path.parent / ".gitignore").read_text() == "*\n"


def test_only_the_newest_lines_of_a_long_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(f"{json.dumps(f'{n:0>600}')}\n" for n in range(READ_BYTES // 500)))
    remembered = History(path).read()
    assert remembered.warning is None
    assert [int(line) for line in remembered.lines] == list(range(READ_BYTES // 500 - KEPT, READ_BYTES // 500))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [fifo, folder])
def test_what_is_no_file_costs_the_history_and_nothing_else(tmp_path: Path, make: object) -> None:
    assert callable(make)
    path = tmp_path / "history.jsonl"
    make(path)
    recalled: list[str] = []
    memory = Memory(History(path), recalled)
    assert "the prompt history is not available" in (memory.warning or "")
    warning = memory.add("one")
    assert warning is not None
    assert warning.startswith("the prompt history is not kept: ")
    assert memory.add("two") is None
    assert recalled == ["one", "two"]


def test_what_was_said_twice_in_a_row_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    recalled: list[str] = []
    memory = Memory(History(path), recalled)
    for text in ("one", "one", "two", "one"):
        assert memory.add(text) is None
    assert recalled == History(path).read().lines == ["one", "two", "one"]
    assert History(tmp_path / "none").read() == Remembered([])
