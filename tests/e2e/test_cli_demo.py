"""`agent-harness demo`: killed with SIGKILL inside two tools, resumed by another process."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from cli_support import cli, tree


@pytest.fixture
def temporary(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return {"TMPDIR": str(folder)}


def test_the_demo_shows_what_was_and_what_was_not_repeated(tmp_path: Path, temporary: dict[str, str]) -> None:
    done = cli("demo", cwd=tmp_path, env=temporary)
    assert (done.returncode, done.stderr) == (0, "")
    out = done.stdout
    killed = out.index("killed with SIGKILL here")
    assert out.index("E result of edit") < killed < out.index("E result of run_checks: all checks pass")
    assert out.index("R tool_started publish (replay never)") < killed < out.index("E error of publish: The call was")
    assert "-    return a - b\n+    return a + b" in out
    assert "$ cat published.txt\nrelease 1.0\n" in out
    assert "edit        ran 1x" in out
    assert "run_checks  ran 2x" in out
    assert "publish     ran 1x" in out
    assert out.endswith("Verification of the whole log: no finding. Everything held.\n")
    assert tree(tmp_path) == {}


def test_the_demo_speaks_json_and_keeps_its_folder_when_asked(tmp_path: Path, temporary: dict[str, str]) -> None:
    done = cli("demo", "--json", "--keep", cwd=tmp_path, env=temporary)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["ok"], report["problems"], report["findings"]) == (True, [], [])
    assert report["effects"] == {"edit": 1, "run_checks": 2, "publish": 1}
    assert (report["repeated"], report["interrupted"]) == (["run_checks"], ["publish"])
    assert report["killed"]["signal"] == "SIGKILL"
    assert [item["seq"] for item in report["log"]] == list(range(1, len(report["log"]) + 1))
    assert report["log"][report["killed"]["afterSeq"] - 1]["type"] == "tool_started"
    kept = Path(report["kept"])
    assert kept.is_relative_to(temporary["TMPDIR"])
    store = f"sqlite:{kept / 'sessions.db'}"
    assert cli("sessions", "verify", "demo", "--store", store, cwd=tmp_path).returncode == 0
    assert "nothing to resume" in cli("resume", "demo", "--store", store, cwd=tmp_path).stderr
    shutil.rmtree(kept)


def test_without_git_the_demo_says_so(tmp_path: Path, temporary: dict[str, str]) -> None:
    done = cli("demo", cwd=tmp_path, env={**temporary, "PATH": tempfile.gettempdir()})
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: the demo needs git\n")
