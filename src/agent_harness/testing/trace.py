"""Traces: what a run wrote, as the letters of harness-v2 §6 (E entry, R record, L lane move, G fact, H hook)."""

from collections.abc import Callable, Sequence
from typing import assert_never, get_args

from ..harness import AgentHarness
from ..hooks.catalog import HookName
from ..session.session import Session
from ..session.storage import EntryItem, LabelItem, LaneItem, LogItem, NameItem, RecordItem
from ..types.entries import MessageBody
from ..types.messages import AssistantMessage


def log_lines(log: Sequence[LogItem], *, usage: bool = False) -> list[str]:
    """One line per log item: `R operation_started`, `E user`, `E assistant toolUse`, ...

    `usage` records are left out unless asked for, as in the specification's traces.
    """
    lines: list[str] = []
    for item in log:
        line = _line(item)
        if usage or line != "R usage":
            lines.append(line)
    return lines


def _line(item: LogItem) -> str:
    match item:
        case RecordItem(record=record):
            return f"R {record.type}"
        case EntryItem(entry=entry):
            if not isinstance(entry.body, MessageBody):
                return f"E {entry.type}"
            message = entry.body.message
            suffix = f" {message.stop_reason}" if isinstance(message, AssistantMessage) else ""
            return f"E {message.role}{suffix}"
        case LaneItem():
            return "L move"
        case NameItem():
            return "G name"
        case LabelItem():
            return "G label"
        case _:
            assert_never(item)


class Trace:
    """The writes of a session together with the hooks that ran between them.

    `watch(harness)` registers a handler that decides nothing for the given hooks; each run of it is an `H` letter where
    it happened.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hooks: list[tuple[int, str]] = []

    def note(self, name: str) -> None:
        """A hook ran now."""
        self._hooks.append((self._session.delivered_seq, name))

    def watch(self, harness: AgentHarness, *names: HookName) -> None:
        """Register noting handlers for `names`, all hooks by default."""
        for name in names or get_args(HookName):
            register: Callable[..., object] = harness.hooks.on
            register(name, lambda _event, name=name: self.note(name), id=f"trace.{name}")

    async def lines(self, *, usage: bool = False) -> list[str]:
        """All letters in order."""
        out: list[str] = []
        pending = list(self._hooks)
        for item in await self._session.get_log():
            while pending and pending[0][0] < item.seq:
                out.append(f"H {pending.pop(0)[1]}")
            out += log_lines([item], usage=usage)
        return out + [f"H {name}" for _, name in pending]
