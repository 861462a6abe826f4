"""One random history on several backends at once: every answer and every refusal is compared (needs Hypothesis).

```python
TestParity = parity_machine({"memory": lambda directory: MemorySessionRepo(), "mine": MyRepo}).TestCase
```
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_harness.errors import InvalidWrite, SessionClosed, StorageError
from agent_harness.session.repo import BranchFork, SessionRepo, TreeFork
from agent_harness.session.session import Session
from agent_harness.types.entries import ProvisionedEntry
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import Usage

from ..faults import FaultKind, Faults, FaultyRepo
from .busy import answers, timeless
from .checks import equal, true
from .samples import adjustment, custom, every_entry_body, every_record_body, finished, message, started

MakeRepo: TypeAlias = Callable[[Path], SessionRepo]
T = TypeVar("T")

_text = st.text(st.characters(codec="utf-8"), max_size=8)
_json: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(_text, inside, max_size=3),
    max_leaves=6,
)
_lanes = st.sampled_from(["main", "main", "a", "b", "ghost"])
_ids = st.sampled_from([f"e{n}" for n in range(12)])
_runs = st.sampled_from([f"run{n}" for n in range(4)])


class ParityMachine(RuleBasedStateMachine):
    """The same calls on the same session of every backend. `parity_machine` makes a class with its backends."""

    BACKENDS: ClassVar[Mapping[str, MakeRepo]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._folder = Path(tempfile.mkdtemp(prefix="parity-"))
        self._repos: dict[str, SessionRepo] = {}
        self._sessions: dict[str, Session] = {}
        self._forks = 0
        for name, make_repo in self.BACKENDS.items():
            directory = self._folder / name
            directory.mkdir(mode=0o700)
            self._repos[name] = make_repo(directory)
            self._sessions[name] = self._run(self._repos[name].create(id="s1"))

    def teardown(self) -> None:
        """Close everything."""
        for session in self._sessions.values():
            self._run(session.close())
        for repo in self._repos.values():
            self._run(repo.close())
        self._loop.close()
        shutil.rmtree(self._folder)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def _all(self, call: Callable[[Session], Awaitable[object]]) -> object:
        """Make the call on every backend; the answers must agree, and so must the refusals."""

        async def attempt(session: Session) -> object:
            try:
                return timeless(await call(session))
            except (InvalidWrite, SessionClosed) as error:
                return type(error), str(error)

        found = {name: self._run(attempt(session)) for name, session in self._sessions.items()}
        names = list(found)
        for name in names[1:]:
            equal(found[name], found[names[0]], f"{name} and {names[0]}")
            equal(repr(found[name]), repr(found[names[0]]), f"{name} and {names[0]}, digit for digit")
        return found[names[0]]

    @rule(entry_id=_ids, lane=_lanes, kind=st.integers(0, 9))
    def append_entry(self, entry_id: str, lane: str, kind: int) -> None:
        """Any body."""
        entry = ProvisionedEntry(id=entry_id, body=every_entry_body()[kind])
        self._all(lambda session: session.append_entry(entry, lane))

    @rule(entry_id=_ids, lane=_lanes, data=_json, custom_type=_text)
    def append_custom(self, entry_id: str, lane: str, data: JsonValue, custom_type: str) -> None:
        """Any JSON."""
        self._all(lambda session: session.append_entry(custom(entry_id, custom_type, data), lane))

    @rule(run_id=_runs, lane=_lanes, kind=st.sampled_from(["run", "compaction", "navigation"]))
    def start(self, run_id: str, lane: str, kind: Any) -> None:
        """Start an operation."""
        self._all(lambda session: session.append_record(started(run_id, lane, kind)))

    @rule(run_id=_runs, lane=_lanes)
    def finish(self, run_id: str, lane: str) -> None:
        """Finish one, open or not."""
        self._all(lambda session: session.append_record(finished(f"{run_id}-{lane}-end", run_id, lane)))

    @rule(run_id=_runs, lane=_lanes, kind=st.integers(0, 12), item_id=_ids)
    def append_record(self, run_id: str, lane: str, kind: int, item_id: str) -> None:
        """Any body; its id may be an entry's."""
        record = replace(started(item_id, lane), body=every_record_body(run_id)[kind])
        self._all(lambda session: session.append_record(record))

    @rule(lane=_lanes, at=st.none() | _ids)
    def create_lane(self, lane: str, at: str | None) -> None:
        """A lane."""
        self._all(lambda session: session.create_lane(lane, at))

    @rule(lane=_lanes, to=st.none() | _ids)
    def move_lane(self, lane: str, to: str | None) -> None:
        """A jump."""
        self._all(lambda session: session.move_lane(lane, to))

    @rule(name=st.none() | _text)
    def set_name(self, name: str | None) -> None:
        """A name."""
        self._all(lambda session: session.set_name(name))

    @rule(entry_id=_ids, label=st.none() | _text)
    def set_label(self, entry_id: str, label: str | None) -> None:
        """A label."""
        self._all(lambda session: session.set_label(entry_id, label))

    @rule(first=_ids, second=_ids, lanes=st.tuples(_lanes, _lanes), run_id=_runs)
    def write_together(self, first: str, second: str, lanes: tuple[str, str], run_id: str) -> None:
        """Three writes at once: their order is the order of the calls."""

        async def together(session: Session) -> object:
            results = await asyncio.gather(
                session.append_entry(message(first), lanes[0]),
                session.append_record(adjustment(f"{run_id}-use", Usage(input=1), lanes[1])),
                session.append_entry(message(second), lanes[1]),
                return_exceptions=True,
            )
            return [
                (type(result), str(result)) if isinstance(result, BaseException) else timeless(result)
                for result in results
            ]

        self._all(together)

    @rule(
        start=_ids,
        kind=st.sampled_from([None, "message", "custom", "compaction"]),
        stop=st.fixed_dictionaries(
            {
                "stop_at_type": st.sampled_from([None, "compaction", "message"]),
                "stop_at_id": st.none() | _ids,
                "after_seq": st.none() | st.integers(0, 12),
            }
        ),
        page=st.fixed_dictionaries(
            {
                "order": st.sampled_from(["newestFirst", "oldestFirst"]),
                "limit": st.none() | st.integers(1, 3),
                "cursor": st.none() | st.integers(0, 12),
            }
        ),
    )
    def read(self, start: str, kind: Any, stop: dict[str, Any], page: dict[str, Any]) -> None:
        """Ask for a branch, for entries and for records."""
        order, limit, after = page["order"], page["limit"], stop["after_seq"]
        self._all(lambda session: session.find_entries_on_branch(start=start, type=kind, **stop, **page))
        self._all(lambda session: session.find_entries(type=kind, **page))
        self._all(lambda session: session.find_records(lane="main", order=order, limit=limit, after_seq=after))
        self._all(lambda session: session.get_log(after_seq=after or 0, limit=limit))

    @rule()
    def reopen(self) -> None:
        """Close and open again."""
        for name, session in self._sessions.items():
            self._run(session.close())
            self._sessions[name] = self._run(self._repos[name].open("s1"))

    @rule(
        at=st.integers(1, 4),
        kind=st.sampled_from(["before", "after"]),
        ids=st.tuples(_ids, _ids),
        lane=_lanes,
        run_id=_runs,
    )
    def fail_a_write(self, at: int, kind: FaultKind, ids: tuple[str, str], lane: str, run_id: str) -> None:
        """One of four writes fails: what was acknowledged is a prefix of what a reopening finds, everywhere alike."""
        writes: list[Callable[[Session], Awaitable[object]]] = [
            lambda session: session.append_entry(message(ids[0]), lane),
            lambda session: session.append_record(started(run_id, lane)),
            lambda session: session.move_lane(lane, ids[1]),
            lambda session: session.set_label(ids[1], run_id),
        ]
        found: list[list[str]] = []
        for name, repo in self._repos.items():
            self._run(self._sessions[name].close())
            found.append(self._run(self._strike(repo, Faults(at=at, kind=kind), writes)))
            self._sessions[name] = self._run(repo.open("s1"))
            equal(found[-1], found[0], f"{name}: a fault {kind} write {at}")

    async def _strike(
        self, repo: SessionRepo, faults: Faults, writes: list[Callable[[Session], Awaitable[object]]]
    ) -> list[str]:
        async with await FaultyRepo(repo, faults).open("s1") as session:
            outcomes: list[str] = []
            stood = session.delivered_seq
            for write in writes:
                try:
                    await write(session)
                    outcomes.append("written")
                except StorageError:
                    outcomes.append("failed")
                except InvalidWrite as error:
                    outcomes.append(f"refused: {error}")
            if "failed" in outcomes:
                true("written" not in outcomes[outcomes.index("failed") :], "nothing is written after a fault")
            acknowledged = await session.get_log()
            equal(len(acknowledged), stood + outcomes.count("written"), outcomes)
        half = 1 if "failed" in outcomes and faults.kind == "after" else 0
        async with await repo.open("s1", read_only=True) as reader:
            stored = await reader.get_log()
        equal(stored[: len(acknowledged)], acknowledged, outcomes)
        equal([item.seq for item in stored], list(range(1, len(acknowledged) + half + 1)), outcomes)
        return outcomes

    @precondition(lambda self: cast("ParityMachine", self)._forks < 3)
    @rule(point=st.none() | _ids, position=st.sampled_from(["at", "before"]), tree=st.booleans())
    def fork(self, point: str | None, position: Any, tree: bool) -> None:
        """Fork, look at the fork, close it."""
        self._forks += 1
        options = TreeFork() if tree else BranchFork(entry_id=point, position=position)
        found: list[object] = []
        for name, session in self._sessions.items():

            async def look(name: str = name, session: Session = session) -> object:
                try:
                    async with await self._repos[name].fork(session, options, id=f"fork{self._forks}") as fork:
                        return timeless(await answers(fork))
                except InvalidWrite as error:
                    return type(error), str(error)

            found.append(self._run(look()))
        for other in found[1:]:
            equal(other, found[0], options)

    @invariant()
    def agree(self) -> None:
        """Everything that can be asked for is the same everywhere."""
        self._all(answers)


def parity_machine(backends: Mapping[str, MakeRepo]) -> type[ParityMachine]:
    """A state machine over these backends; its `TestCase` is what a test runner finds."""

    class Machine(ParityMachine):
        BACKENDS = backends

    return Machine
