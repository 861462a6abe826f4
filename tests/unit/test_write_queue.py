"""The queue over a journal that the test owns: batches, faults, withdrawal and closing."""

import asyncio
from collections.abc import Sequence

import pytest

from agent_harness.errors import SessionClosed, StorageError
from agent_harness.session.storage import SessionMetadata
from agent_harness.types.codec import seal_entry
from session_backends.conformance.samples import TickingClock, message
from session_backends.staging import Mutation, Staged
from session_backends.state import SessionState
from session_backends.state_storage import StateStorage
from session_backends.write_queue import Draft, Landed


class Journal:
    """Lands what it is told to land."""

    blocking = False

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.fail_at: int | None = None  # seq
        self.released = 0

    def prelude(self, staged: Staged) -> Sequence[Draft[object]]:
        return ()

    def persist(self, mutations: Sequence[Mutation]) -> Landed:
        seqs = [mutation.item.seq for mutation in mutations]
        self.batches.append(seqs)
        if self.fail_at in seqs:
            return Landed(seqs.index(self.fail_at), StorageError("disk"))
        return Landed(len(seqs))

    def release(self) -> None:
        self.released += 1


def storage_over(journal: Journal) -> StateStorage:
    metadata = SessionMetadata(id="s1", created_at=1)
    return StateStorage(metadata=metadata, state=SessionState(), clock=TickingClock(), journal=journal)


def append(storage: StateStorage, entry_id: str) -> "asyncio.Task[object]":
    async def write() -> object:
        return await storage.append_entry(seal_entry(message(entry_id)), "main")

    return asyncio.create_task(write())


async def test_what_is_asked_for_together_is_one_batch() -> None:
    journal = Journal()
    storage = storage_over(journal)
    await asyncio.gather(*(append(storage, f"e{number}") for number in range(4)))
    await append(storage, "last")
    assert journal.batches == [[1, 2, 3, 4], [5]]
    await storage.close()


async def test_a_fault_drops_what_was_staged_behind_it_and_stays() -> None:
    journal = Journal()
    journal.fail_at = 3
    storage = storage_over(journal)
    results = await asyncio.gather(*(append(storage, f"e{n}") for n in range(4)), return_exceptions=True)
    assert [isinstance(result, StorageError) for result in results] == [False, False, True, True]
    assert storage.last_seq == 2
    assert (await storage.get_lanes())[0].leaf_id == "e1"
    for number in range(2):
        with pytest.raises(StorageError):
            await append(storage, f"again{number}")
    assert len(journal.batches) == 1
    await storage.close()
    assert journal.released == 1


async def test_a_withdrawn_write_takes_no_sequence_number() -> None:
    journal = Journal()
    storage = storage_over(journal)
    tasks = [append(storage, f"e{number}") for number in range(3)]
    await asyncio.sleep(0)  # all three are waiting for their turn
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert journal.batches == [[1, 2]]
    assert [item.seq for item in await storage.get_log()] == [1, 2]
    await storage.close()


async def test_closing_lets_accepted_writes_finish_and_takes_no_more() -> None:
    journal = Journal()
    storage = storage_over(journal)
    accepted = append(storage, "e1")
    await asyncio.sleep(0)
    closing = asyncio.create_task(storage.close())
    await asyncio.sleep(0)
    late = append(storage, "e2")
    await asyncio.gather(closing, storage.close())
    await accepted
    with pytest.raises(SessionClosed):
        await late
    assert (journal.batches, journal.released) == ([[1]], 1)


async def test_a_batch_of_refusals_writes_nothing() -> None:
    journal = Journal()
    storage = storage_over(journal)

    async def refused() -> None:
        await storage.move_lane("ghost", None)

    results = await asyncio.gather(refused(), refused(), return_exceptions=True)
    assert len([result for result in results if isinstance(result, Exception)]) == 2
    assert journal.batches == []
    await storage.close()
    assert journal.released == 1
