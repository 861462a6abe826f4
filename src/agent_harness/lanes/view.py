"""LaneSession: a lane's view of the tree under a harness (harness-v2 §12 "SessionTree").

Reads pass through. A write enters the lane's mutation line: appended on an idle lane, a durable deferred write while a
run is open, and waiting for a structural operation to end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import WriteRefused
from ..session.queries import EntryCursor, Order
from ..session.storage import SessionStats
from ..session.views import LaneView
from ..types.entries import CustomBody, Entry, EntryBody, EntryType, MessageBody, ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import AgentMessage
from . import jobs
from .lane import HOOK_OF, LaneRuntime

T = TypeVar("T")


class LaneSession:
    """Implements `SessionTree` for one lane of a live harness; on a dead one every call raises what ended it."""

    def __init__(self, lane: LaneRuntime) -> None:
        self._lane = lane
        self._env = lane.env
        self._tree = lane.env.session.view(lane.name)

    @property
    def _view(self) -> LaneView:
        """The stored tree, while the harness lives: a dead one answers nothing (harness-v2 §8)."""
        self._env.require_alive()
        return self._tree

    async def get_leaf_id(self) -> str | None:
        """See `SessionTree`; from live state."""
        self._env.require_alive()
        return self._lane.state.lane_state.leaf_id

    async def get_entry(self, entry_id: str) -> Entry | None:
        """See `SessionTree`."""
        return await self._view.get_entry(entry_id)

    async def get_stats(self) -> SessionStats:
        """See `SessionTree`."""
        return await self._view.get_stats()

    async def get_name(self) -> str | None:
        """See `SessionTree`."""
        return await self._view.get_name()

    async def set_name(self, name: str | None) -> None:
        """See `SessionTree`. Facts are not on a path: written at once, whatever the lane does."""
        await run_job(self._lane, lambda: jobs.set_name(self._lane, name))

    async def get_label(self, target_id: str) -> str | None:
        """See `SessionTree`."""
        return await self._view.get_label(target_id)

    async def set_label(self, target_id: str, label: str | None) -> None:
        """See `SessionTree`. Written at once, like the name."""
        await run_job(self._lane, lambda: jobs.set_label(self._lane, target_id, label))

    async def find_entries(
        self,
        *,
        type: EntryType | None = None,
        custom_type: str | None = None,
        order: Order = "newestFirst",
        limit: int | None = None,
        cursor: EntryCursor | None = None,
    ) -> list[Entry]:
        """See `SessionTree`."""
        return await self._view.find_entries(
            type=type, custom_type=custom_type, order=order, limit=limit, cursor=cursor
        )

    async def find_entry(self, *, type: EntryType | None = None, custom_type: str | None = None) -> Entry | None:
        """The newest match, session-wide."""
        return await self._view.find_entry(type=type, custom_type=custom_type)

    async def find_entries_on_branch(
        self,
        *,
        type: EntryType | None = None,
        custom_type: str | None = None,
        order: Order = "newestFirst",
        limit: int | None = None,
        cursor: EntryCursor | None = None,
        start: str | None = None,
        stop_at_type: EntryType | None = None,
        stop_at_id: str | None = None,
        after_seq: int | None = None,
    ) -> list[Entry]:
        """See `SessionTree`."""
        start = start if start is not None else await self.get_leaf_id()
        if start is None:
            return []
        return await self._view.find_entries_on_branch(
            type=type,
            custom_type=custom_type,
            order=order,
            limit=limit,
            cursor=cursor,
            start=start,
            stop_at_type=stop_at_type,
            stop_at_id=stop_at_id,
            after_seq=after_seq,
        )

    async def find_entry_on_branch(
        self, *, type: EntryType | None = None, custom_type: str | None = None, start: str | None = None
    ) -> Entry | None:
        """The newest match on the path."""
        found = await self.find_entries_on_branch(type=type, custom_type=custom_type, start=start, limit=1)
        return found[0] if found else None

    async def append_message(self, message: AgentMessage) -> str:
        """See `SessionTree`; while a run is open the entry appears at its next checkpoint, under the returned id."""
        return await self._write(MessageBody(message=message))

    async def append_custom_entry(self, custom_type: str, data: JsonValue = None) -> str:
        """See `SessionTree`; while a run is open the entry appears at its next checkpoint, under the returned id."""
        return await self._write(CustomBody(custom_type=custom_type, data=data))

    async def _write(self, body: EntryBody) -> str:
        target = ProvisionedEntry(id=self._env.session.id_generator.next(), body=body)
        await write_when_possible(self._lane, lambda: jobs.accept_write(self._lane, target))
        return target.id


async def run_job(lane: LaneRuntime, job: Callable[[], Awaitable[T]]) -> T:
    """A line job on a living harness.

    Raises:
        HarnessFault, HarnessClosed: the harness is dead.
        InvalidWrite: the write was refused; nothing was written.
    """
    lane.env.require_alive()
    return await lane.line.run(job)


async def write_when_possible(lane: LaneRuntime, accept: Callable[[], Awaitable[str]]) -> None:
    """Run `accept` until it does not answer "wait", waiting for structural operations in between.

    Raises:
        WriteRefused: waiting would last for ever (A-10).
    """
    while await run_job(lane, accept) == "wait":
        refuse_endless_wait(lane)
        await lane.idle.wait()


def refuse_endless_wait(lane: LaneRuntime) -> None:
    """A write cannot wait for an operation that waits for it, or that nothing continues (A-10).

    Raises:
        WriteRefused: naming the operation.
    """
    op = lane.operation
    if op is None:
        return
    if not lane.executing:
        raise WriteRefused(f"lane {lane.name!r} has a suspended {op.kind} {op.id}: resume or abort it first")
    if HOOK_OF.get() == op.id or lane.procedure is asyncio.current_task():
        raise WriteRefused(f"a hook of {op.kind} {op.id} cannot write to lane {lane.name!r}, which waits for it to end")
