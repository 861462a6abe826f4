"""Cases: forks copy what harness-v2 §17 says."""

from dataclasses import replace

from agent_harness.errors import (
    SessionNotFound,
    UnknownEntry,
)
from agent_harness.session.repo import BranchFork, TreeFork
from agent_harness.session.storage import EntryItem, LanePointer, SessionStats

from .busy import answers, fill, path_from
from .checks import equal, raises
from .kit import Kit, cases_of
from .samples import (
    message,
)


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


async def an_empty_session_forks_to_an_empty_one(kit: Kit) -> None:
    source = await kit.repo.create(id="s1")
    for number, options in enumerate((None, BranchFork(position="before"), TreeFork())):
        fork = await kit.repo.fork(source, options, id=f"fork{number}")
        equal(await fork.get_log(), [])
        equal(await fork.get_leaf_id(), None)
        equal((await fork.append_entry(message("e1"), "main")).parent_id, None)
        await fork.close()
    await source.close()


CASES = cases_of(globals())
