"""Every Python block of README and docs runs as it is written, in a folder that is empty but for a model it names.

A block in another language runs where that is cheap; for the others a table says why not.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli_support import cli

from tests.unit.providers.tiny_gguf import write_tiny_model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]

PICTURE = "a picture, not code"
INCLUDED = "a file of its own, held by tests/examples"
NOT_RUN = {
    "pip install nox && nox -s demo": "installs; the demo runs in tests/e2e/test_cli_demo.py",
    "pip install nox && nox -s tests": "installs, and is what runs this test",
    "pip install .": "installs; the first line of every fresh environment",
    "pip install '.[cli,local]'  # in a clone": "installs; a model runs in tests/unit/providers/test_local.py",
    'agent-harness run "Fix the failing test" --model openai/gpt-5 --base-url https://api.openai.com/v1': (
        "needs an account; the same command asks a server of its own in tests/e2e/test_cli_run.py"
    ),
    "application ── prompt, steer, abort ──▶ lanes/surface ── line job ──▶ session ──▶ storage": PICTURE,
    "tree                                lanes": PICTURE,
    '--8<-- "examples/permission_gate.py"': INCLUDED,
    '--8<-- "examples/context_pruning.py"': INCLUDED,
    '--8<-- "examples/git_checkpoint.py"': INCLUDED,
    '--8<-- "examples/cost_budget.py"': INCLUDED,
    '--8<-- "examples/todo_list.py"': INCLUDED,
}
"""Blocks that are not Python and run nowhere here: first line -> why."""

IMPORT = "agent-harness sessions import old.jsonl"
ENTRY_POINT = '[project.entry-points."agent_harness.session_backends"]'
RUN = {IMPORT, ENTRY_POINT}
"""Blocks that are not Python and have a test below, by their first line."""


def fences(text: str) -> list[tuple[str, list[str]]]:
    """Every fenced block with its info string, read line by line: indented and tilde fences count too."""
    found: list[tuple[str, list[str]]] = []
    closing = ""
    for line in text.split("\n"):
        stripped = line.strip()
        if closing:
            if stripped.startswith(closing) and not stripped.strip(closing[0]):
                closing = ""
            else:
                found[-1][1].append(stripped)
        elif opened := re.match(r"(`{3,}|~{3,})(.*)", stripped):
            closing = opened[1]
            found.append((opened[2].strip(), []))
    assert not closing, "a fence without an end"
    return found


def is_python(info: str) -> bool:
    return info.split(" ", maxsplit=1)[0].strip("{}.").lower() in ("python", "python3", "pycon")


def unaccounted(blocks: list[tuple[str, list[str]]]) -> tuple[set[str], set[str]]:
    """First lines of blocks that nobody answers for, and answers for blocks that are not there."""
    first = {lines[0] if lines else "" for info, lines in blocks if not is_python(info)}
    answered = {*NOT_RUN, *RUN}
    return first - answered, answered - first


def all_fences() -> list[tuple[str, list[str]]]:
    return [block for page in PAGES for block in fences(page.read_text())]


def block_of(first: str) -> list[str]:
    [lines] = [lines for _, lines in all_fences() if lines[:1] == [first]]
    return lines


def test_the_readme_has_code() -> None:
    """Every block that calls itself Python is one that runs: none is lost to an indent or another spelling."""
    assert len(BLOCK.findall(PAGES[0].read_text())) >= 2
    for page in PAGES:
        text = page.read_text()
        expected = ["\n".join(lines) for info, lines in fences(text) if is_python(info)]
        found = ["\n".join(line.strip() for line in block.splitlines()) for block in BLOCK.findall(text)]
        assert found == expected, page
    assert len(BLOCKS) == sum(is_python(info) for info, _ in all_fences())


def test_every_other_block_runs_or_says_why_not() -> None:
    assert unaccounted(all_fences()) == (set(), set())
    assert not RUN & set(NOT_RUN)
    for named in re.findall(r"tests/[\w/.]+", " ".join(NOT_RUN.values())):
        assert (ROOT / named).exists(), named


def test_a_block_nobody_answers_for_is_found() -> None:
    text = "~~~ sh\nmake it so\n```\n~~~\n\n    ```python\n    x = 1\n    ```\n````\n```\n````\n"
    blocks = fences(text)
    assert blocks == [("sh", ["make it so", "```"]), ("python", ["x = 1"]), ("", ["```"])]
    assert [is_python(info) for info, _ in blocks] == [False, True, False]
    new, stale = unaccounted(blocks)
    assert (new, stale) == ({"make it so", "```"}, {*NOT_RUN, *RUN})


def test_every_included_example_is_there_with_its_test() -> None:
    names = [re.findall(r'"examples/(\w+)\.py"', first) for first, why in NOT_RUN.items() if why == INCLUDED]
    for [name] in names:
        assert (ROOT / "examples" / f"{name}.py").is_file()
        assert (ROOT / "tests" / "examples" / f"test_{name}.py").is_file()


def test_the_documented_import_runs(tmp_path: Path) -> None:
    shutil.copy(ROOT / "fixtures" / "v3" / "new-simple.jsonl", tmp_path / "old.jsonl")
    before = (tmp_path / "old.jsonl").read_bytes()
    [line] = block_of(IMPORT)
    program, *arguments = shlex.split(line)
    assert program == "agent-harness"
    done = cli(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in cli("sessions", "list", cwd=tmp_path).stdout
    assert (tmp_path / "old.jsonl").read_bytes() == before


def test_the_documented_entry_point_is_of_our_group() -> None:
    written = tomllib.loads("\n".join(block_of(ENTRY_POINT)))["project"]["entry-points"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(written) == set(ours)
    for named in written[next(iter(written))].values():
        assert re.fullmatch(r"[\w.]+:\w+", named)


@pytest.mark.parametrize("code", BLOCKS)
def test_a_documented_block_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(code)
    if "model.gguf" in code:
        write_tiny_model(tmp_path / "model.gguf", context=8192)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
