"""A session with something of everything in it, and all that can be asked of a session."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from agent_harness.session.session import Session
from agent_harness.session.storage import EntryItem, LaneItem, LanePointer, LogItem, RecordItem, SessionStats
from agent_harness.types.entries import Entry, ProvisionedEntry
from agent_harness.types.messages import Usage
from agent_harness.types.records import LaneRecord

from .samples import (
    adjustment,
    custom,
    every_entry_body,
    every_record_body,
    finished,
    message,
    started,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Everything a session tells about itself."""

    log: list[LogItem]
    lanes: list[LanePointer]
    name: str | None
    labels: dict[str, str]
    stats: SessionStats
    open: list[list[LaneRecord]]
    branches: list[list[Entry]]


async def answers(session: Session) -> Answers:
    """Ask for everything."""
    lanes = await session.get_lanes()
    return Answers(
        log=await session.get_log(),
        lanes=lanes,
        name=await session.get_name(),
        labels=await session.get_labels(),
        stats=await session.get_stats(),
        open=[await session.find_open_operations(pointer.lane) for pointer in lanes],
        branches=[await session.view(pointer.lane).find_entries_on_branch() for pointer in lanes],
    )


async def fill(session: Session) -> None:
    """Write every kind of item, on several lanes and branches, with an operation left open."""
    bodies = every_entry_body()
    for number, body in enumerate(bodies, start=1):
        await session.append_entry(ProvisionedEntry(id=f"e{number}", body=body), "main")
    await session.create_lane("side", "e3")
    await session.create_lane("empty", None)
    await session.append_record(started("run1"))
    for number, record_body in enumerate(every_record_body("run1"), start=1):
        await session.append_record(replace(started("x"), id=f"run1-{number}", body=record_body))
    await session.append_record(finished("run1-end", "run1"))
    for number, body in enumerate(bodies, start=1):
        await session.append_entry(ProvisionedEntry(id=f"side-{number}", body=body), "side")
    await session.append_record(started("run2", kind="navigation"))
    await session.move_lane("main", "e8")
    await session.append_record(finished("run2-end", "run2"))
    for number in range(1, 4):
        await session.append_entry(custom(f"note{number}", data={"n": [number]}), "main")
    await session.append_record(started("run3", "side", "compaction"))
    await session.append_record(started("run4"))
    await session.set_name("Garden")
    await session.set_label("e1", "start")
    await session.set_label("side-2", "aside")
    await session.set_label("note1", "gone")
    await session.set_label("note1", None)
    await session.append_entry(message("tail", "the end"), "main")
    items = await session.get_log()
    assert any(isinstance(item, LaneItem) for item in items)


def every_write(session: Session) -> list[Callable[[], Awaitable[object]]]:
    """One call of each kind that writes."""
    return [
        lambda: session.append_entry(message("w1"), "main"),
        lambda: session.append_record(adjustment("w2", Usage())),
        lambda: session.create_lane("w3", None),
        lambda: session.move_lane("main", None),
        lambda: session.set_name("w5"),
        lambda: session.set_label("e1", "w6"),
    ]


def timeless(value: Any) -> Any:
    """Answers without the times of their writes: backends may ask the clock more or less often."""
    match value:
        case Answers():
            parts = {name: timeless(getattr(value, name)) for name in ("log", "open", "branches")}
            return replace(value, **parts)
        case list():
            items = cast("list[Any]", cast("object", value))
            return [timeless(item) for item in items]
        case EntryItem():
            return replace(value, entry=timeless(value.entry))
        case RecordItem():
            return replace(value, record=timeless(value.record))
        case Entry() | LaneRecord():
            return replace(value, timestamp=0)
        case _:
            return value


def path_from(entries: dict[str, Entry], start: str) -> list[Entry]:
    """From `start` to the root."""
    path = [entries[start]]
    while path[-1].parent_id is not None:
        path.append(entries[path[-1].parent_id])
    return path
