"""SessionTree, and the view of it that is bound to a lane (harness-v2 §12)."""

from typing import Protocol

from ..types.entries import CustomBody, Entry, EntryType, MessageBody, ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import AgentMessage
from .core import SessionCore
from .queries import BranchBounds, EntryCursor, EntryQuery, Order
from .storage import SessionStats


class SessionTree(Protocol):
    """Reads of the tree and the global facts, and writes at one lane's leaf.

    Finders return committed entries only. `order` is "newestFirst" unless said otherwise.
    """

    async def get_leaf_id(self) -> str | None:
        """The lane's leaf; None when the lane stands at the root."""
        ...

    async def get_entry(self, entry_id: str) -> Entry | None:
        """Point lookup, any branch."""
        ...

    async def get_stats(self) -> SessionStats:
        """Message count and the ledger's sums."""
        ...

    async def get_name(self) -> str | None:
        """The session's name."""
        ...

    async def set_name(self, name: str | None) -> None:
        """Set or clear the session's name; line breaks become spaces (A-11)."""
        ...

    async def get_label(self, target_id: str) -> str | None:
        """An entry's label."""
        ...

    async def set_label(self, target_id: str, label: str | None) -> None:
        """Set or clear an entry's label."""
        ...

    async def find_entries(
        self,
        *,
        type: EntryType | None = None,
        custom_type: str | None = None,
        order: Order = "newestFirst",
        limit: int | None = None,
        cursor: EntryCursor | None = None,
    ) -> list[Entry]:
        """Session-wide, all branches."""
        ...

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
        """The path from `start` (default: the lane's leaf) towards the root."""
        ...

    async def append_message(self, message: AgentMessage) -> str:
        """Append a message; returns the entry's id."""
        ...

    async def append_custom_entry(self, custom_type: str, data: JsonValue = None) -> str:
        """Append an extension's own entry; returns its id."""
        ...


class LaneView:
    """A `SessionTree` bound to a lane that writes at once: for sessions with no harness attached."""

    def __init__(self, core: SessionCore, lane: str) -> None:
        self._core = core
        self._lane = lane

    async def get_leaf_id(self) -> str | None:
        """See `SessionTree`.

        Raises:
            UnknownLane: the session has no such lane.
        """
        from ..errors import UnknownLane

        for pointer in await self._core.storage.get_lanes():
            if pointer.lane == self._lane:
                return pointer.leaf_id
        raise UnknownLane(self._lane)

    async def get_entry(self, entry_id: str) -> Entry | None:
        """See `SessionTree`."""
        return await self._core.get_entry(entry_id)

    async def get_stats(self) -> SessionStats:
        """See `SessionTree`."""
        return await self._core.storage.get_stats()

    async def get_name(self) -> str | None:
        """See `SessionTree`."""
        return await self._core.storage.get_name()

    async def set_name(self, name: str | None) -> None:
        """See `SessionTree`."""
        await self._core.set_name(name)

    async def get_label(self, target_id: str) -> str | None:
        """See `SessionTree`."""
        return await self._core.get_label(target_id)

    async def set_label(self, target_id: str, label: str | None) -> None:
        """See `SessionTree`."""
        await self._core.set_label(target_id, label)

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
        return await self._core.find_entries(
            EntryQuery(type=type, custom_type=custom_type, order=order, limit=limit, cursor=cursor)
        )

    async def find_entry(self, *, type: EntryType | None = None, custom_type: str | None = None) -> Entry | None:
        """The newest match, session-wide."""
        found = await self.find_entries(type=type, custom_type=custom_type, limit=1)
        return found[0] if found else None

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
        return await self._core.find_entries_on_branch(
            EntryQuery(type=type, custom_type=custom_type, order=order, limit=limit, cursor=cursor),
            BranchBounds(start=start, stop_at_type=stop_at_type, stop_at_id=stop_at_id, after_seq=after_seq),
        )

    async def find_entry_on_branch(
        self, *, type: EntryType | None = None, custom_type: str | None = None, start: str | None = None
    ) -> Entry | None:
        """The newest match on the path."""
        found = await self.find_entries_on_branch(type=type, custom_type=custom_type, start=start, limit=1)
        return found[0] if found else None

    async def append_message(self, message: AgentMessage) -> str:
        """See `SessionTree`."""
        return await self._append(
            ProvisionedEntry(id=self._core.id_generator.next(), body=MessageBody(message=message))
        )

    async def append_custom_entry(self, custom_type: str, data: JsonValue = None) -> str:
        """See `SessionTree`."""
        body = CustomBody(custom_type=custom_type, data=data)
        return await self._append(ProvisionedEntry(id=self._core.id_generator.next(), body=body))

    async def _append(self, entry: ProvisionedEntry) -> str:
        return (await self._core.append_entry(entry, self._lane)).id
