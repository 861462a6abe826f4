"""What a conversation shows: text for a reader, or one JSON object per line for a program."""

from collections.abc import Sequence
from typing import Protocol

from ...events.catalog import CompactionEnd, HarnessEvent, MessageEnd, MessageUpdate
from ...events.wire import event_to_wire, suspended_to_wire
from ...outcomes import SuspendedOperation
from ...providers.base import StreamDelta
from ...session.session import Session
from ...session.storage import MAIN
from ...types.codec import dump_entry
from ...types.entries import Entry
from ...types.json import JsonValue
from ...types.messages import AssistantMessage
from ..output import PrintableStream, one_line, printable, to_json
from ..progress import event_line
from ..rendering import entry_text
from .console import Console
from .talk import Status


class View(Protocol):
    """Shows what happens."""

    def event(self, event: HarnessEvent) -> None:
        """Something happened in the harness."""
        ...

    def opened(self, session: Session, suspended: SuspendedOperation | None, newest: Sequence[Entry]) -> None:
        """A session was opened; `newest` is the end of what was said in it."""
        ...

    def status(self, status: Status) -> None:
        """What the conversation costs and holds now."""
        ...

    def note(self, text: str) -> None:
        """A word of the command itself."""
        ...


class TextView:
    """For a reader: the answer as it is written, tools as they run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clean = PrintableStream()
        self._streamed = False

    def event(self, event: HarnessEvent) -> None:
        """See `View`; other lanes work unseen."""
        if getattr(event, "lane", MAIN) != MAIN:
            return
        match event:
            case MessageUpdate(event=StreamDelta(type="text_delta", delta=delta)):
                self._streamed = True
                self._console.write(self._clean.feed(delta))
            case MessageEnd(message=AssistantMessage() as message):
                rest = self._clean.end()
                if not self._streamed:
                    rest = printable(message.text)
                self._streamed = False
                self._console.write(rest)
                self._console.write("" if self._console.fresh else "\n")
            case CompactionEnd(outcome=outcome):
                self._console.line(f"compaction {outcome}")
            case _:
                line = event_line(event)
                if line is not None:
                    self._console.line(line)

    def opened(self, session: Session, suspended: SuspendedOperation | None, newest: Sequence[Entry]) -> None:
        """See `View`."""
        self._console.line(f"session {session.id}")
        for entry in newest:
            self._console.line(one_line(f"  {entry_text(entry)}"))

    def status(self, status: Status) -> None:
        """See `View`."""
        window = status.context_window
        share = f" of {window:,} ({status.context_tokens / window:.0%})" if window else ""
        self._console.line(
            f"[{one_line(status.model)}, context {status.context_tokens:,}{share} tokens, {status.cost_usd:.4f} USD]"
        )

    def note(self, text: str) -> None:
        """See `View`."""
        self._console.line(printable(text))


class JsonView:
    """For a program: every event as it is documented, and lines whose `type` begins with `chat_`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def event(self, event: HarnessEvent) -> None:
        """See `View`."""
        self._say(event_to_wire(event))

    def opened(self, session: Session, suspended: SuspendedOperation | None, newest: Sequence[Entry]) -> None:
        """See `View`."""
        self._say(
            {
                "type": "chat_session",
                "session": session.id,
                "suspended": None if suspended is None else suspended_to_wire(suspended),
                "entries": [dump_entry(entry) for entry in newest],
            }
        )

    def status(self, status: Status) -> None:
        """See `View`."""
        self._say(
            {
                "type": "chat_status",
                "session": status.session,
                "model": status.model,
                "contextTokens": status.context_tokens,
                "contextWindow": status.context_window,
                "costUsd": status.cost_usd,
                "messages": status.messages,
            }
        )

    def note(self, text: str) -> None:
        """See `View`."""
        self._say({"type": "chat_note", "text": text})

    def _say(self, wire: dict[str, JsonValue]) -> None:
        self._console.line(to_json(wire))
