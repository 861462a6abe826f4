"""Observers: laws that are to hold in every session and for every request are watched from outside.

`OBSERVER` says who watches the sessions opened in the current context; a session keeps the one it was opened under, so
that its commits reach it from whatever task or thread they come. Nobody watches unless asked to: see
`agent_harness.testing.observe`.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from ..types.entries import Entry
from ..types.messages import AgentMessage
from ..types.records import LaneRecord
from ..types.state import ModelRef
from .storage import SessionStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """A request for an answer, as the lane's context stood before `transform_context`."""

    storage: SessionStorage
    lane: str
    run_id: str
    model: ModelRef
    messages: tuple[AgentMessage, ...]


class Observer(Protocol):
    """Looks and keeps; it must not raise, since it is called between a commit and its announcement."""

    def opened(self, storage: SessionStorage) -> None:
        """A session was opened on `storage`."""
        ...

    def committed(self, storage: SessionStorage, item: Entry | LaneRecord | int) -> None:
        """An entry or a record is durable; of a move or a fact, its sequence number."""
        ...

    def requested(self, request: ObservedRequest) -> None:
        """A lane is about to ask for an answer. Requests for summaries are not reported: they extend nothing."""
        ...


OBSERVER: ContextVar[Observer | None] = ContextVar("OBSERVER", default=None)
