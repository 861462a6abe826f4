"""How long the durable retry waits when the provider says how long: at least that, up to `max_retry_after_ms`."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agent_harness import AgentHarness, RetryPolicy
from agent_harness.events.catalog import RetryScheduled
from agent_harness.providers.faux import ScriptedAnswer
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ManualClock, answer, scripted_models
from agent_harness.types.messages import AssistantMessage
from tests.support.rig import turns

OWN_MS = 100  # what the policy would wait by itself
CAP_MS = 6_000
POLICY = RetryPolicy(max_attempts=2, base_delay_ms=OWN_MS, max_delay_ms=1_000, max_retry_after_ms=CAP_MS)
NOW_MS = 1_700_000_000_000

ASKED_AND_WAITED = [
    (5_000, 5_000),  # longer than any wait of our own, which is at most `max_delay_ms`
    (CAP_MS, CAP_MS),
    (CAP_MS + 1, CAP_MS),  # nobody can hold a run up for longer than the policy allows
    (86_400_000, CAP_MS),
    (40, OWN_MS),  # a shorter wait than our own does not hurry us
    (0, OWN_MS),
    (None, OWN_MS),
]


def busy(retry_after_ms: int | None) -> AssistantMessage:
    return answer(error_message="slow down", error_code="rate_limit", retry_after_ms=retry_after_ms)


class Lane:
    """A harness with a clock that notes each sleep, and what watchers are told of retries."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.told: list[RetryScheduled] = []

    async def open(self, repo: SessionRepo, *answers: ScriptedAnswer) -> AgentHarness:
        created = await AgentHarness.create(
            session=await repo.create(),
            models=scripted_models(*answers),
            model=SCRIPTED_MODEL,
            retry=POLICY,
            clock=self.clock,
        )
        self.harness = created.harness
        self.harness.events.on("retry_scheduled", self.told.append)
        return self.harness

    async def waited(self) -> list[tuple[str, int, int]]:
        """Step, delay and the next attempt's time from now, of every retry that was told."""
        await turns()
        return [(event.step, event.delay_ms, event.next_attempt_at - NOW_MS) for event in self.told]


@pytest_asyncio.fixture
async def lane() -> AsyncIterator[Lane]:
    lane = Lane()
    yield lane
    await lane.harness.close()


@pytest.mark.parametrize(("asked", "waited"), ASKED_AND_WAITED)
async def test_a_request_is_repeated_after_the_wait_the_provider_asked_for(
    repo: SessionRepo, lane: Lane, asked: int | None, waited: int
) -> None:
    harness = await lane.open(repo, busy(asked), "At last.")
    assert (await harness.prompt("Try.")).unwrap().kind == "completed"
    assert lane.clock.slept_ms == [waited]
    assert await lane.waited() == [("assistant", waited, waited)]


@pytest.mark.parametrize(("asked", "waited"), ASKED_AND_WAITED)
async def test_a_summary_is_repeated_after_the_wait_the_provider_asked_for(
    repo: SessionRepo, lane: Lane, asked: int | None, waited: int
) -> None:
    harness = await lane.open(repo, "First answer.", "Second answer.", busy(asked), "Summary.")
    for question in ("First question.", "Second question."):
        assert (await harness.prompt(question)).unwrap().kind == "completed"
    assert (await harness.compact()).unwrap().kind == "completed"
    assert lane.clock.slept_ms == [waited]
    assert await lane.waited() == [("compaction", waited, waited)]


async def test_each_wait_is_the_one_of_the_answer_before_it(repo: SessionRepo, lane: Lane) -> None:
    """The last attempt's wish is not waited for: nothing follows it."""
    harness = await lane.open(repo, busy(5_000), busy(3_000))
    assert (await harness.prompt("Try.")).unwrap().kind == "failed"
    assert lane.clock.slept_ms == [5_000]


async def test_a_final_error_is_not_waited_for(repo: SessionRepo, lane: Lane) -> None:
    harness = await lane.open(repo, answer(error_message="bad key", error_code="auth", retry_after_ms=5_000))
    assert (await harness.prompt("Try.")).unwrap().kind == "failed"
    assert lane.clock.slept_ms == []
