"""Cases: what a write does, what it refuses, and many of them at once."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import cast, get_args

from agent_harness.errors import (
    DuplicateId,
    LaneAlreadyExists,
    OperationOpen,
    UnknownEntry,
    UnknownLane,
)
from agent_harness.session.storage import EntryItem, LanePointer, RecordItem, SessionStats
from agent_harness.types.entries import Entry, ProvisionedEntry
from agent_harness.types.messages import Cost, Usage
from agent_harness.types.records import LaneRecord, OperationKind
from agent_harness.types.usage import sum_usage

from .busy import answers, fill
from .checks import equal, raises, true
from .kit import Kit, cases_of
from .samples import (
    adjustment,
    custom,
    every_entry_body,
    every_record_body,
    finished,
    message,
    started,
)


async def one_sequence_runs_through_everything(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    entry = await session.append_entry(message("e1"), "main")
    record = await session.append_record(started("run1"))
    await session.create_lane("side", "e1")
    await session.set_name("name")
    await session.set_label("e1", "label")
    await session.move_lane("side", None)
    await session.append_record(finished("fin1", "run1"))
    last = await session.append_entry(custom("e2"), "side")
    equal((entry.seq, record.seq, last.seq), (1, 2, 8))
    log = await session.get_log()
    equal([item.seq for item in log], list(range(1, 9)))
    kinds = ["entry", "record", "lane", "fact", "fact", "lane", "record", "entry"]
    equal([item.kind for item in log], kinds)
    equal(await session.get_log(after_seq=6), log[6:])
    equal(await session.get_log(after_seq=2, limit=3), log[2:5])
    equal(await session.get_log(limit=1), log[:1])
    equal(await session.get_log(after_seq=8), [])
    equal(session.delivered_seq, 8)
    await session.close()


async def an_entry_chains_to_its_lanes_leaf_and_becomes_it(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    first = await session.append_entry(message("e1"), "main")
    second = await session.append_entry(message("e2"), "main")
    await session.create_lane("side", "e1")
    third = await session.append_entry(message("e3"), "side")
    await session.move_lane("main", "e1")
    fourth = await session.append_entry(message("e4"), "main")
    await session.move_lane("main", None)
    fifth = await session.append_entry(message("e5"), "main")
    parents = [entry.parent_id for entry in (first, second, third, fourth, fifth)]
    equal(parents, [None, "e1", "e1", "e1", None])
    equal(await session.get_lanes(), [LanePointer(lane="main", leaf_id="e5"), LanePointer(lane="side", leaf_id="e3")])
    equal(await session.view("side").get_leaf_id(), "e3")
    equal(await session.get_entry("e3"), third)
    equal(await session.get_entry("ghost"), None)
    await session.close()


async def every_kind_of_entry_and_record_is_given_back_as_written(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    entries: list[Entry] = []
    records: list[LaneRecord] = []
    for number, body in enumerate(every_entry_body(), start=1):
        entries.append(await session.append_entry(ProvisionedEntry(id=f"e{number}", body=body), "main"))
        equal(entries[-1].body, body)
    records.append(await session.append_record(started("run1")))
    for number, record_body in enumerate(every_record_body("run1"), start=1):
        new = replace(started("x"), id=f"r{number}", body=record_body)
        records.append(await session.append_record(new))
        equal(records[-1].body, record_body)
    await session.close()
    session = await kit.repo.open("s1")
    equal(await session.find_entries(order="oldestFirst"), entries)
    equal(await session.find_records(order="oldestFirst"), records)
    await session.close()


async def ids_are_unique_over_entries_and_records(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("x1"), "main")
    await session.append_record(adjustment("x2", Usage()))
    await session.create_lane("side", None)
    before = await answers(session)
    for item_id in ("x1", "x2"):
        for lane in ("main", "side"):
            with raises(DuplicateId):
                await session.append_entry(message(item_id), lane)
            with raises(DuplicateId):
                await session.append_record(adjustment(item_id, Usage(), lane))
    equal(await answers(session), before)
    equal((await session.append_entry(message("x3"), "main")).seq, 4)
    await session.close()


async def what_does_not_exist_cannot_be_named(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    await session.append_record(adjustment("r1", Usage()))
    before = await answers(session)
    for no_lane in ("ghost", "", "half \ud83d"):
        with raises(UnknownLane):
            await session.append_entry(message("e2"), no_lane)
        with raises(UnknownLane):
            await session.append_record(adjustment("r2", Usage(), no_lane))
        with raises(UnknownLane):
            await session.move_lane(no_lane, "e1")
        equal(await session.find_open_operations(no_lane), [])
    for not_an_entry in ("ghost", "r1", "", "half \ud83d"):
        equal((await session.get_entry(not_an_entry), await session.get_label(not_an_entry)), (None, None))
        with raises(UnknownEntry):
            await session.move_lane("main", not_an_entry)
        with raises(UnknownEntry):
            await session.create_lane("side", not_an_entry)
        with raises(UnknownEntry):
            await session.set_label(not_an_entry, "label")
        with raises(UnknownEntry):
            await session.find_entries_on_branch(start=not_an_entry)
    for taken in ("main",):
        with raises(LaneAlreadyExists):
            await session.create_lane(taken, None)
    await session.create_lane("side", "e1")
    with raises(LaneAlreadyExists):
        await session.create_lane("side", None)
    equal(len(await session.get_log()), len(before.log) + 1)
    await session.close()


async def a_lane_has_one_open_operation_at_most(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.create_lane("side", None)
    run = await session.append_record(started("run1"))
    for kind in cast("tuple[OperationKind, ...]", get_args(OperationKind)):
        with raises(OperationOpen) as refused:
            await session.append_record(started(f"second-{kind}", kind=kind))
        equal((refused.error.lane, refused.error.operation_id), ("main", "run1"))
    other = await session.append_record(started("run2", "side", "compaction"))
    equal(await session.find_open_operations("main"), [run])
    equal(await session.find_open_operations("side", limit=2), [other])
    await session.append_record(finished("fin1", "run1"))
    equal(await session.find_open_operations("main"), [])
    equal(await session.find_open_operations("side"), [other])
    third = await session.append_record(started("run3"))
    equal(await session.find_open_operations("main"), [third])
    await session.close()


async def facts_keep_their_history_and_the_latest_wins(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    await session.append_entry(message("e2"), "main")
    for name in ("one", None, "two"):
        await session.set_name(name)
        equal(await session.get_name(), name)
    await session.set_label("e1", "a")
    await session.set_label("e2", "b")
    await session.set_label("e1", None)
    await session.set_label("e1", None)
    equal(await session.get_label("e1"), None)
    equal(await session.get_labels(), {"e2": "b"})
    await session.set_label("e1", "c")
    equal(await session.get_labels(), {"e1": "c", "e2": "b"})
    equal(len([item for item in await session.get_log() if item.kind == "fact"]), 8)
    await session.set_name("line one\nline two")
    equal(await session.get_name(), "line one line two")
    await session.close()


async def statistics_are_the_ledger_and_the_message_count(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await fill(session)
    log = await session.get_log()
    ledger = [
        item.record.body.usage for item in log if isinstance(item, RecordItem) and item.record.body.type == "usage"
    ]
    messages = [item for item in log if isinstance(item, EntryItem) and item.entry.type == "message"]
    true(ledger, "the sample writes usage")
    equal(await session.get_stats(), SessionStats(message_count=len(messages), usage=sum_usage(ledger)))
    await session.append_record(adjustment("back", Usage(input=-7, total_tokens=-7, cost=Cost(total=-0.25))))
    after = await session.get_stats()
    equal(after.usage, sum_usage([*ledger, Usage(input=-7, total_tokens=-7, cost=Cost(total=-0.25))]))
    await session.close()


async def writes_of_many_lanes_are_put_in_one_order(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("root"), "main")
    lanes = ("main", "a", "b")
    for lane in lanes[1:]:
        await session.create_lane(lane, "root")
    announced: list[int] = []
    resumed: list[int] = []

    async def write(lane: str, number: int) -> None:
        if number % 3:
            entry = await session.append_entry(
                message(f"{lane}-{number}"), lane, on_commit=lambda item: announced.append(item.seq)
            )
            true(entry.seq in announced, "the commit is announced before its awaiter resumes")
            resumed.append(entry.seq)
        else:
            record = await session.append_record(
                adjustment(f"{lane}-{number}", Usage(input=1), lane), on_commit=lambda item: announced.append(item.seq)
            )
            resumed.append(record.seq)

    await asyncio.gather(*(write(lane, number) for number in range(12) for lane in lanes))
    log = await session.get_log()
    equal([item.seq for item in log], list(range(1, len(log) + 1)))
    equal(announced, [item.seq for item in log[3:]])
    equal(resumed, announced)
    for lane in lanes:
        path = await session.view(lane).find_entries_on_branch(order="oldestFirst")
        equal([entry.id for entry in path], ["root", *(f"{lane}-{number}" for number in range(12) if number % 3)])
    await session.close()
    session = await kit.repo.open("s1", read_only=True)
    equal(await session.get_log(), log)
    await session.close()


async def a_cancelled_caller_leaves_a_whole_log(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    announced: list[str] = []
    for turns in range(6):
        tasks = [
            asyncio.create_task(
                session.append_entry(
                    message(f"e{turns}-{number}"), "main", on_commit=lambda entry: announced.append(entry.id)
                )
            )
            for number in range(4)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[1:3]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        true(all(isinstance(result, Entry | asyncio.CancelledError) for result in done), "no other error")
        true(isinstance(done[0], Entry) and isinstance(done[3], Entry), "the others are not touched")
    last = await session.append_entry(message("last"), "main")
    log = await session.get_log()
    equal([item.seq for item in log], list(range(1, last.seq + 1)))
    ids = [item.entry.id for item in log if isinstance(item, EntryItem)]
    equal(announced, ids[:-1])
    await session.close()
    session = await kit.repo.open("s1", read_only=True)
    equal(await session.get_log(), log)
    await session.close()


async def a_write_withdrawn_before_it_started_leaves_nothing(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    task = asyncio.create_task(session.append_entry(message("e1"), "main"))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    true(task.cancelled(), "the caller was cancelled")
    await session.close()
    session = await kit.repo.open("s1")
    equal(await session.get_log(), [])
    equal((await session.append_entry(message("e1"), "main")).seq, 1)
    await session.close()


async def a_refusal_in_the_middle_touches_no_neighbour(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    results = await asyncio.gather(
        session.append_entry(message("e1"), "main"),
        session.append_entry(message("e1"), "main"),
        session.append_entry(message("e2"), "ghost"),
        session.append_record(started("run1")),
        session.append_record(started("run2")),
        session.append_entry(message("e3"), "main"),
        return_exceptions=True,
    )
    equal([type(result) for result in results], [Entry, DuplicateId, UnknownLane, LaneRecord, OperationOpen, Entry])
    equal([item.seq for item in await session.get_log()], [1, 2, 3])
    equal((await session.get_entry("e3") or fail()).parent_id, "e1")
    await session.close()


def fail() -> Entry:
    """An entry that must be there is not."""
    raise AssertionError("the entry is missing")


CASES = cases_of(globals())
