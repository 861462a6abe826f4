"""The event bus: ordered, isolated, passive (harness-v2 §10)."""

import asyncio
from typing import Any

import pytest

from agent_harness.events.bus import Events
from agent_harness.events.catalog import HarnessEvent, RunStart


def event(run_id: str) -> RunStart:
    return RunStart(lane="main", run_id=run_id, started_at=0)


def run_id(seen: HarnessEvent) -> str:
    return str(getattr(seen, "run_id", getattr(seen, "error", "")))


async def published(events: Events, count: int = 5) -> None:
    for n in range(count):
        events.publish(event(str(n)))
    await events.flush()


async def test_every_listener_sees_the_same_order() -> None:
    events, first, second = Events(), [], []
    events.on(None, lambda seen: first.append(run_id(seen)))

    async def slow(seen: HarnessEvent) -> None:
        await asyncio.sleep(0)
        second.append(run_id(seen))

    events.on("run_start", slow)
    await published(events)
    assert first == second == ["0", "1", "2", "3", "4"]


async def test_publishing_never_waits_and_never_raises() -> None:
    events, held = Events(), asyncio.Event()

    async def hang(seen: HarnessEvent) -> None:
        await held.wait()

    def fail(seen: HarnessEvent) -> None:
        raise RuntimeError("listener")

    other: list[str] = []
    events.on("run_start", hang)
    events.on("run_start", fail)
    events.on("run_start", lambda seen: other.append(run_id(seen)))
    events.publish(event("a"))
    events.publish(event("b"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert other == ["a", "b"]
    held.set()
    await events.close()


@pytest.mark.parametrize("error", [RuntimeError("no"), asyncio.CancelledError(), KeyError("x")])
async def test_a_listener_that_throws_is_reported_and_served_on(error: BaseException) -> None:
    events, reports, seen_ids = Events(), [], []

    async def fail(seen: HarnessEvent) -> None:
        seen_ids.append(run_id(seen))
        raise error

    events.on("run_start", fail)
    events.on("handler_error", reports.append)
    await published(events, 3)
    await events.flush()
    assert seen_ids == ["0", "1", "2"]
    assert [(r.kind, r.name, r.error, r.lane) for r in reports] == [
        ("event", "run_start", type(error).__name__, "main")
    ] * 3


async def test_a_failing_listener_of_handler_error_is_not_reported_to_itself() -> None:
    events, calls = Events(), []

    def fail(seen: Any) -> None:
        calls.append(seen.name)
        if len(calls) < 10:  # told of itself it would go on for ever
            raise RuntimeError("again")

    events.on("handler_error", fail)
    events.on("run_start", lambda seen: 1 / 0)
    reports: list[HarnessEvent] = []
    events.on("handler_error", reports.append)
    await published(events, 2)
    await events.flush()
    await events.flush()
    assert calls == ["run_start", "run_start"]
    # Nor to others: what is told are the two failures of the listener of run_start.
    assert [(r.name, r.error) for r in reports] == [("run_start", "ZeroDivisionError")] * 2


async def test_unregistering_drops_what_is_queued_also_from_inside() -> None:
    events, seen_ids = Events(), []

    def once(seen: HarnessEvent) -> None:
        seen_ids.append(run_id(seen))
        off()
        off()

    off = events.on("run_start", once)
    await published(events, 3)
    assert seen_ids == ["0"]


async def test_a_listener_may_register_and_publish_while_it_is_served() -> None:
    events, seen_ids, late = Events(), [], []

    def nest(seen: HarnessEvent) -> None:
        seen_ids.append(run_id(seen))
        if run_id(seen) == "0":
            events.on("run_start", lambda e: late.append(run_id(e)))
            events.publish(event("nested"))

    events.on("run_start", nest)
    events.publish(event("0"))
    events.publish(event("1"))
    await events.flush()
    await events.flush()
    assert seen_ids == ["0", "1", "nested"]
    assert late == ["nested"]


async def test_closing_delivers_what_is_queued_and_nothing_after() -> None:
    events, seen_ids = Events(), []

    async def slow(seen: HarnessEvent) -> None:
        await asyncio.sleep(0)
        seen_ids.append(run_id(seen))

    events.on(None, slow)
    for n in range(5):
        events.publish(event(str(n)))
    await events.close()
    events.publish(event("late"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert seen_ids == ["0", "1", "2", "3", "4"]


async def test_an_unknown_event_name_is_refused() -> None:
    with pytest.raises(ValueError, match="run_started"):
        Events().on("run_started", lambda seen: None)
