"""Laws that hold in every test: contexts grow at their tail (A-8), a session's cost is the sum of its ledger, and what
is said in a conversation is told nowhere else.

The observer notes what is broken; the fixture in `tests/conftest.py` fails the test that broke it.
"""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from agent_harness.errors import SessionClosed
from agent_harness.session.context import to_provider_messages
from agent_harness.session.storage import SessionStorage
from agent_harness.testing import ObservedRequest
from agent_harness.types.entries import Entry
from agent_harness.types.messages import AgentMessage, CompactionSummaryMessage, Usage
from agent_harness.types.records import LaneRecord
from agent_harness.types.usage import add_usage
from tests.support.discretion import Discretion

T = TypeVar("T")


@dataclass
class Watched:
    """One opened session: its ledger as committed, and the last request of each lane, run and model."""

    storage: SessionStorage  # held, so that its identity stays its own
    ledger: Usage
    requests: dict[tuple[str, str, object], tuple[AgentMessage, ...]] = field(default_factory=dict)


@dataclass
class Laws:
    """An `Observer` of `agent_harness.testing.observe`."""

    requests: int = 0
    compared: int = 0  # requests that had one before them to extend
    usages: int = 0
    broken: list[str] = field(default_factory=list)
    discretion: Discretion = field(default_factory=Discretion)
    _watched: dict[int, Watched] = field(default_factory=dict)

    def opened(self, storage: SessionStorage) -> None:
        self._watched[id(storage)] = Watched(storage, at_once(storage.get_stats()).usage)

    def committed(self, storage: SessionStorage, item: Entry | LaneRecord | int) -> None:
        self.discretion.heard(item)
        watched = self._watched[id(storage)]
        if isinstance(item, LaneRecord) and item.body.type == "usage":
            self.usages += 1
            watched.ledger = add_usage(watched.ledger, item.body.usage)
        try:
            cost = at_once(storage.get_stats()).usage
        except SessionClosed:
            return  # close() lets accepted writes finish and answers no more reads
        if cost != watched.ledger:
            self.broken.append(f"after {item}: the session costs {cost}, its records sum to {watched.ledger}")

    def requested(self, request: ObservedRequest) -> None:
        self.requests += 1
        key = (request.lane, request.run_id, request.model)
        before = self._watched[id(request.storage)].requests.get(key)
        self._watched[id(request.storage)].requests[key] = request.messages
        if before is None or newest_summary(before) is not newest_summary(request.messages):
            return
        self.compared += 1
        extends(before, request.messages, f"context of {request.lane}, run {request.run_id}", self.broken)
        told = f"provider messages of {request.lane}, run {request.run_id}"
        extends(to_provider_messages(before), to_provider_messages(request.messages), told, self.broken)


def at_once(coroutine: Coroutine[object, object, T]) -> T:
    """The value of a coroutine that has nothing to wait for: every backend answers statistics from live state."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("statistics had to wait")


def newest_summary(messages: tuple[AgentMessage, ...]) -> AgentMessage | None:
    """The compaction that a context begins with: one object for as long as that compaction is the newest."""
    return next((message for message in reversed(messages) if isinstance(message, CompactionSummaryMessage)), None)


def extends(before: Sequence[object], after: Sequence[object], what: str, broken: list[str]) -> None:
    """Note when `before` is no exact prefix of `after`."""
    old, new = list(before), list(after)
    if new[: len(old)] != old:
        at = next(n for n in range(len(old)) if new[n : n + 1] != old[n : n + 1])
        broken.append(f"{what}: message {at} of {len(old)} changed\nbefore: {old[at]}\nafter: {new[at : at + 1]}")
