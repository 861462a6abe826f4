"""What one opened session promises whatever is behind it: bounded reads, and no write behind a failed one."""

import asyncio

import pytest

from agent_harness.errors import InvalidWrite, StorageError
from agent_harness.session.session import Session
from agent_harness.types.entries import CustomBody, ProvisionedEntry
from agent_harness.types.messages import Usage
from agent_harness.types.records import AdjustmentUsage, NewRecord
from session_backends import MemorySessionRepo
from session_backends.faults import Faults, FaultyRepo


def adjustment(number: int) -> NewRecord:
    return NewRecord(id=f"r{number}", lane="main", body=AdjustmentUsage(usage=Usage(input=number)))


async def test_nothing_is_written_behind_a_failed_write() -> None:
    faults = Faults(at=2)
    session = await FaultyRepo(MemorySessionRepo(), faults).create()
    await session.append_record(adjustment(1))
    for number in (2, 3):
        with pytest.raises(StorageError, match="write 2"):
            await session.append_record(adjustment(number))
    assert [record.id for record in await session.find_records()] == ["r1"]
    assert faults.writes == 2  # the third was refused before it reached the store


async def test_a_read_shows_nothing_that_was_not_announced() -> None:
    """The store commits the record and never announces it: no event told of it, so no read shows it."""
    session = await FaultyRepo(MemorySessionRepo(), Faults(at=2, kind="after")).create()
    await session.append_record(adjustment(1))
    with pytest.raises(StorageError):
        await session.append_record(adjustment(2))
    assert [record.id for record in await session.find_records()] == ["r1"]
    assert [item.seq for item in await session.get_log()] == [1]


async def test_a_commit_is_announced_before_its_writer_resumes() -> None:
    session = await MemorySessionRepo().create()
    order: list[str] = []
    entry = ProvisionedEntry(id="e1", body=CustomBody(custom_type="x"))
    await session.append_entry(entry, "main", on_commit=lambda committed: order.append(committed.id))
    order.append("resumed")
    assert order == ["e1", "resumed"]


async def test_a_cancelled_writer_misses_nothing_that_was_committed() -> None:
    session = await MemorySessionRepo().create()
    seen: list[str] = []
    entry = ProvisionedEntry(id="e1", body=CustomBody(custom_type="x"))
    writing = asyncio.ensure_future(session.append_entry(entry, "main", on_commit=lambda e: seen.append(e.id)))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert seen == [e.id for e in await session.find_entries()]


@pytest.mark.parametrize("name", ["", "x" * 5000, "half \ud83d"], ids=["empty", "long", "surrogate"])
async def test_lane_names_are_checked(name: str) -> None:
    session: Session = await MemorySessionRepo().create()
    with pytest.raises(InvalidWrite):
        await session.create_lane(name, None)


async def test_names_and_labels_are_one_line() -> None:
    session = await MemorySessionRepo().create()
    entry_id = await session.append_custom_entry("x")
    await session.set_name("two\nlines\r\nhere")
    await session.set_label(entry_id, "a\u2028b")
    assert await session.get_name() == "two lines here"
    assert await session.get_label(entry_id) == "a b"
