"""Ten thousand runs in one process on SQLite: memory stays bounded, and after `close()` nothing is left of them.

They take two to four minutes; `LONG_PROCESS_RUNS` makes it another number, from 2,000.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = int(os.environ.get("LONG_PROCESS_RUNS", "10000"))
GROWTH_KIB = 6 * 1024
GROWTH_OBJECTS = 1_000  # a run that kept one object of its own would add thousands


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.long_process", str(tmp_path_factory.mktemp("long")), str(RUNS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110 * max(1, RUNS // 2000),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_every_run_was_completed_on_a_context_that_compaction_bounded(counted: dict[str, int]) -> None:
    assert counted["finished"] > RUNS - 1
    assert counted["largest"] < 120


def test_memory_does_not_grow_with_the_number_of_runs(counted: dict[str, dict[str, int]]) -> None:
    objects, memory = counted["objects"], counted["memory"]
    assert objects["late"] - objects["early"] < GROWTH_OBJECTS, objects
    assert memory["late"] - memory["early"] < GROWTH_KIB, memory


def test_no_task_thread_or_file_descriptor_is_left_after_close(counted: dict[str, dict[str, object]]) -> None:
    assert counted["after"] == counted["before"]
    assert counted["during"]["threads"] > len(counted["before"]["threads"])


def test_no_lock_is_held_after_close(counted: dict[str, object]) -> None:
    assert counted["locked"] is False
