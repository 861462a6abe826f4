"""Ending a command with everything it started (case 50).

A command runs in a session and process group of its own. Its leader is not reaped before the group has been dealt
with, so the group's number cannot meanwhile belong to somebody else.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

MARKER = "AGENT_HARNESS_COMMAND"
"""Environment variable that a command's descendants inherit, by which detached ones are recognised."""

_PROC = Path("/proc")
_CAN_WAIT_UNREAPED = hasattr(os, "waitid")
_POLL_S = (0.002, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that left the command's group and still runs."""

    pid: int
    command: str


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = monotonic() + timeout_s
    turn = 0
    while not condition():
        if monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_S[min(turn, len(_POLL_S) - 1)])
        turn += 1
    return True


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether the leader ended. It is left unreaped where the system can do that (Linux)."""
    if process.returncode is not None:
        return True
    if not _CAN_WAIT_UNREAPED:
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody else reaped it
        return True


def group_members(pgid: int) -> list[int]:
    """Live processes of a group, zombies not counted; on systems without /proc only whether there is one."""
    if not _PROC.is_dir():
        try:
            os.killpg(pgid, 0)
        except OSError:
            return []
        return [pgid]
    found: list[int] = []
    for pid in _pids():
        try:
            # "pid (name) state ppid pgrp ...": the name may hold spaces and brackets.
            fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pgid and fields[0] not in "ZX":
            found.append(pid)
    return found


def survivors(mark: str) -> list[Survivor]:
    """Processes that carry this command's mark, wherever they went; empty where /proc cannot tell."""
    if not _PROC.is_dir():
        return []
    wanted = f"{MARKER}={mark}".encode()
    found: list[Survivor] = []
    for pid in _pids():
        with suppress(OSError):  # gone meanwhile, or another user's
            if wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
                found.append(Survivor(pid, b" ".join(words).decode(errors="replace").strip()[:200]))
    return found


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir(_PROC) if name.isdecimal())


def _signal_group(pgid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


async def end_group(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """End every process of the command's group: TERM, after `grace_s` KILL. Returns once they are gone.

    The leader is reaped. Returns the number of processes other than the leader that had to be ended.
    """
    pgid = process.pid
    if process.returncode is not None and _CAN_WAIT_UNREAPED:
        return 0  # reaped by somebody else: the number may be anybody's by now
    others = [pid for pid in group_members(pgid) if pid != pgid]
    if others or not has_exited(process):
        _signal_group(pgid, signal.SIGTERM)
        _signal_group(pgid, signal.SIGCONT)  # a stopped process takes its TERM only when it goes on

        def gone() -> bool:
            return has_exited(process) and not group_members(pgid)

        if not await _until(gone, grace_s):
            # KILL cannot be refused, but a process may be forked while it is sent: again until the group is empty.
            for _ in range(20):
                _signal_group(pgid, signal.SIGKILL)
                if await _until(gone, 0.1):
                    break
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    return len(others)


class Watchdog:
    """Ends a command's group when this process dies without having done so: SIGKILL leaves nobody else to do it.

    A run that is resumed elsewhere reports the call as interrupted; the command must not go on beside it. The watching
    shell stands outside of the group and reads from a pipe whose other end only this process holds.
    """

    def __init__(self, pgid: int) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - fixed arguments
                ["/bin/sh", "-c", 'read -r line || kill -9 "-$1"', "sh", str(pgid)],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def dismiss(self) -> None:
        """The group has been dealt with: end without touching it."""
        with suppress(BrokenPipeError):
            os.write(self._writing, b"\n")
        os.close(self._writing)
        self._process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """KILL for the whole group, without waiting for anything but the leader's end."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
