"""Checking a whole session against every validity rule (A-14): opening stops at the first, this lists them all."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import CorruptLog
from ..reducer.fold import apply
from ..types.entries import Entry
from ..types.records import LaneRecord, OperationFinished, OperationStarted
from ..types.state import EffectiveLaneConfiguration, LaneReductionResult, LaneState, ModelRef
from .storage import EntryItem, LabelItem, LaneItem, LogItem, NameItem, RecordItem

_NO_CONFIGURATION = EffectiveLaneConfiguration(
    model=ModelRef(provider="", model_id=""), thinking_level="off", active_tool_names=()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule, with the lane and the record or entry that broke it."""

    rule: str
    message: str
    lane: str | None
    item_id: str | None
    seq: int


@dataclass(slots=True)
class _Verifier:
    lanes: dict[str, LaneReductionResult] = field(default_factory=dict[str, LaneReductionResult])
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    ids: set[str] = field(default_factory=set[str])
    finished: set[str] = field(default_factory=set[str])
    findings: list[Finding] = field(default_factory=list[Finding])
    last_seq: int = 0

    def add(self, item: LogItem) -> None:
        if item.seq != self.last_seq + 1:
            self._find("sequence_gap", f"sequence {item.seq} follows {self.last_seq}", None, None, item.seq)
        self.last_seq = item.seq
        match item:
            case EntryItem(entry=entry, lane=lane):
                self._entry(entry, lane)
            case RecordItem(record=record):
                self._record(record)
            case LaneItem(lane=lane, leaf_id=leaf):
                if leaf is not None and leaf not in self.entries:
                    self._find("unknown_entry", f"lane {lane!r} points to missing entry {leaf}", lane, leaf, item.seq)
                state = self._lane(lane)
                self.lanes[lane] = replace(state, lane_state=replace(state.lane_state, leaf_id=leaf))
            case LabelItem(target_id=target):
                if target not in self.entries:
                    self._find("unknown_entry", f"label of missing entry {target}", None, target, item.seq)
            case NameItem():
                pass

    def _lane(self, lane: str) -> LaneReductionResult:
        return self.lanes.setdefault(
            lane, LaneReductionResult(lane_state=LaneState(lane=lane), effective_configuration=_NO_CONFIGURATION)
        )

    def _entry(self, entry: Entry, lane: str | None) -> None:
        self._unique(entry.id, entry.seq)
        if entry.parent_id is not None and entry.parent_id not in self.entries:
            self._find(
                "unknown_entry", f"entry {entry.id} has missing parent {entry.parent_id}", None, entry.id, entry.seq
            )
        self.entries[entry.id] = entry
        if lane is not None:  # an imported entry advances no lane
            self._fold(lane, self._lane(lane), entry, entry.seq)

    def _record(self, record: LaneRecord) -> None:
        self._unique(record.id, record.seq)
        run_id = record.run_id
        state = self._lane(record.lane)
        if isinstance(record.body, OperationFinished):
            self.finished.add(record.body.run_id)
        elif run_id in self.finished and record.type != "usage" and not isinstance(record.body, OperationStarted):
            message = f"record {record.id} follows the finish of operation {run_id}"
            self._find("record_after_finish", message, record.lane, record.id, record.seq)
            return
        self._fold(record.lane, state, record, record.seq)

    def _fold(self, lane: str, state: LaneReductionResult, fact: Entry | LaneRecord, seq: int) -> None:
        try:
            self.lanes[lane] = apply(state, fact)
        except CorruptLog as error:
            self._find(error.rule, str(error), error.lane, error.item_id, seq)

    def _unique(self, item_id: str, seq: int) -> None:
        if item_id in self.ids:
            self._find("duplicate_id", f"id {item_id} is used twice", None, item_id, seq)
        self.ids.add(item_id)

    def _find(self, rule: str, message: str, lane: str | None, item_id: str | None, seq: int) -> None:
        self.findings.append(Finding(rule=rule, message=message, lane=lane, item_id=item_id, seq=seq))


def verify_session(log: Sequence[LogItem]) -> list[Finding]:
    """All findings over the whole log, in sequence order; empty for a sound session."""
    verifier = _Verifier()
    for item in log:
        verifier.add(item)
    return verifier.findings
