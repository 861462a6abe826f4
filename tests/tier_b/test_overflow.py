"""Context overflow at an assistant step: discard, compact, retry once per conversational input (harness-v2 §6, §19)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent_harness import AgentToolResult, ImageContent, Ok, StreamOptions
from agent_harness.hooks.catalog import (
    BeforeCompaction,
    BeforeRequest,
    BeforeRequestResult,
    CompactionDecision,
)
from agent_harness.options import CompactionSettings
from agent_harness.outcomes import RunCompleted, RunFailed
from agent_harness.procedures.compaction import CONTEXT_OVERFLOW
from agent_harness.procedures.run import TRUNCATION
from agent_harness.providers.base import Model, ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import RecordItem
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, ScriptedRequest, Trace, answer, call, start
from agent_harness.types.entries import CompactionBody
from agent_harness.types.messages import AssistantMessage, Usage, UserMessage
from agent_harness.types.records import RequestUsage, StepAttempt
from agent_harness.types.structural import CompactResult
from agent_harness.types.usage import sum_usage
from tests.support.rig import Calls, Rig, open_rig, until

TOO_LARGE = answer(error_message="prompt is too long", error_code="overflow", usage=Usage(input=3))


async def rig_for(repo: SessionRepo, *answers: object, **options: object) -> Rig:
    """A lane with one finished turn, so that there is something to compact."""
    session = await repo.create(id="overflow")
    rig = await open_rig(session, "First answer.", *answers, tools=[Calls().tool()], **options)
    assert isinstance(await rig.harness.prompt("First question."), Ok)
    return rig


async def steps(rig: Rig) -> list[str]:
    """Attempts after the first turn: kind, number and reason."""
    found = await rig.session.find_records(type="step_attempt", order="oldestFirst")
    bodies = [record.body for record in found if isinstance(record.body, StepAttempt)]
    return [f"{b.step} {b.attempt}" + (f" {b.compaction_reason}" if b.compaction_reason else "") for b in bodies][1:]


async def test_a_recoverable_response_is_discarded_compacted_and_retried(repo: SessionRepo) -> None:
    cut = answer("Half an ans", stop_reason="length", usage=Usage(input=99_000, output=16))
    rig = await rig_for(repo, cut, "Summary.", "Fits now.")
    trace = Trace(rig.session)
    trace.watch(rig.harness, "before_compaction")
    before = len(await trace.lines(usage=True))
    result = await rig.harness.prompt("Big question.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert (await trace.lines(usage=True))[before:] == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R usage",  # the discarded response's cost; nothing else of it is kept
        "H before_compaction",
        "R step_attempt",
        "R usage",
        "E compaction",
        "R step_attempt",
        "R usage",
        "E assistant stop",
        "R operation_finished",
    ]
    assert await steps(rig) == ["assistant 1", "compaction 1 overflow", "assistant 1"]
    sent = rig.provider.requests[-1].context.messages
    assert "Half an ans" not in str(sent)
    assert sent[-1].content == "Big question."
    await rig.harness.close()


async def test_a_supplied_overflow_compaction_writes_its_attempt_first(repo: SessionRepo) -> None:
    rig = await rig_for(repo, TOO_LARGE, "Fits now.")
    supplied = CompactResult(summary="From a hook.", usage=Usage(input=7))
    rig.harness.hooks.on("before_compaction", lambda _: CompactionDecision(compaction=supplied))
    before = len(await rig.lines(usage=True))
    await rig.harness.prompt("Big question.")
    assert (await rig.lines(usage=True))[before:] == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R usage",
        "R step_attempt",  # so that the once-per-input guard counts it
        "R usage",
        "E compaction",
        "R step_attempt",
        "R usage",
        "E assistant stop",
        "R operation_finished",
    ]
    assert await steps(rig) == ["assistant 1", "compaction 1 overflow", "assistant 1"]
    await rig.harness.close()


async def test_a_second_overflow_gives_up_durably(repo: SessionRepo) -> None:
    rig = await rig_for(repo, TOO_LARGE, "Summary.", TOO_LARGE, "Never asked for.")
    before = len(await rig.lines())
    result = await rig.harness.prompt("Big question.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert result.value.error == TRUNCATION
    assert (await rig.lines())[before:] == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R step_attempt",
        "E compaction",
        "R step_attempt",
        "E assistant error",
        "R operation_finished",
    ]
    await rig.harness.close()


async def test_a_provider_that_always_overflows_costs_a_bounded_number_of_requests(repo: SessionRepo) -> None:
    """Case 65: one compaction per consumed input, then a failed run; the next prompt works."""
    asked = 0

    def respond(request: ScriptedRequest) -> AssistantMessage:
        nonlocal asked
        asked += 1
        return answer("Short again.") if asked == 7 else TOO_LARGE if asked > 1 else answer("First answer.")

    session = await repo.create(id="overflow")
    rig = await open_rig(session, respond=respond, attempts=3)
    await rig.harness.prompt("First question.")
    result = await rig.harness.prompt("Big question.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert asked - 1 <= 2 + 3
    asked = 6
    result = await rig.harness.prompt("Again.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    await rig.harness.close()


async def test_length_after_length_stops_after_one_recovery(repo: SessionRepo) -> None:
    cut = answer("Half", stop_reason="length", usage=Usage(input=99_000, output=16))
    rig = await rig_for(repo, cut, "Summary.", cut, "Never asked for.")
    result = await rig.harness.prompt("Big question.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert await steps(rig) == ["assistant 1", "compaction 1 overflow", "assistant 1"]
    assert len(rig.provider.requests) == 4
    await rig.harness.close()


async def test_consumed_input_allows_another_recovery(repo: SessionRepo) -> None:
    rig = await rig_for(repo, TOO_LARGE, "Summary.", "Answer one.", TOO_LARGE, "Summary 2.", "Done.")
    run = await start(rig.harness.prompt("Big question."))
    await until(lambda: rig.harness._lane.operation is not None)
    await rig.harness.follow_up("And another.")
    result = await run
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert await steps(rig) == [
        "assistant 1",
        "compaction 1 overflow",
        "assistant 1",
        "assistant 1",
        "compaction 1 overflow",
        "assistant 1",
    ]
    await rig.harness.close()


@pytest.mark.parametrize("how", ["declined", "disabled"])
async def test_without_a_compaction_an_overflow_is_terminal_and_durable(repo: SessionRepo, how: str) -> None:
    session = await repo.create(id="overflow")
    settings = CompactionSettings(enabled=how != "disabled")
    rig = await open_rig(session, "First answer.", TOO_LARGE, "Never asked for.", compaction=settings)
    await rig.harness.prompt("First question.")
    if how == "declined":
        rig.harness.hooks.on("before_compaction", lambda _: CompactionDecision(decline=True))
    before = len(await rig.lines())
    result = await rig.harness.prompt("Big question.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert result.value.error == CONTEXT_OVERFLOW
    assert result.value.final_message is not None
    assert result.value.final_message.error_code == CONTEXT_OVERFLOW.code
    assert (await rig.lines())[before:] == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "E assistant error",
        "R operation_finished",
    ]
    await rig.harness.close()


@pytest.mark.parametrize("size", ["small", "large"])
async def test_even_a_lone_prompt_is_compacted_once_when_a_provider_refuses_it(repo: SessionRepo, size: str) -> None:
    question = "Big request." if size == "small" else "word " * 40_000
    rig = await open_rig(await repo.create(id="overflow"), TOO_LARGE, "Summary.", "Summary 2.", "Fits now.", "Fits.")
    result = await rig.harness.prompt(question)
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    body = (await rig.session.find_entries(type="compaction"))[0].body
    assert isinstance(body, CompactionBody)
    kept = [m.content for m in body.retained_tail if isinstance(m, UserMessage)]
    assert kept == ([question] if size == "small" else [])
    await rig.harness.close()


async def test_exhausted_overflow_compaction_fails_and_queued_input_starts_afresh(repo: SessionRepo) -> None:
    failing = [answer(error_message="overloaded", error_code="overloaded")] * 2
    rig = await rig_for(repo, TOO_LARGE, *failing, TOO_LARGE, "Summary.", "Done.", attempts=2)
    run = await start(rig.harness.prompt("Big question."))
    await until(lambda: rig.harness._lane.operation is not None)
    await rig.harness.follow_up("Try it shorter.")
    result = await run
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert await steps(rig) == [
        "assistant 1",
        "compaction 1 overflow",
        "compaction 2 overflow",
        "assistant 1",
        "compaction 1 overflow",
        "assistant 1",
    ]
    assert await rig.session.verify() == []
    await rig.harness.close()


async def test_no_cost_is_lost_and_totals_equal_the_ledger(repo: SessionRepo) -> None:
    """Cases 82 and 83: the discarded response and each summary request are in the totals, also after reopening."""
    rig = await rig_for(repo, TOO_LARGE, answer("Summary.", usage=Usage(input=1_000, output=50)), "Fits now.")
    await rig.harness.prompt("Big question.")
    log = await rig.session.get_log()
    records = [i.record.body for i in log if isinstance(i, RecordItem) and isinstance(i.record.body, RequestUsage)]
    assert [(r.cause, r.usage.input) for r in records] == [
        ("assistant", 10),
        ("assistant", 3),
        ("compaction", 1_000),
        ("assistant", 10),
    ]
    stats = await rig.session.get_stats()
    assert stats.usage == sum_usage(r.usage for r in records)
    await rig.harness.close()
    session = await repo.open("overflow")
    assert (await session.get_stats()).usage == stats.usage
    await session.close()


# Which responses are recoverable (harness-v2 §19 "Overflow classification against the reported provider shapes") ------


def window(size: int, output: int = 8_000) -> Model:
    return replace(SCRIPTED_MODEL, context_window=size, max_tokens=output)


def length(usage: Usage, text: str = "Half") -> AssistantMessage:
    return answer(text, stop_reason="length", usage=usage)


RECOVERABLE = {
    "268,009 of 272,000": (window(272_000, 128_000), length(Usage(input=268_009, output=3_991))),
    "81,217 of 84,500": (window(84_500, 32_000), length(Usage(input=81_217, output=3_283))),
    "context-clamped to 16 reasoning tokens": (
        window(272_000, 128_000),
        length(Usage(input=271_000, output=16, reasoning=16), ""),
    ),
    "reasoning only": (window(200_000), length(Usage(input=150_000, output=2_500, reasoning=2_500), "")),
    "no output at all": (window(200_000), length(Usage(input=150_000), "")),
    "cache-write-heavy": (window(200_000), length(Usage(input=3, output=40, cache_write=199_500))),
    "overflow error": (window(200_000), TOO_LARGE),
    "empty success beyond the window": (window(200_000), answer("", usage=Usage(input=50, cache_read=200_100))),
}
FINAL = {
    "cap fully used": (window(200_000, 1_024), length(Usage(input=150_000, output=1_024))),
    "complete answer beyond the window": (window(1_000), answer("All of it.", usage=Usage(input=1_500, output=20))),
    "plain answer": (window(200_000), answer("All of it.")),
}


async def one_question(repo: SessionRepo, model: Model, given: AssistantMessage, options: StreamOptions) -> Rig:
    session = await repo.create(id="overflow")
    provider = ScriptedProvider(answers=["First answer.", given, "Summary.", "Fits now."])
    rig = await open_rig(
        session, models=ModelRegistry([provider], [model]), model=model, stream_options=options, attempts=2
    )
    rig.provider = provider
    await rig.harness.prompt("First question.")
    await rig.harness.prompt("Big question.")
    return rig


@pytest.mark.parametrize("shape", RECOVERABLE)
async def test_recoverable_shapes_compact_and_retry(repo: SessionRepo, shape: str) -> None:
    model, given = RECOVERABLE[shape]
    rig = await one_question(repo, model, given, StreamOptions())
    assert await steps(rig) == ["assistant 1", "compaction 1 overflow", "assistant 1"]
    await rig.harness.close()


@pytest.mark.parametrize("shape", FINAL)
async def test_final_shapes_are_appended_as_they_are(repo: SessionRepo, shape: str) -> None:
    model, given = FINAL[shape]
    rig = await one_question(repo, model, given, StreamOptions())
    assert await steps(rig) == ["assistant 1"]
    newest = (await rig.session.find_entries(type="message", limit=1))[0].message
    assert isinstance(newest, AssistantMessage)
    assert (newest.text, newest.stop_reason) == (given.text, given.stop_reason)
    await rig.harness.close()


def by_options(_: Rig) -> None:
    """The caller's own cap stands in the options."""


def by_hook(rig: Rig) -> None:
    """A hook sets the cap for each request."""

    def cap(event: BeforeRequest) -> BeforeRequestResult:
        return BeforeRequestResult(stream_options=StreamOptions(max_tokens=1_024))

    rig.harness.hooks.on("before_request", cap)


@pytest.mark.parametrize("arrange", [by_options, by_hook])
async def test_a_genuine_cap_of_1024_fully_used_is_not_recoverable(
    repo: SessionRepo, arrange: Callable[[Rig], None]
) -> None:
    """The reference is the intended cap, wherever it was set; never the context-clamped value."""
    session = await repo.create(id="overflow")
    options = StreamOptions(max_tokens=1_024) if arrange is by_options else StreamOptions()
    rig = await open_rig(
        session, "First answer.", length(Usage(input=90, output=1_024)), "Never asked for.", stream_options=options
    )
    arrange(rig)
    await rig.harness.prompt("First question.")
    result = await rig.harness.prompt("Big question.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert result.value.final_message.stop_reason == "length"
    assert await steps(rig) == ["assistant 1"]
    await rig.harness.close()


async def test_throttling_that_speaks_of_tokens_is_a_retry(repo: SessionRepo) -> None:
    throttled = answer(error_message="too many tokens, please wait", error_code="rate_limit")
    rig = await rig_for(repo, throttled, "Done.")
    result = await rig.harness.prompt("Big question.")
    assert isinstance(result, Ok)
    assert await steps(rig) == ["assistant 1", "assistant 2"]
    await rig.harness.close()


async def test_images_beyond_the_providers_byte_limit_are_compacted_away_and_the_next_prompt_works(
    repo: SessionRepo,
) -> None:
    """Case 64: a request of 30 units against a limit of 20 is an overflow; one compaction makes it fit."""
    picture = ImageContent(data="A" * 3_000, mime_type="image/png")
    made = 0

    def respond(request: ScriptedRequest) -> AssistantMessage:
        nonlocal made
        sent = sum(
            len(part.data)
            for message in request.context.messages
            if not isinstance(message.content, str)
            for part in message.content
            if isinstance(part, ImageContent)
        )
        if sent > 20_000:
            return answer(error_message="413 request too large", error_code="overflow")
        if not request.context.tools:
            return answer("Summary.")
        made += 1
        return answer("Looking.", calls=[call("look", id=f"c{made}")]) if made <= 10 else answer("Seen.")

    session = await repo.create(id="images")
    tools = Calls()
    rig = await open_rig(
        session, respond=respond, tools=[tools.tool("look", result=AgentToolResult(content=(picture,)))]
    )
    for question in ("Look at all ten beds.", "And?"):
        result = await rig.harness.prompt(question)
        assert isinstance(result, Ok)
        assert isinstance(result.value, RunCompleted)
    assert len(tools.made) == 10
    assert len(await session.find_entries(type="compaction")) == 1
    await rig.harness.close()


async def test_input_that_arrives_during_a_compaction_is_consumed_before_the_next_request(repo: SessionRepo) -> None:
    rig = await rig_for(repo, TOO_LARGE, "Summary.", "Fits now.")

    async def steer(event: BeforeCompaction) -> None:
        assert isinstance(await rig.harness.steer("Keep it short."), Ok)

    rig.harness.hooks.on("before_compaction", steer)
    await rig.harness.prompt("Big question.")
    assert (await rig.lines())[-6:] == [
        "R step_attempt",
        "E compaction",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    assert rig.provider.requests[-1].context.messages[-1].content == "Keep it short."
    await rig.harness.close()
