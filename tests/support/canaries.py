"""Planted content and secrets, and every place they must not reach (harness-v2 §18 "Safety", threat T10)."""

import json
import logging
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from agent_harness import AgentHarness, HarnessEvent
from agent_harness.events.wire import event_to_wire
from agent_harness.telemetry import InMemoryTelemetryContext


def canary(what: str) -> str:
    """A text that nothing but a leak brings anywhere."""
    return f"CANARY-{what}-7d1c9a44"


CONTENT = tuple(map(canary, ("prompt", "system", "answer", "argument", "output", "custom", "tool-error", "summary")))
"""What a conversation says. It belongs to the session and to events, and nowhere else."""

SECRETS = tuple(map(canary, ("header", "option-header", "metadata", "key", "env", "context")))
"""What is no part of any conversation, and reaches no event either."""


@dataclass
class Leaks:
    """What a harness told around its work: spans, log lines, exceptions, events."""

    caplog: pytest.LogCaptureFixture
    telemetry: InMemoryTelemetryContext = field(default_factory=InMemoryTelemetryContext)
    events: list[HarnessEvent] = field(default_factory=list[HarnessEvent])
    raised: list[BaseException] = field(default_factory=list[BaseException])
    told: list[object] = field(default_factory=list[object])  # rejections and faults as a program would print them

    def __post_init__(self) -> None:
        self.caplog.set_level(logging.DEBUG)
        for name in ("agent_harness", "session_backends", "asyncio", "aiosqlite"):
            self.caplog.set_level(logging.DEBUG, logger=name)

    async def watch(self, harness: AgentHarness) -> None:
        """Follow every event of the session."""
        (await harness.watch_session()).start(self.events.append)

    def spans(self) -> str:
        return repr(self.telemetry.spans())

    def texts(self) -> str:
        return " ".join(f"{error} {error!r}" for error in self.raised) + " ".join(map(str, self.told))

    def logs(self) -> str:
        shown = [self.caplog.text]
        for record in self.caplog.records:
            shown.append(f"{record.getMessage()} {record.args!r} {record.exc_text}")
        return "\n".join(shown)

    def wires(self) -> str:
        return json.dumps([event_to_wire(event) for event in self.events]) + repr(self.events)

    def check(self) -> None:
        """Nothing of it holds a canary; secrets are in no event either."""
        assert self.telemetry.spans()
        assert found(self.spans(), (*CONTENT, *SECRETS)) == []
        assert found(self.logs(), (*CONTENT, *SECRETS)) == []
        assert found(self.texts(), (*CONTENT, *SECRETS)) == []
        assert found(self.wires(), SECRETS) == []


def found(text: str, canaries: Iterable[str]) -> Sequence[str]:
    """Which canaries `text` holds."""
    return [planted for planted in canaries if planted in text]


def locals_of(error: BaseException | None) -> list[str]:
    """What a traceback with `capture_locals` shows of our own frames, those of causes and contexts too."""
    if error is None:
        return []
    stack = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), capture_locals=True)
    shown = [f"{name}={value}" for frame in stack if "/src/" in frame.filename for name, value in locals_in(frame)]
    return [*shown, *locals_of(error.__cause__ or error.__context__)]


def locals_in(frame: traceback.FrameSummary) -> Iterable[tuple[str, str]]:
    return (frame.locals or {}).items()
