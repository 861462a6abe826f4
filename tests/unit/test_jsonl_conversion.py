"""Old files: read as they are, converted once by the first write, whole or not at all."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_harness.errors import CorruptSession, StorageError
from agent_harness.session.session import Session
from agent_harness.session.storage import RecordItem
from agent_harness.types.records import AdjustmentUsage
from session_backends import JsonlSessionRepo
from session_backends.conformance.busy import Answers, answers
from session_backends.conformance.samples import message
from session_backends.faults import FaultyFiles

V3 = Path(__file__).parents[2] / "fixtures" / "v3"
FILES = sorted(path for path in V3.glob("*.jsonl") if not path.name.startswith(("v1-linear.jsonl", "v2-tree.jsonl")))


def copy_of(name: str, folder: Path, session_id: str = "old") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"2026-01-01T00-00-00-000Z_{session_id}.jsonl"
    target.write_bytes((V3 / name).read_bytes())
    return target


async def told(session: Session) -> Answers:
    return await answers(session)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_the_first_write_converts_and_changes_no_answer(path: Path, tmp_path: Path) -> None:
    copy = copy_of(path.name, tmp_path / "root" / "--x--")
    copy.chmod(0o640)
    raw, before = copy.read_bytes(), copy.stat()
    repo = JsonlSessionRepo(tmp_path / "root")
    reader = await repo.open(str(copy), read_only=True)
    old = await told(reader)
    diagnostics = reader.diagnostics
    assert reader.metadata.source_format == 3
    await reader.close()
    # A writing open that writes nothing leaves the file alone, too.
    await (await repo.open(str(copy))).close()
    after = copy.stat()
    assert (copy.read_bytes(), after.st_mtime_ns, after.st_ino) == (raw, before.st_mtime_ns, before.st_ino)

    session = await repo.open(str(copy))
    assert await told(session) == old
    await session.set_name("converted")
    assert session.metadata.source_format == 4
    assert await session.get_stats() == old.stats
    await session.append_entry(message("new"), "main")
    await session.close()
    backup = copy.with_name(f"{copy.name}.v3.bak")
    assert backup.exists() == bool(diagnostics)
    if diagnostics:
        assert backup.read_bytes() == raw
        assert backup.stat().st_mode & 0o777 == 0o640
    assert copy.stat().st_mode & 0o777 == 0o640
    assert json.loads(copy.read_bytes().split(b"\n")[0])["version"] == 4

    session = await repo.open(str(copy))
    assert session.diagnostics == ()
    new = await told(session)
    seq = len(old.log)
    assert new.log[:seq] == old.log
    adjustment = new.log[seq]
    assert isinstance(adjustment, RecordItem)
    assert isinstance(adjustment.record.body, AdjustmentUsage)
    assert adjustment.record.body.details == {"source": "v3-import"}
    assert len(new.log) == seq + 3
    assert new.stats.usage == old.stats.usage
    assert new.stats.message_count == old.stats.message_count + 1
    assert new.labels == old.labels
    assert new.branches[0][1:] == old.branches[0]
    assert await session.verify() == []
    await session.set_name("again")
    await session.close()
    assert len(copy.read_bytes().split(b"\n")) == 1 + seq + 3 + 1 + 1


async def test_the_claim_holds_through_the_conversion(tmp_path: Path) -> None:
    """The lock is on a file that is never renamed."""
    from agent_harness.errors import SessionLocked

    copy = copy_of("new-simple.jsonl", tmp_path / "--x--")
    repo = JsonlSessionRepo(tmp_path)
    session = await repo.open(str(copy))
    inode = copy.stat().st_ino
    with pytest.raises(SessionLocked):
        await repo.open(str(copy))
    await session.set_name("x")
    assert copy.stat().st_ino != inode
    with pytest.raises(SessionLocked):
        await repo.open(str(copy))
    await session.close()
    await (await repo.open(str(copy))).close()


async def test_a_refused_write_converts_nothing(tmp_path: Path) -> None:
    from agent_harness.errors import UnknownLane

    copy = copy_of("new-simple.jsonl", tmp_path / "--x--")
    raw = copy.read_bytes()
    async with await JsonlSessionRepo(tmp_path).open(str(copy)) as session:
        with pytest.raises(UnknownLane):
            await session.append_entry(message("x"), "ghost")
        assert session.metadata.source_format == 3
    assert copy.read_bytes() == raw


async def test_the_adjustment_gets_an_id_that_the_old_file_does_not_use(tmp_path: Path) -> None:
    copy = copy_of("new-simple.jsonl", tmp_path / "--x--")
    repo = JsonlSessionRepo(tmp_path)
    async with await repo.open(str(copy), read_only=True) as reader:
        taken = [entry.id for entry in await reader.find_entries(order="oldestFirst")]

    class Ids:
        ids = iter([*taken, "free", "more"])

        def next(self) -> str:
            return next(self.ids)

    async with await JsonlSessionRepo(tmp_path, id_generator=Ids()).open(str(copy)) as session:
        await asyncio.wait_for(session.set_name("x"), 10)
        assert [record.id for record in await session.find_records()] == ["free"]


class FailingRename(FaultyFiles):
    def rename(self, source: Path, target: Path) -> None:
        raise OSError(28, "injected")


@pytest.mark.parametrize("files", [FaultyFiles(fail_write=1), FaultyFiles(fail_sync=1), FailingRename()])
async def test_a_conversion_that_fails_leaves_the_old_file(tmp_path: Path, files: FaultyFiles) -> None:
    copy = copy_of("new-simple.jsonl", tmp_path / "--x--")
    raw = copy.read_bytes()
    session = await JsonlSessionRepo(tmp_path, file_ops=files).open(str(copy))
    with pytest.raises(StorageError):
        await session.set_name("x")
    with pytest.raises(StorageError):
        await session.set_name("y")
    await session.close()
    assert copy.read_bytes() == raw
    assert sorted(os.listdir(copy.parent)) == [f".{copy.name}.lock", copy.name]
    async with await JsonlSessionRepo(tmp_path).open(str(copy)) as session:
        await session.set_name("x")
        assert session.metadata.source_format == 4


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from session_backends import JsonlSessionRepo
from session_backends.jsonl.files import FileOps

original, out, durability = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

class Killing(FileOps):
    def __init__(self, at, moment):
        self.left, self.moment = at, moment

    def step(self, call, half=None):
        self.left -= 1
        if self.left == 0 and self.moment != "after":
            if self.moment == "during" and half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        result = call()
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def write(self, fd, data):
        return self.step(lambda: os.write(fd, data), lambda: os.write(fd, data[: len(data) // 2]))

    def sync(self, fd):
        self.step(lambda: super(Killing, self).sync(fd))

    def sync_folder(self, folder):
        self.step(lambda: super(Killing, self).sync_folder(folder))

    def rename(self, source, target):
        self.step(lambda: super(Killing, self).rename(source, target))

async def convert(path, ops):
    session = await JsonlSessionRepo(path.parent.parent, durability=durability, file_ops=ops).open(str(path))
    await session.set_name("converted")
    await session.close()

for moment in ("before", "during", "after"):
    at, status = 0, signal.SIGKILL
    while status == signal.SIGKILL:
        at += 1
        path = out / f"{at} {moment}" / "--x--" / "1_old.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(original.read_bytes())
        child = os.fork()
        if child == 0:
            asyncio.run(convert(path, Killing(at, moment)))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
    print(moment, at - 1, status)
"""


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("name", ["new-labels.jsonl", "new-torn-tail.jsonl", "new-bad-interior.jsonl"])
async def test_a_conversion_killed_at_any_step_leaves_the_whole_old_file_or_the_whole_new_one(
    name: str, durability: str, tmp_path: Path
) -> None:
    """Before, in the midst of and after every write, sync and rename; counted until one comes through."""
    arguments = [V3 / name, tmp_path, durability]
    command = [sys.executable, "-c", KILLED, *map(str, arguments)]
    said = (await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=100)).split()
    raw = (V3 / name).read_bytes()
    damaged = name != "new-labels.jsonl"
    steps = (8 if damaged else 5) + (2 if durability == "power" else 0)
    assert said == [word for moment in ("before", "during", "after") for word in (moment, str(steps), "0")]
    whole = copy_of(name, tmp_path / "whole" / "--x--")
    async with await JsonlSessionRepo(tmp_path / "whole").open(str(whole), read_only=True) as reader:
        old = await told(reader)
    found: dict[str, int] = {"old": 0, "new": 0}
    for folder in sorted(tmp_path.glob("* *")):
        path, label = folder / "--x--" / "1_old.jsonl", folder.name
        is_old = path.read_bytes() == raw
        found["old" if is_old else "new"] += 1
        backup = path.with_name(f"{path.name}.v3.bak")
        assert not backup.exists() or backup.read_bytes() == raw, label
        repo = JsonlSessionRepo(folder)
        assert len(await repo.list()) == 1, label
        async with await repo.open(str(path)) as session:  # at once: the claim died with its owner
            assert session.metadata.source_format == (3 if is_old else 4), label
            log = await session.get_log()
            assert log[: len(old.log)] == old.log, label
            written = [item.kind for item in log[len(old.log) :]]
            assert written in ([[]] if is_old else [["record"], ["record", "fact"]]), label
            assert (await session.get_stats()).usage == old.stats.usage, label
            assert await session.verify() == [], label
            await session.set_name("again")
        async with await repo.open(str(path)) as session:
            assert len(await session.find_records()) == 1, label
            assert (await session.get_name(), await session.get_labels()) == ("again", old.labels), label
        if damaged:
            assert raw in [kept.read_bytes() for kept in path.parent.glob("*.v3.bak*")], label
    assert min(found.values()) >= 3


async def test_a_write_that_fails_after_the_conversion_leaves_a_converted_file(tmp_path: Path) -> None:
    copy = copy_of("new-simple.jsonl", tmp_path / "--x--")
    session = await JsonlSessionRepo(tmp_path, file_ops=FaultyFiles(fail_write=2)).open(str(copy))
    with pytest.raises(StorageError):
        await session.set_name("x")
    await session.close()
    async with await JsonlSessionRepo(tmp_path).open(str(copy)) as session:
        assert session.metadata.source_format == 4
        assert session.diagnostics == ()
        adjustments = await session.find_records(type="usage")
        assert len(adjustments) == 1
        await session.set_name("y")
        assert len(await session.find_records(type="usage")) == 1


async def test_nothing_planted_at_a_guessed_name_is_touched(tmp_path: Path) -> None:
    copy = copy_of("new-torn-tail.jsonl", tmp_path / "--x--")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (f"{copy.name}.tmp", f".{copy.name}.tmp", f"{copy.name}.v3.bak"):
        (copy.parent / name).symlink_to(victim)
    async with await JsonlSessionRepo(tmp_path).open(str(copy)) as session:
        assert session.diagnostics
        await session.set_name("x")
    assert victim.read_text() == "precious"
    kept = [path for path in copy.parent.glob("*.v3.bak.*") if not path.is_symlink()]
    assert [path.read_bytes() for path in kept] == [(V3 / "new-torn-tail.jsonl").read_bytes()]


async def test_a_converted_link_stays_a_link_to_the_one_file(tmp_path: Path) -> None:
    copy = copy_of("new-simple.jsonl", tmp_path / "real")
    link = tmp_path / "link.jsonl"
    link.symlink_to(copy)
    async with await JsonlSessionRepo(tmp_path).open(str(link)) as session:
        await session.set_name("x")
    assert link.is_symlink()
    assert b'"version":4' in copy.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["link.jsonl", "real"]


async def test_strict_refuses_damage_that_is_skipped_otherwise(tmp_path: Path) -> None:
    copy = copy_of("new-bad-interior.jsonl", tmp_path / "--x--")
    repo = JsonlSessionRepo(tmp_path)
    async with await repo.open(str(copy), read_only=True) as session:
        assert session.diagnostics
    with pytest.raises(CorruptSession) as refused:
        await repo.open(str(copy), read_only=True, strict=True)
    assert refused.value.line is not None
    assert str(copy) in str(refused.value)


async def test_old_sessions_are_listed_by_id_and_cwd(tmp_path: Path) -> None:
    header = json.loads((V3 / "new-simple.jsonl").read_bytes().split(b"\n")[0])
    copy = copy_of("new-simple.jsonl", tmp_path / "--x--", header["id"])
    copy_of("v1-linear.jsonl", tmp_path / "--x--", "v1")
    repo = JsonlSessionRepo(tmp_path)
    [found] = await repo.list()
    assert (found.id, found.cwd, found.source_format, found.path) == (header["id"], header["cwd"], 3, str(copy))
    async with await repo.open(header["id"], read_only=True) as session:
        assert session.metadata.source_format == 3


async def test_a_parent_is_resolved_to_its_id_inside_the_root_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    parent = copy_of("new-simple.jsonl", root / "--x--", "parent")
    parent_id = json.loads(parent.read_bytes().split(b"\n")[0])["id"]
    outside = copy_of("new-simple.jsonl", tmp_path / "elsewhere", "outside")
    os.mkfifo(root / "fifo")
    (root / "out.jsonl").symlink_to(outside)
    lines = (V3 / "new-user-only.jsonl").read_bytes().split(b"\n")
    header = json.loads(lines[0])
    cases = {
        str(parent): parent_id,
        f"{root}/--x--/../--x--/{parent.name}": parent_id,
        str(outside): None,
        f"{root}/../elsewhere/{outside.name}": None,
        str(root / "out.jsonl"): None,
        "/etc/passwd": None,
        "/dev/zero": None,
        str(root / "fifo"): None,
        str(root / "missing.jsonl"): None,
        "../../x": None,
        "a\0b": None,
    }
    repo = JsonlSessionRepo(root)
    for number, (named, expected) in enumerate(cases.items()):
        child = root / "--y--" / f"1_child{number}.jsonl"
        child.parent.mkdir(exist_ok=True)
        child.write_bytes(json.dumps(header | {"parentSession": named}).encode() + b"\n" + b"\n".join(lines[1:]))
        async with await repo.open(str(child)) as session:
            assert session.metadata.parent_session_id == expected
            assert session.metadata.legacy_parent_session_path == (None if expected else named)
            await session.set_name("converted")
        async with await repo.open(str(child)) as session:
            assert session.metadata.source_format == 4
            assert session.metadata.parent_session_id == expected
            assert session.metadata.legacy_parent_session_path == (None if expected else named)


async def test_a_fork_of_an_old_session_is_a_new_one(tmp_path: Path) -> None:
    copy = copy_of("new-branches.jsonl", tmp_path / "--x--")
    raw = copy.read_bytes()
    repo = JsonlSessionRepo(tmp_path)
    source = await repo.open(str(copy), read_only=True)
    async with await repo.fork(source, id="fork") as fork:
        assert await fork.get_leaf_id() == await source.get_leaf_id()
        assert fork.metadata.source_format == 4
        assert await fork.find_records() == []
    assert copy.read_bytes() == raw
    await source.close()
