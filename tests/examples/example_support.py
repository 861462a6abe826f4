"""What the tests of the examples share: scenarios over a world, recovered at every crash point."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agent_harness import AgentHarness, AgentTool, AssistantMessage, RetryPolicy, Session
from agent_harness.extensions.api import Extension
from agent_harness.options import Drive
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.storage import EntryItem, RecordItem
from agent_harness.testing import (
    SCRIPTED_MODEL,
    CrashPoint,
    ManualClock,
    Scenario,
    ScriptedProvider,
    ScriptedRequest,
    World,
    crash_points,
)
from agent_harness.types.messages import ToolResultMessage
from tests.support.backends import make_repo

on_memory_and_sqlite = pytest.mark.parametrize("store", ["memory", "sqlite"])


def scenario(
    name: str,
    respond: Callable[[World, ScriptedRequest], AssistantMessage],
    *,
    tools: Callable[[World], Sequence[AgentTool]],
    extensions: Callable[[World], Sequence[Extension]],
    **options: Any,
) -> Scenario:
    """One prompt to a harness whose provider answers with `respond`; requests are counted in the world."""

    async def build(session: Session, world: World, drive: Drive) -> AgentHarness:
        def answer_once(request: ScriptedRequest) -> AssistantMessage:
            world.bump("requests")
            return respond(world, request)

        created = await AgentHarness.create(
            session=session,
            models=ModelRegistry([ScriptedProvider(respond=answer_once)], [SCRIPTED_MODEL]),
            model=SCRIPTED_MODEL,
            tools=tools(world),
            extensions=extensions(world),
            retry=RetryPolicy(max_attempts=4, base_delay_ms=100),
            clock=ManualClock(),
            drive=drive,
            **options,
        )
        created.harness.events.on("handler_error", lambda event: world.bump("handler errors") and None)
        return created.harness

    async def act(harness: AgentHarness) -> object:
        return await harness.prompt("Do the work.")

    return Scenario(name=name, build=build, act=act)


async def recovered(
    scenario: Scenario, store: str, directory: Path, *, depth: int | None = None
) -> AsyncGenerator[CrashPoint, None]:
    """Each crash point of an accepted run, resumed to its end; sound, and without a failed handler.

    Recoveries crash as well (`depth` 2) on memory; on SQLite, where each costs a database, only where asked for.
    """
    depth = depth or (2 if store == "memory" else 1)
    seen = 0
    async with aclosing(crash_points(scenario, lambda path: make_repo(store, path), directory, depth=depth)) as points:
        async for point in points:
            await point.recover()
            await point.harness.events.flush()
            assert await point.session.verify() == [], point.label
            assert point.world.count("handler errors") == 0, point.label
            started = await point.session.find_records(type="operation_started")
            if not started:
                assert point.label.startswith("0 before acceptance")
                continue
            assert len(await point.session.find_records(type="operation_finished")) == len(started) == 1, point.label
            log = await point.session.get_log()
            entries = [item.entry for item in log if isinstance(item, EntryItem)]
            calls = [c.id for e in entries if isinstance(e.message, AssistantMessage) for c in e.message.tool_calls]
            assert [e.message.tool_call_id for e in entries if isinstance(e.message, ToolResultMessage)] == calls
            seen += 1
            yield point
    assert seen >= 15, f"only {seen} crash points were derived"


async def results(session: Session) -> list[ToolResultMessage]:
    """The tool results of the main lane, oldest first."""
    entries = await session.find_entries_on_branch(type="message", order="oldestFirst")
    return [entry.message for entry in entries if isinstance(entry.message, ToolResultMessage)]


async def outcome(session: Session) -> str:
    """How the one run ended."""
    [finished] = await session.find_records(type="operation_finished")
    return finished.body.outcome  # find_records was asked for this type


async def count(session: Session, type: str) -> int:
    """Records of a type."""
    log = await session.get_log()
    return sum(isinstance(item, RecordItem) and item.record.type == type for item in log)
