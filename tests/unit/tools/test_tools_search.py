"""search: in a process of its own, so that no pattern can stop the event loop."""

import asyncio
import os
from pathlib import Path
from time import monotonic

import pytest
from tools_support import details_of, invoke, named, text_of

from agent_harness.abort_signal import AbortSignal
from agent_harness.tools import ToolError, Workspace
from agent_harness.tools.search import MAX_FILE_BYTES, MAX_LINE_CHARS, MAX_MATCHES, search_tool

ENDLESS = "(a+)+$"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("import os\r\nprint('Hello')\n")
    (tmp_path / "src/b.txt").write_text("hello (there)\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("hello\n")
    (tmp_path / "binary").write_bytes(b"\0hello")
    (tmp_path / "outside-link").symlink_to("/etc")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


async def test_matches_come_with_path_and_line(root: Path) -> None:
    result = await invoke(named(root, "search"), {"pattern": "[Hh]ello"})
    assert text_of(result) == "src/a.py:2: print('Hello')\nsrc/b.txt:1: hello (there)"
    assert details_of(result) == {"matches": 2, "files": 3, "truncated": False}


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"pattern": "HELLO", "ignore_case": True, "glob": "*.py"}, "src/a.py:2: print('Hello')"),
        ({"pattern": "hello (", "literal": True}, "src/b.txt:1: hello (there)"),
        ({"pattern": "hello", "path": "src/b.txt"}, "src/b.txt:1: hello (there)"),
        ({"pattern": "hello", "glob": "src/*.txt"}, "src/b.txt:1: hello (there)"),
        ({"pattern": "hello", "path": ".git"}, ".git/config:1: hello"),
        ({"pattern": "nowhere"}, "[no matches]"),
    ],
)
async def test_the_search_is_narrowed_as_asked(root: Path, args: dict[str, object], shown: str) -> None:
    assert text_of(await invoke(named(root, "search"), args)) == shown


async def test_a_pattern_that_is_none_is_named(root: Path) -> None:
    with pytest.raises(ToolError, match=r"not a regular expression: .*literal=true"):
        await invoke(named(root, "search"), {"pattern": "hello ("})
    with pytest.raises(ToolError, match="no such file"):
        await invoke(named(root, "search"), {"pattern": "x", "path": "missing"})


async def test_results_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "many").write_text("x\n" * (MAX_MATCHES + 1))
    result = await invoke(named(tmp_path, "search"), {"pattern": "x"})
    assert details_of(result) == {"matches": MAX_MATCHES, "files": 1, "truncated": True}
    assert f"cut at {MAX_MATCHES} matches" in text_of(result)
    (tmp_path / "many").write_text("é" * 5_000 + "needle" + "é" * 5_000)
    with (tmp_path / "large").open("wb") as large:
        large.truncate(MAX_FILE_BYTES + 1)
    text = text_of(await invoke(named(tmp_path, "search"), {"pattern": "needle"}))
    line, note = text.split("\n")
    assert "needle" in line
    assert len(line) <= MAX_LINE_CHARS + 30
    assert note == f"[1 file(s) larger than {MAX_FILE_BYTES} bytes were not searched]"


async def test_an_endless_pattern_is_stopped_and_the_loop_stays_free(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!")
    tool = search_tool(Workspace(tmp_path), timeout_s=0.3)
    longest = 0.0

    async def heartbeat() -> None:
        nonlocal longest
        while True:
            before = monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, monotonic() - before)

    beating = asyncio.ensure_future(heartbeat())
    with pytest.raises(ToolError, match=r"no end after 0\.3 s"):
        await invoke(tool, {"pattern": ENDLESS})
    beating.cancel()
    assert longest < 0.25


async def test_a_search_ends_on_abort(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!")
    signal = AbortSignal()
    running = asyncio.ensure_future(invoke(named(tmp_path, "search"), {"pattern": ENDLESS}, signal=signal))
    await asyncio.sleep(0)
    signal.abort()
    started = monotonic()
    with pytest.raises(ToolError, match="interrupted"):
        await running
    assert monotonic() - started < 5
