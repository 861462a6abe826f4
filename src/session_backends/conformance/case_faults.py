"""Cases: a write that fails leaves a valid prefix, wherever it stands in a history."""

from collections.abc import Awaitable, Callable
from typing import get_args

from agent_harness.errors import StorageError
from agent_harness.session.session import Session
from agent_harness.types.messages import Usage

from ..faults import FaultKind, Faults, FaultyRepo
from .busy import Answers, answers, every_write, timeless
from .checks import equal, raises
from .kit import Kit, cases_of
from .samples import adjustment, custom, finished, message, started

HISTORY: tuple[Callable[[Session], Awaitable[object]], ...] = (
    lambda session: session.append_record(started("run1")),
    lambda session: session.append_entry(message("e1"), "main"),
    lambda session: session.append_record(adjustment("use1", Usage(input=3, total_tokens=3))),
    lambda session: session.append_entry(message("e2", "the answer"), "main"),
    lambda session: session.append_record(finished("run1-end", "run1")),
    lambda session: session.create_lane("side", "e1"),
    lambda session: session.append_entry(custom("e3", data={"n": 1}), "side"),
    lambda session: session.move_lane("main", "e1"),
    lambda session: session.set_name("Garden"),
    lambda session: session.set_label("e1", "start"),
    lambda session: session.append_record(started("run2", "side")),
)
"""Every kind of write, with an operation left open."""


async def a_fault_at_any_write_leaves_what_was_acknowledged_and_a_reopening_goes_on(kit: Kit) -> None:
    expected = await _answers_after_each_write(kit)
    for kind in get_args(FaultKind):
        for number in range(1, len(HISTORY) + 1):
            where = f"a fault {kind} the commit of write {number}"
            session_id = f"{kind}-{number}"
            session = await FaultyRepo(kit.repo, Faults(at=number, kind=kind)).create(id=session_id)
            for write in HISTORY[: number - 1]:
                await write(session)
            with raises(StorageError):
                await HISTORY[number - 1](session)
            for later in every_write(session):
                with raises(StorageError):
                    await later()
            equal(session.delivered_seq, number - 1, where)
            equal(timeless(await session.get_log()), expected[number - 1].log, where)
            await session.close()

            stored = expected[number if kind == "after" else number - 1]
            async with await kit.repo.open(session_id, read_only=True) as reader:
                equal(timeless(await answers(reader)), stored, where)
                equal(await reader.verify(), [], where)
            async with await kit.repo.open(session_id) as session:
                entry = await session.append_entry(message("goes-on"), "main")
                equal(entry.seq, len(stored.log) + 1, where)
                equal(entry.parent_id, next(lane.leaf_id for lane in stored.lanes if lane.lane == "main"), where)


async def _answers_after_each_write(kit: Kit) -> list[Answers]:
    async with await kit.repo.create(id="clean") as session:
        found = [timeless(await answers(session))]
        for write in HISTORY:
            await write(session)
            found.append(timeless(await answers(session)))
    return found


CASES = cases_of(globals())
