"""`shell`: one command, with everything it starts ended before its result is given."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated, BinaryIO, Literal, TypeAlias
from uuid import uuid4

from pydantic import Field

from ..types.json import JsonValue, replace_surrogates
from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from .decorator import text_result, tool
from .output import BoundedOutput
from .processes import MARKER, Survivor, Watchdog, end_group, has_exited, kill_group, survivors
from .workspace import Workspace

MAX_OUTPUT_BYTES = 48 * 1024
"""Most output in a result: the first and the last half of it."""
MAX_SAVED_BYTES = 256 * 1024 * 1024
"""Most output in the file that `save_output` asks for."""
DEFAULT_TIMEOUT_S = 120.0
MAX_TIMEOUT_S = 3600.0
GRACE_S = 2.0
"""How long a command may take to end after TERM."""

_UPDATE_S = 0.2
_DRAIN_S = 0.2
_TURN_S = 0.04
_READ_BYTES = 64 * 1024

# By name, not by pattern: a key nobody thought of does not get through (T27).
ALLOWED_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "VIRTUAL_ENV"),
    *("LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
)
# Nobody sits at a terminal: no pager, no colours, no question for a password.
_FIXED_ENVIRONMENT = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}

Ending: TypeAlias = Literal["exited", "timed out", "interrupted"]


@dataclass(slots=True)
class _Run:
    process: subprocess.Popen[bytes]
    mark: str
    watchdog: Watchdog
    output: BoundedOutput = field(default_factory=lambda: BoundedOutput(MAX_OUTPUT_BYTES))
    end_of_output: asyncio.Event = field(default_factory=asyncio.Event)
    saved: tuple[BinaryIO, str] | None = None  # the file of the whole output and its path
    ended_others: int = 0
    detached: list[Survivor] = field(default_factory=list[Survivor])


def shell_environment(source: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command sees of `source`: the allow-list, what is fixed, and what the application adds."""
    allowed = {name: source[name] for name in ALLOWED_ENVIRONMENT if name in source}
    return {**allowed, **_FIXED_ENVIRONMENT, **(extra or {})}


def shell_tool(workspace: Workspace, *, environment: Mapping[str, str] | None = None) -> AgentTool:
    """The tool. `environment` is added to the allow-list; nothing else of this process's environment is passed on.

    `details`: `{"exitCode": int | null, "timedOut": bool, "interrupted": bool, "truncated": bool, "outputBytes": int}`,
    and where they apply `"endedProcesses": int`, `"detached": [{"pid", "command"}]`, `"outputPath": text`. It has no
    `changedPaths`: a command may change anything.
    """

    # Never replayed, whatever the command: nobody can tell what a second time does.
    # Sequential: the commands of a batch share a folder.
    @tool(replay="never", execution_mode="sequential")
    async def shell(
        command: Annotated[str, Field(min_length=1, description="Given to `sh -c` in the working folder")],
        invocation: ToolInvocation,
        timeout_s: Annotated[
            float, Field(gt=0, le=MAX_TIMEOUT_S, description="Seconds until the command is ended")
        ] = DEFAULT_TIMEOUT_S,
        save_output: Annotated[bool, Field(description="Keep the whole output in a file outside the folder")] = False,
    ) -> AgentToolResult:
        """Run a shell command. Output and errors come merged; of long output the beginning and the end.

        There is no input. Processes left in the background are ended with the command.
        """
        if "\0" in command:
            raise ValueError("the command holds a NUL character")
        run = _start(command, workspace, environment, save_output)
        cancelled = False
        ending: Ending = "interrupted"
        try:
            ending = await _follow(run, invocation, timeout_s)
        except asyncio.CancelledError:
            cancelled = True
        cancelled = await _finish(run) or cancelled
        # An abort cancels as well; then the result is given all the same: it knows what was ended and what was not.
        if cancelled and not invocation.signal.aborted:
            raise asyncio.CancelledError
        return _result(run, ending, timeout_s)

    return shell


def _start(command: str, workspace: Workspace, environment: Mapping[str, str] | None, save: bool) -> _Run:
    mark = uuid4().hex
    saved: tuple[BinaryIO, str] | None = None
    if save:
        fd, path = tempfile.mkstemp(prefix="agent-harness-", suffix=".log")  # 0600
        saved = (os.fdopen(fd, "wb"), path)
    process = subprocess.Popen(  # noqa: S603 - running commands is what this tool is for
        ["/bin/sh", "-c", command],
        cwd=workspace.root,
        env={**shell_environment(os.environ, environment), MARKER: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return _Run(process, mark, Watchdog(process.pid), saved=saved)
    except BaseException:
        kill_group(process)
        raise


async def _follow(run: _Run, invocation: ToolInvocation, timeout_s: float) -> Ending:
    """Read output until the leader ends, the time is up, or the signal fires."""
    pipe = run.process.stdout
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    asyncio.get_running_loop().add_reader(pipe.fileno(), _read, run, pipe.fileno())
    deadline = monotonic() + timeout_s
    told, told_at = 0, monotonic()
    while not has_exited(run.process):
        now = monotonic()
        if invocation.signal.aborted:
            return "interrupted"
        if now >= deadline:
            return "timed out"
        if run.output.total != told and now - told_at >= _UPDATE_S:
            told, told_at = run.output.total, now
            invocation.update(text_result(run.output.text()))
        # The end of the output mostly is the end of the command, so that wakes; the rest is looked at in turns.
        if run.end_of_output.is_set():
            await asyncio.sleep(_TURN_S / 4)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(run.end_of_output.wait(), _TURN_S)
    return "exited"


def _read(run: _Run, fd: int) -> None:
    try:
        data = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    if not data:
        asyncio.get_running_loop().remove_reader(fd)
        run.end_of_output.set()
        return
    if run.saved is not None and run.output.total < MAX_SAVED_BYTES:
        run.saved[0].write(data)
    run.output.add(data)


async def _finish(run: _Run) -> bool:
    """End what still runs. A cancellation that comes meanwhile waits, since nothing may be left behind.

    Returns:
        Whether one came.
    """
    ending = asyncio.ensure_future(_end(run))
    cancelled = False
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            cancelled = True
    ending.result()
    return cancelled


async def _end(run: _Run) -> None:
    try:
        run.ended_others = await end_group(run.process, GRACE_S)
        # What was written before the end is in the pipe; a detached process may hold the pipe open for ever.
        with suppress(TimeoutError):
            await asyncio.wait_for(run.end_of_output.wait(), _DRAIN_S)
        run.detached = await asyncio.to_thread(survivors, run.mark)
    except asyncio.CancelledError:  # the event loop is ending: no time for a grace period
        kill_group(run.process)
        raise
    finally:
        pipe = run.process.stdout
        assert pipe is not None
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        pipe.close()
        run.watchdog.dismiss()
        if run.saved is not None:
            run.saved[0].close()


def _result(run: _Run, ending: Ending, timeout_s: float) -> AgentToolResult:
    code = run.process.returncode
    details: dict[str, JsonValue] = {
        "exitCode": code if ending == "exited" else None,
        "timedOut": ending == "timed out",
        "interrupted": ending == "interrupted",
        "truncated": run.output.truncated,
        "outputBytes": run.output.total,
    }
    notes: list[str] = []
    match ending:
        case "exited":
            notes.append(f"[exit code {code}]" if code >= 0 else f"[ended by signal {-code}]")
        case "timed out":
            notes.append(f"[timed out after {timeout_s:g} s: the command was ended; what it did until then stays]")
        case "interrupted":
            notes.append("[interrupted: the command was ended; what it did until then stays]")
    if ending == "exited" and run.ended_others:
        details["endedProcesses"] = run.ended_others
        notes.append(f"[{run.ended_others} background process(es) ended with the command]")
    if run.detached:
        details["detached"] = [{"pid": one.pid, "command": replace_surrogates(one.command)} for one in run.detached]
        told = ", ".join(f"{one.pid} ({one.command})" for one in run.detached)
        notes.append(f"[still running, detached from the command: {told}]")
    if run.saved is not None:
        details["outputPath"] = run.saved[1]
        notes.append(f"[whole output: {run.saved[1]}]")
    text = run.output.text()
    if text and not text.endswith("\n"):
        text += "\n"
    return text_result(text + "\n".join(notes), details)
