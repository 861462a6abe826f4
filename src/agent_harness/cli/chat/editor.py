"""The line that is being typed, and what each key does to it. Pure: keys in, finished lines out."""

import re
import unicodedata
from dataclasses import dataclass, field

from .inputs import EndOfInput, Line

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O])", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_PASTE_ENDS = "\x1b[201~"
_KEYS = {
    "\x01": "home", "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home",
    "\x05": "end", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\x02": "left", "\x1b[D": "left", "\x1bOD": "left",
    "\x06": "right", "\x1b[C": "right", "\x1bOC": "right",
    "\x10": "older", "\x1b[A": "older", "\x1bOA": "older",
    "\x0e": "newer", "\x1b[B": "newer", "\x1bOB": "newer",
    "\x7f": "backspace", "\x08": "backspace",
    "\x04": "delete", "\x1b[3~": "delete",
    "\x15": "cut to start", "\x0b": "cut to end", "\x17": "cut word",
    "\x1bb": "word left", "\x1b[1;5D": "word left", "\x1b[1;3D": "word left",
    "\x1bf": "word right", "\x1b[1;5C": "word right", "\x1b[1;3C": "word right",
    "\r": "enter", "\n": "enter",
    "\x1b\r": "break", "\x1b\n": "break",
}  # fmt: skip


def cells(character: str) -> int:
    """How many columns a character takes."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


@dataclass(slots=True)
class Editor:
    """One line with a cursor. `history` is what was said before, oldest first; the editor only reads it."""

    history: list[str] = field(default_factory=list[str])
    text: str = ""
    cursor: int = 0  # before the character of this index
    _held: str = ""  # the beginning of a key's sequence
    _pasting: bool = False
    _back: int = 0  # how many lines back in the history; 0 is the line that is being typed
    _draft: str = ""

    def feed(self, typed: str) -> list[Line | EndOfInput]:
        """Take what was typed; gives the lines that were finished by it."""
        given, self._held = self._held + typed, ""
        done: list[Line | EndOfInput] = []
        at = 0
        while at < len(given):
            if self._pasting:
                at = self._paste(given, at)
                continue
            if given[at] != "\x1b":
                key = given[at]
            elif (found := _SEQUENCE.match(given, at)) is not None:
                key = found.group()
            else:
                if _UNFINISHED.match(given, at):
                    self._held = given[at:]
                break
            at += len(key)
            if key == "\x1b[200~":
                self._pasting = True
            else:
                self._press(key, done)
        return done

    def clear(self) -> None:
        """Forget the line."""
        self.text, self.cursor, self._back = "", 0, 0

    def visible(self, width: int) -> tuple[str, int]:
        """The part of the line to show in `width` columns, and the cursor's column in it (0-based)."""
        shown = self.text.replace("\n", "⏎").replace("\t", " ")
        start, room = self.cursor, max(width - 1, 1)
        while start > 0 and room >= cells(shown[start - 1]):
            start -= 1
            room -= cells(shown[start])
        column = sum(map(cells, shown[start : self.cursor]))
        end, room = self.cursor, max(width - column, 0)
        while end < len(shown) and room >= cells(shown[end]):
            room -= cells(shown[end])
            end += 1
        return shown[start:end], column

    def _paste(self, given: str, at: int) -> int:
        end = given.find(_PASTE_ENDS, at)
        if end < 0:
            # The mark that ends it may be cut, and a line break of two characters.
            keep = next((n for n in range(len(_PASTE_ENDS) - 1, 0, -1) if given.endswith(_PASTE_ENDS[:n])), 0)
            keep = keep or given.endswith("\r")
            end = max(len(given) - keep, at)
            self._held = given[end:]
            self._insert(given[at:end])
            return len(given)
        self._insert(given[at:end])
        self._pasting = False
        return end + len(_PASTE_ENDS)

    def _insert(self, given: str) -> None:
        lines = given.replace("\r\n", "\n").replace("\r", "\n")
        kept = "".join(c for c in lines if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))
        self.text = self.text[: self.cursor] + kept + self.text[self.cursor :]
        self.cursor += len(kept)

    def _press(self, key: str, done: list[Line | EndOfInput]) -> None:
        text, at = self.text, self.cursor
        match _KEYS.get(key):
            case "enter":
                done.append(Line(text))
                self.clear()
            case "break":
                self._insert("\n")
            case "delete":
                if not text and key == "\x04":
                    done.append(EndOfInput())
                self.text = text[:at] + text[at + 1 :]
            case "backspace":
                self._cut(max(at - 1, 0), at)
            case "cut to start":
                self._cut(0, at)
            case "cut to end":
                self.text = text[:at]
            case "cut word":
                self._cut(self._word_left(), at)
            case "home":
                self.cursor = 0
            case "end":
                self.cursor = len(text)
            case "left":
                self.cursor = max(at - 1, 0)
            case "right":
                self.cursor = min(at + 1, len(text))
            case "word left":
                self.cursor = self._word_left()
            case "word right":
                following = re.compile(r"\W*\w*").match(text, at)
                self.cursor = following.end() if following else at
            case "older":
                self._recall(self._back + 1)
            case "newer":
                self._recall(self._back - 1)
            case _:
                self._insert(key if key[0] != "\x1b" else "")

    def _cut(self, start: int, end: int) -> None:
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    def _word_left(self) -> int:
        return len(self.text[: self.cursor].rstrip().rpartition(" ")[0]) + (" " in self.text[: self.cursor].rstrip())

    def _recall(self, back: int) -> None:
        if not 0 <= back <= len(self.history):
            return
        if self._back == 0:
            self._draft = self.text
        self._back = back
        self.text = self.history[-back] if back else self._draft
        self.cursor = len(self.text)
