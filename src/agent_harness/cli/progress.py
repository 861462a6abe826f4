"""What a run tells while it works, on stderr."""

import sys

from ..events.catalog import (
    CompactionStart,
    HarnessEvent,
    MessageEnd,
    MessageUpdate,
    RetryScheduled,
    ToolEnd,
    ToolStart,
)
from ..providers.base import StreamDelta
from ..types.messages import AssistantMessage
from .output import note, one_line, printable, to_json
from .rendering import content_text

_CHARS = 100


def event_line(event: HarnessEvent) -> str | None:
    """What an event says beside the answer's text, on one line; None when it says nothing to a reader."""
    match event:
        case ToolStart(tool_name=name, args=args):
            return f"> {one_line(name)} {one_line(to_json(args), _CHARS)}"
        case ToolEnd(tool_name=name, result=result, is_error=failed):
            return f"{'!' if failed else '<'} {one_line(name)}: {one_line(content_text(result.content), _CHARS)}"
        case RetryScheduled():
            return (
                f"! attempt {event.attempt} of {event.max_attempts} failed, next in {event.delay_ms / 1000:.1f} s: "
                f"{one_line(event.error_message, _CHARS)}"
            )
        case CompactionStart():
            return "compacting the conversation"
        case _:
            return None


class Progress:
    """Listens to a harness. On a terminal that shows the answer too, text is counted instead of written twice."""

    def __init__(self) -> None:
        self._counts_only = sys.stderr.isatty() and sys.stdout.isatty()
        self._streamed = 0  # characters of the message that grows now

    def __call__(self, event: HarnessEvent) -> None:
        """Show one event."""
        match event:
            case MessageUpdate(event=StreamDelta(type="text_delta", delta=delta)):
                self._text(delta)
            case MessageEnd(message=AssistantMessage()):
                self._end_of_text()
            case _:
                line = event_line(event)
                if line is not None:
                    note(line)

    def _text(self, delta: str) -> None:
        self._streamed += len(delta)
        shown = f"\r{self._streamed} characters" if self._counts_only else printable(delta)
        self._write(shown)

    def _end_of_text(self) -> None:
        if self._streamed:
            self._write("\r" + " " * 30 + "\r" if self._counts_only else "\n")
        self._streamed = 0

    @staticmethod
    def _write(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # closed: the work matters more than its progress
