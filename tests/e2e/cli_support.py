"""Running the real command line in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

LIMIT_S = 60.0
COMMAND = [sys.executable, "-m", "agent_harness.cli"]


def environment(**more: str) -> dict[str, str]:
    """This environment without keys, proxies and our own settings."""
    dropped = ("AGENT_HARNESS_", "OPENAI_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return {k: v for k, v in os.environ.items() if not k.upper().startswith(dropped)} | {"NO_PROXY": "*", **more}


def cli(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(**(env or {})),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def start(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(**(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = monotonic() + LIMIT_S
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert monotonic() < deadline, "did not happen in time"
        sleep(0.01)


def one_error(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a refused command."""
    assert done.returncode not in (0, None), done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in done.stderr
    return lines[0].removeprefix("error: ")


def script(path: Path, *answers: dict[str, Any]) -> str:
    path.write_text(json.dumps({"answers": answers}))
    return f"scripted:{path}"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
