"""read, write, edit, list on real files."""

import base64
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from tools_support import details_of, invoke, named, text_of

from agent_harness.abort_signal import AbortSignal
from agent_harness.tools import ToolError, Workspace, coding_tools
from agent_harness.tools.edit import MAX_EDIT_BYTES
from agent_harness.tools.listing import MAX_ENTRIES
from agent_harness.tools.read import MAX_BYTES, MAX_IMAGE_BYTES, MAX_LINES
from agent_harness.types.messages import ImageContent

PNG = b"\x89PNG\r\n\x1a\n"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    return folder


def test_the_tools_are_the_six_and_only_readers_are_replayed(root: Path) -> None:
    tools = coding_tools(root)
    assert [tool.name for tool in tools] == ["read", "write", "edit", "shell", "list", "search"]
    assert {tool.name for tool in tools if tool.replay == "safe"} == {"read", "list", "search"}
    assert {tool.name for tool in tools if tool.execution_mode == "sequential"} == {"write", "edit", "shell"}
    with pytest.raises(NotADirectoryError):
        coding_tools(root / "missing")


ESCAPES = ["../outside/secret.txt", "link/secret.txt", "file-link", "a/../../outside/secret.txt", "dir/up/secret.txt"]


@pytest.mark.parametrize("path", [*ESCAPES, "/etc/hostname", "ABSOLUTE"])
@pytest.mark.parametrize("tool", ["read", "write", "edit", "list", "search"])
async def test_no_path_leads_out_of_the_working_folder(root: Path, outside: Path, tool: str, path: str) -> None:
    (root / "a").mkdir()
    (root / "dir").mkdir()
    (root / "link").symlink_to(outside)
    (root / "file-link").symlink_to(outside / "secret.txt")
    (root / "dir/up").symlink_to("../../outside")
    path = str(outside / "secret.txt") if path == "ABSOLUTE" else path
    args: dict[str, Any] = {"path": path}
    match tool:
        case "write":
            args |= {"content": "overwritten"}
        case "edit":
            args |= {"edits": [{"old": "secret", "new": "overwritten"}]}
        case "search":
            args |= {"pattern": "secret"}
    with pytest.raises(ToolError, match="outside the working folder"):
        await invoke(named(root, tool), args)
    assert tree(outside) == {"secret.txt": b"secret"}


@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_a_path_that_is_none_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match="empty or holds a NUL"):
        await invoke(named(root, "read"), {"path": path})


async def test_inside_every_spelling_of_a_path_works(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/f").write_text("x")
    (root / "link").symlink_to("a")
    for path in ["a/f", "./a/f", "a/../a/f", "link/f", str(root / "a/f")]:
        result = await invoke(named(root, "read"), {"path": path})
        assert (text_of(result), details_of(result)["path"]) == ("x", "a/f")


async def test_outside_is_open_when_asked_for(root: Path, outside: Path) -> None:
    read = await invoke(named(root, "read", allow_outside=True), {"path": "../outside/secret.txt"})
    assert text_of(read) == "secret"
    new = outside / "new.txt"
    written = await invoke(named(root, "write", allow_outside=True), {"path": str(new), "content": "n"})
    assert details_of(written)["changedPaths"] == [str(new)]
    assert new.read_text() == "n"


async def test_a_link_swapped_in_after_the_check_is_refused(root: Path, outside: Path) -> None:
    """T5: the resolved path is walked without following links, so the swap is seen and not followed."""
    workspace = Workspace(root)
    (root / "d").mkdir()
    (root / "d/secret.txt").write_text("mine")
    target = workspace.resolve("d/secret.txt")
    (root / "d").rename(root / "e")
    (root / "d").symlink_to(outside)
    with pytest.raises(ToolError, match="symbolic link"), workspace.open_file(target):
        pass
    with pytest.raises(ToolError, match="symbolic link"):
        workspace.replace(target, b"overwritten", expected=None)
    (root / "d").unlink()
    (root / "e").rename(root / "d")
    (root / "d/secret.txt").unlink()
    (root / "d/secret.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(ToolError, match="symbolic link"), workspace.open_file(target):
        pass
    with pytest.raises(ToolError, match="not a regular file"):
        workspace.replace(target, b"overwritten", expected=None)
    assert tree(outside) == {"secret.txt": b"secret"}


async def test_racing_swaps_never_reach_the_outside(root: Path, outside: Path) -> None:
    workspace = Workspace(root)
    real, hidden, link = root / "d", root / "real", root / "link"
    real.mkdir()
    (real / "secret.txt").write_text("mine")
    link.symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(real, hidden)
            os.rename(link, real)
            os.rename(real, link)
            os.rename(hidden, real)

    swapper = threading.Thread(target=swap)
    swapper.start()
    reads: set[bytes] = set()
    try:
        for _ in range(2_000):
            try:
                target = workspace.resolve("d/secret.txt")
                reads.add(workspace.load(target, max_bytes=100).data)
                workspace.replace(target, b"mine", expected=os.stat(root / "real/secret.txt"))
            except (ToolError, OSError):
                continue
    finally:
        stop.set()
        swapper.join()
    assert reads == {b"mine"}
    assert tree(outside) == {"secret.txt": b"secret"}


# read


async def test_read_gives_the_file_as_it_is(root: Path) -> None:
    text = "one\r\ntwo\n\n\u2028 é 😀 \ttail"
    (root / "f").write_bytes(text.encode())
    assert text_of(await invoke(named(root, "read"), {"path": "f"})) == text


async def test_read_takes_a_part_and_says_how_to_read_on(root: Path) -> None:
    (root / "f").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    result = await invoke(named(root, "read"), {"path": "f", "offset": 3, "limit": 2})
    assert text_of(result) == "line 3\nline 4\n[more lines follow: read on with offset=5]"
    assert details_of(result) == {"path": "f", "firstLine": 3, "lines": 2, "truncated": True}
    last = await invoke(named(root, "read"), {"path": "f", "offset": 9, "limit": 2})
    assert text_of(last) == "line 9\nline 10\n"
    with pytest.raises(ToolError, match="has 10 lines, so there is no line 11"):
        await invoke(named(root, "read"), {"path": "f", "offset": 11})
    with pytest.raises(ToolError, match="has 10 lines, so there is no line 99"):
        await invoke(named(root, "read"), {"path": "f", "offset": 99})


async def test_reading_on_and_on_gives_the_whole_file(root: Path) -> None:
    whole = "".join(f"{n} {'é😀' * (n % 40)}\n" for n in range(5_000))
    (root / "f").write_text(whole)
    got, offset = "", 1
    while True:
        result = await invoke(named(root, "read"), {"path": "f", "offset": offset})
        text, details = text_of(result), details_of(result)
        assert len(text.encode()) <= MAX_BYTES + 100
        assert details["lines"] <= MAX_LINES
        offset += details["lines"]
        if not details["truncated"]:
            got += text
            break
        got += text[: text.rindex("[more lines follow")]
    assert got == whole


@pytest.mark.parametrize("shift", range(4))
async def test_one_endless_line_is_cut_at_a_code_point(root: Path, shift: int) -> None:
    (root / "f").write_text("a" * shift + "😀" * MAX_BYTES)
    text = text_of(await invoke(named(root, "read"), {"path": "f"}))
    shown, note = text.split("\n")
    assert set(shown.lstrip("a")) == {"😀"}
    assert MAX_BYTES - 4 < len(shown.encode()) <= MAX_BYTES
    assert "line 1 is longer" in note


async def test_invalid_utf8_is_shown_and_said(root: Path) -> None:
    (root / "f").write_bytes(b"caf\xe9\n\xed\xa0\x80!")
    assert text_of(await invoke(named(root, "read"), {"path": "f"})) == (
        "caf\ufffd\n\ufffd!\n[not valid UTF-8: the invalid bytes are shown as \ufffd]"
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.write_bytes(b"ELF\x00\x01"), "a binary file of 5 bytes"),
        (lambda p: p.write_bytes(b"x" * 9_000 + b"\0"), "a binary file"),
        (lambda p: p.mkdir(), "is a folder; use `list`"),
        (os.mkfifo, "not a regular file"),
        (lambda p: None, "no such file"),
        (lambda p: p.symlink_to(p.name), "symbolic link|no such file|outside"),
    ],
)
async def test_what_is_no_text_is_an_error_and_never_blocks(root: Path, make: Any, said: str) -> None:
    make(root / "f")
    with pytest.raises(ToolError, match=said):
        await invoke(named(root, "read"), {"path": "f"})


async def test_the_working_folder_itself_is_a_folder(root: Path) -> None:
    (root / root.name).write_text("not this one")
    with pytest.raises(ToolError, match="is a folder"):
        await invoke(named(root, "read"), {"path": "."})
    with pytest.raises(ToolError, match="is a folder"):
        await invoke(named(root, "write"), {"path": ".", "content": "x"})


async def test_an_empty_file_is_said_to_be_empty(root: Path) -> None:
    (root / "f").touch()
    assert text_of(await invoke(named(root, "read"), {"path": "f"})) == "[the file is empty]"


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
    ],
)
async def test_an_image_comes_as_an_image(root: Path, head: bytes, mime: str) -> None:
    data = head + bytes(20_000)
    (root / "f.bin").write_bytes(data)
    result = await invoke(named(root, "read"), {"path": "f.bin"})
    assert result.content == (ImageContent(data=base64.b64encode(data).decode(), mime_type=mime),)


async def test_an_image_too_large_is_refused(root: Path) -> None:
    (root / "big.png").write_bytes(PNG + bytes(MAX_IMAGE_BYTES))
    with pytest.raises(ToolError, match="make a smaller copy"):
        await invoke(named(root, "read"), {"path": "big.png"})


# write


async def test_write_creates_with_parents_and_reports_the_path(root: Path) -> None:
    result = await invoke(named(root, "write"), {"path": "a/b/c.txt", "content": "é\r\n"})
    assert (root / "a/b/c.txt").read_bytes() == "é\r\n".encode()
    assert details_of(result) == {"changedPaths": ["a/b/c.txt"], "created": True, "bytes": 4}
    again = await invoke(named(root, "write"), {"path": str(root / "a/b/c.txt"), "content": ""})
    assert details_of(again) == {"changedPaths": ["a/b/c.txt"], "created": False, "bytes": 0}


async def test_write_replaces_in_one_step_and_keeps_the_mode(root: Path) -> None:
    path = root / "run.sh"
    path.write_text("old")
    path.chmod(0o751)
    before = path.stat().st_ino
    with path.open() as reader:
        await invoke(named(root, "write"), {"path": "run.sh", "content": "new"})
        assert reader.read() == "old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert path.stat().st_ino != before
    assert tree(root) == {"run.sh": b"new"}


async def test_write_through_a_link_inside_changes_the_file_and_keeps_the_link(root: Path) -> None:
    (root / "f").write_text("old")
    (root / "link").symlink_to("f")
    result = await invoke(named(root, "write"), {"path": "link", "content": "new"})
    assert details_of(result)["changedPaths"] == ["f"]
    assert (root / "link").is_symlink()
    assert (root / "f").read_text() == "new"


async def test_write_refuses_what_is_not_a_writable_file(root: Path) -> None:
    (root / "d").mkdir()
    (root / "f").write_text("x")
    (root / "f").chmod(0o444)
    os.mkfifo(root / "p")
    for path, said in [("d", "is a folder"), ("f", "read-only"), ("p", "not a regular file"), ("f/g", "not a folder")]:
        with pytest.raises(ToolError, match=said):
            await invoke(named(root, "write"), {"path": path, "content": "y"})
    assert tree(root) == {"f": b"x"}


async def test_an_aborted_write_or_edit_changes_nothing(root: Path) -> None:
    (root / "f").write_text("old")
    aborted = AbortSignal()
    aborted.abort()
    with pytest.raises(ToolError, match="interrupted: f was not written"):
        await invoke(named(root, "write"), {"path": "f", "content": "new"}, signal=aborted)
    with pytest.raises(ToolError, match="interrupted: f was not changed"):
        await invoke(named(root, "edit"), {"path": "f", "edits": [{"old": "old", "new": "new"}]}, signal=aborted)
    assert tree(root) == {"f": b"old"}


async def test_a_file_that_changed_meanwhile_is_not_overwritten(root: Path) -> None:
    workspace = Workspace(root)
    (root / "f").write_text("old")
    target = workspace.resolve("f")
    opened = workspace.load(target, max_bytes=100)
    (root / "f").write_text("theirs")
    with pytest.raises(ToolError, match="changed while"):
        workspace.replace(target, b"mine", expected=opened.status)
    with pytest.raises(ToolError, match="changed while"):
        workspace.replace(target, b"mine", expected=None)
    assert tree(root) == {"f": b"theirs"}


# edit


async def edit(root: Path, *edits: tuple[str, str], path: str = "f") -> dict[str, Any]:
    wanted = [{"old": old, "new": new} for old, new in edits]
    return details_of(await invoke(named(root, "edit"), {"path": path, "edits": wanted}))


async def test_edit_replaces_exactly_and_reports_where(root: Path) -> None:
    (root / "f").write_bytes("\ufeffa\nb \nc\n".encode())
    (root / "f").chmod(0o640)
    assert await edit(root, ("b ", "B"), ("c\n", "")) == {"changedPaths": ["f"], "replacements": 2, "firstLine": 2}
    assert (root / "f").read_bytes() == "\ufeffa\nB\n".encode()
    assert stat.S_IMODE((root / "f").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ([("zzz", "y")], "occurs 0 times"),
        ([("two", "y")], r"occurs 2 times \(lines 2, 4\); add text around it"),
        ([("aa", "y")], "occurs 2 times"),
        ([("one", "ONE"), ("one\nt", "x")], "edits 1 and 2 overlap"),
        ([("one", "ONE"), ("zzz", "x")], "edit 2: the old text occurs 0 times"),
        ([("one", "one")], "the same; nothing was changed"),
    ],
)
async def test_edit_is_all_or_nothing(root: Path, edits: list[tuple[str, str]], said: str) -> None:
    content = "one\ntwo\naaa\ntwo\n"
    (root / "f").write_text(content)
    with pytest.raises(ToolError, match=said):
        await edit(root, *edits)
    assert tree(root) == {"f": content.encode()}


async def test_an_empty_old_text_and_an_empty_list_are_invalid_arguments(root: Path) -> None:
    (root / "f").write_text("x")
    with pytest.raises(ValueError, match="at least 1 character"):
        await edit(root, ("", "y"))
    with pytest.raises(ValueError, match="at least 1 item"):
        await edit(root)


async def test_replacements_are_found_in_the_content_as_it_was(root: Path) -> None:
    (root / "f").write_text("a b")
    await edit(root, ("a", "b"), ("b", "a"))
    assert (root / "f").read_text() == "b a"


async def test_line_ends_of_a_crlf_file_are_kept(root: Path) -> None:
    (root / "f").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await edit(root, ("one\ntwo", "1\n2"))
    assert (root / "f").read_bytes() == b"1\r\n2\r\nthree\r\n"
    (root / "f").write_bytes(b"one\r\ntwo\nthree\r\n")
    with pytest.raises(ToolError, match="occurs 0 times"):
        await edit(root, ("one\ntwo", "1\n2"))


async def test_edit_does_not_damage_what_it_cannot_read(root: Path) -> None:
    (root / "f").write_bytes(b"caf\xe9 x")
    with pytest.raises(ToolError, match="not valid UTF-8"):
        await edit(root, ("x", "y"))
    with (root / "big").open("wb") as big:
        big.truncate(MAX_EDIT_BYTES + 1)
    with pytest.raises(ToolError, match="larger than"):
        await edit(root, ("x", "y"), path="big")
    with pytest.raises(ToolError, match="no such file"):
        await edit(root, ("x", "y"), path="missing")
    assert (root / "f").read_bytes() == b"caf\xe9 x"


async def test_counting_matches_is_bounded(root: Path) -> None:
    (root / "f").write_text("a" * 1_000_000)
    with pytest.raises(ToolError, match="occurs more than 1000 times"):
        await edit(root, ("a", "b"))


# list


async def test_list_shows_kinds_and_enters_no_link(root: Path, outside: Path) -> None:
    (root / "b").mkdir()
    (root / "b/c.txt").write_text("123")
    (root / ".git/objects").mkdir(parents=True)
    (root / "a").symlink_to(outside)
    os.mkfifo(root / "p")
    result = await invoke(named(root, "list"), {"depth": 3})
    assert text_of(result) == f".git/\na -> {outside}\nb/\nb/c.txt (3 bytes)\np (0 bytes) (special)"
    assert details_of(result) == {"path": ".", "entries": 5, "truncated": False}
    assert text_of(await invoke(named(root, "list"), {"path": "b"})) == "c.txt (3 bytes)"


async def test_list_is_bounded_and_says_so(root: Path) -> None:
    assert text_of(await invoke(named(root, "list"), {})) == "[the folder is empty]"
    for n in range(MAX_ENTRIES + 1):
        (root / f"{n:05}").touch()
    result = await invoke(named(root, "list"), {})
    lines = text_of(result).split("\n")
    assert len(lines) == MAX_ENTRIES + 1
    assert lines[0] == "00000 (0 bytes)"
    assert "cut at 1000 entries" in lines[-1]
    assert details_of(result)["truncated"] is True


async def test_a_name_that_is_not_utf8_is_shown_as_valid_text(root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9")).touch()
    assert text_of(await invoke(named(root, "list"), {})) == "caf\ufffd (0 bytes)"


async def test_listing_a_file_or_nothing_is_an_error(root: Path) -> None:
    (root / "f").touch()
    for path, said in [("f", "not a folder"), ("g", "no such")]:
        with pytest.raises(ToolError, match=said):
            await invoke(named(root, "list"), {"path": path})
