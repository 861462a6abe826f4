"""SessionStorage: what a backend must do for one session (harness-v2 §13 "Contract").

Storage persists and answers queries. It never executes operations, queues or recovery; payloads are opaque to it but
for the columns it indexes and the open-operation projection.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ..types.codec import Sealed
from ..types.entries import Entry, ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import Usage
from ..types.records import LaneRecord, NewRecord
from .queries import BranchBounds, EntryQuery, RecordQuery

Durability: TypeAlias = Literal["process", "power"]
"""`process`: a resolved write survives a crash of the process; `power`: it survives power loss (decisions §5)."""

MAIN = "main"
"""The lane that every session has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMetadata:
    """What is known of a session without opening it."""

    id: str
    created_at: int  # Unix ms
    cwd: str | None = None
    parent_session_id: str | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    source_format: int = 4  # 3 until the first write converts an old file
    name: str | None = None  # in listings of memory and SQLite; JSONL listings read headers only
    path: str | None = None  # of a file
    modified_at: int | None = None  # Unix ms, of a file
    legacy_parent_session_path: str | None = None  # a v3 parent that could not be resolved to an id


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePointer:
    """A lane and its leaf."""

    lane: str
    leaf_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """Running projections: O(1) to read. Tokens and cost are the sum of all `usage` records (harness-v2 §13)."""

    message_count: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def cached_tokens(self) -> float:
        """Tokens read from a provider's cache."""
        return self.usage.cache_read

    @property
    def uncached_tokens(self) -> float:
        """Input tokens that were processed: fresh ones and those written to the cache."""
        return self.usage.input + self.usage.cache_write

    @property
    def total_tokens(self) -> float:
        """All tokens, as the providers total them."""
        return self.usage.total_tokens

    @property
    def cost_total(self) -> float:
        """US dollars."""
        return self.usage.cost.total


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryItem:
    """Log: an entry was appended; `lane` is the one whose leaf it became, None for an imported entry."""

    kind: Literal["entry"] = "entry"
    seq: int
    entry: Entry
    lane: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordItem:
    """Log: a record was appended."""

    kind: Literal["record"] = "record"
    seq: int
    record: LaneRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneItem:
    """Log: a lane was created or moved."""

    kind: Literal["lane"] = "lane"
    seq: int
    lane: str
    leaf_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameItem:
    """Log: the session's name was set, or cleared with None."""

    kind: Literal["fact"] = "fact"
    fact: Literal["name"] = "name"
    seq: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelItem:
    """Log: an entry's label was set, or cleared with None."""

    kind: Literal["fact"] = "fact"
    fact: Literal["label"] = "label"
    seq: int
    target_id: str
    label: str | None


LogItem: TypeAlias = EntryItem | RecordItem | LaneItem | NameItem | LabelItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """Something that opening noticed and coped with: a dropped tail, a skipped v3 line."""

    code: str  # torn_tail, missing_final_newline, skipped_line, ...
    message: str
    line: int | None = None  # 1-based
    bytes_dropped: int | None = None


OnEntry: TypeAlias = Callable[[Entry], None]
OnRecord: TypeAlias = Callable[[LaneRecord], None]
OnSeq: TypeAlias = Callable[[int], None]


class SessionStorage(Protocol):
    """One session in one store.

    Writes: storage linearizes writes from all lanes, allocates `seq` inside each commit, and calls `on_commit` on the
    event loop in commit order, before the write's own awaiter resumes. A caller's cancellation withdraws a write that
    has not started; a started one runs to its end and still calls `on_commit`. A write is durable when it resolves.

    Every write raises:
        DuplicateId, UnknownLane, UnknownEntry, OperationOpen, LaneAlreadyExists: refused, nothing was written.
        ReadOnlySession, SessionClosed: this opening may not write.
        StorageError: the outcome is unknown until the store is read again; this opening writes nothing more.
    """

    @property
    def metadata(self) -> SessionMetadata:
        """The session's header; constant while it is open."""
        ...

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What opening noticed."""
        ...

    @property
    def last_seq(self) -> int:
        """The highest committed sequence number, 0 for a new session."""
        ...

    async def get_lanes(self) -> list[LanePointer]:
        """All lanes, `main` first, then by creation."""
        ...

    async def create_lane(self, lane: str, at: str | None, on_commit: OnSeq | None = None) -> None:
        """Create a permanent named pointer."""
        ...

    async def move_lane(self, lane: str, to: str | None, on_commit: OnSeq | None = None) -> None:
        """Jump a lane's leaf to an existing entry or to the root."""
        ...

    async def append_entry(self, entry: Sealed[ProvisionedEntry], lane: str, on_commit: OnEntry | None = None) -> Entry:
        """Append at `lane`'s leaf and make it the leaf, in one commit."""
        ...

    async def append_record(self, record: Sealed[NewRecord], on_commit: OnRecord | None = None) -> LaneRecord:
        """Append to a lane's operation log; an `operation_started` needs a lane with no open operation."""
        ...

    async def set_name(self, name: str | None, on_commit: OnSeq | None = None) -> None:
        """Set or clear the session's name; history is kept."""
        ...

    async def set_label(self, target_id: str, label: str | None, on_commit: OnSeq | None = None) -> None:
        """Set or clear an entry's label; history is kept."""
        ...

    async def get_entry(self, entry_id: str) -> Entry | None:
        """Point lookup."""
        ...

    async def find_entries(self, query: EntryQuery) -> list[Entry]:
        """Session-wide, all branches, sequence order."""
        ...

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        """The path from `bounds.start` towards the root; see `queries.select_on_branch`."""
        ...

    async def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        """Records of one or all lanes."""
        ...

    async def find_open_operations(self, lane: str, limit: int | None = None) -> list[LaneRecord]:
        """Unfinished `operation_started` records, newest first; a second one is corruption the caller reports."""
        ...

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        """Everything with `seq` above `after_seq`, in sequence order."""
        ...

    async def get_name(self) -> str | None:
        """The newest name."""
        ...

    async def get_label(self, target_id: str) -> str | None:
        """The newest label of an entry."""
        ...

    async def get_labels(self) -> dict[str, str]:
        """All current labels by entry id."""
        ...

    async def get_stats(self) -> SessionStats:
        """Running projections, as of the last commit."""
        ...

    async def close(self) -> None:
        """Finish started writes, release the writer claim. Idempotent, bounded in time."""
        ...
