"""MutationLine: one job at a time, whatever happens to whoever handed it in (harness-v2 §15, decisions section 3)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agent_harness.errors import HarnessClosed
from agent_harness.lanes.line import MutationLine
from agent_harness.testing import start

BEGUN = 1
"""Turns of the loop after which a job that was handed in cannot be withdrawn: its worker is next."""


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Log:
    """Jobs that note when they begin and end, and take several turns in between."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def job(self, name: str, error: BaseException | None = None) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            self.lines.append(f"begin {name}")
            await turns(5)
            if error is not None:
                raise error
            self.lines.append(f"end {name}")
            return name

        return run


async def test_jobs_never_interleave_and_keep_their_order() -> None:
    line, log = MutationLine(), Log()
    names = [f"j{n}" for n in range(20)]
    assert await asyncio.gather(*(line.run(log.job(name)) for name in names)) == names
    assert log.lines == [text for name in names for text in (f"begin {name}", f"end {name}")]
    await turns()
    assert line.idle


async def test_a_rejected_job_does_not_poison_the_queue() -> None:
    line, log = MutationLine(), Log()
    outcomes = await asyncio.gather(
        line.run(log.job("a")),
        line.run(log.job("b", ValueError("no"))),
        line.run(log.job("c")),
        return_exceptions=True,
    )
    assert [str(outcome) for outcome in outcomes] == ["a", "no", "c"]
    assert await line.run(log.job("d")) == "d"


async def test_a_call_cancelled_before_its_job_began_withdraws_it() -> None:
    line, log = MutationLine(), Log()
    first = await start(line.run(log.job("a")))
    second = await start(line.run(log.job("b")))
    third = await start(line.run(log.job("c")))
    second.cancel()
    assert await first == "a"
    assert await third == "c"
    assert second.cancelled()
    assert "begin b" not in log.lines


@pytest.mark.parametrize("k", range(12))
async def test_a_call_cancelled_after_its_job_began_leaves_the_job_alone(k: int) -> None:
    line, log = MutationLine(), Log()
    first = asyncio.ensure_future(line.run(log.job("a")))
    await turns(k)
    if not first.done():
        first.cancel()
    assert await line.run(log.job("b")) == "b"
    assert log.lines[-2:] == ["begin b", "end b"]
    assert log.lines[:-2] in ([], ["begin a", "end a"])
    assert ("begin a" in log.lines) == (k >= BEGUN)


async def test_a_failure_nobody_waits_for_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    line, log = MutationLine(), Log()
    first = await start(line.run(log.job("a", ValueError("unseen"))))
    await turns(3)
    first.cancel()
    assert await line.run(log.job("b")) == "b"
    del first
    await turns()
    assert caplog.records == []


async def test_closing_lets_the_running_job_end_and_drops_the_rest() -> None:
    line, log = MutationLine(), Log()
    first = await start(line.run(log.job("a")))
    second = await start(line.run(log.job("b")))
    await turns(3)
    line.close(HarnessClosed())
    with pytest.raises(HarnessClosed):
        await line.run(log.job("c"))
    await line.drain(5)
    assert line.idle
    assert await first == "a"
    with pytest.raises(HarnessClosed):
        await second
    assert log.lines == ["begin a", "end a"]


async def test_draining_is_bounded() -> None:
    line, held = MutationLine(), asyncio.Event()
    first = await start(line.run(held.wait))
    await turns()
    line.close(HarnessClosed())
    await line.drain(0)
    assert not line.idle
    held.set()
    assert await first is True


async def test_a_job_that_is_cancelled_from_inside_ends_for_its_caller_and_not_for_the_others() -> None:
    line, log = MutationLine(), Log()
    outcomes = await asyncio.gather(
        line.run(log.job("a", asyncio.CancelledError())), line.run(log.job("b")), return_exceptions=True
    )
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1] == "b"


async def test_the_end_of_the_loop_leaves_waiting_jobs_undone() -> None:
    log = Log()

    async def program() -> None:
        line = MutationLine()
        for name in "abc":
            _call = await start(line.run(log.job(name)))

    await asyncio.to_thread(asyncio.run, program())
    assert "end b" not in log.lines
    assert "begin c" not in log.lines
