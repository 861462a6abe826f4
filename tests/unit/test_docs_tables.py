"""The tables of docs/concepts are drawn from the code, and a stale one is noticed."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate_docs_tables.py"
CONCEPTS = ROOT / "docs" / "concepts"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_tables_are_fresh() -> None:
    done = run("--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_table_fails_the_check_and_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "concepts"
    shutil.copytree(CONCEPTS, folder)
    page = folder / "records.md"
    fresh = page.read_text(encoding="utf-8")
    stale = fresh.replace("`step_attempt`", "`attempt`")
    assert stale != fresh
    page.write_text(stale, encoding="utf-8")
    done = run("--check", "--folder", str(folder))
    assert (done.returncode, page.read_text(encoding="utf-8")) == (1, stale)
    assert "records.md" in done.stderr
    assert run("--folder", str(folder)).returncode == 0
    assert page.read_text(encoding="utf-8") == fresh


def test_a_marker_without_a_table_and_a_table_without_a_page_are_errors(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- table: nothing -->\n<!-- end -->\n", encoding="utf-8")
    done = run("--folder", str(tmp_path))
    assert (done.returncode, "nothing" in done.stderr) == (2, True)
    (tmp_path / "page.md").write_text("<!-- table: hooks -->\n<!-- end -->\n", encoding="utf-8")
    done = run("--folder", str(tmp_path))
    assert (done.returncode, "records" in done.stderr) == (2, True)
