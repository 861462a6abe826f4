"""Every Python block of README and docs runs as it is written, in a folder that is empty but for a model it names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.providers.tiny_gguf import write_tiny_model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]


def test_the_readme_has_code() -> None:
    assert len(BLOCKS) >= 2


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
