"""Forks: which items of a source make up the new session (harness-v2 §17). Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from agent_harness.errors import UnknownEntry
from agent_harness.session.repo import BranchFork, ForkOptions
from agent_harness.session.session import Session
from agent_harness.session.storage import MAIN, EntryItem, LabelItem, LaneItem, LanePointer, LogItem, NameItem
from agent_harness.types.codec import dump_entry, encode
from agent_harness.types.entries import Entry

from .staging import Mutation


async def fork_of(source: Session, options: ForkOptions) -> list[Mutation]:
    """The content of a fork of `source`: the committed prefix, read through its public surface.

    Raises:
        UnknownEntry: the fork point is no entry of the source.
    """
    # Leaves first: an entry appended meanwhile is then in the log, but no leaf can be missing from it.
    lanes = await source.get_lanes()
    return list(fork_items(await source.get_log(), lanes, options))


def fork_items(log: Sequence[LogItem], lanes: Sequence[LanePointer], options: ForkOptions) -> Iterator[Mutation]:
    """Entries without a lane, then lane pointers, then the facts; sequence numbers start again at 1."""
    entries = {item.entry.id: item.entry for item in log if isinstance(item, EntryItem)}
    if isinstance(options, BranchFork):
        tip = _fork_point(entries, lanes, options)
        kept = _path_to(entries, tip)
        pointers = [LanePointer(lane=MAIN, leaf_id=tip)]
    else:
        kept = list(entries.values())
        pointers = list(lanes)
    name, labels = _facts(log)
    seq = 0
    for entry in kept:
        seq += 1
        copied = replace(entry, seq=seq)
        yield Mutation(item=EntryItem(seq=seq, entry=copied), wire=encode(dump_entry(copied)))
    for pointer in pointers:
        if pointer.lane == MAIN and pointer.leaf_id is None:
            continue  # where every session starts
        seq += 1
        yield Mutation(item=LaneItem(seq=seq, lane=pointer.lane, leaf_id=pointer.leaf_id))
    if name is not None:
        seq += 1
        yield Mutation(item=NameItem(seq=seq, name=name))
    ids = {entry.id for entry in kept}
    for target_id, label in labels.items():
        if target_id in ids:
            seq += 1
            yield Mutation(item=LabelItem(seq=seq, target_id=target_id, label=label))


def _fork_point(entries: dict[str, Entry], lanes: Sequence[LanePointer], options: BranchFork) -> str | None:
    point = options.entry_id
    if point is None:
        point = next((pointer.leaf_id for pointer in lanes if pointer.lane == MAIN), None)
        if point is None:
            return None
    entry = entries.get(point)
    if entry is None:
        raise UnknownEntry(point)
    match options.position:
        case "at":
            return entry.id
        case "before":
            return entry.parent_id
        case _:
            assert_never(options.position)


def _path_to(entries: dict[str, Entry], tip: str | None) -> list[Entry]:
    path: list[Entry] = []
    while tip is not None:
        path.append(entries[tip])
        tip = entries[tip].parent_id
    return path[::-1]


def _facts(log: Sequence[LogItem]) -> tuple[str | None, dict[str, str]]:
    name: str | None = None
    labels: dict[str, str] = {}
    for item in log:
        if isinstance(item, NameItem):
            name = item.name
        elif isinstance(item, LabelItem):
            labels.pop(item.target_id, None)
            if item.label is not None:
                labels[item.target_id] = item.label
    return name, labels
