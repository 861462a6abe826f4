"""docs/telemetry-schema.md is generated, and a stale one is noticed."""

import subprocess
import sys
from pathlib import Path

from agent_harness.telemetry import AGENT_TELEMETRY_SCHEMAS

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "generate_telemetry_docs.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_reference_in_docs_is_fresh() -> None:
    done = run("--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_reference_fails_the_check_and_is_left_alone(tmp_path: Path) -> None:
    stale = tmp_path / "telemetry-schema.md"
    stale.write_text("old\n", encoding="utf-8")
    done = run("--check", "--output", str(stale))
    assert (done.returncode, stale.read_text(encoding="utf-8")) == (1, "old\n")
    assert "stale" in done.stderr
    assert run("--output", str(stale)).returncode == 0
    assert run("--check", "--output", str(stale)).returncode == 0


def test_the_reference_names_every_span_and_attribute() -> None:
    text = (ROOT / "docs" / "telemetry-schema.md").read_text(encoding="utf-8")
    for schema in AGENT_TELEMETRY_SCHEMAS:
        for name, span in schema["spans"].items():
            assert f"### `{name}`" in text
            for attribute in (*span["startAttributes"], *span["endAttributes"]):
                assert f"| `{attribute}` |" in text
