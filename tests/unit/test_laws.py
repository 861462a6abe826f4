"""The laws that the global fixture watches are really watched, in every kind of test."""

import asyncio
import logging
from dataclasses import replace

import pytest
import pytest_asyncio

from agent_harness import Session
from agent_harness.errors import HarnessFault, SessionError
from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import SessionStats, SessionStorage
from agent_harness.telemetry.context import NOOP, SpanError, SpanStatus
from agent_harness.testing import ObservedRequest, answer, call
from agent_harness.types.messages import AgentMessage, CompactionSummaryMessage, Usage, UserMessage
from agent_harness.types.state import ModelRef
from session_backends import MemorySessionRepo
from tests.support.laws import Laws
from tests.support.rig import Calls, open_rig


async def one_run(session: Session) -> None:
    rig = await open_rig(session, answer(calls=[call("measure")]), answer("Done."), tools=[Calls().tool()])
    (await rig.harness.prompt("go")).unwrap()
    await rig.harness.close()


@pytest_asyncio.fixture
async def opened_before(repo: SessionRepo) -> Session:
    return await repo.create(id="before")


async def test_sessions_of_async_fixtures_are_watched(opened_before: Session, repo: SessionRepo, laws: Laws) -> None:
    await one_run(opened_before)
    await repo.close()
    assert (laws.requests, laws.compared, laws.usages) == (2, 1, 2)


async def test_sessions_of_a_test_are_watched_in_its_tasks_too(repo: SessionRepo, laws: Laws) -> None:
    async def work() -> None:
        await one_run(await repo.create())

    await asyncio.create_task(work())
    await repo.close()
    assert (laws.requests, laws.compared, laws.usages) == (2, 1, 2)


def test_sessions_of_a_loop_of_their_own_are_watched(laws: Laws) -> None:
    async def work() -> None:
        await one_run(await MemorySessionRepo().create())

    asyncio.run(work())
    assert (laws.requests, laws.compared, laws.usages) == (2, 1, 2)


def said(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


SUMMARY = CompactionSummaryMessage(summary="So far.", tokens_before=1, timestamp=1)


@pytest.mark.parametrize(
    ("first", "second", "broken"),
    [
        ([said("a"), said("b")], [said("a"), said("b"), said("c")], 0),
        ([said("a"), said("b")], [said("a"), said("c"), said("b")], 2),
        ([said("a"), said("b")], [said("a")], 2),
        ([said("a"), said("b")], [SUMMARY, said("b")], 0),
        ([SUMMARY, said("b")], [SUMMARY, said("c")], 2),
        ([SUMMARY, said("b")], [replace(SUMMARY), said("c")], 0),
    ],
    ids=["tail", "insert before the tail", "cut", "compaction", "insert after a compaction", "second compaction"],
)
async def test_a_context_that_does_not_grow_at_its_tail_is_noted(
    first: list[AgentMessage], second: list[AgentMessage], broken: int
) -> None:
    noting = Laws()
    storage = (await MemorySessionRepo().create())._core.storage
    noting.opened(storage)
    for messages in (first, second):
        noting.requested(
            ObservedRequest(
                storage=storage,
                lane="main",
                run_id="r",
                model=ModelRef(provider="p", model_id="m"),
                messages=tuple(messages),
            )
        )
    assert len(noting.broken) == broken  # once for the context, once for what the provider reads


async def test_a_session_that_forgets_a_cost_is_noted(repo: SessionRepo) -> None:
    session = await repo.create()
    rig = await open_rig(session, answer("Done."))
    noting = Laws()
    noting.opened(session._core.storage)
    session._core.observer = noting

    class Forgetful:
        """The session's storage, whose statistics never change."""

        def __init__(self, behind: SessionStorage) -> None:
            self._behind = behind

        def __getattr__(self, name: str) -> object:
            return getattr(self._behind, name)

        async def get_stats(self) -> SessionStats:
            return SessionStats(message_count=0, usage=Usage())

    session._core.storage = Forgetful(session._core.storage)
    noting.opened(session._core.storage)
    (await rig.harness.record_usage(Usage(input=3))).unwrap()
    await rig.harness.close()
    await repo.close()
    assert len(noting.broken) == 1


TOLD_BY = {
    "span": lambda text: NOOP.set_attributes({"what": text}),
    "event": lambda text: NOOP.add_event("seen", {"what": text}),
    "status": lambda text: NOOP.set_status(SpanStatus(status="error", error=SpanError(name="E", message=text))),
    "log": lambda text: logging.getLogger("agent_harness.any").debug("it said %s", text),
    "error": lambda text: SessionError(f"no session for {text}"),
    "fault": lambda text: HarnessFault(f"after {text}"),
}


@pytest.mark.parametrize("where", TOLD_BY)
async def test_a_text_of_the_conversation_that_is_told_elsewhere_is_found(where: str, laws: Laws) -> None:
    session = await MemorySessionRepo().create()
    rig = await open_rig(session, answer(calls=[call("measure", {"bed": ["a secret bed"]})]), "A long answer.")
    (await rig.harness.prompt("a long question")).unwrap()
    await rig.harness.close()
    assert laws.discretion.leaks() == []
    assert {"a long question", "a secret bed", "A long answer."} <= laws.discretion.said
    assert any("pi.harness" in told for told in laws.discretion.told)
    for text in ("a long question", "a secret bed", "A long answer."):
        TOLD_BY[where](text)
    assert laws.discretion.leaks() == ["A long answer.", "a long question", "a secret bed"]
    laws.discretion.told.clear()
