"""Recovery of tool batches: every X state of harness-v2 §6, replay declarations, source order, A-4."""

import pytest

from agent_harness.hooks.catalog import AfterTool, BeforeTool, ToolResultPatch
from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import RecordItem
from agent_harness.testing import answer, call
from agent_harness.types.messages import TextContent, Usage
from agent_harness.types.records import Replay
from agent_harness.types.usage import sum_usage
from tests.support.prefix import Prefix, real
from tests.support.rig import Calls, Rig, assert_sound, open_rig, results_of, said

BATCH = ["R operation_started", "E user", "R step_attempt", "E assistant toolUse"]
REST = ["R step_attempt", "E assistant stop", "R operation_finished"]


async def resumed(rig: Rig) -> list[str]:
    """Resume to the end; what stands in the log."""
    before = await rig.session.get_log()
    assert len(rig.suspended) == 1
    assert rig.suspended[0].reason == "crash"
    outcome = (await rig.harness.resume()).unwrap()
    assert outcome.kind == "completed"
    await assert_sound(rig.session)
    assert (await rig.session.get_log())[: len(before)] == before
    return await rig.lines()


async def test_x1_a_call_without_a_record_runs_in_full(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    await Prefix(session).batch()
    rig = await open_rig(session, "done", tools=[tools.tool()])
    seen: list[str] = []
    rig.harness.hooks.on("before_tool", lambda event: seen.append(event.tool_call_id))
    assert await resumed(rig) == [*BATCH, "R tool_started", "E toolResult", *REST]
    assert tools.made == ["c1"]
    assert seen == ["c1"]


@pytest.mark.parametrize(
    ("recorded", "current", "executed"),
    [("safe", "safe", True), ("never", "never", False), ("safe", "never", False), ("never", "safe", False)],
)
async def test_x3_replays_only_if_the_record_and_the_tool_both_say_safe(
    repo: SessionRepo, recorded: Replay, current: Replay, executed: bool
) -> None:
    session, tools = await repo.create(), Calls()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(replay=recorded)
    rig = await open_rig(session, "done", tools=[tools.tool(replay=current)])
    hooks: list[str] = []
    rig.harness.hooks.on("before_tool", lambda event: hooks.append("before_tool"))
    rig.harness.hooks.on("after_tool", lambda event: hooks.append("after_tool"))
    settled = ["R tool_settled"] if executed else []
    assert await resumed(rig) == [*BATCH, "R tool_started", *settled, "E toolResult", *REST]
    assert tools.made == (["c1"] if executed else [])
    assert hooks == (["after_tool"] if executed else [])


async def test_a_safe_call_replays_the_persisted_arguments(repo: SessionRepo) -> None:
    session, seen = await repo.create(), []
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(replay="safe")
    tool = Calls().tool(replay="safe", validate=lambda args: seen.append(args) or args)
    rig = await open_rig(session, "done", tools=[tool])
    events = []
    rig.harness.events.on("tool_start", events.append)
    await resumed(rig)
    assert seen == []  # cleared before the crash: neither validated nor asked again
    assert [event.args for event in events] == [{"bed": 1}]


async def test_an_interrupted_call_says_so_under_its_provisioned_id(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started()
    rig = await open_rig(session, "done", tools=[Calls().tool()])
    (await rig.harness.resume()).unwrap()
    entry = await session.get_entry("t1")
    assert entry is not None
    assert entry.message is not None
    assert "interrupted" in said(results_of(await session.get_log())["c1"])
    assert results_of(await session.get_log())["c1"].is_error


async def test_x5_a_call_with_a_result_is_skipped_and_the_next_one_runs(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    prefix = Prefix(session)
    await prefix.batch(2)
    await prefix.tool_started(1)
    await prefix.result(1)
    rig = await open_rig(session, "done", tools=[tools.tool()])
    lines = await resumed(rig)
    assert lines == [*BATCH, "R tool_started", "E toolResult", "R tool_started", "E toolResult", *REST]
    assert tools.made == ["c2"]


SITES = ("x1", "x3 never", "x3 safe", "x5", "settled")


@pytest.mark.parametrize("first", SITES)
@pytest.mark.parametrize("second", SITES)
@pytest.mark.parametrize("third", SITES)
async def test_each_call_of_a_batch_of_three_is_reconciled_at_its_own_site(
    repo: SessionRepo, first: str, second: str, third: str
) -> None:
    """All 125 combinations; results are in source order as far as they were not written before the crash."""
    session, tools = await repo.create(), Calls()
    prefix = Prefix(session)
    await prefix.batch(3)
    sites = dict(enumerate((first, second, third), 1))
    for number, site in sites.items():
        if site != "x1":
            await prefix.tool_started(number, "safe" if site == "x3 safe" else "never")
    for number, site in sites.items():
        if site == "settled":
            await prefix.tool_settled(number, real(f"settled c{number}"))
    for number, site in sites.items():
        if site == "x5":
            await prefix.result(number)
    rig = await open_rig(session, "done", tools=[tools.tool(replay="safe")])
    resolved = (await rig.harness.resume()).unwrap() if rig.suspended else None
    assert resolved is not None
    assert resolved.kind == "completed"
    await assert_sound(session)
    assert tools.made == [f"c{n}" for n, site in sites.items() if site in ("x1", "x3 safe")]
    expected = {
        "x1": "real c{n}",
        "x3 safe": "real c{n}",
        "x5": "kept",
        "settled": "settled c{n}",
    }
    results = results_of(await session.get_log())
    for n, site in sites.items():
        text = said(results[f"c{n}"])
        assert text == expected[site].format(n=n) if site in expected else "interrupted" in text
    order = [c for c in results if sites[int(c[1])] != "x5"]
    assert order == sorted(order)


async def test_a_truncated_batch_executes_nothing(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    await Prefix(session).batch(3, stop_reason="length")
    rig = await open_rig(session, "done", tools=[tools.tool(replay="safe")])
    lines = await resumed(rig)
    head = [*BATCH[:3], "E assistant length"]
    assert lines == [*head, "E toolResult", "E toolResult", "E toolResult", *REST]
    assert tools.made == []
    results = results_of(await session.get_log())
    assert list(results) == ["c1", "c2", "c3"]
    assert all("truncated" in said(r) and r.is_error for r in results.values())


async def test_a_batch_whose_results_all_terminate_asks_for_no_answer(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch(2)
    for number in (1, 2):
        await prefix.tool_started(number)
        await prefix.result(number, terminate=True)
    rig = await open_rig(session, tools=[Calls().tool()])
    lines = await resumed(rig)
    assert lines[-1] == "R operation_finished"
    assert rig.provider.requests == []


async def test_one_result_without_terminate_asks_for_an_answer(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch(2)
    for number in (1, 2):
        await prefix.tool_started(number)
        await prefix.result(number, terminate=number == 1)
    rig = await open_rig(session, "done", tools=[Calls().tool()])
    await resumed(rig)
    assert len(rig.provider.requests) == 1


# A-4 -----------------------------------------------------------------------------------------------------------------

COST = Usage(input=100, output=1, total_tokens=101)


async def test_a_settled_call_is_neither_executed_again_nor_interrupted_nor_billed_twice(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(replay="safe")
    await prefix.tool_usage(1, COST)
    await prefix.tool_settled(1, real("finished", COST))
    rig = await open_rig(session, "done", tools=[tools.tool(replay="safe")])
    assert await resumed(rig) == [*BATCH, "R tool_started", "R tool_settled", "E toolResult", *REST]
    assert tools.made == []
    result = results_of(await session.get_log())["c1"]
    assert (said(result), result.is_error, result.usage) == ("finished", False, COST)
    tool_records = [
        i.record.body
        for i in await session.get_log()
        if isinstance(i, RecordItem) and i.record.body.type == "usage" and i.record.body.cause in ("tool", "adjustment")
    ]
    assert sum_usage(body.usage for body in tool_records).total_tokens == 101


async def test_a_settled_error_stays_an_error(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started()
    await prefix.tool_settled(1, real("ValueError: no bed"), error=True)
    rig = await open_rig(session, "done", tools=[Calls().tool()])
    await resumed(rig)
    assert results_of(await session.get_log())["c1"].is_error


async def test_recovery_runs_phase_three_on_the_recorded_result(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started()
    await prefix.tool_usage(1, COST)
    await prefix.tool_settled(1, real("raw", COST))
    rig = await open_rig(session, "done", tools=[Calls().tool()])
    corrected = Usage(input=40, output=1, total_tokens=41)

    def patch(event: AfterTool) -> ToolResultPatch:
        assert event.content == (TextContent(text="raw"),)
        assert event.args == {"bed": 1}
        return ToolResultPatch(content=(TextContent(text="patched"),), usage=corrected, terminate=True)

    rig.harness.hooks.on("after_tool", patch)
    await resumed(rig)
    assert said(results_of(await session.get_log())["c1"]) == "patched"
    stats = await session.get_stats()
    ledger = [i.record.body for i in await session.get_log() if isinstance(i, RecordItem)]
    bound = [b.usage for b in ledger if b.type == "usage" and getattr(b, "entry_id", None) == "t1"]
    assert sum_usage(bound).total_tokens == 41  # the correction is an adjustment, not a second bill
    assert stats.usage == sum_usage(b.usage for b in ledger if b.type == "usage")
    assert rig.provider.requests == []  # the patched terminate is durable


async def test_a_redacted_record_says_finished_and_not_kept(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(replay="safe")
    await prefix.tool_settled(1, None)
    rig = await open_rig(session, "done", tools=[tools.tool(replay="safe")])
    rig.harness.hooks.on("after_tool", lambda event: None, redacts=True)
    await resumed(rig)
    text = said(results_of(await session.get_log())["c1"])
    assert "finished" in text
    assert "not kept" in text
    assert "interrupted" not in text
    assert tools.made == []


async def test_a_redacting_handler_keeps_the_raw_result_out_of_the_log(repo: SessionRepo) -> None:
    session = await repo.create()
    secret = real("the secret is 1234")
    rig = await open_rig(session, answer(calls=_one_call()), "done", tools=[Calls().tool(result=secret)])
    rig.harness.hooks.on(
        "after_tool", lambda event: ToolResultPatch(content=(TextContent(text="redacted"),)), redacts=True
    )
    (await rig.harness.prompt("go")).unwrap()
    log = await session.get_log()
    assert "1234" not in repr(log)
    assert said(results_of(log)["c1"]) == "redacted"


async def test_a_redacting_handler_that_fails_loses_the_result_and_not_the_secret(repo: SessionRepo) -> None:
    session = await repo.create()
    secret = real("the secret is 1234")
    rig = await open_rig(session, answer(calls=_one_call()), "done", tools=[Calls().tool(result=secret)])

    def fail(event: AfterTool) -> ToolResultPatch:
        raise RuntimeError("no rule fits")

    rig.harness.hooks.on("after_tool", fail, redacts=True)
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    log = await session.get_log()
    assert "1234" not in repr(log)
    assert "not kept" in said(results_of(log)["c1"])


def _one_call():
    from tests.support.prefix import calls

    return calls(1)


async def test_a_settled_call_needs_no_tool_any_more(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch(name="gone")
    await prefix.tool_started(name="gone")
    await prefix.tool_settled(1, real("finished"))
    rig = await open_rig(session, "done", active_tool_names=["gone"])
    assert not rig.suspended[0].missing
    await resumed(rig)


async def test_a_tool_that_changes_its_arguments_changes_no_record(repo: SessionRepo) -> None:
    """The fixed-point check at the end of the recovery compares live state with the store."""
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(replay="safe")
    tools = Calls()
    inner = tools.tool(replay="safe")

    async def spoil(invocation):
        invocation.args.clear()
        invocation.args["more"] = [1]
        assert inner.execute is not None
        return await inner.execute(invocation)

    from dataclasses import replace

    rig = await open_rig(session, "done", tools=[replace(inner, execute=spoil)])
    await resumed(rig)
    assert tools.made == ["c1"]
    started = await session.find_records(type="tool_started")
    assert started[0].body.effective_args == {"bed": 1}


async def test_a_policy_that_changes_nested_arguments_in_place_changes_no_entry(repo: SessionRepo) -> None:
    """In recovery the call comes from live state; the fixed-point check compares it with the store."""
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.start()
    await prefix.attempt()
    await prefix.entry("a1", answer(calls=[call("measure", {"deep": {"x": 1}}, id="c1")]))
    rig = await open_rig(session, "done", tools=[Calls().tool()])

    def spoil(event: BeforeTool) -> None:
        deep = event.args["deep"]
        assert isinstance(deep, dict)
        deep["x"] = 2

    rig.harness.hooks.on("before_tool", spoil)
    held = live_arguments(rig)
    await resumed(rig)
    assert held == {"deep": {"x": 1}}


def live_arguments(rig: Rig) -> object:
    """The arguments of the first call, as live state holds them."""
    operation = rig.harness._lane.operation
    assert operation is not None
    assert operation.tool_batch is not None
    return operation.tool_batch.calls[0].tool_call.arguments
