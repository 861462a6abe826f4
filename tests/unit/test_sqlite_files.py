"""The file: private, ours or refused, on a file system WAL can trust, created once by many (T7, T24, cases 22, 28)."""

import hashlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from sqlite_support import Child, CountingIds, TickingClock, database_of, look, user

from agent_harness.errors import CorruptSession, SessionNotFound, UnsupportedFormat
from session_backends.doctor import examine
from session_backends.sqlite import SqliteSessionRepo, UnsuitableFilesystem, schema, sqlite_warning
from session_backends.sqlite.files import mounted_type


async def make(path: Path, session_id: str = "s") -> None:
    repo = SqliteSessionRepo(path, clock=TickingClock(), id_generator=CountingIds())
    async with await repo.create(id=session_id) as session:
        await session.append_entry(user("a"), "main")
    await repo.close()


async def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        repo = SqliteSessionRepo(tmp_path / "deep" / "er" / "s.db")
        async with await repo.create(id="s") as session:
            await session.append_entry(user("a"), "main")
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep").rglob("*")}
            folder = stat.S_IMODE((tmp_path / "deep").stat().st_mode)
            (tmp_path / "copy").mkdir(mode=0o700)
            await repo.snapshot(tmp_path / "copy")
        await repo.close()
    finally:
        os.umask(before)
    assert folder == 0o700
    assert found == {"er": 0o700, "s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "copy" / "s.db").stat().st_mode) == 0o600


async def test_a_folder_whose_name_is_no_utf_8_holds_a_store_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"r\xe9sum\xe9 %41?#") / "s.db"
    await make(path)
    repo = SqliteSessionRepo(path)
    assert [found.id for found in await repo.list()] == ["s"]
    async with await repo.open("s") as session:
        await session.append_entry(user("b"), "main")
    await repo.close()
    assert os.listdir(path.parent) == ["s.db"]
    assert examine(path, filesystem_type=lambda _: "ext4", sqlite_version=(3, 51, 3)) == []


async def test_reading_an_absent_store_creates_nothing(tmp_path: Path) -> None:
    repo = SqliteSessionRepo(tmp_path / "no" / "s.db")
    assert await repo.list() == []
    for read_only in (True, False):
        with pytest.raises(SessionNotFound):
            await repo.open("s", read_only=read_only)
    with pytest.raises(SessionNotFound):
        await repo.delete("s")
    await repo.close()
    assert list(tmp_path.iterdir()) == []


async def test_reading_an_existing_store_leaves_its_file_untouched(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await make(path)
    before = (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns)
    repo = SqliteSessionRepo(path)
    assert [found.id for found in await repo.list()] == ["s"]
    async with await repo.open("s", read_only=True) as session:
        assert len(await session.get_log()) == 1
        assert await session.verify() == []
        assert database_of(session)._writer is None  # nothing that could write was even started
    await repo.close()
    assert (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) == before


async def test_an_empty_file_is_a_store_without_sessions_until_one_is_created(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.touch()
    repo = SqliteSessionRepo(path)
    assert await repo.list() == []
    with pytest.raises(SessionNotFound):
        await repo.open("s")
    assert path.stat().st_size == 0
    async with await repo.create(id="s"):
        assert [found.id for found in await repo.list()] == ["s"]
    await repo.close()


def foreign(path: Path, kind: str) -> None:
    if kind == "text":
        path.write_text("dear diary, this is no database at all\n" * 300)
        return
    if kind == "noise":
        path.write_bytes(b"\x00\xff" * 9000)
        return
    conn = sqlite3.connect(path, isolation_level=None)
    if kind == "wal of another program":
        conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("CREATE TABLE theirs (x)")
    conn.execute("INSERT INTO theirs VALUES (1)")
    if kind == "another application":
        conn.execute("PRAGMA application_id = 1234")
    if kind == "our mark, their tables":
        conn.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        conn.execute("PRAGMA user_version = 1")
    conn.close()


FOREIGN = [
    "text",
    "noise",
    "another program",
    "another application",
    "wal of another program",
    "our mark, their tables",
]


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_file_that_is_not_ours_is_refused_and_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s.db"
    foreign(path, kind)
    digest, listing = hashlib.sha256(path.read_bytes()).digest(), sorted(os.listdir(tmp_path))
    repo = SqliteSessionRepo(path)
    for call in (
        repo.list,
        lambda: repo.create(id="s"),
        lambda: repo.open("s"),
        lambda: repo.open("s", read_only=True),
    ):
        with pytest.raises(CorruptSession):
            await call()
    await repo.close()
    assert hashlib.sha256(path.read_bytes()).digest() == digest
    assert sorted(os.listdir(tmp_path)) == listing


@pytest.mark.parametrize(
    "crafted",
    [
        "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
        "CREATE VIEW v AS SELECT * FROM entries",
        "CREATE TABLE extra (x)",
        "CREATE INDEX more ON entries (timestamp)",
        "DROP INDEX entries_type",
        "ALTER TABLE sessions ADD COLUMN more",
    ],
)
async def test_a_database_of_ours_that_somebody_reshaped_is_refused(tmp_path: Path, crafted: str) -> None:
    path = tmp_path / "s.db"
    await make(path)
    with look(path) as conn:
        conn.execute(crafted)
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    digest = hashlib.sha256(path.read_bytes()).digest()
    repo = SqliteSessionRepo(path)
    for call in (repo.list, lambda: repo.create(id="t"), lambda: repo.open("s")):
        with pytest.raises(CorruptSession, match="triggers or views"):
            await call()
    await repo.close()
    assert hashlib.sha256(path.read_bytes()).digest() == digest


async def test_a_newer_version_is_opened_by_nobody_who_does_not_know_it(tmp_path: Path) -> None:
    await make(tmp_path / "s.db")
    with look(tmp_path / "s.db") as conn:
        conn.execute("PRAGMA user_version = 2")
    repo = SqliteSessionRepo(tmp_path / "s.db")
    for call in (repo.list, lambda: repo.create(id="t")):
        with pytest.raises(UnsupportedFormat, match="version 2"):
            await call()
    await repo.close()


async def test_a_folder_or_a_pipe_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        repo = SqliteSessionRepo(tmp_path / name)
        for call in (repo.list, lambda repo=repo: repo.create(id="s")):
            with pytest.raises(CorruptSession, match="not a regular file"):
                await call()


async def test_a_damaged_payload_is_reported_with_its_place_and_never_as_content(tmp_path: Path) -> None:
    await make(tmp_path / "s.db")
    with look(tmp_path / "s.db") as conn:
        conn.execute("UPDATE entries SET payload = ?", (b'{"id":"a","type":"message","message":"CANARY"}',))
    repo = SqliteSessionRepo(tmp_path / "s.db")
    async with await repo.open("s") as session:
        with pytest.raises(CorruptSession, match="sequence number 1") as caught:
            await session.get_entry("a")
        assert "CANARY" not in str(caught.value)
    await repo.close()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "virtiofs", "fuse.sshfs", "fuse"])
async def test_network_and_shared_file_systems_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db", filesystem_type=lambda path: kind)
    for call in (repo.list, lambda: repo.create(id="s"), lambda: repo.open("s", read_only=True)):
        with pytest.raises(UnsuitableFilesystem, match=kind):
            await call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseblk", None])
async def test_local_file_systems_are_not(tmp_path: Path, kind: str | None) -> None:
    repo = SqliteSessionRepo(tmp_path / "s.db", filesystem_type=lambda path: kind)
    async with await repo.create(id="s"):
        pass
    assert [found.id for found in await repo.list()] == ["s"]
    await repo.close()
    assert (tmp_path / "s.db").is_file()


def test_the_mount_of_a_path_is_found() -> None:
    assert mounted_type(Path("/proc/self/maps")) == "proc"
    assert mounted_type(Path("/")) not in (None, "proc")


@pytest.mark.parametrize(
    ("version", "warns"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_doctor_is_warned_of_libraries_with_the_wal_reset_bug(version: tuple[int, int, int], warns: bool) -> None:
    warning = sqlite_warning(version)
    assert (warning is not None) == warns
    assert warning is None or ".".join(map(str, version)) in warning


def test_the_library_version_is_logged_once(tmp_path: Path) -> None:
    script = """
    import logging, sqlite3
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    async def main():
        for name in ("one", "two"):
            repo = SqliteSessionRepo(Path(path) / name)
            await (await repo.create(id="s")).close()
            await repo.close()
    asyncio.run(main())
    print("level", logging.getLogger("session_backends").level)
    """
    with Child(script, tmp_path) as child:
        output = child.process.communicate(timeout=20)[0]
    assert output.count(f"SQLite library {sqlite3.sqlite_version}") == 1
    assert "level 0" in output.splitlines()  # NOTSET: the application decides what is logged


async def test_the_connections_have_the_safe_settings(tmp_path: Path) -> None:
    names = ("journal_mode", "synchronous", "trusted_schema", "cell_size_check", "mmap_size", "journal_size_limit")

    def settings(conn: sqlite3.Connection) -> dict[str, object]:
        return {name: conn.execute(f"PRAGMA {name}").fetchone()[0] for name in (*names, "query_only")}

    for durability, level in (("process", 1), ("power", 2)):
        repo = SqliteSessionRepo(tmp_path / f"{durability}.db", durability=durability)
        async with await repo.create(id="s") as session:
            database = database_of(session)
            writing = await database.write(settings, durability=durability)
            reading = await database.read(settings)
        await repo.close()
        assert writing == {
            "journal_mode": "wal", "synchronous": level, "trusted_schema": 0, "cell_size_check": 1, "mmap_size": 0,
            "journal_size_limit": 4194304, "query_only": 0,
        }  # fmt: skip
        assert (reading["query_only"], reading["trusted_schema"], reading["mmap_size"]) == (1, 0, 0)


def test_eight_processes_that_open_a_new_file_together_all_succeed(tmp_path: Path) -> None:
    script = """
    async def main():
        repo = SqliteSessionRepo(path)
        say("ready")
        hear()
        session = await repo.create(id=sys.argv[2])
        for n in range(5):
            await session.append_custom_entry("n", n)
        await session.close()
        await repo.close()
        say("done")
    asyncio.run(main())
    """
    for attempt in range(3):
        path = tmp_path / f"new{attempt}" / "s.db"
        children = [Child(script, path, f"s{n}") for n in range(8)]
        try:
            for child in children:
                assert child.hear() == "ready"
            for child in children:
                child.say("go")
            for child in children:
                assert child.hear() == "done"
                assert child.end() == 0
        finally:
            for child in children:
                child.process.kill()
                child.process.communicate()
        with look(path) as conn:
            assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert conn.execute("SELECT count(*) FROM sessions").fetchone() == (8,)
            assert conn.execute("SELECT count(*) FROM entries").fetchone() == (40,)
            assert schema.objects(conn) == schema.expected_objects()


async def test_a_store_whose_maker_died_before_the_switch_to_wal_is_finished_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.touch(mode=0o600)
    with look(path) as conn:
        conn.execute("BEGIN")
        schema.create(conn)
        conn.execute("COMMIT")
        assert conn.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    repo = SqliteSessionRepo(path)
    assert await repo.list() == []
    async with await repo.create(id="s"):
        with look(path) as conn:
            assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await repo.close()
