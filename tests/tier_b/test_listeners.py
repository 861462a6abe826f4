"""A listener that throws, hangs, watches or leaves never changes a run, whatever the trace (harness-v2 §9, §10)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_harness import AgentHarness, HarnessEvent
from agent_harness.events.bus import Listener
from agent_harness.providers.faux import ScriptedAnswer
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, call, start
from agent_harness.types.messages import Usage
from agent_harness.types.structural import NavigateOptions
from tests.support.backends import make_repo
from tests.support.rig import Calls, Held, open_rig, until

OVERLOADED = answer("half", error_message="overloaded", error_code="overloaded")
FULL = Usage(input=90_000, output=10)  # of a window of 100,000 with 16,384 reserved


async def prompt(harness: AgentHarness, _held: Held) -> object:
    return await harness.prompt("Go.")


async def navigate(harness: AgentHarness, _held: Held) -> object:
    await harness.prompt("First.")
    target = await harness.get_leaf_id()
    await harness.prompt("Second.")
    return await harness.navigate_tree(target, NavigateOptions(summarize=True, label="mark"))


async def abort(harness: AgentHarness, held: Held) -> object:
    run = await start(harness.prompt("Go."))
    await until(lambda: held.made == ["c1"])
    await harness.steer("Never read.")
    await harness.abort()
    return await run


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a harness is asked, and what its provider answers."""

    act: Callable[[AgentHarness, Held], Awaitable[object]] = prompt
    answers: Sequence[ScriptedAnswer]


WORK: dict[str, Work] = {
    "one tool": Work(answers=[answer("Working.", calls=[call("measure", id="c1")]), "Done."]),
    "retry": Work(answers=[OVERLOADED, OVERLOADED, "At last."]),
    "failure": Work(answers=[OVERLOADED, OVERLOADED, OVERLOADED]),
    "compaction": Work(answers=[answer("On it.", calls=[call("measure", id="c1")], usage=FULL), "Summary.", "Done."]),
    "navigation": Work(act=navigate, answers=["One.", "Two.", "What was left."]),
    "abort": Work(act=abort, answers=[answer("Working.", calls=[call("wait", id="c1")])]),
}


HUNG: dict[AgentHarness, asyncio.Event] = {}
"""What the listeners of a harness hang on."""


def throwing(_harness: AgentHarness) -> Listener:
    def listener(event: HarnessEvent) -> None:
        raise ValueError("no")

    return listener


def cancelling(_harness: AgentHarness) -> Listener:
    def listener(event: HarnessEvent) -> None:
        raise asyncio.CancelledError

    return listener


def hanging(harness: AgentHarness) -> Listener:
    hung = HUNG.setdefault(harness, asyncio.Event())

    async def listener(event: HarnessEvent) -> None:
        await hung.wait()

    return listener


def watching(harness: AgentHarness) -> Listener:
    async def listener(event: HarnessEvent) -> None:
        (await harness.watch()).start(lambda _event: None)

    return listener


def leaving(harness: AgentHarness) -> Listener:
    async def listener(event: HarnessEvent) -> None:
        (await harness.watch_session()).unsubscribe()

    return listener


@dataclass(frozen=True)
class Course:
    """All that a run leaves behind and asks of others."""

    outcome: object
    log: Sequence[object]
    requests: Sequence[object]


LISTENERS = [throwing, cancelling, hanging, watching, leaving]


async def course(work: Work, make: Callable[[AgentHarness], Listener] | None, repo: SessionRepo) -> Course:
    """Do the work with listeners of both kinds, or with none."""
    held = Held()
    session = await repo.create(id="listened")
    rig = await open_rig(session, *work.answers, tools=[Calls().tool(), held.tool("wait")])
    if make is not None:
        rig.harness.events.on(None, make(rig.harness))
        (await rig.harness.watch()).start(make(rig.harness))
        (await rig.harness.watch_session()).start(make(rig.harness))
    outcome = await work.act(rig.harness, held)
    done = Course(outcome, tuple(await session.get_log()), tuple(rig.provider.requests))
    if (hung := HUNG.pop(rig.harness, None)) is not None:
        hung.set()  # or closing would wait for it
    await rig.harness.close()
    return done


@pytest.mark.parametrize("make", LISTENERS)
@pytest.mark.parametrize("name", WORK)
async def test_no_listener_changes_a_run(
    name: str, make: Callable[[AgentHarness], Listener], backend: str, tmp_path: Path
) -> None:
    alone = await course(WORK[name], None, make_repo(backend, tmp_path / "alone"))
    listened = await course(WORK[name], make, make_repo(backend, tmp_path / "listened"))
    assert len(alone.requests) > 0
    assert listened == alone
