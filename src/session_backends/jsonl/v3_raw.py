"""Raw entries of a v3 file: identified, dated and linked into a tree that has no missing parents and no cycles."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from agent_harness.types.codec import Wire
from agent_harness.types.json import JsonValue

from .v3_lines import Findings, Line

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MAX_DATE = 8_640_000_000_000_000
"""Largest date of the writer's runtime, in Unix ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEntry:
    """One line of the file below the header, whatever its type."""

    line: int  # 1-based
    id: str
    parent_id: str | None  # an entry of this file, or None for a root
    type: str
    timestamp: int  # Unix ms
    wire: Wire


def unix_ms(value: JsonValue) -> int | None:
    """An ISO date (UTC unless it says otherwise) or a number of milliseconds -> Unix ms; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return int(value) if abs(value) <= MAX_DATE else None
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (aware - EPOCH) // MILLISECOND
    except (ValueError, OverflowError):
        return None


def read_entries(lines: Iterable[Line], created_at: int, findings: Findings) -> dict[str, RawEntry]:
    """Entries by id, in file order. The later of two with one id counts, as for the program that wrote them.

    Raises:
        CorruptSession: strict, at the first damage.
    """
    entries: dict[str, RawEntry] = {}
    timestamp = created_at
    for line in lines:
        kind, entry_id = line.value.get("type"), line.value.get("id")
        if kind == "session":
            findings.damage("skipped_line", "a second header was skipped", line.number)
            continue
        if not isinstance(kind, str) or not isinstance(entry_id, str) or not entry_id:
            findings.damage("skipped_line", "line has no type or no id and was skipped", line.number)
            continue
        if entries.pop(entry_id, None) is not None:
            findings.damage("duplicate_id", f"an earlier entry with the id {entry_id!r} was skipped", line.number)
        moment = unix_ms(line.value.get("timestamp"))
        if moment is None:
            findings.damage("bad_timestamp", f"entry {entry_id!r} has no valid timestamp", line.number)
        timestamp = timestamp if moment is None else moment
        parent = line.value.get("parentId", "")
        if parent is not None and not isinstance(parent, str):
            parent = ""
        entries[entry_id] = RawEntry(
            line=line.number, id=entry_id, parent_id=parent, type=kind, timestamp=timestamp, wire=line.value
        )
    _root_orphans(entries, findings)
    _cut_cycles(entries, findings)
    return entries


def _root_orphans(entries: dict[str, RawEntry], findings: Findings) -> None:
    for entry in entries.values():
        if entry.parent_id is not None and entry.parent_id not in entries:
            named = f"parent {entry.parent_id!r} is not in the file" if entry.parent_id else "no parent is named"
            findings.damage("missing_parent", f"entry {entry.id!r} became a root: {named}", entry.line)
            entries[entry.id] = replace(entry, parent_id=None)


def _cut_cycles(entries: dict[str, RawEntry], findings: Findings) -> None:
    reaches_root: set[str] = set()
    for start in entries:
        trail: dict[str, None] = {}
        current: str | None = start
        while current is not None and current not in reaches_root:
            trail[current] = None
            entry = entries[current]
            if entry.parent_id in trail:
                findings.damage("parent_cycle", f"entry {entry.id!r} became a root: it is its own ancestor", entry.line)
                entries[current] = replace(entry, parent_id=None)
                break
            current = entry.parent_id
        reaches_root.update(trail)


def parents_first(entries: dict[str, RawEntry]) -> list[RawEntry]:
    """File order, except that an entry whose parent stands further down comes after it."""
    placed: dict[str, RawEntry] = {}
    for entry in entries.values():
        above: list[RawEntry] = []
        current: RawEntry | None = entry
        while current is not None and current.id not in placed:
            above.append(current)
            current = entries[current.parent_id] if current.parent_id is not None else None
        placed.update((waiting.id, waiting) for waiting in reversed(above))
    return list(placed.values())
