"""Manual drive: the gate invariants of harness-v2 §19, nested actions, settle orders, equality with automatic drive."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

from agent_harness.errors import HarnessClosed
from agent_harness.hooks.catalog import ToolDecision
from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import EntryItem, LogItem, RecordItem
from agent_harness.testing import answer, check_fixed_point, drive_until, start
from agent_harness.types.actions import (
    ActionInfo,
    AppendEntryAction,
    AppendRecordAction,
    ExecuteToolAction,
    TryFinishRunAction,
)
from agent_harness.types.codec import dump_entry, dump_record
from session_backends import MemorySessionRepo
from tests.support.backends import make_repo
from tests.support.prefix import calls, errored
from tests.support.rig import Calls, Held, Rig, assert_sound, open_rig, turns, until


def normalised(log: list[LogItem]) -> list[Any]:
    """The log with ids numbered by first appearance and without times: equal for equal histories."""
    numbers: dict[str, str] = {}

    def rename(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: rename(v, k) for k, v in value.items() if k != "timestamp"}
        if isinstance(value, list):
            return [rename(v, key) for v in value]
        if isinstance(value, str) and value.startswith("id-"):
            return numbers.setdefault(value, f"#{len(numbers)}")
        return value

    wires = []
    for item in log:
        if isinstance(item, EntryItem):
            wires.append(rename(dump_entry(item.entry)))
        elif isinstance(item, RecordItem):
            wires.append(rename(dump_record(item.record)))
        else:
            wires.append(repr(item))
    return wires


# One action at a time ------------------------------------------------------------------------------------------------


ONE_CALL = ["append_record", "execute_tool", "append_entry"]  # tool_started, its effect and its result
TWO_CALLS = ["append_record", "append_record", *["execute_tool", "append_entry"] * 2]


@pytest.mark.parametrize(("count", "batch"), [(1, ONE_CALL), (2, TWO_CALLS)])
async def test_every_action_leaves_exactly_its_own_prefix_and_peeking_changes_nothing(
    repo: SessionRepo, count: int, batch: list[str]
) -> None:
    session, tools = await repo.create(), Calls()
    rig = await open_rig(session, answer(calls=calls(count)), "done", tools=[tools.tool()], drive="manual")
    work = await start(rig.harness.prompt("go"))
    action = await rig.harness.peek_action()
    released: list[str] = []
    while action is not None:
        before = (len(await session.get_log()), len(rig.provider.requests), list(tools.made))
        await turns(30)
        assert await rig.harness.peek_action() is action
        assert await rig.harness.peek_action() is action
        # Parked: not a write, not a request, not a tool call.
        assert (len(await session.get_log()), len(rig.provider.requests), list(tools.made)) == before
        following = await rig.harness.execute_action()
        await turns(30)
        after = (len(await session.get_log()), len(rig.provider.requests), list(tools.made))
        assert _did(action) == tuple(
            len(b) - len(a) if isinstance(a, list) else b - a for a, b in zip(before, after, strict=True)
        ), action
        assert _left(action, (await session.get_log())[-1], tools.made), action
        await check_fixed_point(rig.harness)
        released.append(action.kind)
        action = await rig.harness.peek_action()
        # What follows a settled call of a batch parks in front of the next call, a few turns after it.
        assert action is following or isinstance(following, ExecuteToolAction)
    assert (await work).unwrap().kind == "completed"
    assert released == [
        "append_entry",  # the prompt
        "append_record",  # step_attempt
        "stream_assistant",
        "append_record",  # usage
        "append_entry",
        *batch,
        "append_record",
        "stream_assistant",
        "append_record",
        "append_entry",
        "try_finish_run",
    ]
    assert await rig.harness.peek_action() is None
    assert await rig.harness.execute_action() is None
    finished = await session.find_records(type="operation_finished")
    assert len(finished) == 1


def _did(action: ActionInfo) -> tuple[int, int, int]:
    """Writes, requests and executions of one action."""
    match action.kind:
        case "stream_assistant":
            return 0, 1, 0
        case "execute_tool":
            return 0, 0, 1
        case _:
            return 1, 0, 0


def _left(action: ActionInfo, newest: LogItem, made: list[str]) -> bool:
    """Whether what is newest in the log, or the newest call, is what the action announced."""
    match action, newest:
        case AppendEntryAction(), EntryItem(entry=entry):
            return (entry.id, entry.type) == (action.entry_id, action.entry_type)
        case AppendRecordAction(), RecordItem(record=record):
            return record.type == action.record_type
        case TryFinishRunAction(), RecordItem(record=record):
            return record.type == "operation_finished"
        case ExecuteToolAction(), _:
            return made[-1] == action.tool_call_id
        case _:
            return action.kind == "stream_assistant"  # nothing in the log


async def test_stopping_before_any_action_leaves_the_prefix_and_rejects_the_prompt(repo: SessionRepo) -> None:
    seen: list[list[str]] = []
    for k in range(30):
        session = await repo.create(id=f"s{k}")
        rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[Calls().tool()], drive="manual")
        work = await start(rig.harness.prompt("go"))
        action = await rig.harness.peek_action()
        for _ in range(k):
            action = await rig.harness.execute_action() if action is not None else None
        before = await rig.lines(usage=True)
        await rig.harness.close()
        if action is None:
            assert (await work).unwrap().kind == "completed"
            break
        with pytest.raises(HarnessClosed):
            await work
        with pytest.raises(HarnessClosed):
            await rig.harness.peek_action()
        session = await repo.open(f"s{k}")
        again = await open_rig(session, "done", tools=[Calls().tool()])
        assert await again.lines(usage=True) == before
        assert (await again.harness.resume()).unwrap().kind == "completed"
        await assert_sound(session)
        seen.append(before)
        await again.harness.close()
    assert [a == b[: len(a)] for a, b in pairwise(seen)] == [True] * (len(seen) - 1)
    assert len(seen) == 13


async def test_a_closed_gate_rejects_every_parked_call_of_a_batch(repo: SessionRepo) -> None:
    session, tools = await repo.create(), Calls()
    rig = await open_rig(session, answer(calls=calls(3)), tools=[tools.tool()], drive="manual")
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, "execute_tool")
    before = await session.get_log()
    await rig.harness.close()
    with pytest.raises(HarnessClosed):
        await work
    session = await repo.open(session.id)
    assert await session.get_log() == before
    assert tools.made == []
    await session.close()


async def test_automatic_drive_has_no_controls(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create())
    for control in (rig.harness.peek_action, rig.harness.execute_action, rig.harness.run_to_completion):
        with pytest.raises(RuntimeError, match="manual"):
            await control()


async def test_two_drivers_are_a_defect_of_the_program(repo: SessionRepo) -> None:
    held = Held()
    rig = await open_rig(await repo.create(), answer(calls=calls(1)), "done", tools=[held.tool()], drive="manual")
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, "execute_tool")
    first = await start(rig.harness.execute_action())
    await held.began.wait()
    with pytest.raises(RuntimeError, match="two drivers"):
        await rig.harness.execute_action()
    held.gate("c1").set()
    assert await first is not None
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"


async def test_a_driver_that_gives_up_waiting_can_drive_on(repo: SessionRepo) -> None:
    held = Held()
    rig = await open_rig(await repo.create(), answer(calls=calls(1)), "done", tools=[held.tool()], drive="manual")
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, "execute_tool")
    first = await start(rig.harness.execute_action())
    await held.began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    held.gate("c1").set()
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"
    assert held.made == ["c1"]


async def test_peek_waits_for_an_acceptance_in_flight(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(), "done", drive="manual")
    assert await rig.harness.peek_action() is None
    entered, go = asyncio.Event(), asyncio.Event()

    async def slow(event: object) -> None:
        entered.set()
        await go.wait()

    rig.harness.hooks.on("before_run", slow, id="slow")
    work = await start(rig.harness.prompt("go"))
    await entered.wait()
    peek = await start(rig.harness.peek_action())
    await turns()
    assert not peek.done()
    go.set()
    action = await peek
    assert action is not None
    assert action.kind == "append_entry"
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"


# Nested actions ------------------------------------------------------------------------------------------------------


async def test_hooks_inside_a_request_park_as_their_own_actions(repo: SessionRepo) -> None:
    session = await repo.create()
    rig = await open_rig(session, "done", drive="manual")
    ran: list[str] = []
    for name in ("transform_context", "before_payload", "after_response"):
        rig.harness.hooks.on(name, lambda event, name=name: ran.append(name))
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, "stream_assistant")
    expected = ["transform_context", "before_payload", "after_response"]
    action = await rig.harness.execute_action()
    for position, name in enumerate(expected):
        assert action is not None
        assert (action.kind, getattr(action, "name", None)) == ("hook", name)
        assert ran == expected[:position]  # parked: it has not run
        assert len(rig.provider.requests) == (0 if name == "transform_context" else 1)
        assert await rig.harness.peek_action() is action
        action = await rig.harness.execute_action()
    assert ran == expected
    assert action is not None
    assert action.kind == "append_record"  # the ledger, once the request has settled
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"


@pytest.mark.parametrize("name", ["transform_context", "before_payload", "after_response"])
async def test_closing_at_a_nested_action_is_a_crash_site(repo: SessionRepo, name: str) -> None:
    session = await repo.create()
    rig = await open_rig(session, "done", drive="manual")
    rig.harness.hooks.on(name, lambda event: None)
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, lambda action: getattr(action, "name", None) == name)
    before = await session.get_log()
    await rig.harness.close()
    with pytest.raises(HarnessClosed):
        await work
    session = await repo.open(session.id)
    assert await session.get_log() == before
    again = await open_rig(session, "done")
    assert (await again.harness.resume()).unwrap().kind == "completed"
    attempts = await session.find_records(type="step_attempt", order="oldestFirst")
    assert [record.body.attempt for record in attempts] == [1, 2]


# Batches -------------------------------------------------------------------------------------------------------------

ORDERS = list(permutations(("c1", "c2", "c3")))


def _fresh(backend: str, folder: Path) -> SessionRepo:
    """A repository of its own, in a folder that is made for it."""
    folder.mkdir()
    return make_repo(backend, folder)


async def _automatic(repo: SessionRepo, order: tuple[str, ...]) -> list[Any]:
    held = Held()
    session = await repo.create(id="s")
    rig = await open_rig(session, answer(calls=calls(3)), "done", tools=[held.tool()])
    work = await start(rig.harness.prompt("go"))
    await until(lambda: len(held.made) == 3)
    for call_id in order:
        size = len(await session.get_log())
        held.gate(call_id).set()
        while len(await session.get_log()) == size:
            await asyncio.sleep(0)
    assert (await work).unwrap().kind == "completed"
    log = normalised(await session.get_log())
    await rig.harness.close()
    return log


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_each_settle_order_can_be_built_and_logs_as_automatic_drive_does(
    order: tuple[str, ...], backend: str, tmp_path: Path
) -> None:
    tools = Calls()
    session = await _fresh(backend, tmp_path / "manual").create(id="s")
    rig = await open_rig(session, answer(calls=calls(3)), "done", tools=[tools.tool()], drive="manual")
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, "execute_tool")
    for call_id in order:
        await rig.harness.execute_action(tool_call_id=call_id)
        await turns()
    assert tools.made == list(order)
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"
    await assert_sound(session)
    assert normalised(await session.get_log()) == await _automatic(_fresh(backend, tmp_path / "automatic"), order)
    settled = [r.body.tool_call_id for r in await session.find_records(type="tool_settled", order="oldestFirst")]
    # Only a call that waited for an earlier one needs the record.
    assert settled == [c for i, c in enumerate(order) if any(other < c for other in order[i + 1 :])]


async def test_an_unknown_call_id_releases_nothing(repo: SessionRepo) -> None:
    tools = Calls()
    rig = await open_rig(await repo.create(), answer(calls=calls(2)), "done", tools=[tools.tool()], drive="manual")
    work = await start(rig.harness.prompt("go"))
    action = await drive_until(rig.harness, "execute_tool")
    with pytest.raises(LookupError, match="c9"):
        await rig.harness.execute_action(tool_call_id="c9")
    assert await rig.harness.peek_action() is action
    assert isinstance(action, ExecuteToolAction)
    assert tools.made == []
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"


def _one_tool() -> dict[str, Any]:
    return {"answers": (answer(calls=calls(1)), "done")}


def _retry() -> dict[str, Any]:
    return {"answers": (errored("overloaded"), errored("overloaded"), "done")}


def _failure() -> dict[str, Any]:
    return {"answers": (errored("overloaded"),) * 3}


def _blocked() -> dict[str, Any]:
    return {"answers": (answer(calls=calls(1)), "done"), "block": True}


def _batch() -> dict[str, Any]:
    return {"answers": (answer(calls=calls(3)), "done")}


def _sequential() -> dict[str, Any]:
    return {"answers": (answer(calls=calls(3)), "done"), "tool_execution": "sequential"}


def _after_tool() -> dict[str, Any]:
    return {"answers": (answer(calls=calls(2)), "done"), "after": True}


@pytest.mark.parametrize("make", [_one_tool, _retry, _failure, _blocked, _batch, _sequential, _after_tool])
async def test_automatic_and_manual_drive_write_the_same_log(
    make: Callable[[], dict[str, Any]], backend: str, tmp_path: Path
) -> None:
    logs: list[list[Any]] = []
    outcomes: list[Any] = []
    for drive in ("automatic", "manual"):
        options = make()
        block, after = options.pop("block", False), options.pop("after", False)
        session = await _fresh(backend, tmp_path / drive).create(id="s")
        rig: Rig = await open_rig(session, *options.pop("answers"), tools=[Calls().tool()], drive=drive, **options)
        if block:
            rig.harness.hooks.on("before_tool", lambda event: ToolDecision(block="not allowed"))
        if after:
            rig.harness.hooks.on("after_tool", lambda event: None)
        work = await start(rig.harness.prompt("go"))
        if drive == "manual":
            await rig.harness.run_to_completion()
        outcome = (await work).unwrap()
        outcomes.append(outcome.kind)
        logs.append(normalised(await session.get_log()))
        await assert_sound(session)
    assert logs[0] == logs[1]
    assert outcomes[0] == outcomes[1]


# Acceptance beside a procedure that is on its way out ---------------------------------------------------------------


async def test_a_prompt_behind_the_finish_is_accepted_whatever_the_moment() -> None:
    """The lane is idle as soon as the finish is committed; its procedure may still be ending."""
    for k in range(120):
        session = await MemorySessionRepo().create()
        rig = await open_rig(session, respond=lambda request: answer("hello"))
        first = await start(rig.harness.prompt("first"))
        await turns(k)
        second = await rig.harness.prompt("second")
        outcome = (await first).unwrap()
        assert outcome.kind == "completed"
        if second.ok:
            assert second.value.kind == "completed"
            assert second.value.run_id != outcome.run_id
            assert second.value.final_entry_id != outcome.final_entry_id
        else:
            assert type(second.error).__name__ == "LaneBusy"
        await assert_sound(session)


async def test_a_prompt_queued_right_behind_the_finish_job_starts_the_next_run(repo: SessionRepo) -> None:
    session = await repo.create()
    rig = await open_rig(session, "one", "two", drive="manual")
    first = await start(rig.harness.prompt("first"))
    await drive_until(rig.harness, "try_finish_run")
    finish = await start(rig.harness.execute_action())
    second = await start(rig.harness.prompt("second"))
    await finish
    await rig.harness.run_to_completion()
    one, two = (await first).unwrap(), (await second).unwrap()
    assert (one.kind, two.kind) == ("completed", "completed")
    assert one.final_message.text == "one"
    assert two.final_message.text == "two"
    await assert_sound(session)


async def test_an_answer_that_calls_twice_under_one_id_is_driven_in_source_order(repo: SessionRepo) -> None:
    """A provider's ids may repeat: identity is the position."""
    session, tools = await repo.create(), Calls()
    twice = [replace(call, id="same") for call in calls(2)]
    rig = await open_rig(session, answer(calls=twice), "done", tools=[tools.tool()], drive="manual")
    work = await start(rig.harness.prompt("go"))
    await rig.harness.run_to_completion()
    assert (await work).unwrap().kind == "completed"
    assert tools.made == ["same", "same"]
    assert (await rig.lines()).count("E toolResult") == 2
    assert await session.verify() == []
