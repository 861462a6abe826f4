"""What a run costs does not depend on how long its history is, as counts (harness-v2 §12; A-8)."""

from dataclasses import dataclass
from pathlib import Path

from agent_harness import AgentHarness
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.queries import BranchBounds, EntryQuery, RecordQuery
from agent_harness.session.session import Session
from agent_harness.session.storage import LogItem, OnEntry, SessionStorage
from agent_harness.testing import ScriptedProvider, ScriptedRequest
from agent_harness.types.codec import Sealed
from agent_harness.types.entries import Entry, ProvisionedEntry
from agent_harness.types.messages import AssistantMessage
from agent_harness.types.records import LaneRecord
from tests.support.backends import make_repo
from tests.support.long_process import COMPACTION, MODEL, TOOL, respond


class CountingStorage:
    """A storage, and how many entries and records were read from it and entries appended to it."""

    def __init__(self, behind: SessionStorage) -> None:
        self.behind = behind
        self.entries = 0
        self.records = 0
        self.appended = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.behind, name)

    async def append_entry(self, entry: Sealed[ProvisionedEntry], lane: str, on_commit: OnEntry | None = None) -> Entry:
        self.appended += 1
        return await self.behind.append_entry(entry, lane, on_commit)

    async def get_entry(self, entry_id: str) -> Entry | None:
        found = await self.behind.get_entry(entry_id)
        self.entries += found is not None
        return found

    async def find_entries(self, query: EntryQuery) -> list[Entry]:
        found = await self.behind.find_entries(query)
        self.entries += len(found)
        return found

    async def find_entries_on_branch(self, query: EntryQuery, bounds: BranchBounds) -> list[Entry]:
        found = await self.behind.find_entries_on_branch(query, bounds)
        self.entries += len(found)
        return found

    async def find_records(self, query: RecordQuery) -> list[LaneRecord]:
        found = await self.behind.find_records(query)
        self.records += len(found)
        return found

    async def get_log(self, after_seq: int = 0, limit: int | None = None) -> list[LogItem]:
        raise AssertionError("the whole log was read")


@dataclass(frozen=True, slots=True)
class Step:
    """What happened since the request before this one."""

    appended: int
    read: int
    records: int
    messages: int  # in this request


class Counts:
    """One `Step` per request of a run."""

    def __init__(self, storage: CountingStorage) -> None:
        self.storage = storage
        self.steps: list[Step] = []
        self.summaries = 0
        self._mark = (0, 0, 0)

    def respond(self, request: ScriptedRequest) -> AssistantMessage:
        if not request.context.tools:
            self.summaries += 1
            return respond(request)
        now = (self.storage.appended, self.storage.entries, self.storage.records)
        since = [after - before for after, before in zip(now, self._mark, strict=True)]
        self._mark = now
        self.steps.append(Step(*since, len(request.context.messages)))
        return respond(request)


async def open_counted(inner: Session) -> tuple[CountingStorage, Counts, AgentHarness]:
    storage = CountingStorage(inner._core.storage)
    session = Session(storage, id_generator=inner.id_generator)
    counts = Counts(storage)
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([ScriptedProvider(respond=counts.respond)], [MODEL]),
        model=MODEL,
        tools=[TOOL],
        compaction=COMPACTION,
    )
    return storage, counts, created.harness


async def test_a_request_handles_what_was_appended_since_the_last_one(backend: str, tmp_path: Path) -> None:
    repo = make_repo(backend, tmp_path)
    _, counts, harness = await open_counted(await repo.create(id="s"))
    runs, compacted = dict[int, list[Step]](), set[int]()
    for number in range(1, 221):
        counts.steps, counts.summaries = [], 0
        (await harness.prompt("How long is bed 1?")).unwrap()
        runs[number] = counts.steps
        if counts.summaries:
            compacted.add(number)
    await harness.close()
    assert len(compacted) > 20  # the context is bounded by compaction, again and again
    assert max(step.messages for steps in runs.values() for step in steps) < 100

    before = runs[1][-1].messages
    for number in range(2, 221):
        for place, step in enumerate(runs[number]):
            # Nothing is read back: every entry came into the context with its own commit.
            assert (step.read, step.records) == (0, 0), number
            if number not in compacted or place > 0:
                assert step.messages == before + step.appended, number
            before = step.messages
    assert runs[20] == runs[200]
    assert {20, 200} <= compacted
    assert runs[21] == runs[201]


async def test_a_reopened_session_is_read_back_to_its_newest_compaction_once(backend: str, tmp_path: Path) -> None:
    repo = make_repo(backend, tmp_path)
    session = await repo.create(id="s")
    opened: list[int] = []
    for runs in (25, 180):
        _, _, harness = await open_counted(session)
        for _ in range(runs):
            (await harness.prompt("How long is bed 1?")).unwrap()
        await harness.close()
        session = await repo.open("s")
        since = len(await session.find_entries_on_branch(stop_at_type="compaction"))
        assert 0 < since < 100
        storage, counts, harness = await open_counted(session)
        opened.append(storage.entries)
        (await harness.prompt("How long is bed 1?")).unwrap()
        (await harness.prompt("How long is bed 1?")).unwrap()
        first, *later = [step.read for step in counts.steps]
        assert first - opened[-1] == since + 1  # and the prompt itself
        assert later == [0, 0, 0]
        await harness.close()
        session = await repo.open("s")
    assert opened[0] == opened[1]  # opening reads as much of a long history as of a short one
    await session.close()
    await repo.close()
