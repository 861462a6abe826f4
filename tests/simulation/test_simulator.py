"""Seeded schedules over the real harness on every backend; a failing seed is named and reproduces alone."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent_harness.testing.simulator import Plan, Report, Simulation
from session_backends.faults import Faults, FaultyRepo
from tests.support.backends import make_repo

CHUNK = 50
SEEDS = int(os.environ.get("SIMULATE_SEEDS", "2000"))
FIRST = int(os.environ.get("SIMULATE_FIRST", "0"))
# Most of the schedules run where they are cheapest; every backend gets its share.
SHARES = {"memory": 0.7, "jsonl": 0.2, "sqlite": 0.1}


def chunks() -> list[tuple[str, int]]:
    found = []
    for backend, share in SHARES.items():
        found += [(backend, start) for start in range(FIRST, FIRST + max(CHUNK, int(SEEDS * share)), CHUNK)]
    return found


async def run_seed(
    backend: str, seed: int, directory: Path, delay: Callable[[], Awaitable[None]] | None = None
) -> Report:
    """One schedule; every third one also has writes that fail, before or after their commit."""
    directory.mkdir()
    faults = Faults(delay=delay)

    def break_next_write(chooser: random.Random | None) -> None:
        faults.at = None
        if chooser is not None:
            faults.kind = chooser.choice(["before", "after"])
            faults.at = faults.writes + chooser.randint(1, 5)

    plan = Plan(lanes=1 + seed % 3, fault=2 if seed % 3 == 0 else 0)
    simulation = Simulation(
        seed, lambda path: FaultyRepo(make_repo(backend, path), faults), directory, plan, break_next_write
    )
    return await simulation.run()


@pytest.mark.parametrize(("backend", "start"), chunks(), ids=str)
async def test_schedules_keep_every_invariant(backend: str, start: int, tmp_path: Path) -> None:
    writes = 0
    for seed in range(start, start + CHUNK):
        writes += (await run_seed(backend, seed, tmp_path / str(seed))).writes
    assert writes > CHUNK  # the schedules did something


async def thirty_turns() -> None:
    """A storage that takes its time."""
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(24))
async def test_a_seed_plays_the_same_schedule_everywhere(seed: int, tmp_path: Path) -> None:
    """No move may depend on how long a write takes, or a failing seed does not reproduce."""
    async with asyncio.timeout(60):
        reports = [await run_seed(backend, seed, tmp_path / backend) for backend in SHARES]
        reports += [await run_seed("memory", seed, tmp_path / "slow", thirty_turns)]
        reports += [await run_seed("sqlite", seed, tmp_path / "again")]
    assert all(report == reports[0] for report in reports)
