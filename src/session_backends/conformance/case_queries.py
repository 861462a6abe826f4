"""Cases: finders answer as `agent_harness.session.queries` defines."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import cast, get_args

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
from agent_harness.session.session import Session
from agent_harness.session.storage import EntryItem, RecordItem
from agent_harness.types.entries import Entry, EntryType
from agent_harness.types.records import LaneRecord, OperationStarted, RecordType

from .busy import fill, path_from
from .checks import equal, raises, true
from .kit import Kit, cases_of
from .samples import (
    custom,
    message,
)


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
        lambda: session.get_log(limit=2**63),
        lambda: session.get_log(after_seq=2**63),
        lambda: session.find_entries(limit=2**63),
        lambda: session.find_entries(cursor=EntryCursor(2**63)),
        lambda: session.find_entries(cursor=cast("EntryCursor", "1")),
        lambda: session.find_entries(custom_type="half \ud83d"),
        lambda: session.find_entries_on_branch(after_seq=-(2**63)),
        lambda: session.find_entries_on_branch(stop_at_id="half \ud83d"),
        lambda: session.find_records(after_seq=2**63),
        lambda: session.find_records(lane="half \ud83d"),
        lambda: session.find_records(run_id="half \ud83d"),
    ]
    for attempt in wrong:
        with raises(InvalidQuery):
            await attempt()
    await session.close()


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


CASES = cases_of(globals())
