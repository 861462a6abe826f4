"""What an opened session keeps in memory. It changes only by commits, in commit order."""

from dataclasses import dataclass

from agent_harness.session.stats import count_entry, count_record
from agent_harness.session.storage import LanePointer, SessionStats
from agent_harness.types.entries import Entry
from agent_harness.types.records import LaneRecord, OperationFinished, OperationStarted


@dataclass(slots=True, kw_only=True)
class LaneState:
    """A lane's leaf and its open operation."""

    leaf_id: str | None
    open_operation_id: str | None = None


@dataclass(slots=True, kw_only=True)
class Live:
    """Lanes in order of creation, statistics, last sequence number."""

    last_seq: int
    lanes: dict[str, LaneState]
    stats: SessionStats

    def pointers(self) -> list[LanePointer]:
        """`main` first, then by creation."""
        return [LanePointer(lane=lane, leaf_id=state.leaf_id) for lane, state in self.lanes.items()]

    def appended(self, lane: str, entry: Entry) -> None:
        """An entry was committed at `lane`'s leaf."""
        self.last_seq = entry.seq
        self.stats = count_entry(self.stats, entry)
        self.lanes[lane].leaf_id = entry.id

    def recorded(self, record: LaneRecord) -> None:
        """A record was committed."""
        self.last_seq = record.seq
        self.stats = count_record(self.stats, record)
        state = self.lanes[record.lane]
        if isinstance(record.body, OperationStarted):
            state.open_operation_id = record.id
        elif isinstance(record.body, OperationFinished) and state.open_operation_id == record.body.run_id:
            state.open_operation_id = None

    def pointed(self, seq: int, lane: str, leaf_id: str | None) -> None:
        """A lane was created or moved."""
        self.last_seq = seq
        self.lanes.setdefault(lane, LaneState(leaf_id=leaf_id)).leaf_id = leaf_id

    def advanced(self, seq: int) -> None:
        """A fact was committed."""
        self.last_seq = seq
