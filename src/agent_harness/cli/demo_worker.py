"""The demo's agent: a process that is killed, and the one that resumes it. Run by `demo`, not by people."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from os import getpid
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from session_backends import SqliteSessionRepo

from ..harness import AgentHarness
from ..providers.faux import SCRIPTED_MODEL, scripted_models
from ..result import Ok
from ..tools import coding_tools, tool
from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from .scripted import Script

SESSION = "demo"
PROMPT = "Fix add() in calc.py, run the checks, publish release 1.0, and tell me what you did."
ANSWER = "add() is fixed, the checks pass, and release 1.0 was published exactly once."
SLOW_S = 600.0
"""How long the tools take in the first process, so that it is certainly killed inside them."""

Phase: TypeAlias = Literal["start", "resume"]

SCRIPT = Script.model_validate(
    {
        "answers": [
            {"text": "I look at the code.", "calls": [{"name": "read", "arguments": {"path": "calc.py"}}]},
            {
                "text": "add() subtracts.",
                "calls": [
                    {
                        "name": "edit",
                        "arguments": {"path": "calc.py", "edits": [{"old": "return a - b", "new": "return a + b"}]},
                    }
                ],
            },
            {
                "text": "Checks and release.",
                "calls": [
                    {"name": "run_checks", "arguments": {}},
                    {"name": "publish", "arguments": {"release": "1.0"}},
                ],
            },
            {
                "text": "Publishing was interrupted: I look whether it happened.",
                "calls": [{"name": "read", "arguments": {"path": "published.txt"}}],
            },
            {"text": ANSWER},
        ]
    }
)


def counted(one: AgentTool, count: Callable[[str], None]) -> AgentTool:
    """The tool, telling each time it really runs."""
    execute = one.execute_blocking
    assert execute is not None

    def execute_blocking(invocation: ToolInvocation) -> AgentToolResult:
        count(one.name)
        return execute(invocation)

    return replace(one, execute_blocking=execute_blocking)


def demo_tools(folder: Path, slow_s: float) -> list[AgentTool]:
    """read and edit as they ship, and two tools whose effects are seen from outside."""
    project = folder / "project"

    def count(name: str) -> None:
        with (folder / "effects.log").open("a") as log:
            log.write(f"{name} {getpid()}\n")

    @tool(replay="safe")
    async def run_checks() -> str:
        """Run the project's checks. Running them again does no harm, so the tool says replay="safe"."""
        count("run_checks")
        process = await asyncio.create_subprocess_exec(sys.executable, "checks.py", cwd=project)
        code = await process.wait()
        await asyncio.sleep(slow_s)
        return "all checks pass" if code == 0 else "a check fails"

    @tool
    async def publish(release: Annotated[str, Field(description="Version to publish")]) -> str:
        """Publish a release: once made, it cannot be taken back. Nothing is said about replay, so it is "never"."""
        with (project / "published.txt").open("a") as published:
            published.write(f"release {release}\n")
        count("publish")
        await asyncio.sleep(slow_s)
        return f"release {release} is published"

    shipped = [counted(one, count) for one in coding_tools(project) if one.name in ("read", "edit")]
    return [*shipped, run_checks, publish]


async def work(folder: Path, phase: Phase) -> bool:
    """Start the demo's run, or resume it; whether it completed."""
    repo = SqliteSessionRepo(folder / "sessions.db")
    session = await (repo.create(id=SESSION, cwd=str(folder / "project")) if phase == "start" else repo.open(SESSION))
    try:
        async with AgentHarness.open(
            session=session,
            models=scripted_models(respond=SCRIPT.respond()),
            model=SCRIPTED_MODEL,
            tools=demo_tools(folder, SLOW_S if phase == "start" else 0),
            system_prompt="You are the agent of a demonstration.",
        ) as harness:
            operation: Callable[[], Awaitable[object]] = (
                (lambda: harness.prompt(PROMPT)) if phase == "start" else harness.resume
            )
            result = await operation()
        return isinstance(result, Ok) and getattr(result.value, "kind", None) == "completed"
    finally:
        await repo.close()


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(work(Path(sys.argv[1]), "resume" if sys.argv[2] == "resume" else "start")) else 1)
