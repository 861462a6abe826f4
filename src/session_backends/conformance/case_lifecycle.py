"""Cases: creating, opening, claiming, listing, deleting and copying sessions."""

import asyncio

from agent_harness.errors import (
    DuplicateId,
    InvalidPayload,
    InvalidSessionId,
    OperationOpen,
    ReadOnlySession,
    SessionClosed,
    SessionExists,
    SessionLocked,
    SessionNotFound,
)
from agent_harness.session.storage import LanePointer, SessionStats

from .busy import answers, every_write, fill
from .checks import equal, raises, true
from .kit import Kit, cases_of
from .samples import (
    finished,
    message,
    started,
    user,
)


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


async def a_session_is_its_own_context_manager(kit: Kit) -> None:
    async with await kit.repo.create(id="s1") as session:
        await session.append_message(user("hello"))
    async with await kit.repo.open("s1") as session:
        equal(len(await session.get_log()), 1)


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


async def an_open_that_waits_gets_the_session_when_it_is_free(kit: Kit) -> None:
    first = await kit.repo.create(id="s1")
    waiting = asyncio.create_task(kit.repo.open("s1", wait=30.0))
    await first.append_entry(message("e1"), "main")
    await first.close()
    second = await waiting
    equal(len(await second.get_log()), 1)
    await second.close()


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


async def lists_name_what_is_there(kit: Kit) -> None:
    equal(await kit.repo.list(), [])
    for session_id, cwd in (("s1", "/srv/a/b"), ("s2", "/srv/a-b"), ("s3", "/srv/a/b")):
        session = await kit.repo.create(id=session_id, cwd=cwd, metadata={"n": session_id})
        await session.close()
    open_one = await kit.repo.open("s3")
    equal({header.id for header in await kit.repo.list()}, {"s1", "s2", "s3"})
    equal({header.id for header in await kit.repo.list(cwd="/srv/a/b")}, {"s1", "s3"})
    equal([header.id for header in await kit.repo.list(cwd="/srv/a-b")], ["s2"])
    for no_folder in ("/nowhere", "/half \ud83d", "/srv/a/b\0"):
        equal(await kit.repo.list(cwd=no_folder), [])
    for no_folder in ("/half \ud83d", "/srv/a/b\0"):
        with raises(InvalidPayload):
            await kit.repo.create(id="s4", cwd=no_folder)
    equal([dict(header.metadata) for header in await kit.repo.list(cwd="/srv/a-b")], [{"n": "s2"}])
    await open_one.append_entry(message("e1"), "main")
    await open_one.close()


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


CASES = cases_of(globals())
