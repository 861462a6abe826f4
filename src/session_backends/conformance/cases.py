"""What every backend does alike, one case per rule (harness-v2 §13 "Contract rules", §17, decisions sections 3 to 5).

A case gets an empty repository and a folder of its own. `CASES` lists them all; none looks behind the public surface.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, get_args
from uuid import UUID

from agent_harness.errors import (
    DuplicateId,
    InvalidPayload,
    InvalidSessionId,
    LaneAlreadyExists,
    OperationOpen,
    ReadOnlySession,
    SessionClosed,
    SessionExists,
    SessionLocked,
    SessionNotFound,
    UnknownEntry,
    UnknownLane,
)
from agent_harness.session.queries import (
    BranchBounds,
    EntryCursor,
    EntryQuery,
    InvalidQuery,
    Order,
    RecordQuery,
    select_entries,
    select_on_branch,
    select_records,
)
from agent_harness.session.repo import BranchFork, SessionRepo, TreeFork
from agent_harness.session.session import Session
from agent_harness.session.stats import sum_usage
from agent_harness.session.storage import EntryItem, LaneItem, LanePointer, LogItem, RecordItem, SessionStats
from agent_harness.types.entries import CustomBody, Entry, EntryType, MessageBody, ProvisionedEntry
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import Cost, ExtensionMessage, Usage
from agent_harness.types.records import LaneRecord, OperationKind, OperationStarted, RecordType

from .checks import equal, raises, true
from .samples import (
    CALL,
    adjustment,
    assistant,
    custom,
    every_entry_body,
    every_record_body,
    finished,
    message,
    started,
    user,
    vandalize,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What a case works with."""

    repo: SessionRepo
    directory: Path  # empty, for snapshots


Case: TypeAlias = Callable[[Kit], Coroutine[Any, Any, None]]
CASES: list[Case] = []
T = TypeVar("T")


def case(function: Case) -> Case:
    """Put a case on the list."""
    CASES.append(function)
    return function


# Lifecycle ------------------------------------------------------------------


@case
async def a_new_session_is_empty_and_idle(kit: Kit) -> None:
    session = await kit.repo.create(
        id="s1", cwd="/srv/garden", metadata={"app": {"name": "kit"}}, parent_session_id="p1"
    )
    equal(await session.get_lanes(), [LanePointer(lane="main", leaf_id=None)])
    equal(await session.get_leaf_id(), None)
    equal(await session.get_log(), [])
    equal(await session.get_stats(), SessionStats())
    equal(await session.get_name(), None)
    equal(await session.get_labels(), {})
    equal(await session.find_open_operations("main"), [])
    equal(session.diagnostics, ())
    header = session.metadata
    equal((header.id, header.cwd, header.parent_session_id), ("s1", "/srv/garden", "p1"))
    equal(dict(header.metadata), {"app": {"name": "kit"}})
    equal(header.source_format, 4)
    await session.close()


@case
async def what_was_written_is_there_after_reopening(kit: Kit) -> None:
    session = await kit.repo.create(id="s1", cwd="/srv/garden", metadata={"app": "kit"})
    await fill(session)
    before = await answers(session)
    header = session.metadata
    await session.close()
    for read_only in (True, False):
        session = await kit.repo.open("s1", read_only=read_only)
        equal(await answers(session), before)
        equal(session.metadata.created_at, header.created_at)
        equal(dict(session.metadata.metadata), {"app": "kit"})
        equal(session.diagnostics, ())
        await session.close()


@case
async def a_reopened_session_goes_on_where_it_stopped(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    await session.append_record(started("run1"))
    await session.close()
    session = await kit.repo.open("s1")
    entry = await session.append_entry(message("e2"), "main")
    equal((entry.seq, entry.parent_id), (3, "e1"))
    with raises(DuplicateId):
        await session.append_entry(message("e1"), "main")
    with raises(OperationOpen):
        await session.append_record(started("run2"))
    await session.append_record(finished("fin1", "run1"))
    await session.append_record(started("run2"))
    await session.close()


@case
async def two_sessions_of_one_store_do_not_touch(kit: Kit) -> None:
    first = await kit.repo.create(id="s1")
    second = await kit.repo.create(id="s2")
    await first.append_entry(message("e1", "first"), "main")
    await second.append_entry(message("e1", "second"), "main")
    await first.set_name("one")
    await first.close()
    with raises(SessionClosed):
        await first.append_entry(message("e2"), "main")
    await second.append_entry(message("e2"), "main")
    equal([item.seq for item in await second.get_log()], [1, 2])
    equal(await second.get_name(), None)
    await second.close()
    first = await kit.repo.open("s1", read_only=True)
    equal([item.seq for item in await first.get_log()], [1, 2])
    await first.close()


@case
async def a_closed_session_takes_nothing_and_closes_again(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    await asyncio.gather(session.close(), session.close())
    await session.close()
    for write in every_write(session):
        with raises(SessionClosed):
            await write()
    session = await kit.repo.open("s1")
    equal(len(await session.get_log()), 1)
    await session.close()


@case
async def a_session_is_its_own_context_manager(kit: Kit) -> None:
    async with await kit.repo.create(id="s1") as session:
        await session.append_message(user("hello"))
    async with await kit.repo.open("s1") as session:
        equal(len(await session.get_log()), 1)


@case
async def a_second_writer_is_refused_until_the_first_closes(kit: Kit) -> None:
    first = await kit.repo.create(id="s1")
    with raises(SessionLocked) as refused:
        await kit.repo.open("s1")
    equal(refused.error.session_id, "s1")
    true(refused.error.owner, "the owner is named")
    with raises(SessionLocked):
        await kit.repo.delete("s1")
    await first.append_entry(message("e1"), "main")
    await first.close()
    second = await kit.repo.open("s1")
    equal(len(await second.get_log()), 1)
    with raises(SessionLocked):
        await kit.repo.open("s1")
    await second.close()


@case
async def an_open_that_waits_gets_the_session_when_it_is_free(kit: Kit) -> None:
    first = await kit.repo.create(id="s1")
    waiting = asyncio.create_task(kit.repo.open("s1", wait=30.0))
    await first.append_entry(message("e1"), "main")
    await first.close()
    second = await waiting
    equal(len(await second.get_log()), 1)
    await second.close()


@case
async def a_read_only_open_needs_no_claim_and_writes_nothing(kit: Kit) -> None:
    writer = await kit.repo.create(id="s1")
    await writer.append_entry(message("e1"), "main")
    reader = await kit.repo.open("s1", read_only=True)
    equal([item.seq for item in await reader.get_log()], [1])
    for write in every_write(reader):
        with raises(ReadOnlySession):
            await write()
    await writer.append_entry(message("e2"), "main")
    await reader.close()
    equal([item.seq for item in await writer.get_log()], [1, 2])
    await writer.close()


@case
async def ids_that_may_not_name_a_session_are_refused(kit: Kit) -> None:
    good = await kit.repo.create(id="good")
    await good.close()
    for bad in BAD_IDS:
        with raises(InvalidSessionId):
            await kit.repo.create(id=bad)
        with raises(InvalidSessionId):
            await kit.repo.open(bad)
        with raises(InvalidSessionId):
            await kit.repo.delete(bad)
        with raises(InvalidSessionId):
            await kit.repo.fork("good", id=bad)
        with raises(InvalidSessionId):
            await kit.repo.fork(bad)
    equal([header.id for header in await kit.repo.list()], ["good"])


BAD_IDS = (
    "", ".", "..", "../x", "../../x", "a/b", "/etc/passwd", "a\\b", "a\0b", "a\n", "\na", "a b", " a", "é", "-a", "_a",
    ".a", "a.b", "a:b", "a*", "a%2fb", "x" * 129, "x" * 300, "\ud800",
)  # fmt: skip


@case
async def missing_and_existing_sessions_are_told_apart(kit: Kit) -> None:
    for read_only in (True, False):
        with raises(SessionNotFound):
            await kit.repo.open("ghost", read_only=read_only)
    with raises(SessionNotFound):
        await kit.repo.fork("ghost")
    with raises(SessionNotFound):
        await kit.repo.delete("ghost")
    longest = await kit.repo.create(id="x" * 128)
    await longest.close()
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    with raises(SessionExists):
        await kit.repo.create(id="s1")
    with raises(SessionExists):
        await kit.repo.fork(session, id="s1")
    equal(len(await session.get_log()), 1)
    await session.close()


@case
async def lists_name_what_is_there(kit: Kit) -> None:
    equal(await kit.repo.list(), [])
    for session_id, cwd in (("s1", "/srv/a/b"), ("s2", "/srv/a-b"), ("s3", "/srv/a/b")):
        session = await kit.repo.create(id=session_id, cwd=cwd, metadata={"n": session_id})
        await session.close()
    open_one = await kit.repo.open("s3")
    equal({header.id for header in await kit.repo.list()}, {"s1", "s2", "s3"})
    equal({header.id for header in await kit.repo.list(cwd="/srv/a/b")}, {"s1", "s3"})
    equal([header.id for header in await kit.repo.list(cwd="/srv/a-b")], ["s2"])
    equal(await kit.repo.list(cwd="/nowhere"), [])
    equal([dict(header.metadata) for header in await kit.repo.list(cwd="/srv/a-b")], [{"n": "s2"}])
    await open_one.append_entry(message("e1"), "main")
    await open_one.close()


@case
async def a_deleted_session_is_gone_and_its_id_free(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await fill(session)
    await session.close()
    await kit.repo.delete("s1")
    equal(await kit.repo.list(), [])
    with raises(SessionNotFound):
        await kit.repo.open("s1")
    session = await kit.repo.create(id="s1")
    equal(await session.get_log(), [])
    await session.append_entry(message("e1"), "main")
    await session.close()


@case
async def a_snapshot_holds_what_is_committed_and_no_claim(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await fill(session)
    before = await answers(session)
    copy = await kit.repo.snapshot(kit.directory)
    await session.append_entry(message("later"), "main")
    copied = await copy.open("s1")
    equal(await answers(copied), before)
    await copied.append_entry(message("elsewhere"), "main")
    await copied.close()
    equal(await session.get_entry("elsewhere"), None)
    true(await session.get_entry("later"), "the original went on")
    await session.close()
    await copy.close()


# Writing --------------------------------------------------------------------


@case
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


@case
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


@case
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


@case
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


@case
async def what_does_not_exist_cannot_be_named(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    await session.append_record(adjustment("r1", Usage()))
    before = await answers(session)
    with raises(UnknownLane):
        await session.append_entry(message("e2"), "ghost")
    with raises(UnknownLane):
        await session.append_record(adjustment("r2", Usage(), "ghost"))
    with raises(UnknownLane):
        await session.move_lane("ghost", "e1")
    for not_an_entry in ("ghost", "r1"):
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


@case
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


@case
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


@case
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


# Concurrency ----------------------------------------------------------------


@case
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


@case
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


@case
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


@case
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


# Values ---------------------------------------------------------------------


@case
async def what_is_no_json_is_refused_with_its_path(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    for value, path in REFUSED:
        for nested, at in ((value, path), ({"deep": [value]}, f".deep[0]{path}")):
            with raises(InvalidPayload) as refused:
                await session.append_custom_entry("kit", cast("JsonValue", nested))
            true(f"$.data{at}" in str(refused.error), f"{refused.error} names $.data{at}")
    with raises(InvalidPayload):
        await session.append_message(user("half \ud83d"))
    with raises(InvalidPayload):
        await session.append_message(replace(assistant("x", CALL), stop_reason="pending"))
    with raises(InvalidPayload):
        await session.append_message(ExtensionMessage(role="unregistered", fields={}))
    with raises(InvalidPayload):
        await session.append_record(adjustment("r1", Usage(input=float("nan"))))
    with raises(InvalidPayload):
        await session.append_custom_entry("kit", nest(130))
    with raises(InvalidPayload):
        await kit.repo.create(id="s2", metadata={"x": float("inf")})
    equal(await session.get_log(), [])
    equal([header.id for header in await kit.repo.list()], ["s1"])
    await session.close()


def nest(depth: int) -> JsonValue:
    """A list in a list in a list."""
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


REFUSED: tuple[tuple[object, str], ...] = (
    (float("nan"), ""),
    (float("inf"), ""),
    (-float("inf"), ""),
    (2**64, ""),
    (-(2**63) - 1, ""),
    (b"bytes", ""),
    ((1, 2), ""),
    ({1}, ""),
    (datetime(2026, 1, 1, tzinfo=UTC), ""),
    (UUID(int=7), ""),
    ({1: "x"}, ""),
    ({"\ud800": 1}, ""),
    ("half \ud83d", ""),
    ({"k": "\udc9c"}, ".k"),
)


@case
async def what_is_json_is_given_back_digit_for_digit(kit: Kit) -> None:
    kept: list[JsonValue] = [
        None, True, False, 0, 0.0, -0.0, 1, 1.0, 2**63, 2**64 - 1, -(2**63), 1e308, 5e-324, 0.1, "", "a\0b",
        "line\u2028sep\u2029 \x85 \x1c", "\U0001f469\u200d\U0001f33e", "\ufeffbom", "a\r\nb", {}, [], {"": ""},
        {"b": 1, "a": {"z": [1, 2.5, None, {"y": "é"}]}}, {"kind": "entry", "lane": "x", "seq": 9}, nest(126),
    ]  # fmt: skip
    session = await kit.repo.create(id="s1", metadata={"kept": kept[:-1]})
    written = [await session.append_entry(custom(f"e{n}", "kit", value), "main") for n, value in enumerate(kept)]
    await session.append_message(user("line\u2028sep a\0b \U0001f469"))
    await session.create_lane('spur \U0001f6a7 "x"\u2028', "e0")
    await session.set_label("e0", "\u2029 label \x85".strip())
    before = await answers(session)
    await session.close()
    session = await kit.repo.open("s1")
    equal(await answers(session), before)
    for entry, value in zip(written, kept, strict=True):
        found = await session.get_entry(entry.id)
        assert found is not None
        assert isinstance(found.body, CustomBody)
        equal(shape(found.body.data), shape(value))
    equal(shape(cast("JsonValue", dict(session.metadata.metadata))), shape({"kept": kept[:-1]}))
    await session.close()


def shape(value: JsonValue) -> str:
    """Tells 0 from 0.0 and False, and one order of keys from another."""
    return repr(value)


@case
async def a_message_of_a_registered_role_survives_without_the_registration(kit: Kit) -> None:
    body = ExtensionMessage(role="kit.card", fields={"title": "x", "items": [1, None], "timestamp": 5})
    session = await kit.repo.create(id="s1")
    session.register_message_types({"kit.card": lambda fields: None})
    entry_id = await session.append_message(body)
    await session.close()
    session = await kit.repo.open("s1")
    entry = await session.get_entry(entry_id)
    equal(entry and entry.body, MessageBody(message=body))
    await session.close()


@case
async def nothing_done_to_an_answer_reaches_the_session(kit: Kit) -> None:
    session = await kit.repo.create(id="s1", metadata={"deep": {"list": [1]}})
    data: JsonValue = {"list": [1]}
    written = await session.append_entry(custom("mine", data=data), "main")
    vandalize(data)
    await fill(session)
    before = await answers(session)
    expected = repr(before)
    for entry in await session.find_entries():
        vandalize(entry)
    for entry in await session.find_entries_on_branch():
        vandalize(entry)
    for record in (*await session.find_records(), *await session.find_open_operations("main")):
        vandalize(record)
    for item in await session.get_log():
        vandalize(item)
    vandalize(written)
    vandalize(await session.get_entry("mine"))
    vandalize(await session.get_labels())
    vandalize(await session.get_lanes())
    for header in await kit.repo.list():
        vandalize(dict(header.metadata))
    equal(repr(await answers(session)), expected)
    await session.close()
    session = await kit.repo.open("s1")
    equal(repr(await answers(session)), expected)
    equal(dict(session.metadata.metadata), {"deep": {"list": [1]}})
    await session.close()


# Queries --------------------------------------------------------------------


@case
async def entry_queries_answer_as_their_definition_says(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await fill(session)
    entries = [item.entry for item in await session.get_log() if isinstance(item, EntryItem)]
    types: list[EntryType | None] = [None, *cast("tuple[EntryType, ...]", get_args(EntryType))]
    for order in cast("tuple[Order, ...]", get_args(Order)):
        for kind in types:
            for custom_type in (None, "kit.note", "kit.ghost") if kind in (None, "custom") else (None,):
                for limit in (None, 1, 3):
                    for cursor in (None, 1, 8, len(entries), 10_000):
                        query = EntryQuery(
                            type=kind,
                            custom_type=custom_type,
                            order=order,
                            limit=limit,
                            cursor=None if cursor is None else EntryCursor(cursor),
                        )
                        found = await session.find_entries(
                            type=kind, custom_type=custom_type, order=order, limit=limit, cursor=query.cursor
                        )
                        equal(found, select_entries(entries, query), query)
    await session.close()


@case
async def pages_by_cursor_give_everything_once(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await fill(session)
    for order in cast("tuple[Order, ...]", get_args(Order)):
        pages: list[Entry] = []
        cursor: EntryCursor | None = None
        while page := await session.find_entries(order=order, limit=3, cursor=cursor):
            pages += page
            cursor = EntryCursor(page[-1].seq)
        equal(pages, await session.find_entries(order=order))
    await session.close()


@case
async def branch_queries_answer_as_their_definition_says(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await fill(session)
    entries = {item.entry.id: item.entry for item in await session.get_log() if isinstance(item, EntryItem)}
    stops = cast("tuple[EntryType | None, ...]", (None, "compaction", "message", "custom"))
    starts = [pointer.leaf_id for pointer in await session.get_lanes() if pointer.leaf_id is not None]
    for start in {*starts, next(iter(entries)), list(entries)[len(entries) // 2]}:
        path = path_from(entries, start)
        for stop_at_id in (None, start, path[-1].id, path[len(path) // 2].id, "ghost"):
            for stop_at_type in stops:
                bounds = BranchBounds(start=start, stop_at_type=stop_at_type, stop_at_id=stop_at_id)
                await check_branch(session, path, bounds)
        for after_seq in (0, path[-1].seq, path[len(path) // 2].seq, path[0].seq):
            await check_branch(session, path, BranchBounds(start=start, after_seq=after_seq))
            bounds = BranchBounds(start=start, after_seq=after_seq, stop_at_type="compaction")
            await check_branch(session, path, bounds)
    equal(await session.view("empty").find_entries_on_branch(), [])
    await session.close()


def path_from(entries: dict[str, Entry], start: str) -> list[Entry]:
    """From `start` to the root."""
    path = [entries[start]]
    while path[-1].parent_id is not None:
        path.append(entries[path[-1].parent_id])
    return path


async def check_branch(session: Session, path: list[Entry], bounds: BranchBounds) -> None:
    """Compare one branch, with several filters, with the definition."""
    kinds: tuple[tuple[EntryType | None, str | None], ...] = (
        (None, None), ("message", None), ("custom", None), ("custom", "kit.note"), (None, "kit.note"),
        ("model_change", None), ("compaction", None),
    )  # fmt: skip
    for order in cast("tuple[Order, ...]", get_args(Order)):
        for kind, custom_type in kinds:
            for limit, cursor in ((None, None), (1, None), (2, path[len(path) // 2].seq)):
                query = EntryQuery(
                    type=kind,
                    custom_type=custom_type,
                    order=order,
                    limit=limit,
                    cursor=None if cursor is None else EntryCursor(cursor),
                )
                found = await session.find_entries_on_branch(
                    type=kind,
                    custom_type=custom_type,
                    order=order,
                    limit=limit,
                    cursor=query.cursor,
                    start=bounds.start,
                    stop_at_type=bounds.stop_at_type,
                    stop_at_id=bounds.stop_at_id,
                    after_seq=bounds.after_seq,
                )
                equal(found, select_on_branch(path, query, bounds), (query, bounds))


@case
async def record_queries_answer_as_their_definition_says(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await fill(session)
    records = [item.record for item in await session.get_log() if isinstance(item, RecordItem)]
    types: list[RecordType | None] = [None, *cast("tuple[RecordType, ...]", get_args(RecordType))]
    for order in cast("tuple[Order, ...]", get_args(Order)):
        for lane in (None, "main", "side", "empty"):
            for kind in types:
                for run_id in (None, "run1", "run3", "ghost"):
                    for after_seq, limit in ((None, None), (None, 1), (records[len(records) // 2].seq, 2)):
                        query = RecordQuery(
                            lane=lane, type=kind, run_id=run_id, after_seq=after_seq, order=order, limit=limit
                        )
                        await check_records(session, records, query)
            for operation_kind in ("run", "compaction", "navigation"):
                query = RecordQuery(
                    lane=lane, type="operation_started", operation_kind=operation_kind, order=order, limit=1
                )
                await check_records(session, records, query)
                await check_records(session, records, replace(query, limit=None, run_id="run1"))
    true(any(isinstance(record.body, OperationStarted) for record in records), "the sample starts operations")
    await session.close()


async def check_records(session: Session, records: list[LaneRecord], query: RecordQuery) -> None:
    """Compare one record query with the definition."""
    found = await session.find_records(
        lane=query.lane,
        type=query.type,
        run_id=query.run_id,
        operation_kind=query.operation_kind,
        after_seq=query.after_seq,
        order=query.order,
        limit=query.limit,
    )
    equal(found, select_records(records, query), query)


@case
async def queries_that_mean_nothing_are_refused(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    await session.append_entry(message("e1"), "main")
    wrong: list[Callable[[], Awaitable[object]]] = [
        lambda: session.find_entries(limit=0),
        lambda: session.find_entries(limit=-1),
        lambda: session.find_entries(type=cast("EntryType", "note")),
        lambda: session.find_entries(type="message", custom_type="x"),
        lambda: session.find_entries(order=cast("Order", "sideways")),
        lambda: session.find_entries_on_branch(stop_at_type=cast("EntryType", "note")),
        lambda: session.find_records(limit=0),
        lambda: session.find_records(type=cast("RecordType", "note")),
        lambda: session.find_records(operation_kind="run"),
        lambda: session.find_open_operations("main", limit=0),
        lambda: session.get_log(limit=0),
    ]
    for attempt in wrong:
        with raises(InvalidQuery):
            await attempt()
    await session.close()


@case
async def text_in_queries_is_only_text(kit: Kit) -> None:
    session = await kit.repo.create(id="s1")
    names = ["'; DROP TABLE entries; --", '"x"', "a%", "_", "$.x", "a\0b", "\U0001f6a7", "main", "*", "\\", "\n"]
    for number, name in enumerate(names):
        await session.append_entry(custom(f"{name} {number}", name), "main")
        if name != "main":
            await session.create_lane(name, None)
        await session.set_label(f"{name} {number}", name.strip() or "x")
    for number, name in enumerate(names):
        found = await session.find_entries(custom_type=name)
        equal([entry.id for entry in found], [f"{name} {number}"])
        true(await session.get_entry(f"{name} {number}"), "found by id")
    equal(len(await session.get_lanes()), len(names))
    equal(await session.find_records(lane="x' OR '1'='1"), [])
    equal(await session.find_entries(custom_type="%"), [])
    await session.close()


# Forks ----------------------------------------------------------------------


@case
async def a_branch_fork_copies_one_path(kit: Kit) -> None:
    source = await kit.repo.create(id="s1", cwd="/srv/garden")
    await fill(source)
    before = await answers(source)
    entries = {entry.id: entry for entry in await source.find_entries()}
    leaf = await source.get_leaf_id()
    assert leaf is not None
    points: list[tuple[BranchFork, str | None]] = [
        (BranchFork(), leaf),
        (BranchFork(position="before"), entries[leaf].parent_id),
    ]
    for entry in entries.values():
        points.append((BranchFork(entry_id=entry.id), entry.id))
        points.append((BranchFork(entry_id=entry.id, position="before"), entry.parent_id))
    for number, (options, tip) in enumerate(points):
        # By object and by id: the source is being written in both cases.
        fork = await kit.repo.fork(source if number % 2 else "s1", options, id=f"fork{number}")
        path = [] if tip is None else path_from(entries, tip)[::-1]
        copied = [item.entry for item in await fork.get_log() if isinstance(item, EntryItem)]
        equal(copied, [replace(entry, seq=seq) for seq, entry in enumerate(path, start=1)])
        equal(await fork.get_lanes(), [LanePointer(lane="main", leaf_id=tip)])
        equal(await fork.get_name(), before.name)
        kept = {entry.id for entry in path}
        equal(await fork.get_labels(), {key: label for key, label in before.labels.items() if key in kept})
        count = sum(entry.type == "message" for entry in path)
        equal(await fork.get_stats(), SessionStats(message_count=count))
        equal(await fork.find_records(), [])
        header = fork.metadata
        equal((header.id, header.parent_session_id, header.cwd), (f"fork{number}", "s1", "/srv/garden"))
        await fork.close()
    equal(await answers(source), before)
    with raises(UnknownEntry):
        await kit.repo.fork(source, BranchFork(entry_id="ghost"), id="never")
    with raises(SessionNotFound):
        await kit.repo.open("never")
    await source.close()


@case
async def a_tree_fork_copies_everything_but_the_work(kit: Kit) -> None:
    source = await kit.repo.create(id="s1")
    await fill(source)
    before = await answers(source)
    fork = await kit.repo.fork(source, TreeFork(), id="fork", parent_session_id="other")
    entries = [item.entry for item in before.log if isinstance(item, EntryItem)]
    copied = [item.entry for item in await fork.get_log() if isinstance(item, EntryItem)]
    equal(copied, [replace(entry, seq=seq) for seq, entry in enumerate(entries, start=1)])
    equal(await fork.get_lanes(), before.lanes)
    equal((await fork.get_name(), await fork.get_labels()), (before.name, before.labels))
    equal(await fork.find_records(), [])
    for pointer in before.lanes:
        equal(await fork.find_open_operations(pointer.lane), [])
    equal(await fork.get_stats(), SessionStats(message_count=before.stats.message_count))
    equal(fork.metadata.parent_session_id, "other")
    seqs = [item.seq for item in await fork.get_log()]
    equal(seqs, list(range(1, len(seqs) + 1)))
    grown = await fork.append_entry(message("new"), "main")
    equal(grown.parent_id, await source.get_leaf_id())
    equal(await source.get_entry("new"), None)
    equal((await fork.get_stats()).message_count, before.stats.message_count + 1)
    after = await answers(fork)
    await fork.close()
    fork = await kit.repo.open("fork")
    equal(await answers(fork), after)
    await fork.close()
    await source.close()


@case
async def an_empty_session_forks_to_an_empty_one(kit: Kit) -> None:
    source = await kit.repo.create(id="s1")
    for number, options in enumerate((None, BranchFork(position="before"), TreeFork())):
        fork = await kit.repo.fork(source, options, id=f"fork{number}")
        equal(await fork.get_log(), [])
        equal(await fork.get_leaf_id(), None)
        equal((await fork.append_entry(message("e1"), "main")).parent_id, None)
        await fork.close()
    await source.close()


# A busy session ---------------------------------------------------------------


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
