"""`wait_for_idle` and `run_when_idle`: who waits for what, and that nobody waits for ever (harness-v2 §8)."""

import asyncio

import pytest

from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, call, drive_until, log_lines, start
from agent_harness.types.messages import DeferredHandle
from tests.support.rig import Calls, Rig, open_rig, turns

HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")


async def driven(repo: SessionRepo) -> tuple[Rig, "asyncio.Task[object]"]:
    rig = await open_rig(
        await repo.create(id="s"),
        answer(calls=[call("measure", id="c1")]),
        *["Done."] * 5,
        tools=[Calls().tool()],
        drive="manual",
    )
    return rig, await start(rig.harness.prompt("Go."))


async def test_on_an_idle_lane_nobody_waits(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(id="s"))
    called: list[str] = []
    await rig.harness.wait_for_idle()
    await rig.harness.run_when_idle(lambda: called.append("now"))
    assert called == ["now"]


@pytest.mark.parametrize("kind", ["run", "compaction", "navigation"])
async def test_every_kind_of_operation_is_waited_for_to_its_last_record(repo: SessionRepo, kind: str) -> None:
    rig = await open_rig(await repo.create(id="s"), *["Done."] * 5, drive="manual")
    first = await start(rig.harness.prompt("First."))
    await rig.harness.run_to_completion()
    await first
    (oldest,) = await rig.session.find_entries(order="oldestFirst", limit=1)
    work = {
        "run": lambda: rig.harness.prompt("Second."),
        "compaction": rig.harness.compact,
        "navigation": lambda: rig.harness.navigate_tree(oldest.id),
    }[kind]
    operation = await start(work())
    await rig.harness.peek_action()
    seen: list[str] = []

    async def look() -> None:
        seen.append(log_lines(await rig.session.get_log())[-1])

    waiting = await start(rig.harness.run_when_idle(look))
    while await rig.harness.peek_action() is not None:
        await turns()
        assert not waiting.done()
        await rig.harness.execute_action()
    await asyncio.wait_for(waiting, 20)
    assert seen == ["R operation_finished"]
    assert (await operation).ok


async def test_a_suspended_run_is_waited_for_until_it_is_aborted(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(id="s"), answer(deferred=HANDLE))
    await rig.harness.prompt("Go.")
    waiting = await start(rig.harness.wait_for_idle())
    await turns()
    assert not waiting.done()
    await rig.harness.abort()
    await asyncio.wait_for(waiting, 20)


async def test_a_restored_operation_is_waited_for_until_it_is_resumed(repo: SessionRepo) -> None:
    rig, run = await driven(repo)
    await drive_until(rig.harness, "execute_tool")
    await rig.harness.close()
    with pytest.raises(Exception, match="closed"):
        await run
    again = await open_rig(await repo.open("s"), "Done.", tools=[Calls().tool()])
    waiting = await start(again.harness.wait_for_idle())
    await turns()
    assert not waiting.done()
    await again.harness.resume()
    await asyncio.wait_for(waiting, 20)


async def test_another_lanes_work_is_not_waited_for(repo: SessionRepo) -> None:
    rig, run = await driven(repo)
    other = (await rig.harness.create_lane("other", None)).unwrap()
    await rig.harness.peek_action()
    await asyncio.wait_for(other.wait_for_idle(), 20)
    await rig.harness.run_to_completion()
    await run


async def test_a_callback_that_starts_the_next_run_makes_those_behind_it_wait_again(repo: SessionRepo) -> None:
    rig, run = await driven(repo)
    await rig.harness.peek_action()
    runs: list[object] = []

    async def go_on() -> None:
        runs.append(await start(rig.harness.prompt("Next.")))
        await rig.harness.peek_action()

    first = await start(rig.harness.run_when_idle(go_on))
    second = await start(rig.harness.wait_for_idle())
    await rig.harness.run_to_completion()
    await run
    await asyncio.wait_for(first, 20)
    await rig.harness.run_to_completion()
    await asyncio.wait_for(second, 20)
    assert (await rig.lines()).count("R operation_finished") == 2
    assert len(runs) == 1


async def test_what_a_callback_raises_comes_out_of_its_own_call_and_hurts_nobody(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(id="s"), "Done.")

    def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await rig.harness.run_when_idle(fail)
    assert (await rig.harness.prompt("Go.")).ok
