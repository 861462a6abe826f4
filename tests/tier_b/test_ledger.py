"""The ledger is complete and matches the tree (harness-v2 §5, §19 "Ledger completeness and the match invariant").

That the session's cost is the sum of its records after every commit is a law of every test (`tests/support/laws.py`);
here are the records themselves, what the usage event tells of them, and the entries that carry a copy.
"""

from collections.abc import Sequence

import pytest

from agent_harness import AgentToolResult, CompactionSettings, Ok, TextContent
from agent_harness.events.catalog import UsageEvent
from agent_harness.hooks.catalog import BeforeCompaction, CompactionDecision
from agent_harness.outcomes import CompactionEnded
from agent_harness.session.repo import SessionRepo
from agent_harness.session.session import Session
from agent_harness.testing import ScriptedRequest, answer, call
from agent_harness.types.entries import BranchSummaryBody, CompactionBody, Entry, MessageBody
from agent_harness.types.messages import AssistantMessage, Cost, DeferredHandle, ToolResultMessage, Usage
from agent_harness.types.records import AdjustmentUsage, HookUsage, LaneRecord, RequestUsage, ToolUsage
from agent_harness.types.structural import CompactResult, NavigateOptions
from agent_harness.types.usage import add_usage, sum_usage
from tests.support.prefix import Prefix
from tests.support.rig import Calls, Rig, assert_sound, open_rig, turns

HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")
FULL = Usage(input=127_000, total_tokens=127_000, cost=Cost(total=1.25))


def used(tokens: int) -> Usage:
    return Usage(input=tokens, total_tokens=tokens, cost=Cost(total=tokens / 8))


def busy(tokens: int) -> AssistantMessage:
    return answer(error_message="overloaded", error_code="overloaded", usage=used(tokens))


async def ledger(session: Session) -> list[LaneRecord]:
    return await session.find_records(type="usage", order="oldestFirst")


async def causes(session: Session) -> list[tuple[str, int]]:
    """The ledger from its beginning: what for, and how many tokens."""
    bodies = [record.body for record in await ledger(session)]
    assert all(isinstance(body, RequestUsage | ToolUsage | HookUsage | AdjustmentUsage) for body in bodies)
    return [(body.cause, body.usage.input) for body in bodies if body.type == "usage"]


def snapshot_of(entry: Entry) -> Usage | None:
    """The copy of its cost that an entry carries."""
    match entry.body:
        case MessageBody(message=AssistantMessage(usage=usage)) | MessageBody(message=ToolResultMessage(usage=usage)):
            return usage
        case CompactionBody(usage=usage) | BranchSummaryBody(usage=usage):
            return usage
        case _:
            return None


async def assert_entries_match(session: Session) -> int:
    """Each copy equals the newest records bound to its entry: of the newest attempt, or the newest execution."""
    matched = 0
    records = await ledger(session)
    for entry in await session.find_entries():
        snapshot = snapshot_of(entry)
        if snapshot is None or snapshot == Usage():
            continue
        bound = [record.body for record in records if getattr(record.body, "entry_id", None) == entry.id]
        requests = [body for body in bound if isinstance(body, RequestUsage)]
        others = [body for body in bound if isinstance(body, ToolUsage | HookUsage)]
        newest = [body.usage for body in requests if body.attempt == requests[-1].attempt] or [others[-1].usage]
        assert snapshot == sum_usage(newest), entry.id
        matched += 1
    return matched


def told(rig: Rig) -> list[UsageEvent]:
    events: list[UsageEvent] = []
    rig.harness.events.on("usage", events.append)
    return events


async def assert_told(rig: Rig, events: Sequence[UsageEvent], before: Usage | None = None) -> None:
    """One event per record, in order; its totals are the sum up to that record, the last ones the statistics."""
    await turns()
    records = (await ledger(rig.session))[-len(events) :]
    assert [event.record for event in events] == records
    total = before or Usage()
    for event in events:
        assert event.record.body.type == "usage"
        total = add_usage(total, event.record.body.usage)
        assert event.totals == total
    assert (await rig.session.get_stats()).usage == total


async def talked(repo: SessionRepo, *answers: AssistantMessage, **options: object) -> Rig:
    """Two finished turns, and the answers that follow."""
    first = answer("One.", usage=used(1)), answer("Two.", usage=used(2))
    rig = await open_rig(await repo.create(), *first, *answers, **options)
    for text in ("First.", "Second."):
        assert isinstance(await rig.harness.prompt(text), Ok)
    return rig


async def test_every_request_of_a_retried_run_with_a_tool_has_its_record(repo: SessionRepo) -> None:
    tool = Calls().tool(result=AgentToolResult(content=(TextContent(text="r"),), usage=used(4)))
    rig = await open_rig(
        await repo.create(),
        busy(1),
        answer(calls=[call("measure", id="c1")], usage=used(2)),
        busy(8),
        answer("Done.", usage=used(16)),
        tools=[tool],
    )
    events = told(rig)
    await rig.harness.prompt("Go.")
    assert await causes(rig.session) == [
        ("assistant", 1),
        ("assistant", 2),
        ("tool", 4),
        ("assistant", 8),
        ("assistant", 16),
    ]
    assert await assert_entries_match(rig.session) == 3
    await assert_told(rig, events)


async def test_a_run_that_gave_up_lost_no_cost(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(), busy(1), busy(2), busy(4))
    events = told(rig)
    assert (await rig.harness.prompt("Go.")).unwrap().kind == "failed"
    assert await causes(rig.session) == [("assistant", 1), ("assistant", 2), ("assistant", 4)]
    await assert_told(rig, events)


async def test_a_compaction_series_that_failed_lost_no_cost(repo: SessionRepo) -> None:
    rig = await talked(repo, busy(4), answer("", usage=used(8)), busy(16))
    events, before = told(rig), (await rig.session.get_stats()).usage
    outcome = (await rig.harness.compact()).unwrap()
    assert isinstance(outcome, CompactionEnded)
    assert outcome.kind == "failed"
    assert (await causes(rig.session))[2:] == [("compaction", 4), ("compaction", 8), ("compaction", 16)]
    await assert_told(rig, events, before)


async def test_an_exhausted_compaction_inside_a_run_lost_no_cost(repo: SessionRepo) -> None:
    full = answer(calls=[call("measure", id="c1")], usage=FULL)
    rig = await talked(repo, full, busy(4), busy(8), busy(16), tools=[Calls().tool()])
    assert (await rig.harness.prompt("Third.")).unwrap().kind == "failed"
    assert (await causes(rig.session))[2:] == [
        ("assistant", 127_000),
        ("compaction", 4),
        ("compaction", 8),
        ("compaction", 16),
    ]
    assert await assert_entries_match(rig.session) == 3


@pytest.mark.parametrize("failed", [0, 1])
async def test_summaries_carry_the_cost_of_the_attempt_that_made_them(repo: SessionRepo, failed: int) -> None:
    compaction = [*[busy(4)] * failed, answer("Summary.", usage=used(8))]
    branch = [*[busy(16)] * failed, answer("Of the branch.", usage=used(32))]
    rig = await talked(repo, *compaction, *branch)
    (oldest,) = await rig.session.find_entries(order="oldestFirst", limit=1)
    (await rig.harness.compact()).unwrap()
    (await rig.harness.navigate_tree(oldest.id, NavigateOptions(summarize=True))).unwrap()
    assert (await causes(rig.session))[2:] == [
        *[("compaction", 4)] * failed,
        ("compaction", 8),
        *[("branch_summary", 16)] * failed,
        ("branch_summary", 32),
    ]
    assert await assert_entries_match(rig.session) == 4


async def test_what_a_hook_paid_for_its_summary_is_in_the_ledger_and_on_the_entry(repo: SessionRepo) -> None:
    rig = await talked(repo)

    def supply(_event: BeforeCompaction) -> CompactionDecision:
        return CompactionDecision(compaction=CompactResult(summary="Supplied.", usage=used(4)))

    rig.harness.hooks.on("before_compaction", supply)
    events, before = told(rig), (await rig.session.get_stats()).usage
    (await rig.harness.compact()).unwrap()
    assert (await causes(rig.session))[2:] == [("hook", 4)]
    assert await assert_entries_match(rig.session) == 3
    await assert_told(rig, events, before)


async def test_a_fetch_is_recorded_when_it_reports_something_or_settles(repo: SessionRepo) -> None:
    fetches = [
        answer(deferred=HANDLE, usage=Usage()),
        answer(deferred=HANDLE, usage=used(2)),
        answer("Late.", usage=used(4)),
    ]
    rig = await open_rig(await repo.create(), answer(deferred=HANDLE, usage=used(1)), fetches=fetches)
    events = told(rig)
    assert (await rig.harness.prompt("Go.")).unwrap().kind == "suspended"
    kinds = [(await rig.harness.resume()).unwrap().kind for _ in fetches]
    assert kinds == ["suspended", "suspended", "completed"]
    assert await causes(rig.session) == [("assistant", 1), ("deferred_fetch", 2), ("deferred_fetch", 4)]
    assert await assert_entries_match(rig.session) == 2
    await assert_told(rig, events)


async def test_a_replayed_tool_records_both_executions(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(replay="safe")
    await prefix.tool_usage(1, used(4))  # the first execution was billed, and its process died before the result
    tool = Calls().tool(replay="safe", result=AgentToolResult(content=(TextContent(text="r"),), usage=used(8)))
    rig = await open_rig(session, answer("Done.", usage=used(16)), tools=[tool])
    events = told(rig)
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert await causes(session) == [("tool", 4), ("tool", 8), ("assistant", 16)]
    result = await session.get_entry("t1")
    assert result is not None
    assert snapshot_of(result) == used(8)  # the entry tells of the execution whose result it is
    await assert_told(rig, events, used(4))
    await assert_sound(session)


async def test_adjustments_change_the_sum_and_no_entry(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(id="ledger"), answer("Done.", usage=used(16)))
    events = told(rig)
    outcome = (await rig.harness.prompt("Go.")).unwrap()
    entry_id = outcome.final_entry_id
    assert entry_id is not None
    before = await rig.session.get_entry(entry_id)
    refund = Usage(input=-6, total_tokens=-6, cost=Cost(total=-0.75))
    assert await rig.harness.record_usage(refund, entry_id=entry_id, details={"why": "refund"}) == Ok(None)
    assert await rig.harness.record_usage(used(1)) == Ok(None)
    assert await rig.session.get_entry(entry_id) == before
    assert await assert_entries_match(rig.session) == 1
    (adjusted,) = [r.body for r in await ledger(rig.session) if getattr(r.body, "entry_id", None) == entry_id][1:]
    assert isinstance(adjusted, AdjustmentUsage)
    assert adjusted.details == {"why": "refund"}
    assert add_usage(used(16), adjusted.usage).cost.total == 1.25  # what the entry cost in effect
    await assert_told(rig, events)
    total = (await rig.session.get_stats()).usage
    assert (total.input, total.cost.total) == (11, 1.375)
    await rig.harness.close()
    assert (await (await repo.open("ledger")).get_stats()).usage == total


@pytest.mark.parametrize("when", ["idle", "in a run", "suspended"])
async def test_an_adjustment_is_accepted_at_any_time_and_is_no_work(repo: SessionRepo, when: str) -> None:
    async def respond(_request: ScriptedRequest) -> AssistantMessage:
        if when == "in a run":
            (await rig.harness.record_usage(used(1))).unwrap()
        return answer(deferred=HANDLE) if when == "suspended" else answer("Done.")

    rig = await open_rig(await repo.create(), respond=respond, compaction=CompactionSettings(enabled=False))
    kind = (await rig.harness.prompt("Go.")).unwrap().kind
    assert kind == ("suspended" if when == "suspended" else "completed")
    lines = await rig.lines()
    if when != "in a run":
        (await rig.harness.record_usage(used(1))).unwrap()
    assert ("adjustment", 1) in await causes(rig.session)
    assert await rig.lines() == lines
    assert await rig.session.verify() == []
