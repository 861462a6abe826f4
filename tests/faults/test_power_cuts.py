"""Simulated power loss, thousands of cuts from recorded streams of writes and syncs (`tests/support/lossy_disk.py`).

What this shows: for the streams that our code gives to the operating system, at level `power` every acknowledged write
is found again whatever the disk lost of what was not synced, and at level `process` what is found is a prefix. What it
does not show: disks that lose what was synced, and file systems that break the model in lossy_disk.

A JSONL store is recorded through its injected file operations, SQLite through a VFS inside the library of the standard
`sqlite3` module, in a process of its own. Every cut is identified by its position in the stream and a printed seed.
"""

import asyncio
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agent_harness.errors import CorruptSession, SessionNotFound
from agent_harness.session.session import Session
from agent_harness.session.storage import EntryItem, LogItem
from agent_harness.testing import ManualClock
from session_backends import JsonlSessionRepo, SqliteSessionRepo
from session_backends.conformance.samples import CountingIds, custom, message
from session_backends.repairing import repair_file
from tests.support.lossy_disk import Acknowledged, Event, RecordingFiles, cuts, put

ROOT = Path(__file__).parents[2]
V3 = ROOT / "fixtures" / "v3"
SEED = int(os.environ.get("POWER_CUT_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)


@pytest.fixture(autouse=True)
def seed() -> int:
    """Printed, so that a failure can be had again with POWER_CUT_SEED."""
    print(f"POWER_CUT_SEED={SEED}")
    return SEED


def jsonl(root: Path, level: str = "process", files: RecordingFiles | None = None) -> JsonlSessionRepo:
    return JsonlSessionRepo(root, ManualClock(), CountingIds(), level, files)


async def write(session: Session, events: list[Event]) -> None:
    """One after the other, then in bursts that share a sync; each acknowledged write is noted in the stream."""

    def told(entry: object = None) -> None:
        events.append(Acknowledged(session.delivered_seq))

    for number in range(14):
        await session.append_entry(custom(f"e{number}", data="x" * (40 + 333 * (number % 6))), "main", on_commit=told)
        if number % 5 == 0:
            await session.set_name(f"name {number}")
            told()
    for burst in range(6):
        await asyncio.gather(
            *(
                session.append_entry(
                    custom(f"b{burst}-{number}", data="y" * (700 * (number % 3))), "main", on_commit=told
                )
                for number in range(7)
            )
        )


async def recorded_jsonl(root: Path, level: str) -> tuple[list[Event], list[LogItem]]:
    files = RecordingFiles(root)
    repo = jsonl(root, level, files)
    session = await repo.create(id="s1", cwd="/x")
    files.events.append(Acknowledged(0))
    await write(session, files.events)
    log = await session.get_log()
    await session.close()
    return files.events, log


async def opened_log(repo: JsonlSessionRepo, name: str) -> tuple[list[LogItem], CorruptSession | None]:
    """The log, or why the file was refused."""
    try:
        async with await repo.open(name) as session:
            return await session.get_log(), None
    except CorruptSession as refused:
        return [], refused


async def look_at_jsonl(folder: Path, full: list[LogItem], at_least: int, label: str) -> str:
    """Open what a cut left. Answers "prefix", "refused" or "absent", and fails on any wrong answer.

    At least `at_least` items must be there; a refusal must name a line behind them, and a repair bring them back.
    """
    repo = jsonl(folder)
    try:
        log, refused = await opened_log(repo, "s1")
    except SessionNotFound:
        assert at_least < 0, f"{label}: the session is gone"
        return "absent"
    if refused is None:
        assert log == full[: len(log)], label
        assert len(log) >= at_least, f"{label}: {at_least - len(log)} acknowledged writes are lost"
        return "prefix"
    assert refused.line is not None, label
    assert refused.line > at_least + 1, f"{label}: line {refused.line} was acknowledged"
    if refused.line > 1:
        [damaged] = folder.glob("*/*_s1.jsonl")
        repaired = repair_file(damaged, folder / "repaired.jsonl")
        assert repaired.items == refused.line - 2 >= at_least, label
        log, refused = await opened_log(repo, str(folder / "repaired.jsonl"))
        assert refused is None, label
        assert log == full[: repaired.items], label
    return "refused"


@pytest.mark.parametrize("level", ["power", "process"])
async def test_jsonl_survives_power_cuts_as_its_level_says(level: str, tmp_path: Path) -> None:
    events, full = await recorded_jsonl(tmp_path / "recorded", level)
    assert len(full) == 59
    outcomes: Counter[str] = Counter()
    for label, acknowledged, image in cuts(events, range(SEED, SEED + (14 if level == "power" else 6))):
        folder = tmp_path / "image"
        put(image, folder)
        folder.mkdir(exist_ok=True)
        promised = acknowledged if level == "power" else -1
        outcomes[await look_at_jsonl(folder, full, promised, f"{level}: {label}")] += 1
        shutil.rmtree(folder)
    print(level, dict(outcomes))
    assert outcomes.total() >= (2000 if level == "power" else 700)
    assert outcomes["prefix"] > outcomes.total() * (0.8 if level == "power" else 0.05)
    assert outcomes["refused"] > 0  # torn sectors were really among them


async def test_the_simulation_finds_a_missing_sync(tmp_path: Path) -> None:
    """Its teeth: what level `process` wrote does not keep the promise of level `power`."""
    events, full = await recorded_jsonl(tmp_path / "recorded", "process")
    lost = 0
    for label, acknowledged, image in cuts(events, [SEED]):
        folder = tmp_path / "image"
        put(image, folder)
        folder.mkdir(exist_ok=True)
        try:
            await look_at_jsonl(folder, full, acknowledged, label)
        except AssertionError:
            lost += 1
        shutil.rmtree(folder)
    assert lost > 10


async def test_a_power_cut_in_a_conversion_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """At both levels: a conversion replaces a file that somebody may have had for years."""
    name = "new-labels.jsonl"
    original = (V3 / name).read_bytes()
    for level in ("power", "process"):
        root = tmp_path / level
        root.mkdir()
        (root / name).write_bytes(original)
        files = RecordingFiles(root)
        repo = jsonl(root, level, files)
        async with await repo.open(str(root / name)) as session:
            before = await session.get_log()
            await session.append_entry(message("first-write"), "main")
            files.events.append(Acknowledged(1))
            after = await session.get_log()
        seen: set[int] = set()
        for label, acknowledged, image in cuts(files.events, range(SEED, SEED + 40)):
            folder = tmp_path / "image"
            # Where no new name survived, the old one still leads to the old file, which was never written to.
            put({name: original} | image, folder)
            found = 3 if (folder / name).read_bytes() == original else 4
            log, refused = await opened_log(jsonl(folder), str(folder / name))
            if refused is not None:  # the new file's last line, which nobody was promised
                assert (found, refused.line) == (4, len(after) + 1), label
                assert not (level == "power" and acknowledged >= 1), label
                log = after[:-1]
            if found == 3:
                assert log == before, label
                assert not (level == "power" and acknowledged >= 1), label
            else:
                # The adjustment of the conversion is in the new file from its first byte on.
                assert log == after[: len(log)], label
                assert len(log) >= len(after) - 1, label
                assert not (level == "power" and acknowledged >= 1 and len(log) < len(after)), label
            seen.add(found)
            shutil.rmtree(folder)
        assert seen == {3, 4}


# SQLite -------------------------------------------------------------------------


def recorded_sqlite(folder: Path, level: str, rounds: int, **environment: str) -> tuple[str, int, list[Event]]:
    """What the recording program said, how many operations it did, and what they were."""
    folder.mkdir(mode=0o700)
    out = folder.with_suffix(".recorded")
    said = subprocess.run(
        [sys.executable, "-m", "tests.support.recording_vfs", folder, level, out, str(rounds)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    operations, events = pickle.loads(out.read_bytes())
    return said.stdout.strip(), operations, events


async def look_at_sqlite(folder: Path, full: list[str], at_least: int, label: str) -> str:
    """Open what a cut left for writing: a sound database with a prefix of the history, or none at all yet."""
    if not (folder / "s.db").exists():
        assert at_least < 0, f"{label}: the database is gone"
        return "absent"
    repo = SqliteSessionRepo(folder / "s.db")
    try:
        async with await repo.open("s1") as session:
            log = await session.get_log()
            ids = [item.entry.id for item in log if isinstance(item, EntryItem)]
            assert ids == full[: len(ids)], label
            assert len(ids) == len(log), label
            assert len(ids) >= at_least, f"{label}: {at_least - len(ids)} acknowledged writes are lost"
            assert await session.get_leaf_id() == (ids[-1] if ids else None), label
            assert (await session.get_stats()).message_count == sum(one.startswith("b") for one in ids), label
        assert await repo.check_branches("s1"), label
        return "prefix"
    except SessionNotFound:
        assert at_least < 0, f"{label}: the session is gone"
        return "absent"
    finally:
        await repo.close()


def sqlite_history(rounds: int) -> list[str]:
    history: list[str] = []
    for number in range(rounds):
        history += [f"e{number}-{index}" for index in range(3)]
        history += [f"b{number}-{index}" for index in range(4)]
    return history


@pytest.mark.parametrize(("level", "part"), [("power", 0), ("power", 1), ("power", 2), ("process", 3), ("process", 4)])
async def test_sqlite_survives_power_cuts_as_its_level_says(level: str, part: int, tmp_path: Path) -> None:
    """Three parts of more than 670 cuts at level `power`, each with another seed."""
    said, _, events = recorded_sqlite(tmp_path / "recorded", level, 4)
    assert said == "done"
    outcomes: Counter[str] = Counter()
    for label, acknowledged, image in cuts(events, [SEED + part]):
        folder = tmp_path / "image"
        folder.mkdir(mode=0o700)
        put(image, folder)
        promised = acknowledged if level == "power" else -1
        outcomes[await look_at_sqlite(folder, sqlite_history(4), promised, f"{level}: {label}")] += 1
        shutil.rmtree(folder)
    print(level, dict(outcomes))
    assert outcomes.total() > (670 if level == "power" else 640)
    assert outcomes["prefix"] > outcomes.total() * 0.5
