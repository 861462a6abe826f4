"""A wrong handler or listener and a misspelt name are refused by the type checkers, so that they are what is tested."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from agent_harness.hooks.catalog import HookName
from tests.unit.telemetry.test_typing import CHECKERS

CASES = Path(__file__).with_name("hook_typing_cases.py")
FUNCTIONS = [node for node in ast.parse(CASES.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("error_lines", CHECKERS)
def test_the_checker_rejects_each_wrong_handler_and_nothing_else(error_lines: Callable[[Path], set[int]]) -> None:
    lines = error_lines(CASES)
    wrong = {node.name: node for node in FUNCTIONS if node.name.startswith("reject_")}
    inside = {
        name: {line for line in lines if node.lineno <= line <= (node.end_lineno or node.lineno)}
        for name, node in wrong.items()
    }
    assert [name for name, found in inside.items() if not found] == []
    assert lines - set().union(*inside.values()) == set()
    assert len(wrong) >= 20


def test_each_hook_has_a_handler_that_is_accepted() -> None:
    (accepted,) = [node for node in FUNCTIONS if node.name == "accept_a_handler_of_each_hook"]
    named = {
        n.args[0].value
        for n in ast.walk(accepted)
        if isinstance(n, ast.Call) and n.args and isinstance(n.args[0], ast.Constant)
    }
    assert named == set(get_args(HookName))
