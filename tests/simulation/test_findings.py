"""What the simulator does when something is wrong: it names the seed, and says which promise was broken (A-15)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent_harness.harness import AgentHarness
from agent_harness.lanes import jobs
from agent_harness.lanes.surface import AgentLane
from agent_harness.session.session import Session
from agent_harness.testing import simulator
from agent_harness.testing.simulator import Plan, Simulation
from session_backends import MemorySessionRepo


def simulation(seed: int, directory: Path, plan: Plan | None = None) -> Simulation:
    return Simulation(seed, lambda _path: MemorySessionRepo(), directory, plan)


async def first_finding(directory: Path, seeds: int = 60) -> str:
    """What the first failing schedule says."""
    for seed in range(seeds):
        try:
            await simulation(seed, directory).run()
        except AssertionError as found:
            assert str(found).startswith(f"seed {seed}: ")
            return str(found)
    raise AssertionError(f"{seeds} schedules found nothing")


async def test_a_broken_promise_is_reported_with_its_seed_which_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("has_pending_work", "has_pending_input"):
        monkeypatch.setattr(jobs, name, lambda _operation: False)  # a run ends over what was queued
    found = await first_finding(tmp_path)
    assert "was accepted and is gone" in found
    seed = int(found.split()[1].rstrip(":"))
    with pytest.raises(AssertionError) as again:
        await simulation(seed, tmp_path).run()
    assert str(again.value) == found


async def test_a_schedule_without_a_durable_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is lowered, so that the reads of an ordinary schedule are too many already."""
    assert simulator.DRY_STEPS == 1_000
    monkeypatch.setattr(simulator, "DRY_STEPS", 1)
    assert (await first_finding(tmp_path)).endswith("1 actions without a durable write")


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda patch: patch.setattr(Session, "verify", _findings), "verify found"),
        (lambda patch: patch.setattr(AgentLane, "resume", _refuse), "could not be resumed"),
        (lambda patch: patch.setattr(AgentHarness, "lanes", _boom), "RuntimeError: boom"),
    ],
    ids=["verify", "resume", "an error"],
)
async def test_what_was_found_is_told(
    break_it: Callable[[pytest.MonkeyPatch], None], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert told in await first_finding(tmp_path)


async def _findings(_session: object) -> list[str]:
    return ["a broken rule"]


async def _refuse(_lane: object) -> str:
    return "refused"


async def _boom(_harness: object) -> None:
    raise RuntimeError("boom")


async def test_a_plan_leaves_out_the_moves_without_a_weight(tmp_path: Path) -> None:
    moves = dict.fromkeys(("queue", "cancel", "write", "settings", "abort", "crash", "compact", "navigate"), 0)
    report = await simulation(3, tmp_path, Plan(**moves)).run()
    assert set(report.moves) <= {"release", "prompt", "resume", "clock"}
    assert report.writes > 0
    assert report.crashes == 1  # the one before everything is recovered
