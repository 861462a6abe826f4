"""A program at a pseudo-terminal: keys in, and everything it wrote."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from cli_support import COMMAND, LIMIT_S, environment


class Terminal:
    """The command line with a terminal of 80 columns as its controlling one, so that Ctrl-C is a signal."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._fd, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(inside)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *COMMAND, *arguments],
            cwd=cwd,
            env=environment(**{"TERM": "xterm", **(env or {})}),
            stdin=inside,
            stdout=inside,
            stderr=inside,
        )
        self._inside = inside
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
        os.close(self._inside)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, text: str) -> str:
        """What was shown up to the next `text`; it is not shown again."""
        deadline = monotonic() + LIMIT_S
        while text not in self.shown:
            assert monotonic() < deadline, (text, self.shown)
            ready, _, _ = select.select([self._fd], [], [], 0.1)
            if ready:
                self.shown += os.read(self._fd, 65_536).decode(errors="replace")
            else:
                assert self.process.poll() is None, (text, self.shown)
        before, _, self.shown = self.shown.partition(text)
        return before

    def end(self) -> int:
        """Wait for the program's end; the rest of its output is in `shown`."""
        deadline = monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert monotonic() < deadline, self.shown
            self._drain(0.05)
        self._drain(0)
        return self.process.returncode

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._inside)

    def _drain(self, wait: float) -> None:
        while select.select([self._fd], [], [], wait)[0]:
            self.shown += os.read(self._fd, 65_536).decode(errors="replace")
