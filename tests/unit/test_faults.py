"""The fault wrapper does what its plan says, on every kind of write, whatever backend is under it."""

import asyncio

import pytest

from agent_harness.errors import StorageError
from agent_harness.session.session import Session
from agent_harness.types.messages import ExtensionMessage
from session_backends import MemorySessionRepo
from session_backends.conformance.busy import every_write
from session_backends.conformance.samples import message
from session_backends.faults import Faults, FaultyRepo


async def test_a_write_that_fails_before_its_commit_is_not_stored() -> None:
    faults = Faults(at=2)
    repo = FaultyRepo(MemorySessionRepo(), faults)
    session = await repo.create(id="s1")
    announced: list[str] = []
    await session.append_entry(message("e1"), "main", on_commit=lambda entry: announced.append(entry.id))
    with pytest.raises(StorageError, match="write 2, before"):
        await session.append_entry(message("e2"), "main", on_commit=lambda entry: announced.append(entry.id))
    with pytest.raises(StorageError):  # the session itself is faulted from then on
        await session.append_entry(message("e3"), "main")
    assert (announced, faults.writes) == (["e1"], 2)
    await session.close()
    session = await repo.open("s1")
    assert [item.seq for item in await session.get_log()] == [1]
    await session.append_entry(message("e2"), "main")  # once means once
    await session.close()


async def test_a_write_that_fails_after_its_commit_is_stored_and_not_announced() -> None:
    repo = FaultyRepo(MemorySessionRepo(), Faults(at=1, kind="after"))
    session = await repo.create(id="s1")
    announced: list[str] = []
    with pytest.raises(StorageError, match="after the commit"):
        await session.append_entry(message("e1"), "main", on_commit=lambda entry: announced.append(entry.id))
    assert announced == []
    assert await session.get_log() == []  # nobody sees an entry before its event
    await session.close()
    session = await repo.open("s1")
    assert [item.seq for item in await session.get_log()] == [1]
    await session.close()


async def test_a_fault_for_ever_also_meets_the_next_opening() -> None:
    repo = FaultyRepo(MemorySessionRepo(), Faults(at=2, forever=True))
    session = await repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    for _ in range(3):
        with pytest.raises(StorageError):
            await session.set_name("x")
        await session.close()
        session = await repo.open("s1")
    await session.close()


@pytest.mark.parametrize("number", range(6))
async def test_every_kind_of_write_can_fail(number: int) -> None:
    faults = Faults()
    session = await FaultyRepo(MemorySessionRepo(), faults).create(id="s1")
    await session.append_entry(message("e1"), "main")
    faults.at = faults.writes + 1
    with pytest.raises(StorageError):
        await every_write(session)[number]()
    assert faults.writes == 2
    await session.close()


async def test_a_delayed_write_waits_for_the_test() -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    session = await FaultyRepo(MemorySessionRepo(), Faults(delay=wait)).create(id="s1")
    write = asyncio.create_task(session.append_entry(message("e1"), "main"))
    await asyncio.sleep(0)
    assert await session.get_log() == []
    gate.set()
    assert (await write).seq == 1
    await session.close()


async def test_messages_of_registered_roles_pass_through() -> None:
    session: Session = await FaultyRepo(MemorySessionRepo(), Faults()).create(id="s1")
    session.register_message_types({"kit.card": lambda fields: None})
    entry_id = await session.append_message(ExtensionMessage(role="kit.card", fields={"x": 1}))
    assert await session.get_entry(entry_id) is not None
    await session.close()
