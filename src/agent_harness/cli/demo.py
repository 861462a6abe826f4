"""`demo`: the shortest proof. An agent is killed with SIGKILL inside its tools, and another process goes on."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from session_backends import SqliteSessionRepo

from ..session.storage import EntryItem, LogItem
from ..session.verify import Finding
from ..types.json import JsonValue
from ..types.messages import AssistantMessage, ToolResultMessage
from .demo_worker import ANSWER, SESSION, Phase
from .failure import Failure
from .output import printable, say, to_json
from .rendering import content_text, log_json, log_line

LIMIT_S = 60.0
"""How long one of the demo's processes may take."""

CALC = '''def add(a, b):
    """The sum of two numbers."""
    return a - b
'''
CHECKS = "from calc import add\n\nassert add(2, 3) == 5\n"
_GIT = ("git", "-c", "user.name=demo", "-c", "user.email=demo@example.invalid", "-c", "commit.gpgsign=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What stands on disk after a process ended."""

    log: list[LogItem]
    findings: list[Finding]
    effects: Counter[str]


async def demo(*, json: bool, keep: bool) -> int:
    """Run it and print what happened; fails if anything was lost or repeated."""
    if shutil.which("git") is None:
        raise Failure("the demo needs git")

    def tell(line: str) -> None:
        if not json:
            say(line)

    folder = Path(tempfile.mkdtemp(prefix="agent-harness-demo-"))
    try:
        _make_project(folder / "project")
        tell("1. An agent gets a task: fix calc.py, run the checks, publish a release.")
        tell("   It works on a real repository; its session is an SQLite database.")
        pid = _kill_inside_the_tools(folder)
        before = await _look(folder)
        tell(f"2. Process {pid} was killed with SIGKILL inside two tools: run_checks, which says it may be")
        tell("   repeated, and publish, which does not. The edit had finished before.")
        with _process(folder, "resume") as second:
            _wait(second, lambda: second.poll() is not None, "finish the run")
            resumed_by = second.pid
            if second.returncode != 0:
                raise Failure(f"the resuming process failed: {_errors(second)}")
        after = await _look(folder)
        tell(f"3. Process {resumed_by} opened the session and resumed the run to its end.")
        problems = _problems(folder, before, after)
        _print_json(folder, pid, before, after, problems, keep=keep) if json else _print(
            folder, before, after, problems
        )
        if keep:
            tell(f"\nKept: {folder}")
        if problems:
            raise Failure(f"the demo found {'; '.join(problems)}")
        return 0
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _make_project(project: Path) -> None:
    project.mkdir()
    (project / "calc.py").write_text(CALC)
    (project / "checks.py").write_text(CHECKS)
    (project / ".gitignore").write_text("__pycache__/\n")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "A bug")):
        _git(project, *arguments)


def _git(project: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(  # noqa: S603 - git with fixed arguments
        [*_GIT, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Failure(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _process(folder: Path, phase: Phase) -> Generator[subprocess.Popen[str]]:
    """One of the demo's processes; it does not outlive the block."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "agent_harness.cli.demo_worker", str(folder), phase],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _wait(process: subprocess.Popen[str], condition: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + LIMIT_S
    while not condition():
        if process.poll() is not None:
            raise Failure(f"the demo's process ended too early: {_errors(process)}")
        if monotonic() > deadline:
            raise Failure(f"the demo's process did not {what} within {LIMIT_S:g} s")
        sleep(0.01)


def _errors(process: subprocess.Popen[str]) -> str:
    lines = (process.stderr.read() if process.stderr is not None else "").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def _kill_inside_the_tools(folder: Path) -> int:
    def inside() -> bool:
        return {"run_checks", "publish"} <= _effects(folder).keys()

    with _process(folder, "start") as process:
        _wait(process, inside, "reach its tools")
        process.send_signal(signal.SIGKILL)
        process.wait()
        return process.pid


def _effects(folder: Path) -> Counter[str]:
    try:
        lines = (folder / "effects.log").read_text().splitlines()
    except FileNotFoundError:
        return Counter()
    return Counter(line.split()[0] for line in lines)


async def _look(folder: Path) -> Seen:
    repo = SqliteSessionRepo(folder / "sessions.db")
    try:
        async with await repo.open(SESSION, read_only=True) as session:
            return Seen(log=await session.get_log(), findings=await session.verify(), effects=_effects(folder))
    finally:
        await repo.close()


def _results(log: list[LogItem]) -> list[ToolResultMessage]:
    messages = (item.entry.message for item in log if isinstance(item, EntryItem))
    return [message for message in messages if isinstance(message, ToolResultMessage)]


def _answer(log: list[LogItem]) -> str:
    messages = [item.entry.message for item in log if isinstance(item, EntryItem)]
    return next((m.text for m in reversed(messages) if isinstance(m, AssistantMessage)), "")


def _problems(folder: Path, before: Seen, after: Seen) -> list[str]:
    """What does not hold of what the demo claims; empty when all of it does."""
    results = {message.tool_name: message for message in _results(after.log)}
    claims = {
        "that the log lost something": after.log[: len(before.log)] == before.log,
        "findings in the log": not after.findings,
        "that the edit was repeated": after.effects["edit"] == 1,
        "that run_checks was not repeated": after.effects["run_checks"] == 2,
        "that publish was repeated": after.effects["publish"] == 1,
        "a wrong published.txt": (folder / "project/published.txt").read_text() == "release 1.0\n",
        "that the fix is not in calc.py": "return a + b" in (folder / "project/calc.py").read_text(),
        "that publish was not reported as interrupted": "interrupted" in content_text(results["publish"].content),
        "that the checks did not pass": content_text(results["run_checks"].content) == "all checks pass",
        "no final answer": _answer(after.log) == ANSWER,
    }
    return [problem for problem, holds in claims.items() if not holds]


def _print(folder: Path, before: Seen, after: Seen, problems: list[str]) -> None:
    project = folder / "project"
    say("\nThe session's log (E entry, R record), one durable write per line:\n")
    for item in after.log:
        if item.seq == len(before.log) + 1:
            say("-----  killed with SIGKILL here; the next line was written by another process  -----")
        say(log_line(item))
    say("\nThe files:\n")
    say(printable(_git(project, "diff", "--no-color")).rstrip())
    say("\n$ cat published.txt")
    say(printable((project / "published.txt").read_text()).rstrip())
    say("\nWhat was and what was not repeated, counted by the tools themselves:\n")
    rows = [
        ("edit", "finished before the kill: its result was kept, it was not repeated"),
        ("run_checks", 'interrupted, and safe to repeat (replay="safe"): repeated'),
        ("publish", "interrupted, and not safe to repeat: reported to the model, not repeated"),
    ]
    for name, told in rows:
        say(f"  {name:<11} ran {after.effects[name]}x   {told}")
    verdict = "no finding" if not after.findings else f"{len(after.findings)} findings"
    say(f"\nThe model's last words: {printable(_answer(after.log))}")
    say(f"Verification of the whole log: {verdict}. {'Everything held.' if not problems else ''}".rstrip())


def _print_json(folder: Path, pid: int, before: Seen, after: Seen, problems: list[str], *, keep: bool) -> None:
    project = folder / "project"
    report: dict[str, JsonValue] = {
        "ok": not problems,
        "problems": [*problems],
        "session": SESSION,
        "kept": str(folder) if keep else None,
        "killed": {"pid": pid, "signal": "SIGKILL", "afterSeq": len(before.log)},
        "effects": {name: after.effects[name] for name in ("edit", "run_checks", "publish")},
        "repeated": [name for name in ("edit", "run_checks", "publish") if after.effects[name] > 1],
        "interrupted": [m.tool_name for m in _results(after.log) if "interrupted" in content_text(m.content)],
        "answer": _answer(after.log),
        "findings": [f"{finding.rule}: {finding.message}" for finding in after.findings],
        "diff": _git(project, "diff", "--no-color"),
        "published": (project / "published.txt").read_text(),
        "log": [{**log_json(item)} for item in after.log],
    }
    say(to_json(report))
