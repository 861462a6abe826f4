"""Each mutation of the catalogue is found: the tests named there fail on the mutated copy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.catalog import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_is_found(mutation: Mutation, tmp_path: Path) -> None:
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    target = copy / mutation.file
    text = target.read_text()
    assert text.count(mutation.before) == 1, "the mutated text must stand exactly once"
    target.write_text(text.replace(mutation.before, mutation.after))
    env = {**os.environ, "PYTHONPATH": str(copy), "SIMULATE_SEEDS": "300", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-o", "faulthandler_timeout=60", f"--basetemp={tmp_path / 'inner'}", *mutation.found_by),
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    report = done.stdout + done.stderr
    # 1: a test failed. A hang ends the run as well; anything else (no tests, an import error) found nothing.
    hung = "Timeout (" in report
    assert done.returncode == 1 or hung, f"exit {done.returncode}\n{report[-2000:]}"
    assert "ERROR collecting" not in report, report[-2000:]
    # A mutated line that does not run at all is found by anybody, and says nothing about the rule.
    assert not re.search(r"\b(NameError|AttributeError|SyntaxError|UnboundLocalError)\b", report), report[-2000:]


def test_there_are_at_least_twenty() -> None:
    assert len(MUTATIONS) >= 20
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
