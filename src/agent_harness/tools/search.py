"""`search`: lines that match, in the files of the working folder."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, cast

from pydantic import Field

from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from .decorator import text_result, tool
from .failure import ToolError
from .processes import kill_group
from .search_worker import Answer, Request
from .shell import shell_environment
from .workspace import Workspace

MAX_MATCHES = 200
MAX_LINE_CHARS = 300
MAX_FILE_BYTES = 8 * 1024 * 1024
"""Larger files are not searched; the result says how many there were."""
TIMEOUT_S = 30.0

_WORKER = Path(__file__).with_name("search_worker.py")
_TURN_S = 0.02


def search_tool(workspace: Workspace, *, timeout_s: float = TIMEOUT_S) -> AgentTool:
    """The tool."""

    # Safe to replay: it changes nothing.
    @tool(replay="safe")
    async def search(
        *,
        pattern: Annotated[str, Field(min_length=1, max_length=2_000, description="A regular expression (Python's)")],
        invocation: ToolInvocation,
        path: Annotated[str, Field(description="Folder or file to search in")] = ".",
        glob: Annotated[
            str | None, Field(description="Only files whose name or path matches, such as *.py or src/*.py")
        ] = None,
        literal: Annotated[bool, Field(description="Take the pattern as plain text")] = False,
        ignore_case: bool = False,
    ) -> AgentToolResult:
        """Search text files line by line; each match comes as path:line: text. Stores such as .git are left out."""
        target = workspace.resolve(path)
        if not target.path.exists():
            raise ToolError(f"{path}: no such file or folder")
        request: Request = {
            "root": str(target.anchor),
            "start": str(target.path.relative_to(target.anchor)),
            "pattern": pattern,
            "regex": not literal,
            "ignore_case": ignore_case,
            "glob": glob,
            "max_matches": MAX_MATCHES,
            "max_line_chars": MAX_LINE_CHARS,
            "max_file_bytes": MAX_FILE_BYTES,
        }
        answer = await _ask(request, invocation, timeout_s)
        if answer["error"] is not None:
            raise ToolError(f"not a regular expression: {answer['error']}; with literal=true it is taken as text")
        return _result(answer)

    return search


async def _ask(request: Request, invocation: ToolInvocation, timeout_s: float) -> Answer:
    process = _start(request)
    reading = asyncio.ensure_future(asyncio.to_thread(process.communicate, json.dumps(request).encode()))
    try:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not reading.done():
            if invocation.signal.aborted:
                raise ToolError("interrupted: the search was stopped")
            if asyncio.get_running_loop().time() >= deadline:
                raise ToolError(
                    f"no end after {timeout_s:g} s: use a simpler pattern, literal=true, or search a smaller folder"
                )
            await asyncio.wait([reading], timeout=_TURN_S)
        out, _ = reading.result()
        if process.returncode != 0:
            raise ToolError(f"the search program failed with exit code {process.returncode}")
        return cast("Answer", json.loads(out))
    finally:
        kill_group(process)


def _start(request: Request) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-I", "-S", str(_WORKER)],
        cwd=request["root"],
        env=shell_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a group of its own, so that it can be ended without waiting for it
    )


def _result(answer: Answer) -> AgentToolResult:
    lines = [f"{match['path']}:{match['line']}: {match['text']}" for match in answer["matches"]]
    if not lines:
        lines.append("[no matches]")
    if answer["truncated"]:
        lines.append(f"[cut at {MAX_MATCHES} matches: narrow the pattern, the path or the glob]")
    if answer["skipped_large"]:
        lines.append(f"[{answer['skipped_large']} file(s) larger than {MAX_FILE_BYTES} bytes were not searched]")
    details = {"matches": len(answer["matches"]), "files": answer["files"], "truncated": answer["truncated"]}
    return text_result("\n".join(lines), {**details})
