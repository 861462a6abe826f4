"""A file is read line by line: what is held is the session and the line at hand, never the text of the file (T14)."""

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_harness.errors import CorruptSession
from session_backends import JsonlSessionRepo
from session_backends.jsonl.lines import MAX_LINE
from session_backends.jsonl.reading import load, load_lines, split_lines

V4 = Path(__file__).parents[2] / "fixtures" / "v4"
MIB = 1024 * 1024


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
async def test_opening_a_large_file_holds_its_session_and_not_its_text(tmp_path: Path) -> None:
    """Trailing spaces are tolerated and are no part of the session: 60 MiB of text with a few kB of content."""
    lines = (V4 / "run-one-tool.jsonl").read_bytes().split(b"\n")[:-1]
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        for line in lines:
            file.write(line + b" " * (5 * MIB) + b"\n")
    assert path.stat().st_size > 55 * MIB
    for read_only in (True, False):
        tracemalloc.reset_peak()
        async with await JsonlSessionRepo(tmp_path).open(str(path), read_only=read_only) as session:
            assert len(await session.get_log()) == len(lines) - 1
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 24 * MIB, f"{peak / MIB:.0f} MiB"


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("ends", [True, False])
async def test_a_line_longer_than_any_line_may_be_is_never_held(tmp_path: Path, ends: bool) -> None:
    good = (V4 / "run-one-tool.jsonl").read_bytes()
    path = tmp_path / "bomb.jsonl"
    with path.open("wb") as file:
        file.write(good)
        file.seek(len(good) + 400 * MIB)  # a hole: the disk is not filled
        file.write(b"\n" if ends else b"\0")
    begin = time.monotonic()
    tracemalloc.reset_peak()
    repo = JsonlSessionRepo(tmp_path)
    if ends:
        with pytest.raises(CorruptSession, match="more than the limit") as refused:
            await repo.open(str(path), read_only=True)
        assert (refused.value.line, refused.value.offset) == (good.count(b"\n") + 1, len(good))
    else:
        async with await repo.open(str(path), read_only=True) as session:
            assert [found.bytes_dropped for found in session.diagnostics] == [400 * MIB + 1]
    assert tracemalloc.get_traced_memory()[1] < MAX_LINE + 8 * MIB
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 4096])
def test_pieces_of_any_size_give_the_same_session(size: int) -> None:
    raw = (V4 / "idle-all-kinds.jsonl").read_bytes()
    for text in (raw, raw[:-1], raw + b"torn"):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        pieced, whole = load_lines(pieces, Path("x.jsonl")), load(text, Path("x.jsonl"))
        assert (pieced.end, pieced.newline_missing, pieced.diagnostics) == (
            whole.end,
            whole.newline_missing,
            whole.diagnostics,
        )
        assert pieced.state.log(0, None) == whole.state.log(0, None)


def test_a_line_is_asked_for_before_the_next_piece_is_read() -> None:
    read: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(100):
            read.append(number)
            yield b"a\nb"

    lines = split_lines(pieces())
    assert next(lines).raw == b"a"
    assert len(read) == 1
    assert (next(lines).raw, len(read)) == (b"ba", 2)
