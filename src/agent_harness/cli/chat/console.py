"""Where a conversation is typed and shown, without ever blocking the loop: a terminal, or two pipes."""

import os
import sys
from abc import ABC, abstractmethod

from .editor import Editor
from .inputs import Deaf, Deliver, EndOfInput, Line
from .stdin import Modes, StdinReader

_TERMINAL_ON = "\x1b[?2004h"  # a paste is told from typing, so that its line breaks end no line
_TERMINAL_OFF = "\x1b[?2004l"


class Console(ABC):
    """Text out, lines in. `start` and `stop` frame its use; `stop` leaves the terminal as it was."""

    def __init__(self) -> None:
        self._deliver: Deliver = lambda _: None
        self._at_start = True  # of a line
        self._reader: StdinReader | None = None

    interactive = False

    def start(self, deliver: Deliver) -> None:
        """Read, from now on; what arrives is delivered in the running loop."""
        self._deliver = deliver
        self._reader = StdinReader(self._received, self._ended)
        self._reader.start()

    def stop(self) -> None:
        """Read no more. Idempotent."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def write(self, text: str) -> None:
        """Show printable text; it may end within a line."""
        if text:
            self._emit(text)
            self._at_start = text.endswith("\n")

    def line(self, text: str) -> None:
        """Show a line, or several, of their own."""
        self.write(("" if self.fresh else "\n") + text + "\n")

    @property
    def fresh(self) -> bool:
        """Whether what was written ends with a line break."""
        return self._at_start

    def ask(self, prompt: str | None) -> None:  # noqa: B027 - pipes have no prompt
        """Wait for a line behind `prompt`; None: nobody is asked for anything now."""

    def resumed(self) -> None:  # noqa: B027 - a pipe was never lost
        """The process was stopped and goes on."""

    def discard(self) -> bool:
        """Throw away what was typed and not entered; says whether there was something."""
        return False

    @abstractmethod
    def _received(self, text: str) -> None: ...

    def _ended(self) -> None:
        self._deliver(EndOfInput())

    def _emit(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding or "ascii"
            self._emit(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError):
            self._deliver(Deaf())


class PipeConsole(Console):
    """Lines as they come; output as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = ""

    def _received(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._deliver(Line(line.removesuffix("\r")))

    def _ended(self) -> None:
        if self._rest:
            self._deliver(Line(self._rest))
        super()._ended()


class TerminalConsole(Console):
    """A line editor below the output. Output waits while a line is being typed, so that the two never mix."""

    interactive = True

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self._prompt: str | None = None
        self._held: list[str] = []
        self._drawn = False
        self._modes: Modes | None = None

    def start(self, deliver: Deliver) -> None:
        """See `Console`."""
        self._modes = Modes(sys.stdin.fileno())
        self._modes.enter()
        self._emit(_TERMINAL_ON)
        super().start(deliver)

    def stop(self) -> None:
        """See `Console`."""
        super().stop()
        if self._modes is not None:
            self._erase()
            self._release()
            self._emit(_TERMINAL_OFF)
            self._modes.leave()
            self._modes = None

    def resumed(self) -> None:
        """See `Console`: the shell has set the terminal as it likes it."""
        if self._modes is not None:
            self._modes.enter()
            self._emit(_TERMINAL_ON)
            self._drawn = False
            self._draw()

    def write(self, text: str) -> None:
        """See `Console`."""
        if self._editor.text:
            self._held += [text] if text else []
            return
        self._erase()
        super().write(text)
        self._draw()

    @property
    def fresh(self) -> bool:
        """See `Console`."""
        return self._held[-1].endswith("\n") if self._held else self._at_start

    def ask(self, prompt: str | None) -> None:
        """See `Console`."""
        if prompt != self._prompt:
            self._erase()
            self._prompt = prompt
            self._draw()

    def discard(self) -> bool:
        """See `Console`."""
        if not self._editor.text:
            return False
        self._editor.clear()
        self._erase()
        self._release()
        self._draw()
        return True

    def _received(self, text: str) -> None:
        prompt = self._prompt or "» "
        for done in self._editor.feed(text):
            self._erase()
            if isinstance(done, Line):
                self._prompt = None  # until it is asked for again
                if done.text.strip():
                    self._new_line()
                    super().write(f"{prompt}{done.text}\n")
                self._release()
            self._deliver(done)
        self._erase()
        if not self._editor.text:
            self._release()
        self._draw()

    def _release(self) -> None:
        held, self._held = "".join(self._held), []
        super().write(held)

    def _new_line(self) -> None:
        if not self._at_start:
            super().write("\n")

    def _erase(self) -> None:
        if self._drawn:
            self._emit("\r\x1b[K")
            self._drawn = False

    def _draw(self) -> None:
        if self._modes is None or (self._prompt is None and not self._editor.text):
            return
        self._new_line()
        prompt = self._prompt or "» "
        shown, column = self._editor.visible(max(_columns() - len(prompt), 2))
        back = len(prompt) + column
        self._emit(f"\r\x1b[K{prompt}{shown}\r\x1b[{back}C")
        self._drawn = True


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80
