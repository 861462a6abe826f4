"""Standard input without a thread and without waiting: bytes as they come, and a terminal's modes."""

import asyncio
import codecs
import os
import sys
import termios
from collections.abc import Callable

_CHUNK = 65_536
_INPUT, _LOCAL = 0, 3  # where the modes stand in what `tcgetattr` gives


class Modes:
    """Keys are read as they are pressed and echoed by us; Ctrl-C, Ctrl-Z and Ctrl-\\ stay signals."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before = termios.tcgetattr(fd)

    def enter(self) -> None:
        """Take the terminal over."""
        modes = termios.tcgetattr(self._fd)
        modes[_INPUT] &= ~termios.ICRNL  # a pasted CR LF stays one line break
        modes[_LOCAL] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)

    def leave(self) -> None:
        """Give it back as it was; a terminal that is gone needs nothing."""
        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        except (termios.error, OSError):
            pass


class StdinReader:
    """Calls `received` with what arrives, `ended` once. A file, always readable, is read between other work."""

    def __init__(self, received: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._received = received
        self._ended = ended
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._fd = -1
        self._watched = False
        self._soon: asyncio.Handle | None = None

    def start(self) -> None:
        """Read, in the running loop."""
        loop = asyncio.get_running_loop()
        try:
            self._fd = sys.stdin.fileno()
        except (AttributeError, OSError, ValueError):
            self._soon = loop.call_soon(self._ended)  # there is no stdin
            return
        try:
            loop.add_reader(self._fd, self._read)
            self._watched = True
        except PermissionError:
            self._soon = loop.call_soon(self._read_on)

    def stop(self) -> None:
        """Read no more. Idempotent."""
        if self._watched:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._watched = False
        if self._soon is not None:
            self._soon.cancel()

    def _read_on(self) -> None:
        if self._read():
            self._soon = asyncio.get_running_loop().call_soon(self._read_on)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            data = b""  # the terminal is gone
        text = self._decoder.decode(data, not data)
        if text:
            self._received(text)
        if not data:
            self.stop()
            self._ended()
        return bool(data)
