"""The normalised tree of a v3 file: discarded entries bridged, old compactions materialised, context edits applied.

A context edit changes what every path below it shows of an earlier entry, while other branches through that entry show
it unchanged. Format 4 knows no edits, so each path is given the entries that it shows: where nothing else hangs off
the edited stretch, the entries are edited in their place; the part that other branches share is copied.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from agent_harness.types.entries import Entry, EntryBody

from .v3_entries import FACTS, RETAINED, Edit, Edits, Kept, context_message, entry_body, read_edit
from .v3_lines import Findings
from .v3_raw import RawEntry, parents_first


@dataclass(slots=True)
class Node:
    """An entry of the normalised tree while it is being built."""

    id: str
    parent: "Node | None"
    source: RawEntry
    kept: tuple[Kept, ...]  # a compaction's retained tail
    edits: Edits  # those that change this entry or its tail
    body: EntryBody

    def shows(self, entry_id: str) -> bool:
        """Whether an edit of the entry changes this node."""
        return self.source.id == entry_id or any(item.source_id == entry_id for item in self.kept)


class V3Tree:
    """Builds the nodes of all entries, parents first, whatever their order in the file.

    Raises:
        CorruptSession: strict, at the first damage.
    """

    def __init__(self, entries: dict[str, RawEntry], findings: Findings) -> None:
        self._raw = entries
        self._findings = findings
        self._children = Counter(entry.parent_id for entry in entries.values())
        self._nodes: list[Node] = []
        self._ids = set(entries)
        self._place: dict[str, Node | None] = {}
        self.edits_applied = 0
        for entry in parents_first(entries):
            above = self._place[entry.parent_id] if entry.parent_id is not None else None
            self._place[entry.id] = self._placed(entry, above)

    def place(self, entry_id: str) -> str | None:
        """The retained entry that stands for an entry of the file: itself or its nearest retained ancestor."""
        node = self._place[entry_id]
        return node.id if node is not None else None

    def entries(self) -> tuple[Entry, ...]:
        """Format-4 entries in file order, `seq` from 1; an entry whose parent stood further down comes after it."""
        seq: dict[str, int] = {}
        out: list[Entry] = []
        for start in self._nodes:
            waiting: list[Node] = []
            node: Node | None = start
            while node is not None and node.id not in seq:
                waiting.append(node)
                node = node.parent
            for node in reversed(waiting):
                seq[node.id] = len(seq) + 1
                out.append(
                    Entry(
                        id=node.id,
                        seq=seq[node.id],
                        parent_id=node.parent.id if node.parent is not None else None,
                        timestamp=node.source.timestamp,
                        body=node.body,
                    )
                )
        return tuple(out)

    def _placed(self, entry: RawEntry, above: Node | None) -> Node | None:
        if entry.type not in RETAINED:
            if entry.type not in FACTS:
                message = f"entry {entry.id!r} of the unknown type {entry.type[:40]!r} was skipped"
                self._findings.damage("unknown_type", message, entry.line)
            return above
        if entry.type == "context_edit":
            above = self._edited_path(entry, above)
        kept: tuple[Kept, ...] = ()
        edits: Edits = {}
        if entry.type == "compaction":
            kept, edits = self._retained(entry)
        body = self._body(entry, kept, edits)
        if body is None:
            self._findings.damage(
                "skipped_entry", f"{entry.type} {entry.id!r} is unreadable; it was skipped", entry.line
            )
            return above
        return self._add(Node(entry.id, above, entry, kept, edits, body))

    def _add(self, node: Node) -> Node:
        self._nodes.append(node)
        return node

    def _body(self, entry: RawEntry, kept: tuple[Kept, ...], edits: Edits, line: int | None = None) -> EntryBody | None:
        def repaired(reason: str) -> None:
            self._findings.damage("repaired_entry", f"{entry.type} {entry.id!r} was repaired: {reason}", at)

        at = line if line is not None else entry.line
        return entry_body(entry, kept, edits, repaired)

    def _ancestors(self, entry: RawEntry) -> Iterable[RawEntry]:
        while entry.parent_id is not None:
            entry = self._raw[entry.parent_id]
            yield entry

    # Compactions -----------------------------------------------------------------------------------------------------

    def _retained(self, entry: RawEntry) -> tuple[tuple[Kept, ...], Edits]:
        """The retained tail of a compaction, unedited, and the edits that stand in the kept range."""
        system = entry.wire.get("systemMessage")
        head = (Kept(None, system, entry.timestamp),) if isinstance(system, dict) else ()
        tail = entry.wire.get("retainedTail")
        if isinstance(tail, list):
            return (*head, *(Kept(None, message, entry.timestamp) for message in tail)), {}
        kept: list[Kept] = []
        edits: dict[str, Edit] = {}
        for source in self._kept_range(entry):
            if source.type == "context_edit" and isinstance(target := source.wire.get("targetId"), str):
                edits[target] = read_edit(source) or Edit(source.id, removes=True)
            message = context_message(source)
            if message is None or (head and message.get("role") == "system"):
                continue  # the compaction's own system message stands for those before it
            kept.append(Kept(source.id, message, source.timestamp))
        return (*head, *kept), edits

    def _kept_range(self, entry: RawEntry) -> list[RawEntry]:
        first = entry.wire.get("firstKeptEntryId")
        kept: list[RawEntry] = []
        if isinstance(first, str) and first in self._raw:
            for source in self._ancestors(entry):
                kept.append(source)
                if source.id == first:
                    return kept[::-1]
        if first == entry.id:
            why = "is the compaction itself"
        elif isinstance(first, str) and first in self._raw:
            why = "is on another branch"
        else:
            why = "is not in the file"
        message = f"compaction {entry.id!r} keeps nothing: its firstKeptEntryId {why}"
        self._findings.damage("first_kept_entry", message, entry.line)
        return []

    # Context edits ---------------------------------------------------------------------------------------------------

    def _edited_path(self, entry: RawEntry, above: Node | None) -> Node | None:
        """Apply an edit to the path above it; gives the path's new end."""
        target = entry.wire.get("targetId")
        stretch: list[RawEntry] = []
        for source in self._ancestors(entry):
            stretch.append(source)
            if source.id == target:
                break
        if not stretch or stretch[-1].id != target or not isinstance(target, str):
            message = f"context edit {entry.id!r} names no entry of its path; it was not applied"
            self._findings.damage("edit_without_target", message, entry.line)
            return above
        edit = read_edit(entry)
        if edit is None:
            message = f"context edit {entry.id!r} has no readable replacement; its target was removed"
            self._findings.damage("unreadable_edit", message, entry.line)
            edit = Edit(entry.id, removes=True)
        path: list[Node] = []
        node = above
        while node is not None and (not path or path[-1].source.id != target):
            path.append(node)
            node = node.parent
        if not path or path[-1].source.id != target:
            return above  # the target was discarded: it shows nothing
        if edit.removes and path[-1].source.type == "compaction":
            message = f"the summary of compaction {target!r} was emptied by an edit; the compaction stays"
            self._findings.damage("removed_summary", message, entry.line)
        self.edits_applied += 1
        shared = self._shared(stretch)
        end = node
        for old in reversed(path):
            current = old
            if old.source.id in shared:
                current = self._add(replace(old, id=self._copy_id(old.id, entry.id)))
            current.parent = end
            if current.shows(target):
                current.edits = {**current.edits, target: edit}
                current.body = self._body(current.source, current.kept, current.edits, entry.line) or current.body
            end = current
        return end

    def _shared(self, stretch: list[RawEntry]) -> set[str]:
        """Of the entries from an edit's parent up to its target, those that other branches pass through too."""
        for index, source in enumerate(stretch):
            if self._children[source.id] > 1:
                return {above.id for above in stretch[index:]}
        return set()

    def _copy_id(self, original: str, edit: str) -> str:
        # Derived, not random: every opening of the unconverted file must give the same ids.
        fresh = f"{original}.{edit}"
        while fresh in self._ids:
            fresh += "."
        self._ids.add(fresh)
        return fresh
