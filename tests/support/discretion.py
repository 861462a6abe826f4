"""What a test's conversations said is in no span, log line or error text of that test (harness-v2 §18, threat T10).

Every text that a session of the test commits is a canary. Spans are read also where the test asked for no telemetry:
the shared no-op span is listened to while the tests of this process run.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from agent_harness.errors import HarnessFault, SessionError
from agent_harness.telemetry.context import NoopSpan, SpanAttributes, SpanStatus, TelemetrySpan
from agent_harness.types.entries import CompactionBody, Entry, MessageBody
from agent_harness.types.messages import (
    AgentMessage,
    AssistantMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

T = TypeVar("T")
SHORTEST = 12  # characters: shorter ones ("main", "Hello.") are also words of the vocabulary
LOGGERS = ("agent_harness", "session_backends")


@dataclass
class Discretion:
    """The texts of one test's conversations, and what was told around them."""

    said: set[str] = field(default_factory=set[str])
    told: set[str] = field(default_factory=set[str])

    def heard(self, item: object) -> None:
        """A committed item: what an entry says is content."""
        match item:
            case Entry(body=MessageBody(message=message)):
                self.said.update(texts_of(message))
            case Entry(body=CompactionBody(summary=summary)):
                self.said.add(summary)
            case _:
                pass

    def tell(self, *things: object) -> None:
        """Names and attributes of a span, a log line, an error's text."""
        self.told.update(str(thing) for thing in things)

    def leaks(self) -> list[str]:
        """The committed texts that something else told as well."""
        everything = "\n".join(self.told)
        return sorted(text for text in self.said if len(text) >= SHORTEST and text in everything)


def texts_of(message: AgentMessage) -> Iterator[str]:
    """What a message says, in words."""
    match message:
        case UserMessage(content=str(text)):
            yield text
        case UserMessage(content=parts) | AssistantMessage(content=parts) | ToolResultMessage(content=parts):
            for part in parts:
                match part:
                    case TextContent(text=text):
                        yield text
                    case ThinkingContent(thinking=text):
                        yield text
                    case ToolCall(arguments=arguments):
                        yield from strings(arguments)
                    case _:
                        pass
        case _:
            pass


def strings(value: object) -> Iterator[str]:
    """The texts in a JSON value."""
    match value:
        case str():
            yield value
        case Mapping():
            for item in value.values():
                yield from strings(item)
        case list() | tuple():
            for item in value:
                yield from strings(item)
        case _:
            pass


class _Log(logging.Handler):
    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__(logging.DEBUG)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage(), record.args, record.exc_text, record.exc_info)


@contextmanager
def listening(tell: Callable[..., None]) -> Generator[None]:
    """Hand every span attribute, log line and error text to `tell`."""
    start_span = NoopSpan.start_span

    async def starting(
        self: NoopSpan, name: str, attributes: SpanAttributes, callback: Callable[[TelemetrySpan], Awaitable[T]]
    ) -> T:
        tell(name, attributes)
        return await start_span(self, name, attributes, callback)

    def event(self: NoopSpan, name: str, attributes: SpanAttributes | None = None) -> None:
        tell(name, attributes)

    def attributes(self: NoopSpan, attributes: SpanAttributes) -> None:
        tell(attributes)

    def status(self: NoopSpan, status: SpanStatus) -> None:
        tell(status)

    def raised(self: SessionError, *args: object) -> None:
        tell(*args)
        Exception.__init__(self, *args)

    fault = HarnessFault.__init__

    def faulted(self: HarnessFault, message: str, cause: BaseException | None = None) -> None:
        tell(message)
        fault(self, message, cause)

    log = _Log(tell)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoopSpan, "start_span", starting)
        patch.setattr(NoopSpan, "add_event", event)
        patch.setattr(NoopSpan, "set_attributes", attributes)
        patch.setattr(NoopSpan, "set_status", status)
        patch.setattr(SessionError, "__init__", raised)
        patch.setattr(HarnessFault, "__init__", faulted)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(log)
            patch.setattr(logging.getLogger(name), "level", logging.DEBUG)
        try:
            yield
        finally:
            for name in LOGGERS:
                logging.getLogger(name).removeHandler(log)
