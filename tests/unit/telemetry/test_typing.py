"""The vocabulary is enforced by the type checkers, so that they are what is tested."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CASES = Path(__file__).with_name("typing_cases.py")


def mypy_error_lines(path: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--output", "json", "--no-error-summary", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {error["line"] for error in found if error["severity"] == "error"}


def basedpyright_error_lines(path: Path) -> set[int]:
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {error["range"]["start"]["line"] + 1 for error in found if error["severity"] == "error"}


CHECKERS = [mypy_error_lines, basedpyright_error_lines]


@pytest.mark.parametrize("error_lines", CHECKERS)
def test_the_checker_rejects_each_wrong_use_and_nothing_else(error_lines: Callable[[Path], set[int]]) -> None:
    lines = error_lines(CASES)
    outside = set(lines)
    unrejected: list[str] = []
    rejected = 0
    for node in ast.parse(CASES.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("reject_"):
            inside = {line for line in lines if node.lineno <= line <= (node.end_lineno or node.lineno)}
            outside -= inside
            rejected += bool(inside)
            if not inside:
                unrejected.append(node.name)
    assert unrejected == []
    assert outside == set()
    assert rejected >= 25
