"""Repair keeps the good prefix in a new file, import trusts nothing, doctor says what endangers a store."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from agent_harness.errors import CorruptSession, SessionNotFound, StorageError, UnsupportedFormat
from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import EntryItem
from session_backends import JsonlSessionRepo, SqliteSessionRepo
from session_backends.conformance.samples import message
from session_backends.doctor import examine
from session_backends.importing import import_file
from session_backends.repairing import repair_file

ROOT = Path(__file__).parents[2]
V4, V3 = ROOT / "fixtures" / "v4", ROOT / "fixtures" / "v3"
GOOD = (V4 / "run-one-tool.jsonl").read_bytes()
LINES = GOOD.split(b"\n")[:-1]


# Repair ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", range(2, len(LINES) + 1))
async def test_a_repair_keeps_every_line_before_the_damaged_one(bad: int, tmp_path: Path) -> None:
    damaged = b"\n".join([*LINES[: bad - 1], b'{"kind":"fact",oops', *LINES[bad:]]) + b"\n"
    path, target = tmp_path / "damaged.jsonl", tmp_path / "repaired.jsonl"
    path.write_bytes(damaged)
    done = repair_file(path, target)
    assert path.read_bytes() == damaged
    kept = b"".join(line + b"\n" for line in LINES[: bad - 1])
    assert target.read_bytes() == kept
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert (done.items, done.line, done.offset) == (bad - 2, bad, len(kept))
    assert (done.bytes_kept, done.bytes_left) == (len(kept), len(damaged) - len(kept))
    assert done.lines_left == len(LINES) - bad + 1
    assert done.reason is not None
    assert f"line {bad}" in done.reason
    async with await JsonlSessionRepo(tmp_path).open(str(target)) as session:
        assert session.id == done.session_id
        assert len(await session.get_log()) == done.items
        await session.append_entry(message("goes-on"), "main")
    assert sorted(os.listdir(tmp_path)) == [".repaired.jsonl.lock", "damaged.jsonl", "repaired.jsonl"]


async def test_a_repair_of_a_torn_or_unended_or_sound_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b'{"kind":"fa')
    torn = repair_file(path, tmp_path / "torn.jsonl")
    assert (torn.bytes_left, torn.lines_left, torn.line) == (11, 1, len(LINES) + 1)
    path.write_bytes(GOOD[:-1])
    unended = repair_file(path, tmp_path / "unended.jsonl")
    assert (unended.bytes_left, unended.lines_left, unended.reason) == (0, 0, None)
    path.write_bytes(GOOD)
    sound = repair_file(path, tmp_path / "sound.jsonl")
    assert (sound.bytes_left, sound.line, sound.offset) == (0, None, None)
    for name in ("torn", "unended", "sound"):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == GOOD


def test_a_repair_overwrites_nothing_and_makes_nothing_of_nothing(tmp_path: Path) -> None:
    path, taken = tmp_path / "a.jsonl", tmp_path / "taken.jsonl"
    path.write_bytes(GOOD)
    taken.write_bytes(b"precious")
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "nowhere")
    for target in (taken, link, path):
        with pytest.raises(StorageError, match="exists"):
            repair_file(path, target)
    with pytest.raises(StorageError, match="No such file"):
        repair_file(path, tmp_path / "missing" / "b.jsonl")
    with pytest.raises(SessionNotFound):
        repair_file(tmp_path / "missing.jsonl", tmp_path / "b.jsonl")
    for raw, expected in (
        (b"", CorruptSession),
        (b"hello\n", CorruptSession),
        (b'{"kind":"header","version":5,"id":"a","createdAt":1}\n', UnsupportedFormat),
        ((V3 / "new-bad-interior.jsonl").read_bytes(), CorruptSession),
    ):
        path.write_bytes(raw)
        with pytest.raises(expected):
            repair_file(path, tmp_path / "b.jsonl")
    assert taken.read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "link.jsonl", "taken.jsonl"]


# Import (T9) -------------------------------------------------------------------------


@pytest.mark.parametrize("source", [V4 / "run-one-tool.jsonl", V3 / "new-labels.jsonl"], ids=["format 4", "format 3"])
async def test_an_import_copies_the_content_into_a_session_of_its_own(repo: SessionRepo, source: Path) -> None:
    before = (source.read_bytes(), source.stat().st_mtime_ns)
    async with await JsonlSessionRepo(source.parent).open(str(source), read_only=True) as original:
        ids = [item.entry.id for item in await original.get_log() if isinstance(item, EntryItem)]
        labels = await original.get_labels()
    async with await import_file(source, repo) as session:
        assert session.id != original.id
        assert session.metadata.parent_session_id == original.id
        assert [item.entry.id for item in await session.get_log() if isinstance(item, EntryItem)] == ids
        assert await session.get_labels() == labels
        assert await session.verify() == []
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before


def hostile() -> dict[str, bytes]:
    header = orjson.loads(LINES[0])
    entry = next(line for line in LINES if b'"kind":"entry"' in line)
    raws = {
        f"header id {bad!r}": b"\n".join([orjson.dumps(header | {"id": bad}), *LINES[1:], b""])
        for bad in ("../../x", "/etc/passwd", "..", "a/b", "", "a\0b", "x" * 129, "é", "-a")
    }
    place = LINES.index(entry)
    again = orjson.loads(entry) | {"seq": place + 1}
    raws["duplicate entry id"] = b"\n".join([*LINES[: place + 1], orjson.dumps(again), b""])
    raws["duplicate header"] = b"\n".join([LINES[0], LINES[0], *LINES[1:], b""])
    raws["parent that is not there"] = b"\n".join(
        [*LINES[:place], orjson.dumps(orjson.loads(entry) | {"parentId": "../../x"}), b""]
    )
    raws["sequence gap"] = b"\n".join([*LINES[:-2], LINES[-1], b""])
    raws["not a session"] = b"PK\x03\x04 zip\n"
    for name in (
        "corrupt-tool-duplicate",
        "corrupt-tool-name-wrong",
        "corrupt-after-finish",
        "corrupt-unknown-operation",
    ):
        raws[name] = (V4 / f"{name}.jsonl").read_bytes()
    return raws


@pytest.mark.parametrize("name", hostile())
async def test_an_import_of_hostile_content_makes_nothing_anywhere(
    repo: SessionRepo, name: str, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere" / "deeper"  # a JSONL store in tmp_path does not look there
    outside.mkdir(parents=True)
    path = outside / "bundle.jsonl"
    path.write_bytes(hostile()[name])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CorruptSession):
        await import_file(path, repo)
    assert sorted(tmp_path.rglob("*")) == before
    assert await repo.list() == []


async def test_an_imported_working_directory_is_data_and_never_a_path(tmp_path: Path) -> None:
    header = orjson.loads(LINES[0]) | {"cwd": "/../../../../etc"}
    path = tmp_path / "bundle.jsonl"
    path.write_bytes(b"\n".join([orjson.dumps(header), *LINES[1:], b""]))
    root = tmp_path / "store"
    async with await import_file(path, JsonlSessionRepo(root)) as session:
        assert session.metadata.cwd == "/etc"
        assert session.metadata.path is not None
        made = Path(session.metadata.path)
    assert made.parent == root / "--etc--"
    assert made.resolve().is_relative_to(root.resolve())


# Doctor ---------------------------------------------------------------------------------

FIXED = (3, 51, 3)


def local(_: Path) -> str:
    return "ext4"


async def test_a_sound_store_has_no_findings(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    jsonl, sqlite = JsonlSessionRepo(tmp_path / "j"), SqliteSessionRepo(tmp_path / "s.db")
    held = [await jsonl.create(id="a", cwd="/x"), await sqlite.create(id="a")]
    assert examine(tmp_path / "j", filesystem_type=local, sqlite_version=FIXED) == []
    assert examine(tmp_path / "s.db", filesystem_type=local, sqlite_version=FIXED) == []
    assert examine(tmp_path / "missing.db", filesystem_type=local, sqlite_version=FIXED) == []
    for session in held:
        await session.close()
    await sqlite.close()


async def test_doctor_names_library_file_system_modes_and_leftovers(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    repo = SqliteSessionRepo(tmp_path / "s.db")
    await (await repo.create(id="a")).close()
    (tmp_path / "s.db").chmod(0o644)
    found = examine(tmp_path / "s.db", filesystem_type=lambda _: "nfs4", sqlite_version=(3, 40, 1))
    assert [one.code for one in found] == ["sqlite_version", "shared_filesystem", "not_private"]
    assert "chmod 600" in found[2].message
    await repo.close()

    root = tmp_path / "j"
    store = JsonlSessionRepo(root)
    session = await store.create(id="a", cwd="/x")
    await session.close()
    path = Path(session.metadata.path or "")
    path.chmod(0o640)
    path.parent.chmod(0o755)
    (path.parent / ".gone.jsonl.lock").touch()
    (path.parent / f".{'a' * 32}.tmp").touch()
    root.chmod(0o777)
    before = sorted(tmp_path.rglob("*"))
    found = examine(root, filesystem_type=lambda _: "fuse.sshfs", sqlite_version=(3, 40, 1))
    assert [(one.code, Path(one.path).name) for one in found] == [
        ("shared_filesystem", "j"),
        ("not_private", "j"),
        ("not_private", "--x--"),
        ("not_private", path.name),
        ("leftover", f".{'a' * 32}.tmp"),
        ("stale_lock", ".gone.jsonl.lock"),
    ]
    assert sorted(tmp_path.rglob("*")) == before


DIES = """
import asyncio, os, sys
from session_backends import SqliteSessionRepo

async def main():
    await SqliteSessionRepo(sys.argv[1]).create(id="a")
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_doctor_tells_a_claim_whose_owner_is_gone(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert subprocess.run([sys.executable, "-c", DIES, tmp_path / "s.db"], check=False).returncode == -9
    found = examine(tmp_path / "s.db", filesystem_type=local, sqlite_version=FIXED)
    assert [one.code for one in found] == ["stale_lease"]
    assert "session a" in found[0].message


def text(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE writer_leases (session_id)")


def endless_view(path: Path) -> None:
    asyncio.run(made(path))
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("DROP TABLE writer_leases")
        numbers = "WITH RECURSIVE n(session_id) AS (SELECT 1 UNION ALL SELECT session_id + 1 FROM n)"
        conn.execute(f"CREATE VIEW writer_leases AS {numbers} SELECT * FROM n")


async def made(path: Path) -> None:
    repo = SqliteSessionRepo(path)
    await (await repo.create(id="a")).close()
    await repo.close()


@pytest.mark.parametrize("make", [text, another_program, endless_view, os.mkfifo])
def test_doctor_says_at_once_of_what_is_no_database_that_it_is_none(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """In a process of its own: a pipe that is opened and a view that is asked never end."""
    tmp_path.chmod(0o700)
    path = tmp_path / "s.db"
    make(path)
    path.chmod(0o600)
    before = path.lstat()
    code = "import sys; from session_backends.doctor import *; print([f.message for f in examine(sys.argv[1])])"
    said = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=20, check=False)
    assert said.stderr == ""
    assert f"'{path}" in said.stdout  # names it first, once
    assert said.stdout.split("'")[-2].count(str(path)) == 1
    assert any(word in said.stdout for word in ("is not a", "are not those of its version"))
    after = path.lstat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
