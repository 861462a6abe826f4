"""Every damage at the end of a JSONL file, met by every way to open it (decisions section 5, "Tail")."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from agent_harness.errors import CorruptSession
from agent_harness.session.repo import TreeFork
from agent_harness.session.session import Session
from agent_harness.session.storage import EntryItem, LogItem
from agent_harness.testing import DeterministicIds, ManualClock
from session_backends import JsonlSessionRepo
from session_backends.conformance.samples import message

V4 = Path(__file__).parents[2] / "fixtures" / "v4"
GOOD = (V4 / "run-one-tool.jsonl").read_bytes()
LINES = GOOD.split(b"\n")[:-1]
LAST = LINES[-1]
BEFORE = GOOD[: len(GOOD) - len(LAST) - 1]  # all but the last line
NUL = b"\0" * 700
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Damage:
    name: str
    raw: bytes
    items: int | None  # how many count; None: refused
    codes: tuple[str, ...] = ()
    line: int | None = None  # of the refusal
    kept: int = 0  # bytes that a writing open leaves


def damages() -> Iterator[Damage]:
    items = len(LINES) - 1
    for cut in range(1, len(LAST)):
        yield Damage(
            name=f"cut after {cut} bytes",
            raw=BEFORE + LAST[:cut],
            items=items - 1,
            codes=("torn_tail",),
            kept=len(BEFORE),
        )
    yield Damage(name="whole", raw=GOOD, items=items, kept=len(GOOD))
    yield Damage(name="cut before the last line", raw=BEFORE, items=items - 1, kept=len(BEFORE))
    without = GOOD[:-1]
    yield Damage(name="no newline", raw=without, items=items, codes=("missing_final_newline",), kept=len(without))
    for name, tail in {"NUL bytes": NUL, "half a line, then NUL bytes": LAST[:40] + NUL, "spaces": b"   "}.items():
        yield Damage(name=name, raw=GOOD + tail, items=items, codes=("torn_tail",), kept=len(GOOD))
    yield Damage(name="NUL bytes that end", raw=GOOD + NUL + b"\n", items=None, line=len(LINES) + 1)
    yield Damage(name="blank line", raw=GOOD + b"\n", items=None, line=len(LINES) + 1)
    yield Damage(name="blank line inside", raw=BEFORE + b"\n" + LAST + b"\n", items=None, line=len(LINES))
    crlf = GOOD.replace(b"\n", b"\r\n")
    yield Damage(name="CRLF", raw=crlf, items=items, kept=len(crlf))
    yield Damage(name="CRLF in the last line", raw=without + b"\r\n", items=items, kept=len(GOOD) + 1)
    yield Damage(
        name="CR without its LF",
        raw=without + b"\r",
        items=items,
        codes=("missing_final_newline",),
        kept=len(GOOD),
    )
    yield Damage(name="BOM", raw=BOM + GOOD, items=None, line=1)
    yield Damage(name="BOM in the last line", raw=BEFORE + BOM + LAST + b"\n", items=None, line=len(LINES))
    yield Damage(
        name="BOM in a last line that does not end",
        raw=BEFORE + BOM + LAST,
        items=items - 1,
        codes=("torn_tail",),
        kept=len(BEFORE),
    )


DAMAGES = list(damages())
Way = Literal["read-only", "open and append", "fork source"]


def repo_at(root: Path) -> JsonlSessionRepo:
    return JsonlSessionRepo(root, ManualClock(), DeterministicIds())


async def whole_log(root: Path) -> list[LogItem]:
    root.mkdir()
    (root / "good.jsonl").write_bytes(GOOD)
    async with await repo_at(root).open(str(root / "good.jsonl"), read_only=True) as session:
        return await session.get_log()


@pytest.mark.parametrize("way", ["read-only", "open and append", "fork source"])
async def test_each_damage_is_dropped_kept_or_refused_as_the_rules_say(way: Way, tmp_path: Path) -> None:
    assert len(DAMAGES) > 60
    full = await whole_log(tmp_path / "good")
    for damage in DAMAGES:
        folder = tmp_path / "case"
        folder.mkdir()
        path = folder / "session.jsonl"
        path.write_bytes(damage.raw)
        await meet(way, damage, path, full)
        for made in sorted(folder.rglob("*"), reverse=True):
            made.rmdir() if made.is_dir() else made.unlink()
        folder.rmdir()


async def meet(way: Way, damage: Damage, path: Path, full: list[LogItem]) -> None:
    repo = repo_at(path.parent)
    before = path.stat()

    async def opened() -> Session:
        if way == "fork source":
            return await repo.fork(str(path), TreeFork())
        return await repo.open(str(path), read_only=way == "read-only")

    def assert_untouched() -> None:
        after = path.stat()
        assert path.read_bytes() == damage.raw, damage.name
        assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino), damage.name

    if damage.items is None:
        with pytest.raises(CorruptSession) as refused:
            await opened()
        assert refused.value.line == damage.line, damage.name
        assert refused.value.offset is not None
        assert str(path) in str(refused.value)
        assert_untouched()
        return
    expected = full[: damage.items]
    async with await opened() as session:
        log = await session.get_log()
        if way == "fork source":
            entries = [item.entry.id for item in expected if isinstance(item, EntryItem)]
            assert [item.entry.id for item in log if isinstance(item, EntryItem)] == entries, damage.name
            assert_untouched()
            return
        assert log == expected, damage.name
        assert tuple(found.code for found in session.diagnostics) == damage.codes, damage.name
        if "torn_tail" in damage.codes:
            assert session.diagnostics[0].bytes_dropped == len(damage.raw) - damage.kept, damage.name
        if way == "read-only":
            assert_untouched()
            return
        await session.append_entry(message("next"), "main")
    written = path.read_bytes()
    kept = damage.raw[: damage.kept]
    assert written.startswith(kept if kept.endswith(b"\n") else kept + b"\n"), damage.name
    assert written.endswith(b"\n")
    assert written[len(kept) :].strip(b"\n").count(b"\n") == 0, damage.name  # one line more, and nothing else
    async with await repo.open(str(path)) as session:
        assert session.diagnostics == (), damage.name
        assert (await session.get_log())[:-1] == expected, damage.name
