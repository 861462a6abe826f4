"""The lines that begin with a slash: what there is, and which one a line means."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

CommandName: TypeAlias = Literal[
    "help", "model", "sessions", "session", "new", "status", "compact", "resume", "abort", "quit"
]

HELP: dict[CommandName, tuple[str, str]] = {
    "help": ("", "this list"),
    "model": ("[PROVIDER/ID]", "show the model, or ask another one from the next request on"),
    "sessions": ("", "list the newest sessions of the store"),
    "session": ("ID|NUMBER", "go on with another session, by its id or its number in the list"),
    "new": ("", "begin a new session"),
    "status": ("", "model, context and cost"),
    "compact": ("[WISHES]", "replace old context with a summary"),
    "resume": ("", "go on with what is interrupted or waits for its provider"),
    "abort": ("", "give up what runs or is interrupted"),
    "quit": ("", "leave; what runs can be resumed later"),
}

KEYS = """A line typed while the agent works is handed to it before its next step.
Ctrl-C stops the agent, a second one leaves; Ctrl-D leaves when the agent is done.
Alt-Enter breaks a line; arrows recall what was said before."""

_COMMAND = re.compile(r"/([A-Za-z?]*)(?:\s+(.*))?\Z", re.DOTALL)
_OTHER_NAMES: dict[str, CommandName] = {"exit": "quit", "q": "quit", "cost": "status", "?": "help", "": "help"}


@dataclass(frozen=True, slots=True)
class Command:
    """One of ours, with what stands behind it."""

    name: CommandName
    rest: str


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """It looks like a command and is none."""

    name: str


def parse(line: str) -> Command | UnknownCommand | None:
    """What a line means; None: it is for the agent, as every line is that only mentions a path."""
    found = _COMMAND.match(line.strip())
    if found is None:
        return None
    name, rest = found.group(1).lower(), (found.group(2) or "").strip()
    if name in get_args(CommandName):
        return Command(cast("CommandName", name), rest)
    if name in _OTHER_NAMES:
        return Command(_OTHER_NAMES[name], rest)
    return UnknownCommand(f"/{name}")


def help_text() -> str:
    """What `/help` shows."""
    lines = [f"{f'/{name} {arguments}':<24} {what}" for name, (arguments, what) in HELP.items()]
    return "\n".join([*lines, KEYS])
