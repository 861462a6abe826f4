"""JSONL on a real file system: counts, faults, tails, names, modes and other people's files."""

import asyncio
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_harness.errors import (
    CorruptSession,
    InvalidSessionId,
    SessionLocked,
    SessionNotFound,
    StorageError,
    UnsupportedFormat,
)
from agent_harness.session.session import Session
from agent_harness.session.storage import Durability
from agent_harness.types.entries import CustomBody
from session_backends import JsonlSessionRepo
from session_backends.conformance.samples import custom, message
from session_backends.faults import FaultyFiles
from session_backends.jsonl.files import FileOps

V4 = Path(__file__).parents[2] / "fixtures" / "v4"


def path_of(session: Session) -> Path:
    assert session.metadata.path is not None
    return Path(session.metadata.path)


def copy_of(name: str, folder: Path) -> Path:
    target = folder / name
    target.write_bytes((V4 / name).read_bytes())
    return target


def files_under(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in sorted(root.rglob("*"))}


# Counts -----------------------------------------------------------------------


async def test_a_mutation_is_one_write_and_no_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    repo = JsonlSessionRepo(tmp_path, file_ops=files)
    session = await repo.create(id="s1")
    assert (files.writes, files.syncs) == (1, 0)
    for number in range(5):
        await session.append_entry(message(f"e{number}"), "main")
    await session.set_name("x")
    await session.create_lane("side", None)
    await asyncio.gather(*(session.append_entry(custom(f"c{number}"), "side") for number in range(7)))
    assert (files.writes, files.syncs) == (1 + 5 + 1 + 1 + 7, 0)
    assert path_of(session).read_bytes().count(b"\n") == files.writes
    await session.close()
    assert (files.writes, files.truncates, files.renames) == (15, 0, 1)


async def test_writes_that_wait_together_share_one_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    session = await JsonlSessionRepo(tmp_path, durability="power", file_ops=files).create(id="s1")
    before = files.syncs
    assert before == 1  # the new file
    await session.append_entry(message("alone"), "main")
    assert files.syncs == before + 1
    await asyncio.gather(*(session.append_entry(message(f"e{number}"), "main") for number in range(20)))
    assert files.syncs == before + 2
    assert files.writes == 1 + 1 + 20
    await session.close()


class NotedFolders(FaultyFiles):
    """Which folders were synced, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.folders: list[Path] = []

    def sync_folder(self, folder: Path) -> None:
        self.folders.append(folder)
        FaultyFiles.sync_folder(self, folder)


async def test_at_level_power_every_name_on_the_way_to_a_session_is_synced(tmp_path: Path) -> None:
    """A synced file that no synced name leads to is lost all the same."""
    root = tmp_path / "a" / "b" / "root"
    files = NotedFolders()
    power = JsonlSessionRepo(root, durability="power", file_ops=files)
    await (await power.create(id="s1", cwd="/x")).close()
    assert set(files.folders) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b", root, root / "--x--"}
    assert files.folders[-1] == root / "--x--"  # after the new file was renamed
    process = JsonlSessionRepo(root, file_ops=files)
    files.folders.clear()
    await (await process.create(id="s2", cwd="/y")).close()
    assert files.folders == []
    await (await power.create(id="s3", cwd="/y")).close()
    assert files.folders == [root, root / "--y--"]
    files.folders.clear()
    async with await power.open("s2") as session:  # acknowledged from here on is what the name leads to
        assert files.folders == [root / "--y--"]
        await session.append_entry(message("e1"), "main")


class GatedFiles(FaultyFiles):
    """The disk takes its time: a sync waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self.started = threading.Event()
        self.may_go = threading.Event()

    def sync(self, fd: int) -> None:
        self.started.set()
        assert self.may_go.wait(10)
        FaultyFiles.sync(self, fd)


async def started(files: GatedFiles) -> None:
    while not files.started.is_set():
        await asyncio.sleep(0.001)


async def test_what_queues_during_a_sync_becomes_the_next_batch(tmp_path: Path) -> None:
    files = GatedFiles()
    files.may_go.set()
    session = await JsonlSessionRepo(tmp_path, durability="power", file_ops=files).create(id="s1")
    files.started.clear()
    files.may_go.clear()
    first = asyncio.create_task(session.append_entry(message("e0"), "main"))
    await started(files)
    rest = [asyncio.create_task(session.append_entry(message(f"e{number}"), "main")) for number in range(1, 9)]
    await asyncio.sleep(0)
    assert await session.get_log() == []  # not durable, not visible
    assert (await session.get_lanes())[0].leaf_id is None
    files.may_go.set()
    entries = await asyncio.gather(first, *rest)
    assert [entry.seq for entry in entries] == list(range(1, 10))
    assert files.syncs == 3
    await session.close()


async def test_cancelling_a_started_write_does_not_stop_it(tmp_path: Path) -> None:
    files = GatedFiles()
    files.may_go.set()
    session = await JsonlSessionRepo(tmp_path, durability="power", file_ops=files).create(id="s1")
    files.started.clear()
    files.may_go.clear()
    announced: list[str] = []
    write = asyncio.create_task(
        session.append_entry(message("e0"), "main", on_commit=lambda entry: announced.append(entry.id))
    )
    await started(files)
    waiting = asyncio.create_task(session.append_entry(message("e1"), "main"))
    await asyncio.sleep(0)
    write.cancel()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    with pytest.raises(asyncio.CancelledError):
        await waiting
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)
    assert not closing.done()
    files.may_go.set()
    await closing
    assert announced == ["e0"]
    session = await JsonlSessionRepo(tmp_path).open("s1")
    assert [item.seq for item in await session.get_log()] == [1]
    await session.close()


def test_a_write_in_flight_when_the_loop_ends_counts_in_the_next_loop(tmp_path: Path) -> None:
    files = GatedFiles()
    files.may_go.set()
    repo = JsonlSessionRepo(tmp_path, durability="power", file_ops=files)

    async def first() -> Session:
        session = await repo.create(id="s1")
        files.started.clear()
        files.may_go.clear()
        asyncio.create_task(session.append_entry(message("e0"), "main"))  # noqa: RUF006 - the loop's end cancels it
        await started(files)
        return session

    async def second(session: Session) -> None:
        entry = await session.append_entry(message("e1"), "main")
        assert (entry.seq, entry.parent_id) == (2, "e0")
        await session.close()

    session = asyncio.run(first())
    files.may_go.set()
    asyncio.run(second(session))

    async def third() -> None:
        async with await repo.open("s1") as again:
            assert [item.seq for item in await again.get_log()] == [1, 2]

    asyncio.run(third())


# Faults -----------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_failed_write_faults_the_opening_and_the_next_one_reads_what_is_there(
    tmp_path: Path, durability: str
) -> None:
    files = FaultyFiles(fail_write=3)
    session = await JsonlSessionRepo(tmp_path, durability=durability, file_ops=files).create(id="s1")
    await session.append_entry(message("e1"), "main")
    announced: list[str] = []
    with pytest.raises(StorageError, match="outcome is unknown"):
        await session.append_entry(message("e2"), "main", on_commit=lambda entry: announced.append(entry.id))
    with pytest.raises(StorageError):
        await session.append_entry(message("e3"), "main")
    with pytest.raises(StorageError):
        await session.set_name("x")
    assert (files.writes, files.truncates, announced) == (3, 0, [])
    assert [item.seq for item in await session.get_log()] == [1]
    await session.close()
    session = await JsonlSessionRepo(tmp_path).open("s1")
    assert [item.seq for item in await session.get_log()] == [1]
    assert (await session.append_entry(message("e2"), "main")).parent_id == "e1"
    await session.close()


async def test_a_failure_in_a_batch_keeps_what_came_before_it_and_drops_what_came_after(tmp_path: Path) -> None:
    files = FaultyFiles(fail_write=4)
    session = await JsonlSessionRepo(tmp_path, durability="power", file_ops=files).create(id="s1")
    results = await asyncio.gather(
        *(session.append_entry(message(f"e{number}"), "main") for number in range(5)), return_exceptions=True
    )
    assert [isinstance(result, StorageError) for result in results] == [False, False, True, True, True]
    assert files.writes == 4  # nothing was written after the failure
    assert files.syncs == 2  # what came before it is durable
    assert (await session.get_lanes())[0].leaf_id == "e1"
    await session.close()


async def test_a_short_write_is_cut_back_once(tmp_path: Path) -> None:
    files = FaultyFiles(short_write=3)
    session = await JsonlSessionRepo(tmp_path, file_ops=files).create(id="s1")
    await session.append_entry(message("e1"), "main")
    good = path_of(session).read_bytes()
    with pytest.raises(StorageError, match="cut back"):
        await session.append_entry(message("e2"), "main")
    assert path_of(session).read_bytes() == good
    assert files.truncates == 1
    with pytest.raises(StorageError):
        await session.append_entry(message("e3"), "main")
    await session.close()
    assert (files.writes, files.truncates) == (3, 1)
    session = await JsonlSessionRepo(tmp_path).open("s1")
    assert session.diagnostics == ()
    await session.close()


async def test_nothing_is_cut_back_after_a_failed_sync(tmp_path: Path) -> None:
    files = FaultyFiles(fail_sync=2)
    session = await JsonlSessionRepo(tmp_path, durability="power", file_ops=files).create(id="s1")
    results = await asyncio.gather(
        *(session.append_entry(message(f"e{number}"), "main") for number in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, StorageError) for result in results)
    assert await session.get_log() == []
    await session.close()
    assert (files.truncates, files.syncs) == (0, 2)
    session = await JsonlSessionRepo(tmp_path).open("s1")
    assert [item.seq for item in await session.get_log()] == [1, 2, 3]  # unknown turned out to be written
    await session.close()


async def test_a_full_disk_leaves_a_file_that_opens(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False, capture_output=True
    )
    if mounted.returncode:
        files: FileOps = FaultyFiles(short_write=12)  # no rights to mount: the same through the seam
    else:
        files = FileOps()
    try:
        session = await JsonlSessionRepo(small / "root", file_ops=files).create(id="s1")
        written = 0
        with pytest.raises(StorageError):
            for number in range(100):
                await session.append_entry(custom(f"e{number}", data="x" * 3000), "main")
                written += 1
        assert 5 < written < 30
        await session.close()
        session = await JsonlSessionRepo(small / "root").open("s1", read_only=True)
        assert len(await session.get_log()) == written
        assert session.diagnostics == ()
        await session.close()
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "-l", small], check=True)


async def test_a_file_replaced_or_written_by_others_takes_no_more_writes(tmp_path: Path) -> None:
    for number, spoil in enumerate((replace_file, append_to_file, remove_file)):
        session = await JsonlSessionRepo(tmp_path).create(id=f"s{number}")
        await session.append_entry(message("e1"), "main")
        path = path_of(session)
        spoil(path)
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(StorageError):
            await session.append_entry(message("e2"), "main")
        assert (path.read_bytes() if path.exists() else None) == before
        await session.close()


def replace_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def append_to_file(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


def remove_file(path: Path) -> None:
    path.unlink()


class NoMemory(FaultyFiles):
    """A failure that no disk gives."""

    def write(self, fd: int, data: bytes) -> int:
        if b"e1" in data:
            raise MemoryError("injected")
        return FaultyFiles.write(self, fd, data)


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_write_that_fails_for_no_reason_of_the_disk_is_a_fault_and_not_a_hang(
    durability: Durability, tmp_path: Path
) -> None:
    session = await JsonlSessionRepo(tmp_path, durability=durability, file_ops=NoMemory()).create(id="s1")
    results = await asyncio.wait_for(
        asyncio.gather(*(session.append_entry(message(f"e{n}"), "main") for n in range(3)), return_exceptions=True), 10
    )
    assert [type(result) for result in results] == [StorageError] * 3
    assert "MemoryError: injected" in str(results[1])
    with pytest.raises(StorageError):
        await session.set_name("x")
    await asyncio.wait_for(session.close(), 5)
    async with await JsonlSessionRepo(tmp_path).open("s1") as session:
        assert len(await session.get_log()) <= 1


FULL = """
import asyncio, resource, signal, sys
from session_backends import JsonlSessionRepo
from agent_harness.errors import StorageError

async def main():
    repo = JsonlSessionRepo(sys.argv[1])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # not one byte more
    session = await repo.open("s1")
    try:
        await session.set_name("x")
    except StorageError as error:
        print(error, file=sys.stderr)
    await session.close()
    await repo.delete("s1")
    print([found.id for found in await repo.list()])

asyncio.run(main())
"""


def test_on_a_full_disk_sessions_open_and_are_deleted(tmp_path: Path) -> None:
    """Deleting is the way out; the name of the owner in the lock file must not be in its way."""
    asyncio.run(create_closed(tmp_path))
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
    assert "_s1.jsonl: a write failed" in done.stderr


# Tails ------------------------------------------------------------------------


async def test_a_torn_tail_is_cut_by_a_writing_open_and_left_by_a_reading_one(tmp_path: Path) -> None:
    path = copy_of("damaged-torn-tail.jsonl", tmp_path)
    raw = path.read_bytes()
    before = path.stat()
    session = await JsonlSessionRepo(tmp_path).open(str(path), read_only=True)
    assert [found.bytes_dropped for found in session.diagnostics] == [118]
    await session.close()
    after = path.stat()
    assert path.read_bytes() == raw
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert os.listdir(tmp_path) == [path.name]
    session = await JsonlSessionRepo(tmp_path).open(str(path))
    assert [found.code for found in session.diagnostics] == ["torn_tail"]
    assert path.stat().st_size == 3317
    entry = await session.append_entry(message("next"), "main")
    assert (entry.seq, entry.parent_id) == (11, "a2")
    await session.close()
    session = await JsonlSessionRepo(tmp_path).open(str(path))
    assert session.diagnostics == ()
    assert path.read_bytes().startswith(raw[:3317])
    await session.close()


async def test_a_missing_newline_is_written_with_the_next_line(tmp_path: Path) -> None:
    path = copy_of("damaged-no-final-newline.jsonl", tmp_path)
    raw = path.read_bytes()
    files = FaultyFiles()
    session = await JsonlSessionRepo(tmp_path, file_ops=files).open(str(path))
    assert path.read_bytes() == raw
    await session.append_entry(message("next"), "main")
    assert files.writes == 1
    lines = path.read_bytes().split(b"\n")
    assert (lines[-1], len(lines)) == (b"", 14)
    assert b"\n".join(lines[:12]) == raw
    await session.close()


async def test_corruption_is_refused_and_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "--x--"
    folder.mkdir(parents=True)
    path = folder / "2026-01-01T00-00-00-000Z_s1.jsonl"
    header = b'{"kind":"header","version":4,"id":"s1","createdAt":1,"cwd":"/x"}\n'
    path.write_bytes(
        header + b'{"kind":"fact","fact":"name","na\n{"kind":"fact","seq":1,"fact":"name","name":"plan"}\n'
    )
    raw, before = path.read_bytes(), path.stat()
    repo = JsonlSessionRepo(tmp_path / "root")
    for read_only in (True, False):
        with pytest.raises(CorruptSession) as refused:
            await repo.open("s1", read_only=read_only)
        assert (refused.value.line, refused.value.offset) == (2, len(header))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (raw, before.st_mtime_ns)
    assert [found.id for found in await repo.list()] == ["s1"]
    await repo.delete("s1")  # and the claim was let go
    assert files_under(folder) == {}


async def test_a_file_that_is_no_session_is_never_written_to(tmp_path: Path) -> None:
    contents = {
        "empty.jsonl": (b"", CorruptSession),
        "nul.jsonl": (b"\0" * 413, CorruptSession),
        "text.jsonl": (b"hello\n", CorruptSession),
        "json.jsonl": (b'{"type":"turn"}\n', CorruptSession),
        "v1.jsonl": (b'{"type":"session","id":"a"}\n', UnsupportedFormat),
        "v2.jsonl": (b'{"type":"session","version":2,"id":"a"}\n', UnsupportedFormat),
        "v5.jsonl": (b'{"kind":"header","version":5,"id":"a","createdAt":1}\n', UnsupportedFormat),
        "torn.jsonl": (b'{"kind":"header","version":4,"id":"a","crea', CorruptSession),
    }  # fmt: skip
    repo = JsonlSessionRepo(tmp_path)
    for name, (content, expected) in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        for read_only in (True, False):
            with pytest.raises(expected) as refused:
                await repo.open(str(path), read_only=read_only)
            assert str(refused.value).startswith(f"{path}: ")
            assert str(refused.value).count(str(path)) == 1
            if isinstance(refused.value, CorruptSession):
                assert refused.value.line == 1
        assert path.read_bytes() == content
    assert set(files_under(tmp_path)) == set(contents)


# Names and listing ------------------------------------------------------------


async def test_the_layout_is_that_of_the_old_application(tmp_path: Path) -> None:
    class Clock:
        def now_ms(self) -> int:
            return 1_796_064_209_215

    repo = JsonlSessionRepo(tmp_path, clock=Clock())
    session = await repo.create(id="one-tool", cwd="/tmp/demo/garden", metadata={"app": "demo"})
    path = path_of(session)
    assert path == tmp_path / "--tmp-demo-garden--" / "2026-11-30T18-43-29-215Z_one-tool.jsonl"
    assert path.read_bytes() == (V4 / "run-one-tool.jsonl").read_bytes().split(b"\n")[0] + b"\n"
    await session.close()


async def test_working_directories_that_share_a_folder_are_told_apart(tmp_path: Path) -> None:
    repo = JsonlSessionRepo(tmp_path)
    for number, cwd in enumerate(("/srv/a/b", "/srv/a-b", "/srv/a:b")):
        await (await repo.create(id=f"s{number}", cwd=cwd)).close()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["--srv-a-b--"]
    for number, cwd in enumerate(("/srv/a/b", "/srv/a-b", "/srv/a:b")):
        assert [found.id for found in await repo.list(cwd=cwd)] == [f"s{number}"]


async def test_a_long_working_directory_gets_a_folder_all_the_same(tmp_path: Path) -> None:
    repo = JsonlSessionRepo(tmp_path)
    cwds = ["/" + "x" * 300, "/" + "x" * 299 + "y", "/" + "é" * 180]
    for number, cwd in enumerate(cwds):
        await (await repo.create(id=f"s{number}", cwd=cwd)).close()
        assert [found.id for found in await repo.list(cwd=cwd)] == [f"s{number}"]


async def test_listing_survives_whatever_lies_in_the_folders(tmp_path: Path) -> None:
    root = tmp_path / "root"
    repo = JsonlSessionRepo(root)
    good = await repo.create(id="good", cwd="/x")
    folder = path_of(good).parent
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(b'{"kind":"header","version":4,"id":"outside","createdAt":1}\n')
    os.mkfifo(folder / "fifo.jsonl")
    os.mkfifo(folder / "z_good2.jsonl")
    (folder / "nul.jsonl").write_bytes(b"\0" * 413)
    (folder / "turn.jsonl").write_bytes(b'{"type":"turn"}\n')
    (folder / "v5.jsonl").write_bytes(b'{"kind":"header","version":5,"id":"v5","createdAt":1}\n')
    (folder / "long.jsonl").write_bytes(
        b'{"kind":"header","version":4,"id":"long","createdAt":1,"cwd":"' + b"x" * 70_000
    )
    (folder / "folder.jsonl").mkdir()
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "loop.jsonl").symlink_to(folder / "loop.jsonl")
    (folder / "dangling.jsonl").symlink_to(tmp_path / "nothing")
    (folder / "notes.txt").write_text("hello")
    (root / "file").write_text("not a folder")
    (root / "loop").symlink_to(root / "loop")
    begin = time.monotonic()
    assert [found.id for found in await repo.list()] == ["good"]
    assert [found.id for found in await repo.list(cwd="/x")] == ["good"]
    assert time.monotonic() - begin < 1
    for missing in ("good2", "outside", "fifo", "long", "v5x"):
        with pytest.raises((SessionNotFound, CorruptSession, StorageError)):
            await repo.open(missing)
    for read_only in (True, False):
        with pytest.raises(CorruptSession) as refused:
            await repo.open(str(folder / "fifo.jsonl"), read_only=read_only)
        assert str(refused.value) == f"{folder / 'fifo.jsonl'}: not a regular file"
    await good.close()


async def test_listing_reads_headers_only(tmp_path: Path) -> None:
    repo = JsonlSessionRepo(tmp_path)
    session = await repo.create(id="s1")
    path = path_of(session)
    await session.close()
    with path.open("ab") as file:
        file.truncate(200 * 1024**3)  # sparse: reading it whole would end the test
    assert [found.id for found in await repo.list()] == ["s1"]


async def test_lists_come_newest_first_by_modification(tmp_path: Path) -> None:
    repo = JsonlSessionRepo(tmp_path)
    for number, session_id in enumerate(("a", "b", "c")):
        session = await repo.create(id=session_id)
        os.utime(path_of(session), ns=(0, (5 - (number % 2)) * 10**9))
        await session.close()
    assert [found.id for found in await repo.list()] == ["c", "a", "b"]
    assert [found.modified_at for found in await repo.list()] == [5000, 5000, 4000]


async def test_bad_ids_reach_no_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    repo = JsonlSessionRepo(root)
    bad_ids = ["../../x", "a\0b.jsonl", "x\n", "a.jsonl\n", "", "..", "a" * 300]
    for bad in bad_ids:
        with pytest.raises(InvalidSessionId):
            await repo.open(bad)
        with pytest.raises(InvalidSessionId):
            await repo.create(id=bad)
        with pytest.raises(InvalidSessionId):
            await repo.delete(bad)
    assert os.listdir(tmp_path) == []


async def test_a_header_cannot_smuggle_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "--x--"
    folder.mkdir()
    (folder / "1_evil.jsonl").write_bytes(b'{"kind":"header","version":4,"id":"../../evil","createdAt":1}\n')
    repo = JsonlSessionRepo(tmp_path)
    assert await repo.list() == []
    with pytest.raises(CorruptSession):
        await repo.open("evil")


async def test_a_session_is_found_by_its_header_whatever_its_file_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "--x--"
    folder.mkdir()
    copy_of("run-one-tool.jsonl", folder)
    async with await JsonlSessionRepo(tmp_path).open("one-tool") as session:
        assert path_of(session) == folder / "run-one-tool.jsonl"
        assert len(await session.get_log()) == 11


async def test_a_header_larger_than_listings_read_is_refused(tmp_path: Path) -> None:
    from agent_harness.errors import InvalidPayload

    with pytest.raises(InvalidPayload, match="header"):
        await JsonlSessionRepo(tmp_path).create(id="s1", metadata={"x": "y" * 70_000})
    assert await JsonlSessionRepo(tmp_path).list() == []


# Claims -----------------------------------------------------------------------


async def test_the_refused_one_is_told_who_holds_the_session(tmp_path: Path) -> None:
    session = await JsonlSessionRepo(tmp_path).create(id="s1")
    with pytest.raises(SessionLocked) as refused:
        await JsonlSessionRepo(tmp_path).open("s1")
    assert f"pid {os.getpid()}" in refused.value.owner
    assert os.uname().nodename in refused.value.owner
    assert "since" in refused.value.owner
    await session.close()


HOLDER = """
import asyncio, sys
from session_backends import JsonlSessionRepo
from session_backends.conformance.samples import message

async def main():
    session = await JsonlSessionRepo(sys.argv[1]).open("s1")
    await session.append_entry(message("from-holder"), "main")
    print("ready", flush=True)
    sys.stdin.readline()
    await session.close()
    print("closed", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds session s1."""
    asyncio.run(create_closed(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


async def create_closed(root: Path) -> None:
    await (await JsonlSessionRepo(root).create(id="s1")).close()


def test_another_process_holds_the_session_until_it_dies(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    async def check() -> None:
        repo = JsonlSessionRepo(tmp_path)
        with pytest.raises(SessionLocked) as refused:
            await repo.open("s1")
        assert f"pid {holder.pid}" in refused.value.owner
        with pytest.raises(SessionLocked):
            await repo.delete("s1")
        async with await repo.open("s1", read_only=True) as reader:
            assert [item.seq for item in await reader.get_log()] == [1]
        async with await repo.fork("s1", id="fork") as fork:  # the committed prefix of a session being written
            assert await fork.get_leaf_id() == "from-holder"
        copy = await repo.snapshot(tmp_path / "copy")
        async with await copy.open("s1") as copied:
            assert len(await copied.get_log()) == 1
        holder.kill()
        holder.wait()
        async with await repo.open("s1") as session:
            assert (await session.append_entry(message("mine"), "main")).parent_id == "from-holder"

    asyncio.run(check())


def test_a_waiting_open_gets_the_session_when_the_other_process_closes(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    async def check() -> None:
        waiting = asyncio.create_task(JsonlSessionRepo(tmp_path).open("s1", wait=20))
        await asyncio.sleep(0)
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        session = await waiting
        assert [item.seq for item in await session.get_log()] == [1]
        await session.close()

    asyncio.run(check())


async def test_a_lock_file_that_was_unlinked_or_replaced_does_not_let_two_in(tmp_path: Path) -> None:
    repo = JsonlSessionRepo(tmp_path)
    session = await repo.create(id="s1")
    side = path_of(session).with_name(f".{path_of(session).name}.lock")
    assert side.exists()
    await session.close()
    assert side.exists()  # left after close, so that nobody waits on an unlinked one
    await repo.delete("s1")
    assert not side.exists()
    session = await repo.create(id="s1")
    with pytest.raises(SessionLocked):
        await repo.open("s1")
    await session.close()


RACER = """
import os, sys
from pathlib import Path
from agent_harness.errors import SessionLocked
from agent_harness.types.clock import SystemWallClock
from session_backends.jsonl.locks import acquire

root = Path(sys.argv[1])
held = 0
while held < 400:
    try:
        lock = acquire(root / "s.jsonl", "s", SystemWallClock())
    except SessionLocked:
        continue
    os.close(os.open(root / "inside", os.O_CREAT | os.O_EXCL))
    os.unlink(root / "inside")
    lock.release(remove=True)
    held += 1
"""


def test_a_lock_file_unlinked_under_a_waiting_process_never_lets_two_in(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]


async def test_a_file_replaced_between_opening_and_locking_is_opened_again(tmp_path: Path) -> None:
    """As another process's conversion does it: the claim must be on the file that stands there now."""
    path = copy_of("run-one-tool.jsonl", tmp_path)

    class ReplacingClock:
        replaced = 0

        def now_ms(self) -> int:  # asked when the lock is taken, for the owner's line
            if not self.replaced:
                self.replaced += 1
                newer = copy_of("idle-all-kinds.jsonl", tmp_path)
                newer.replace(path)
            return 1

    clock = ReplacingClock()
    session = await JsonlSessionRepo(tmp_path, clock=clock).open(str(path))
    assert clock.replaced == 1
    assert session.id == "idle-data"
    assert (await session.append_entry(message("next"), "main")).seq == 21
    await session.close()


async def test_a_file_deleted_between_opening_and_locking_is_gone(tmp_path: Path) -> None:
    path = copy_of("run-one-tool.jsonl", tmp_path)

    class DeletingClock:
        def now_ms(self) -> int:
            path.unlink(missing_ok=True)
            return 1

    with pytest.raises(SessionNotFound):
        await JsonlSessionRepo(tmp_path, clock=DeletingClock()).open(str(path))
    assert os.listdir(tmp_path) == []


FORKED = """
import asyncio, os, sys
from agent_harness.errors import SessionClosed
from session_backends import JsonlSessionRepo
from session_backends.conformance.samples import custom

async def in_child(session):
    try:
        await session.append_entry(custom("child"), "main")
    except SessionClosed:
        await session.close()
        return 0
    return 2

loop = asyncio.new_event_loop()
session = loop.run_until_complete(JsonlSessionRepo(sys.argv[1]).create(id="s1"))
loop.run_until_complete(session.append_entry(custom("e1"), "main"))
if (child := os.fork()) == 0:
    os._exit(asyncio.run(in_child(session)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
sys.stdin.readline()
loop.run_until_complete(session.append_entry(custom("e2"), "main"))
loop.run_until_complete(session.close())
"""


async def test_a_forked_child_cannot_write_and_does_not_free_the_claim(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert await asyncio.wait_for(asyncio.to_thread(parent.stdout.readline), 60) == "0\n"
            with pytest.raises(SessionLocked):
                await JsonlSessionRepo(tmp_path).open("s1")
            await asyncio.to_thread(parent.communicate, "\n", timeout=60)
        finally:
            parent.kill()
    assert parent.returncode == 0
    async with await JsonlSessionRepo(tmp_path).open("s1", read_only=True) as session:
        assert [entry.id for entry in await session.find_entries(order="oldestFirst")] == ["e1", "e2"]


KILLED = """
import asyncio, sys
from session_backends import JsonlSessionRepo
from session_backends.conformance.samples import custom

async def main():
    session = await JsonlSessionRepo(sys.argv[1]).open("s1")
    number = len(await session.get_log())
    while True:
        entry = await session.append_entry(custom(f"e{number}", data="x" * 200), "main")
        number += 1
        sys.stdout.write(f"{entry.seq}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


def test_no_acknowledged_write_is_lost_to_a_kill(tmp_path: Path) -> None:
    asyncio.run(create_closed(tmp_path))
    for round_number in range(8):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(3 + 17 * round_number):
            process.stdout.readline()
        process.kill()
        rest, _ = process.communicate()
        acknowledged = [int(line) for line in rest.split("\n")[:-1]]

        async def check() -> int:
            async with await JsonlSessionRepo(tmp_path).open("s1") as session:
                log = await session.get_log()
                assert [item.seq for item in log] == list(range(1, len(log) + 1))
                return len(log)

        assert asyncio.run(check()) >= (acknowledged[-1] if acknowledged else 3 + 17 * round_number)


FORGETFUL = """
import asyncio, sys
from session_backends import JsonlSessionRepo
from session_backends.conformance.samples import message

async def main():
    session = await JsonlSessionRepo(sys.argv[1], durability=sys.argv[2]).create(id="s1")
    for number in range(10):
        await session.append_entry(message(f"e{number}"), "main")

asyncio.run(main())
"""


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_forgotten_close_neither_hangs_nor_loses_a_write(tmp_path: Path, durability: str) -> None:
    subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(tmp_path), durability], check=True, timeout=20, capture_output=True
    )

    async def check() -> None:
        async with await JsonlSessionRepo(tmp_path).open("s1") as session:
            assert len(await session.get_log()) == 10

    asyncio.run(check())


CREATOR = """
import asyncio, sys
from agent_harness.errors import SessionExists, SessionLocked
from session_backends import JsonlSessionRepo

async def main():
    try:
        session = await JsonlSessionRepo(sys.argv[1]).create(id="same")
    except SessionExists:
        print("exists")
    else:
        print("created")
        await session.close()

asyncio.run(main())
"""


def test_processes_that_create_one_id_together_make_one_session(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", CREATOR, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    said = sorted(process.communicate(timeout=30)[0].strip() for process in processes)
    assert said == ["created"] + ["exists"] * 5
    assert len(list(tmp_path.glob("*/*_same.jsonl"))) == 1


# Modes, links, places ---------------------------------------------------------


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_every_file_is_private_under_any_umask(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "root"
    repo = JsonlSessionRepo(root)
    session = await repo.create(id="s1", cwd="/x")
    await session.append_entry(message("e1"), "main")
    await (await repo.fork(session, id="s2")).close()
    await session.close()
    await (await repo.open("s1")).close()
    await repo.snapshot(tmp_path / "copy")
    found = files_under(tmp_path)
    assert len(found) == 13
    for name, mode in found.items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), name


async def test_a_root_that_anybody_may_write_to_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(StorageError, match="chmod"):
        await JsonlSessionRepo(root).create(id="s1")
    root.chmod(0o755)
    await (await JsonlSessionRepo(root).create(id="s1")).close()


async def test_a_session_opened_through_a_link_is_one_file_with_one_lock(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    target = copy_of("run-one-tool.jsonl", real)
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    session = await JsonlSessionRepo(tmp_path).open(str(link))
    await session.append_entry(message("next"), "main")
    with pytest.raises(SessionLocked):
        await JsonlSessionRepo(tmp_path).open(str(target))
    await session.close()
    assert link.is_symlink()
    assert path_of(session) == target
    assert target.read_bytes().count(b"\n") == 13


async def test_a_file_with_two_names_is_only_read(tmp_path: Path) -> None:
    path = copy_of("run-one-tool.jsonl", tmp_path)
    os.link(path, tmp_path / "second.jsonl")
    with pytest.raises(CorruptSession, match="hard links"):
        await JsonlSessionRepo(tmp_path).open(str(path))
    async with await JsonlSessionRepo(tmp_path).open(str(path), read_only=True) as session:
        assert len(await session.get_log()) == 11


async def test_a_path_swapped_during_opening_is_not_followed(tmp_path: Path) -> None:
    """Whoever swaps the file for a link while it is opened does not get their target written to."""
    path = copy_of("run-one-tool.jsonl", tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes((V4 / "idle-empty.jsonl").read_bytes())
    before = victim.read_bytes()
    link = tmp_path / "planted"
    repo = JsonlSessionRepo(tmp_path)
    original = tmp_path / "original"
    path.rename(original)
    for _ in range(50):
        link.symlink_to(victim)
        original_link = asyncio.create_task(repo.open(str(path)))
        link.rename(path)
        result = (await asyncio.gather(original_link, return_exceptions=True))[0]
        if isinstance(result, Session):
            # Resolved first: the link was there, so it is the victim that was asked for.
            assert path_of(result) == victim
            await result.close()
        path.unlink()
    assert victim.read_bytes() == before


def test_a_read_only_folder_is_enough_to_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    asyncio.run(create_closed(root))
    code = """
import asyncio, os, sys
from session_backends import JsonlSessionRepo
from agent_harness.errors import StorageError

async def main():
    repo = JsonlSessionRepo(sys.argv[1])
    async with await repo.open("s1", read_only=True) as session:
        assert await session.get_log() == []
    assert [found.id for found in await repo.list()] == ["s1"]
    for call in (repo.open, repo.delete):
        try:
            await call("s1")
        except StorageError as error:
            print(error)

asyncio.run(asyncio.to_thread(int))  # what is imported late is imported while it still can be
if os.geteuid() == 0:
    os.setuid(65534)
asyncio.run(main())
"""
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:  # pytest's own, private until here; how many there are depends on its workers
        if not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(0o755)
    for path in (*root.rglob("*"), root):
        path.chmod(0o555 if path.is_dir() else 0o444)
    said = subprocess.run([sys.executable, "-c", code, str(root)], check=False, capture_output=True, text=True)
    assert said.stderr == ""
    [path] = root.rglob("*_s1.jsonl")
    assert said.stdout == f"{path}: Permission denied\n" * 2


async def test_a_new_file_cannot_be_made_to_follow_a_planted_link(tmp_path: Path) -> None:
    repo = JsonlSessionRepo(tmp_path)
    first = await repo.create(id="s1", cwd="/x")
    side = path_of(first).with_name(f".{path_of(first).name}.lock")
    await first.close()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    side.unlink()
    side.symlink_to(victim)
    with pytest.raises(StorageError):
        await repo.open("s1")
    assert victim.read_text() == "precious"


# Cost -------------------------------------------------------------------------


async def test_a_large_value_survives(tmp_path: Path) -> None:
    text = "x" * (8 * 1024 * 1024)
    async with await JsonlSessionRepo(tmp_path).create(id="s1") as session:
        await session.append_entry(custom("big", data=text), "main")
    async with await JsonlSessionRepo(tmp_path).open("s1") as session:
        entry = await session.get_entry("big")
        assert entry is not None
        assert isinstance(entry.body, CustomBody)
        assert entry.body.data == text


async def test_the_largest_value_that_is_accepted_is_read_back(tmp_path: Path) -> None:
    async with await JsonlSessionRepo(tmp_path).create(id="s1") as session:
        room = 64 * 1024 * 1024 - len('{"id":"e","type":"custom","customType":"kit.note","data":""}')
        entry = await session.append_entry(custom("e", data="x" * room), "main")
    async with await JsonlSessionRepo(tmp_path).open("s1") as session:
        assert await session.get_entry("e") == entry
