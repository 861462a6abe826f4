"""Session: one opened session, bound to `main`, with lanes, records and the whole log (harness-v2 §12).

All writes flow through here; there is no way to the storage behind it.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ..errors import StorageError
from ..types.entries import Entry, ProvisionedEntry
from ..types.ids import IdGenerator, Uuid7Ids
from ..types.messages import AgentMessage
from ..types.records import LaneRecord, NewRecord, OperationKind, RecordType
from ..types.state import ModelRef
from .core import MessageValidator, SessionCore
from .observing import ObservedRequest
from .queries import Order, RecordQuery
from .storage import MAIN, Diagnostic, LanePointer, LogItem, OnEntry, OnRecord, OnSeq, SessionMetadata, SessionStorage
from .verify import Finding, verify_session
from .views import LaneView


class Session(LaneView):
    """Usable on its own, without a harness. An async context manager: leaving it releases the writer claim.

    After passing a session to `AgentHarness.create()`, write only through the harness until it is closed.
    """

    def __init__(
        self,
        storage: SessionStorage,
        *,
        id_generator: IdGenerator | None = None,
        message_types: Mapping[str, MessageValidator] | None = None,
    ) -> None:
        super().__init__(SessionCore(storage, id_generator or Uuid7Ids(), message_types or {}), MAIN)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._core.storage.metadata.id

    @property
    def metadata(self) -> SessionMetadata:
        """The session's header."""
        return self._core.storage.metadata

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What opening noticed and coped with; empty for a healthy store."""
        return self._core.storage.diagnostics

    @property
    def id_generator(self) -> IdGenerator:
        """Where new ids come from."""
        return self._core.id_generator

    @property
    def delivered_seq(self) -> int:
        """The highest sequence number whose commit was announced: the bound of every read."""
        return self._core.delivered_seq

    def register_message_types(self, message_types: Mapping[str, MessageValidator]) -> None:
        """Allow messages of these roles to be appended."""
        self._core.message_types.update(message_types)

    def view(self, lane: str) -> LaneView:
        """The tree, bound to `lane`: reads default to its leaf, appends chain to it."""
        return LaneView(self._core, lane)

    async def get_lanes(self) -> list[LanePointer]:
        """All lanes and their leaves, `main` first."""
        return await self._core.storage.get_lanes()

    async def create_lane(self, lane: str, at: str | None, *, on_commit: OnSeq | None = None) -> None:
        """Create a lane at an entry, or at the root.

        Raises:
            LaneAlreadyExists, UnknownEntry, InvalidWrite: nothing was written.
            StorageError: outcome unknown.
        """
        await self._core.create_lane(lane, at, on_commit)

    async def move_lane(self, lane: str, to: str | None, *, on_commit: OnSeq | None = None) -> None:
        """Move a lane's leaf to an existing entry, or to the root."""
        await self._core.move_lane(lane, to, on_commit)

    async def append_entry(self, entry: ProvisionedEntry, lane: str, *, on_commit: OnEntry | None = None) -> Entry:
        """Append an entry whose id is already provisioned, at `lane`'s leaf.

        `on_commit` runs on the event loop in commit order, even if the caller is cancelled meanwhile.

        Raises:
            DuplicateId, UnknownLane, InvalidPayload: nothing was written.
            StorageError: outcome unknown; the session accepts no further write.
        """
        return await self._core.append_entry(entry, lane, on_commit)

    async def append_record(self, record: NewRecord, *, on_commit: OnRecord | None = None) -> LaneRecord:
        """Append to a lane's operation log. The harness writes these; applications only usage adjustments.

        Raises:
            DuplicateId, UnknownLane, OperationOpen, InvalidPayload: nothing was written.
            StorageError: outcome unknown; the session accepts no further write.
        """
        return await self._core.append_record(record, on_commit)

    async def find_records(
        self,
        *,
        lane: str | None = None,
        type: RecordType | None = None,
        run_id: str | None = None,
        operation_kind: OperationKind | None = None,
        after_seq: int | None = None,
        order: Order = "newestFirst",
        limit: int | None = None,
    ) -> list[LaneRecord]:
        """Records of one or all lanes; see `RecordQuery`."""
        query = RecordQuery(
            lane=lane,
            type=type,
            run_id=run_id,
            operation_kind=operation_kind,
            after_seq=after_seq,
            order=order,
            limit=limit,
        )
        return await self._core.find_records(query)

    async def find_open_operations(self, lane: str, limit: int | None = None) -> list[LaneRecord]:
        """Unfinished operation starts, newest first; `limit=2` tells the valid states from corruption."""
        return await self._core.find_open_operations(lane, limit)

    async def get_labels(self) -> dict[str, str]:
        """All current labels by entry id."""
        return await self._core.storage.get_labels()

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        """Entries, records, facts and lane moves in sequence order: debugging and tests."""
        return await self._core.get_log(after_seq, limit)

    async def verify(self) -> list[Finding]:
        """Check the whole session against every validity rule; lists all findings (A-14)."""
        return verify_session(await self.get_log())

    def refuse_writes(self, reason: str) -> None:
        """Accept no further write through this opening: its user found that it must not go on."""
        self._core.fault = self._core.fault or StorageError(reason)

    def tell_request(self, lane: str, run_id: str, model: ModelRef, messages: Sequence[AgentMessage]) -> None:
        """Tell whoever observes this session that `lane` asks for an answer (see `observing`)."""
        observer = self._core.observer
        if observer is not None:
            storage = self._core.storage
            observer.requested(
                ObservedRequest(storage=storage, lane=lane, run_id=run_id, model=model, messages=tuple(messages))
            )

    async def close(self) -> None:
        """Finish started writes and release the writer claim. Idempotent."""
        await self._core.storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
