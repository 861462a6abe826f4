"""Cancelled callers, timeouts, a loop that ends, and close() from everywhere (decisions section 3)."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_harness import AgentToolResult, ToolInvocation
from agent_harness.errors import HarnessClosed
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, check_fixed_point, drive_until, start
from session_backends import JsonlSessionRepo, MemorySessionRepo
from tests.support.prefix import Prefix, calls
from tests.support.rig import Calls, Held, Rig, assert_sound, open_rig, results_of, said, turns, until

TURNS = (*range(100), *(round(100 * 1.1**n) for n in range(1, 74)))
"""After how many loop turns to cancel: every one of the first hundred, which take in the whole of a call on memory and
JSONL; then ever more, for on SQLite the loop turns idly while a thread works. The last is more than any call takes."""


async def cancelled_after(work: asyncio.Task[Any], k: int) -> bool:
    """Cancel after k turns of the loop; whether that came before the call had its answer."""
    for _ in range(k):
        if work.done():
            break
        await asyncio.sleep(0)
    if work.done():
        return False
    work.cancel()
    await asyncio.wait({work})
    return work.cancelled()


# Callers that go away ------------------------------------------------------------------------------------------------


async def test_a_prompt_cancelled_at_any_await_is_withdrawn_or_goes_on(repo: SessionRepo) -> None:
    withdrawn = kept = 0
    for k in TURNS:
        session, tools = await repo.create(id=f"s{k}"), Calls()
        rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[tools.tool()])
        work = asyncio.ensure_future(rig.harness.prompt("go"))
        cancelled = await cancelled_after(work, k)
        await check_fixed_point(rig.harness)  # a line job: whatever was accepted is behind it
        started = await session.find_records(type="operation_started")
        if started:
            await asyncio.wait_for(rig.harness.wait_for_idle(), 20)
            kept += cancelled
            assert tools.made == ["c1"]
            assert (await rig.lines())[-1] == "R operation_finished"
        else:
            withdrawn += 1
            assert cancelled
            await turns()
            assert await session.get_log() == []
            assert tools.made == []
            assert (await rig.harness.lanes())[0].operation is None
            rig.provider.answers = ["later"]
            assert (await rig.harness.prompt("again")).unwrap().kind == "completed"
        await check_fixed_point(rig.harness)
        await assert_sound(session)
        await rig.harness.close()
        if not cancelled:
            break
    else:
        raise AssertionError("the prompt never ended")
    assert withdrawn > 0
    assert kept > 3


async def _with_run(repo: SessionRepo, k: int) -> tuple[Rig, Held, asyncio.Task[Any]]:
    held = Held()
    session = await repo.create(id=f"s{k}")
    rig = await open_rig(session, answer(calls=calls(1)), "done", "done", tools=[held.tool()])
    work = await start(rig.harness.prompt("go"))
    await held.began.wait()
    return rig, held, work


async def test_a_steer_cancelled_at_any_await_was_never_made_or_is_consumed(repo: SessionRepo) -> None:
    made: set[bool] = set()
    for k in TURNS:
        rig, held, work = await _with_run(repo, k)
        steer = asyncio.ensure_future(rig.harness.steer("and this"))
        cancelled = await cancelled_after(steer, k)
        await check_fixed_point(rig.harness)
        queued = await rig.session.find_records(type="queue_enqueued")
        made.add(bool(queued))
        held.gate("c1").set()
        assert (await work).unwrap().kind == "completed"
        users = [line for line in await rig.lines() if line == "E user"]
        assert len(users) == 1 + len(queued)
        await assert_sound(rig.session)
        await rig.harness.close()
        if not cancelled:
            break
    else:
        raise AssertionError("the steer never ended")
    assert made == {False, True}


async def test_an_abort_cancelled_at_any_await_was_never_made_or_is_finished(repo: SessionRepo) -> None:
    made: set[bool] = set()
    for k in TURNS:
        rig, held, work = await _with_run(repo, k)
        abort = asyncio.ensure_future(rig.harness.abort())
        cancelled = await cancelled_after(abort, k)
        await check_fixed_point(rig.harness)
        requested = bool(await rig.session.find_records(type="abort_requested"))
        made.add(requested)
        if not requested:
            held.gate("c1").set()
        assert (await work).unwrap().kind == ("aborted" if requested else "completed")
        await assert_sound(rig.session)
        await rig.harness.close()
        if not cancelled:
            break
    else:
        raise AssertionError("the abort never ended")
    assert made == {False, True}


async def test_a_resume_cancelled_at_any_await_leaves_the_run_resumable_or_running(repo: SessionRepo) -> None:
    began: set[bool] = set()
    for k in TURNS:
        session, tools = await repo.create(id=f"s{k}"), Calls()
        prefix = Prefix(session)
        await prefix.batch()
        rig = await open_rig(session, "done", tools=[tools.tool()])
        resume = asyncio.ensure_future(rig.harness.resume())
        cancelled = await cancelled_after(resume, k)
        operation = (await rig.harness.lanes())[0].operation
        if operation is not None and operation.status == "suspended":
            began.add(False)
            assert tools.made == []
            assert (await rig.harness.resume()).unwrap().kind == "completed"
        else:
            began.add(True)
            await asyncio.wait_for(rig.harness.wait_for_idle(), 20)
        assert tools.made == ["c1"]
        await assert_sound(session)
        await rig.harness.close()
        if not cancelled:
            break
    else:
        raise AssertionError("the resume never ended")
    assert began == {False, True}


async def test_a_timeout_on_a_prompt_ends_the_waiting_and_not_the_run(repo: SessionRepo) -> None:
    held = Held()
    rig = await open_rig(await repo.create(), answer(calls=calls(1)), "done", tools=[held.tool()])
    ended: list[Any] = []
    rig.harness.events.on("run_end", ended.append)

    async def impatient() -> None:
        async with asyncio.timeout(None) as deadline:
            work = asyncio.ensure_future(held.began.wait())
            work.add_done_callback(lambda _: deadline.reschedule(asyncio.get_running_loop().time()))
            await rig.harness.prompt("go")

    with pytest.raises(TimeoutError):
        await impatient()
    assert (await rig.harness.lanes())[0].operation is not None
    held.gate("c1").set()
    await rig.harness.wait_for_idle()
    await until(lambda: bool(ended))
    assert ended[0].outcome == "completed"
    assert held.made == ["c1"]
    await assert_sound(rig.session)


async def test_a_prompt_cancelled_inside_a_hook_before_acceptance_writes_nothing(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(), "done")
    entered = asyncio.Event()

    async def slow(event: object) -> None:
        entered.set()
        await asyncio.Event().wait()

    off = rig.harness.hooks.on("before_run", slow, id="slow")
    work = await start(rig.harness.prompt("go"))
    await entered.wait()
    work.cancel()
    await asyncio.wait({work})
    assert await rig.session.get_log() == []
    off()
    assert (await rig.harness.prompt("go")).ok


async def test_manual_drive_still_ends_after_its_callers_were_cancelled(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(), "done", drive="manual")
    work = await start(rig.harness.prompt("go"))
    await drive_until(rig.harness, "stream_assistant")
    work.cancel()
    await asyncio.wait({work})
    await rig.harness.run_to_completion()
    assert (await rig.lines())[-1] == "R operation_finished"


# A loop that ends ----------------------------------------------------------------------------------------------------


async def test_a_loop_that_ends_detaches_the_run_and_writes_nothing_more(tmp_path: Path) -> None:
    """`asyncio.run` returns while a tool is running: everything is cancelled at once."""
    seen: list[int] = []

    async def program() -> None:
        session = await JsonlSessionRepo(tmp_path).create(id="s")
        held = Held()
        rig = await open_rig(session, answer(calls=calls(1)), tools=[held.tool()])
        _work = await start(rig.harness.prompt("go"))
        await held.began.wait()
        await start(rig.harness.steer("accepted"))
        await until(lambda: rig.harness._lane.operation.pending_steer != ())
        seen.append(len(await session.get_log()))

    await asyncio.to_thread(asyncio.run, program())
    from tests.support.rig import OPENED

    OPENED.clear()  # its loop is gone
    session = await JsonlSessionRepo(tmp_path).open("s", read_only=True)
    assert len(await session.get_log()) == seen[0]
    await session.close()


INTERRUPTED = """
    import asyncio, os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from agent_harness.testing import answer
    from session_backends.urls import open_repo
    from tests.support.prefix import calls
    from tests.support.rig import Calls, Held, open_rig
    from agent_harness import AgentTool, AgentToolResult, TextContent

    async def execute(invocation):
        os.kill(os.getpid(), signal.SIGINT)
        {wait}

    tool = AgentTool(name="measure", description="", parameters={{"type": "object"}}, execute=execute)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits it ignored

    async def main():
        session = await open_repo({url!r}).create(id="s")
        rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[tool])
        {body}

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("closing", ["closes", "leaves"])
@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
async def test_ctrl_c_in_mid_run_leaves_a_resumable_session(tmp_path: Path, closing: str, store: str) -> None:
    url = f"jsonl:{tmp_path}" if store == "jsonl" else f"sqlite:{tmp_path / 'sessions.db'}"
    body = (
        "async with rig.harness: await rig.harness.prompt('go')"
        if closing == "closes"
        else ("await rig.harness.prompt('go')")
    )
    program = textwrap.dedent(INTERRUPTED).format(
        root=str(Path(__file__).parents[2]), url=url, body=body, wait="await asyncio.Event().wait()"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "interrupted", "")
    from session_backends.urls import open_repo

    reopened = open_repo(url)
    session = await reopened.open("s")
    tools = Calls()
    rig = await open_rig(session, "done", tools=[tools.tool()])
    assert (await rig.lines())[-1] == "R tool_started"
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert "interrupted" in said(results_of(await session.get_log())["c1"])
    assert tools.made == []
    await assert_sound(session)
    await rig.harness.close()
    await reopened.close()


# close() -------------------------------------------------------------------------------------------------------------


async def left_behind(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() - before if not task.done()}


async def closed_in_time(rig: Rig) -> None:
    await asyncio.wait_for(rig.harness.close(), 5)


async def reopened(repo: SessionRepo, rig: Rig, kind: str = "completed") -> list[str]:
    """The closed session is open for the next writer and sound after a resume."""
    session = await repo.open(rig.session.id)
    again = await open_rig(session, "done", tools=[Calls().tool()])
    if again.suspended:
        assert (await again.harness.resume()).unwrap().kind == kind
    await assert_sound(session)
    lines = await again.lines()
    await again.harness.close()
    return lines


async def test_close_in_mid_run_leaves_no_task_and_writes_nothing(repo: SessionRepo) -> None:
    before = asyncio.all_tasks()
    held = Held()
    session = await repo.create()
    rig = await open_rig(session, answer(calls=calls(3)), "done", tools=[held.tool()])
    rig.harness.events.on(None, lambda event: None)
    work = await start(rig.harness.prompt("go"))
    await until(lambda: len(held.made) == 3)
    log = await session.get_log()
    await closed_in_time(rig)
    with pytest.raises(HarnessClosed):
        await work
    assert await left_behind(before) == set()
    lines = await reopened(repo, rig)
    assert len([line for line in lines if not line.startswith("R usage")]) > len(log) - 2


async def test_close_waits_for_a_tool_that_cleans_up(repo: SessionRepo) -> None:
    before = asyncio.all_tasks()
    cleaned: list[str] = []
    held = Held()
    inner = held.tool()

    async def careful(invocation: ToolInvocation) -> AgentToolResult:
        try:
            assert inner.execute is not None
            return await inner.execute(invocation)
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            cleaned.append(invocation.tool_call_id)

    for execution in ("parallel", "sequential"):
        cleaned.clear()
        held.began.clear()
        session = await repo.create(id=execution)
        rig = await open_rig(
            session, answer(calls=calls(2)), tools=[replace(inner, execute=careful)], tool_execution=execution
        )
        work = await start(rig.harness.prompt("go"))
        await held.began.wait()
        await turns()
        await closed_in_time(rig)
        assert cleaned == (["c1", "c2"] if execution == "parallel" else ["c1"])
        assert await left_behind(before) - {work} == set()
        with pytest.raises(HarnessClosed):
            await work
        await reopened(repo, rig)


async def test_close_from_inside_a_tool_ends_the_run(repo: SessionRepo) -> None:
    rig: Rig
    ended: list[str] = []

    async def closer(invocation: ToolInvocation) -> AgentToolResult:
        try:
            await rig.harness.close()
        finally:
            ended.append("tool")
        return AgentToolResult()

    tool = replace(Calls().tool(), execute=closer)
    before = asyncio.all_tasks()
    rig = await open_rig(await repo.create(), answer(calls=calls(1)), "done", tools=[tool])
    with pytest.raises(HarnessClosed):
        await asyncio.wait_for(rig.harness.prompt("go"), 5)
    await closed_in_time(rig)
    assert ended == ["tool"]
    assert await left_behind(before) == set()
    assert (await reopened(repo, rig))[4] == "R tool_started"


HOOKS = [
    "before_request",
    "transform_context",
    "before_payload",
    "after_response",
    "before_tool",
    "after_tool",
    "before_run_end",
]


@pytest.mark.parametrize("name", HOOKS)
async def test_close_from_inside_a_hook_ends_the_run_before_its_next_effect(repo: SessionRepo, name: str) -> None:
    before = asyncio.all_tasks()
    session, tools = await repo.create(), Calls()
    rig = await open_rig(session, answer(calls=calls(1)), "done", tools=[tools.tool()])
    at: list[tuple[int, int, int]] = []

    async def close(event: object) -> None:
        if not at:
            at.append((len(await session.get_log()), len(rig.provider.requests), len(tools.made)))
            await rig.harness.close()

    register: Callable[..., object] = rig.harness.hooks.on
    register(name, close)
    with pytest.raises(HarnessClosed):
        await asyncio.wait_for(rig.harness.prompt("go"), 5)
    await closed_in_time(rig)
    assert await left_behind(before) == set()
    assert (len(rig.provider.requests), len(tools.made)) == at[0][1:]
    reader = await repo.open(session.id, read_only=True)
    assert len(await reader.get_log()) == at[0][0]
    await reader.close()
    await reopened(repo, rig)


async def test_close_from_inside_before_resume_starts_nothing(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch()
    await prefix.tool_started(replay="safe")
    tools = Calls()
    rig = await open_rig(session, "done", tools=[tools.tool(replay="safe")])
    rig.harness.hooks.on("before_resume", lambda event: rig.harness.close(), id="closer")
    with pytest.raises(HarnessClosed):
        await asyncio.wait_for(rig.harness.resume(), 5)
    await closed_in_time(rig)
    assert tools.made == []


@pytest.mark.parametrize("event", ["run_start", "message_end", "tool_start", "run_end"])
async def test_close_from_inside_a_listener_is_quick(repo: SessionRepo, event: Any) -> None:
    before = asyncio.all_tasks()
    rig = await open_rig(await repo.create(), answer(calls=calls(1)), "done", tools=[Calls().tool()])
    closed: list[str] = []

    async def close(seen: object) -> None:
        await rig.harness.close()
        closed.append("closed")

    rig.harness.events.on(event, close)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        await rig.harness.prompt("go")
    except HarnessClosed:
        pass
    await closed_in_time(rig)
    await until(lambda: bool(closed))
    assert loop.time() - begun < 0.9  # a second is how long close() waits for listeners that hang
    await turns()
    assert await left_behind(before) == set()
    await reopened(repo, rig)


async def test_close_twice_at_once_closes_once_and_both_return(repo: SessionRepo) -> None:
    held = Held()
    rig = await open_rig(await repo.create(), answer(calls=calls(1)), tools=[held.tool()])
    work = await start(rig.harness.prompt("go"))
    await held.began.wait()
    await asyncio.wait_for(asyncio.gather(*(rig.harness.close() for _ in range(3))), 5)
    await closed_in_time(rig)
    with pytest.raises(HarnessClosed):
        await work
    rejected = await rig.harness.prompt("again")
    assert type(rejected.error).__name__ == "Closed"
    for call in (rig.harness.wait_for_idle, rig.harness.lanes, rig.harness.get_leaf_id):
        with pytest.raises(HarnessClosed):
            await call()
    await reopened(repo, rig)


async def test_a_close_whose_caller_is_cancelled_still_closes(repo: SessionRepo) -> None:
    for k in TURNS:
        held = Held()
        session = await repo.create(id=f"s{k}")
        rig = await open_rig(session, answer(calls=calls(1)), tools=[held.tool()])
        work = await start(rig.harness.prompt("go"))
        await held.began.wait()
        closing = asyncio.ensure_future(rig.harness.close())
        cancelled = await cancelled_after(closing, k)
        await closed_in_time(rig) if k else await rig.harness.close()
        await asyncio.wait({work})
        await reopened(repo, rig)
        if not cancelled:
            break
    else:
        raise AssertionError("close() never ended")
    assert k > 3  # some of them were cancelled on their way


async def test_close_inside_a_cancelled_task_is_clean(repo: SessionRepo) -> None:
    before = asyncio.all_tasks()
    held = Held()
    session = await repo.create()
    rig = await open_rig(session, answer(calls=calls(1)), tools=[held.tool()])

    async def client() -> None:
        async with rig.harness:
            await rig.harness.prompt("go")

    work = await start(client())
    await held.began.wait()
    work.cancel()
    await asyncio.wait_for(asyncio.wait({work}), 5)
    assert work.cancelled()
    assert await left_behind(before) == set()
    await reopened(repo, rig)


async def test_a_hung_listener_delays_close_by_a_bounded_time_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    rig = await open_rig(await MemorySessionRepo().create(), "done")

    async def hang(event: object) -> None:
        await asyncio.Event().wait()

    off: list[Callable[[], None]] = []

    async def hang_unsubscribed(event: object) -> None:
        off[0]()
        await asyncio.Event().wait()

    rig.harness.events.on("run_start", hang)
    off.append(rig.harness.events.on("run_start", hang_unsubscribed))
    assert (await rig.harness.prompt("go")).ok
    await closed_in_time(rig)
    assert await left_behind(before) == set()


async def test_waiters_for_idle_are_told_of_the_end(repo: SessionRepo) -> None:
    held = Held()
    rig = await open_rig(await repo.create(), answer(calls=calls(1)), tools=[held.tool()])
    work = await start(rig.harness.prompt("go"))
    await held.began.wait()
    called: list[str] = []
    waiting: list[Awaitable[Any]] = [
        await start(rig.harness.wait_for_idle()),
        await start(rig.harness.run_when_idle(lambda: called.append("idle"))),
    ]
    await closed_in_time(rig)
    for waiter in waiting:
        with pytest.raises(HarnessClosed):
            await waiter
    assert called == []
    with pytest.raises(HarnessClosed):
        await work
