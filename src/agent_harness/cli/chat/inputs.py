"""What reaches a conversation from outside its agent, one at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Line:
    """Something was said. Pasted text may hold line breaks."""

    text: str


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing more will be said."""


@dataclass(frozen=True, slots=True)
class Signal:
    """The process was signalled: Ctrl-C is SIGINT."""

    number: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The work in hand is over."""


@dataclass(frozen=True, slots=True)
class Deaf:
    """Nobody reads what is written any more."""


Input: TypeAlias = Line | EndOfInput | Signal | Settled | Deaf
Deliver: TypeAlias = Callable[[Input], None]
