"""What summary requests ask, and how; split answers; refusals; events in brackets (A-7, A-10, harness-v2 §8, §10)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from agent_harness import Err, InvalidPayload, Ok, StreamOptions
from agent_harness.errors import InvalidWrite, WriteRefused
from agent_harness.events.catalog import CompactionEnd, HarnessEvent, NavigationEnd
from agent_harness.hooks.catalog import (
    BeforeCompaction,
    BeforeNavigation,
    BeforeRequest,
    BeforeRequestResult,
    CompactionDecision,
    NavigationDecision,
)
from agent_harness.lanes.reads import LaneReads
from agent_harness.outcomes import (
    CompactionCompleted,
    CompactionEnded,
    LaneBusy,
    MissingIdentities,
    NavigationCompleted,
    NavigationEnded,
    NothingToCompact,
    UnknownTarget,
)
from agent_harness.procedures.compaction import context_size
from agent_harness.providers.base import Model, ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, ScriptedRequest, answer, call, drive_until, start
from agent_harness.types.entries import CompactionBody
from agent_harness.types.messages import (
    AssistantMessage,
    CompactionSummaryMessage,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agent_harness.types.structural import CompactResult, NavigateOptions, SummaryResult
from tests.support.rig import Calls, Rig, open_rig, turns

FULL = Usage(input=90_000, output=10)


async def talked(repo: SessionRepo, *answers: object, **options: object) -> Rig:
    """A lane with two finished turns."""
    rig = await open_rig(
        await repo.create(id="requests"),
        "First answer.",
        "Second answer.",
        *answers,
        tools=[Calls().tool()],
        **options,
    )
    assert isinstance(await rig.harness.prompt("First question."), Ok)
    assert isinstance(await rig.harness.prompt("Second question."), Ok)
    return rig


async def first_answer(rig: Rig) -> str:
    return (await rig.session.find_entries(type="message", order="oldestFirst"))[1].id


def text_of(request: ScriptedRequest) -> str:
    (message,) = request.context.messages
    assert isinstance(message, UserMessage)
    assert isinstance(message.content, str)
    return message.content


# Requests ------------------------------------------------------------------------------------------------------------

THINKING = replace(SCRIPTED_MODEL, thinking_levels=("low", "high"), deferred=True)


async def test_a_summary_reuses_the_lanes_thinking_and_the_models_own_limit_and_is_never_deferred(
    repo: SessionRepo,
) -> None:
    provider = ScriptedProvider(answers=["First answer.", "Second answer.", "Summary.", "Branch."])
    options = StreamOptions(max_tokens=50, response_schema={"type": "object"}, temperature=0.5)
    rig = await open_rig(
        await repo.create(id="requests"),
        models=ModelRegistry([provider], [THINKING]),
        model=THINKING,
        thinking_level="high",
        stream_options=options,
        tools=[Calls().tool()],
    )
    await rig.harness.prompt("First question.")
    await rig.harness.prompt("Second question.")
    seen: list[BeforeRequest] = []

    def deferring(event: BeforeRequest) -> BeforeRequestResult:
        seen.append(event)
        return BeforeRequestResult(stream_options=StreamOptions(deferred=True))

    rig.harness.hooks.on("before_request", deferring)
    await rig.harness.compact("Mention beds.")
    await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True))
    assert [(e.step, e.attempt) for e in seen] == [("compaction", 1), ("branch_summary", 1)]
    for request in provider.requests[2:]:
        assert request.options.thinking_level == "high"
        assert request.options.max_tokens == THINKING.max_tokens
        assert request.options.response_schema is None
        assert request.options.temperature == 0.5
        assert not request.options.deferred
        assert not request.context.tools
        assert request.context.system_prompt is not None
    assert "[User]: First question.\n\n[Agent]: First answer." in text_of(provider.requests[2])
    assert "Mention beds." in text_of(provider.requests[2])
    await rig.harness.close()


async def test_a_summary_that_was_cut_is_asked_for_again_in_smaller_parts(repo: SessionRepo) -> None:
    cut = answer("Half a summ", stop_reason="length", usage=Usage(input=5, output=8_000))
    session = await repo.create(id="requests")
    rig = await open_rig(session, "First answer.", "Second.", cut, "Part one.", cut, "One.", "Two.", "Three.", "Four.")
    await rig.harness.prompt("word " * 400)
    await rig.harness.prompt("Short.")
    result = await rig.harness.compact("INSTRUCTED")
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionCompleted)
    asked = [text_of(r) for r in rig.provider.requests[2:]]
    assert len(asked) == 1 + 2 + 4
    assert all("INSTRUCTED" in text for text in asked)
    sizes = [max(map(len, asked[:1])), max(map(len, asked[1:3])), max(map(len, asked[3:]))]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < sizes[1] < sizes[0]
    assert "".join(asked[3:]).count("word ") >= 400 - 3  # a cut may fall inside a word
    body = result.value.entry.body
    assert isinstance(body, CompactionBody)
    assert body.summary == "One.\n\nTwo.\n\nThree.\n\nFour."
    assert rig.clock.slept_ms == []  # smaller parts are another request: nothing to wait for
    assert (await rig.lines(usage=True))[-13:] == [
        "R operation_started",
        "R step_attempt",
        "R usage",
        "R step_attempt",
        *["R usage"] * 2,
        "R step_attempt",
        *["R usage"] * 4,
        "E compaction",
        "R operation_finished",
    ]
    await rig.harness.close()


@pytest.mark.parametrize(
    "unusable",
    [answer(""), answer("", calls=[call("measure")]), answer("<summary> </summary>")],
    ids=["empty", "a call", "blank tags"],
)
async def test_an_answer_without_a_summary_is_a_failed_attempt(repo: SessionRepo, unusable: object) -> None:
    rig = await talked(repo, unusable, "Summary.")
    result = await rig.harness.compact()
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionCompleted)
    assert len(await rig.session.find_records(type="step_attempt")) == 2 + 2
    await rig.harness.close()


async def test_a_second_compaction_updates_the_first_ones_summary(repo: SessionRepo) -> None:
    rig = await talked(repo, "Summary one.", "Third answer.", "Summary two.")
    await rig.harness.compact()
    await rig.harness.prompt("Third question.")
    await rig.harness.compact()
    asked = text_of(rig.provider.requests[-1])
    assert "<previous-summary>\nSummary one.\n</previous-summary>" in asked
    assert "Second question." in asked  # the first one's retained tail is not lost
    assert "First question." not in asked
    await rig.harness.close()


async def test_a_retained_answers_usage_says_nothing_about_the_compacted_context(repo: SessionRepo) -> None:
    """A-6: live, and after a reopening."""
    rig = await talked(repo, answer("Long.", usage=FULL), "Summary.")
    await rig.harness.prompt("Third question.")
    compacted = await rig.harness.compact()
    assert isinstance(compacted, Ok)
    assert isinstance(compacted.value, CompactionCompleted)
    body = compacted.value.entry.body
    assert isinstance(body, CompactionBody)
    assert FULL in [m.usage for m in body.retained_tail if isinstance(m, AssistantMessage)]
    assert body.tokens_before >= 90_000
    assert await context_size(LaneReads(rig.harness._lane)) < 1_000
    await rig.harness.close()
    again = await open_rig(await repo.open("requests"), "Fourth answer.")
    assert await context_size(LaneReads(again.harness._lane)) < 1_000
    await again.harness.prompt("Fourth question.")
    assert len(await again.session.find_entries(type="compaction")) == 1
    await again.harness.close()


async def test_the_context_only_grows_at_the_tail_but_for_the_compaction(repo: SessionRepo) -> None:
    working = [answer(f"Step {n}.", calls=[call("measure", id=f"c{n}")]) for n in range(3)]
    working[1] = replace(working[1], usage=FULL)
    rig = await talked(repo, working[0], working[1], "Summary.", working[2], "Done.")
    await rig.harness.prompt("Measure.")
    asked = [r.context.messages for r in rig.provider.requests if r.context.tools]
    breaks = [n for n, (a, b) in enumerate(pairwise(asked)) if list(b[: len(a)]) != list(a)]
    assert breaks == [3]
    after = asked[4]
    assert isinstance(after[0], UserMessage)
    assert "Summary." in str(after[0].content)
    assert isinstance(after[-1], ToolResultMessage)
    await rig.harness.close()


async def test_the_compacted_context_is_what_a_cold_restore_builds(repo: SessionRepo) -> None:
    """Case 47: the live request and the one after a reopening are made of the same messages."""
    rig = await talked(repo, "Summary.", "Third answer.")
    await rig.harness.compact()
    live = await rig.harness._lane.context.messages()
    assert isinstance(live[0], CompactionSummaryMessage)
    await rig.harness.close()
    again = await open_rig(await repo.open("requests"))
    assert await again.harness._lane.context.messages() == live
    await again.harness.close()


# Refusals ------------------------------------------------------------------------------------------------------------


async def test_refusals_write_nothing(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(id="requests"), "Only answer.")
    nothing = await rig.harness.compact()
    assert isinstance(nothing, Err)
    assert isinstance(nothing.error, NothingToCompact)
    for target in (None, "no-such-entry"):  # None: an empty lane stands at the root
        refused = await rig.harness.navigate_tree(target)
        assert isinstance(refused, Err)
        assert isinstance(refused.error, UnknownTarget)
    assert await rig.session.get_log() == []
    await rig.harness.prompt("Question.")
    size = len(await rig.session.get_log())
    leaf = await rig.harness.get_leaf_id()
    for target, label in ((leaf, None), (None, "on the root")):
        refused = await rig.harness.navigate_tree(target, NavigateOptions(label=label))
        assert isinstance(refused, Err)
        assert isinstance(refused.error, UnknownTarget)
    with pytest.raises(InvalidWrite):
        await rig.harness.navigate_tree(None, NavigateOptions(label="x" * 10_000))
    with pytest.raises(InvalidPayload):
        await rig.harness.compact("lone \ud800 surrogate")
    assert len(await rig.session.get_log()) == size
    assert rig.harness.suspended == []
    await rig.harness.close()


async def test_a_busy_lane_refuses_structural_operations_and_they_refuse_runs(repo: SessionRepo) -> None:
    rig = await talked(repo, "Summary.", drive="automatic")
    inside: list[object] = []

    async def during(event: BeforeCompaction) -> None:
        inside.append(await rig.harness.prompt("Now?"))
        inside.append(await rig.harness.compact())
        inside.append(await rig.harness.navigate_tree(None))
        inside.append(await rig.harness.steer("Now?"))

    rig.harness.hooks.on("before_compaction", during)
    assert isinstance(await rig.harness.compact(), Ok)
    for refused in inside[:3]:
        assert isinstance(refused, Err)
        assert isinstance(refused.error, LaneBusy)
        assert refused.error.operation_kind == "compaction"
    assert isinstance(inside[3], Err)
    await rig.harness.close()


async def test_the_model_is_needed_only_where_a_request_may_be_made(repo: SessionRepo) -> None:
    rig = await talked(repo)
    leaf, target = await rig.harness.get_leaf_id(), await first_answer(rig)
    await rig.harness.close()
    other = Model(provider="other", id="m", api="scripted")
    again = await open_rig(
        await repo.open("requests"), models=ModelRegistry([ScriptedProvider()], [other]), model=other
    )
    for refused in (
        await again.harness.compact(),
        await again.harness.navigate_tree(target, NavigateOptions(summarize=True)),
    ):
        assert isinstance(refused, Err)
        assert isinstance(refused.error, MissingIdentities)
    for to in (target, leaf):
        moved = await again.harness.navigate_tree(to)
        assert isinstance(moved, Ok)
        assert isinstance(moved.value, NavigationCompleted)
    await again.harness.close()


async def refused(write: object) -> str:
    with pytest.raises(WriteRefused) as caught:
        await write
    return str(caught.value)


async def test_a_write_awaited_from_a_hook_of_its_structural_operation_is_refused_at_once(repo: SessionRepo) -> None:
    """A-10: also from a task that the handler starts and waits for."""
    rig = await talked(repo, "Summary.")
    texts: list[str] = []

    async def during(event: BeforeCompaction | BeforeRequest) -> None:
        lane = rig.harness
        texts.append(await refused(lane.session.append_custom_entry("note")))
        texts.append(await refused(asyncio.wait_for(lane.set_thinking_level("low"), 5)))

    rig.harness.hooks.on("before_compaction", during)
    rig.harness.hooks.on("before_request", during)
    result = await asyncio.wait_for(rig.harness.compact(), 10)
    assert isinstance(result, Ok)
    assert isinstance(result.value, CompactionCompleted)
    assert len(texts) == 4
    assert all(f"compaction {result.value.run_id}" in text for text in texts)
    await rig.harness.close()


async def test_a_write_from_elsewhere_waits_for_the_structural_operation(repo: SessionRepo) -> None:
    rig = await talked(repo, "Summary.")
    writing: list[asyncio.Task[str]] = []
    outside = asyncio.Event()

    async def writer() -> str:
        await outside.wait()
        return await rig.harness.session.append_custom_entry("note")

    writing.append(await start(writer()))

    async def during(event: BeforeCompaction) -> None:
        outside.set()
        await turns()

    rig.harness.hooks.on("before_compaction", during)
    await rig.harness.compact()
    await writing[0]
    assert (await rig.lines())[-3:] == ["E compaction", "R operation_finished", "E custom"]
    await rig.harness.close()


async def test_an_unusable_supplied_summary_is_an_error_of_its_handler(repo: SessionRepo) -> None:
    rig = await talked(repo, "Summary.", "Branch.")
    errors: list[HarnessEvent] = []
    rig.harness.events.on("handler_error", errors.append)
    lost = ToolResultMessage(tool_call_id="c", tool_name="t", content=(), is_error=False, timestamp=1)
    bad = [
        CompactResult(summary=" "),
        CompactResult(summary="ok", retained_tail=(lost,)),
        CompactResult(summary="ok", details={"a": {1, 2}}),
    ]
    for given in bad:
        rig.harness.hooks.on("before_compaction", lambda _, g=given: CompactionDecision(compaction=g))
    rig.harness.hooks.on(
        "before_navigation", lambda _: NavigationDecision(summary=SummaryResult(summary="lone \ud800"))
    )
    compacted = await rig.harness.compact()
    assert isinstance(compacted, Ok)
    assert isinstance(compacted.value, CompactionCompleted)
    body = compacted.value.entry.body
    assert isinstance(body, CompactionBody)
    assert body.summary == "Summary."
    moved = await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True))
    assert isinstance(moved, Ok)
    await rig.harness.events.flush()
    assert len(errors) == 4
    await rig.harness.close()


# Events --------------------------------------------------------------------------------------------------------------


def brackets(events: Sequence[HarnessEvent]) -> list[str]:
    shown = {"run_start", "run_end", "turn_start", "turn_end", "compaction_start", "compaction_end"}
    return [e.type for e in events if e.type in shown or e.type.startswith("navigation")]


async def test_a_compaction_in_a_run_has_its_bracket_between_turns(repo: SessionRepo) -> None:
    too_large = answer(error_message="too long", error_code="overflow")
    rig = await talked(
        repo, answer("On it.", calls=[call("measure")], usage=FULL), "Sum.", too_large, "Sum 2.", "Done."
    )
    events: list[HarnessEvent] = []
    rig.harness.events.on(None, events.append)
    await rig.harness.prompt("Measure.")
    await rig.harness.events.flush()
    turn = ["turn_start", "turn_end"]
    compaction = ["compaction_start", "compaction_end"]
    assert brackets(events) == ["run_start", *turn, *compaction, *turn, *compaction, *turn, "run_end"]
    ends = [e for e in events if isinstance(e, CompactionEnd)]
    assert [(e.reason, e.outcome, e.from_hook, e.entry is not None) for e in ends] == [
        ("threshold", "completed", False, True),
        ("overflow", "completed", False, True),
    ]
    await rig.harness.close()


@pytest.mark.parametrize("outcome", ["completed", "declined", "failed", "aborted"])
async def test_standalone_brackets_end_with_the_operations_outcome(repo: SessionRepo, outcome: str) -> None:
    final = answer(error_message="no", error_code="auth") if outcome == "failed" else "Summary."
    rig = await talked(repo, final, final)
    events: list[HarnessEvent] = []
    rig.harness.events.on(None, events.append)
    leaf = await rig.harness.get_leaf_id()

    async def decide(event: object) -> object:
        if outcome == "aborted":
            await rig.harness.abort()
        if outcome == "declined":
            return CompactionDecision(decline=True) if isinstance(event, BeforeCompaction) else decline
        return None

    decline = NavigationDecision(decline=True)
    rig.harness.hooks.on("before_compaction", decide)
    rig.harness.hooks.on("before_navigation", decide)
    compacted = await rig.harness.compact()
    moved = await rig.harness.navigate_tree(await first_answer(rig), NavigateOptions(summarize=True, label="x"))
    assert isinstance(compacted, Ok)
    assert isinstance(moved, Ok)
    assert (compacted.value.kind, moved.value.kind) == (outcome, outcome)
    await rig.harness.events.flush()
    assert brackets(events) == ["compaction_start", "compaction_end", "navigation_start", "navigation_end"]
    (ended,) = [e for e in events if isinstance(e, CompactionEnd)]
    (left,) = [e for e in events if isinstance(e, NavigationEnd)]
    assert ended.outcome == left.outcome == outcome
    assert (ended.error is not None, left.error is not None) == (outcome == "failed", outcome == "failed")
    if outcome != "completed":
        assert await rig.harness.get_leaf_id() == leaf
        assert isinstance(compacted.value, CompactionEnded)
        assert isinstance(moved.value, NavigationEnded)
    await rig.harness.close()


async def test_an_abort_during_the_summary_request_ends_the_operation_at_once(repo: SessionRepo) -> None:
    rig = await talked_by_hand(repo)
    work = await start(rig.harness.compact())
    await drive_until(rig.harness, "stream_assistant")
    assert isinstance(await rig.harness.abort(), Ok)
    await rig.harness.run_to_completion()
    result = await work
    assert isinstance(result, Ok)
    assert result.value.kind == "aborted"
    assert (await rig.lines(usage=True))[-5:] == [
        "R operation_started",
        "R step_attempt",
        "R abort_requested",
        "R usage",  # what the cut request reported
        "R operation_finished",
    ]
    await rig.harness.close()


async def talked_by_hand(repo: SessionRepo) -> Rig:
    """Two finished turns, then the same session driven by hand."""
    rig = await talked(repo)
    await rig.harness.close()
    return await open_rig(await repo.open("requests"), "Summary.", "Branch.", drive="manual")


@pytest.mark.parametrize("abort_first", [True, False], ids=["abort, finish", "finish, abort"])
@pytest.mark.parametrize("kind", ["compaction", "navigation"])
async def test_abort_against_the_close_has_two_histories(repo: SessionRepo, kind: str, abort_first: bool) -> None:
    rig = await talked_by_hand(repo)
    target = await first_answer(rig)
    work = await start(rig.harness.compact() if kind == "compaction" else rig.harness.navigate_tree(target))
    await drive_until(rig.harness, "finish_operation")
    if abort_first:
        assert isinstance(await rig.harness.abort(), Ok)
        await rig.harness.run_to_completion()
    else:
        await rig.harness.run_to_completion()
        assert isinstance(await rig.harness.abort(), Err)
    result = await work
    assert isinstance(result, Ok)
    assert result.value.kind == ("aborted" if abort_first else "completed")
    finished = await rig.session.find_records(type="operation_finished", limit=1)
    assert finished[0].body.outcome == result.value.kind
    assert await rig.session.verify() == []
    await rig.harness.close()


@pytest.mark.parametrize("first", ["prompt", "compact"])
async def test_of_two_operations_that_race_one_is_accepted(repo: SessionRepo, first: str) -> None:
    """Race 1 across kinds: the acceptance job decides, the other one writes nothing."""
    rig = await talked(repo, "Next.", "Next.")
    calls = {"prompt": lambda: rig.harness.prompt("Third question."), "compact": rig.harness.compact}
    second = "compact" if first == "prompt" else "prompt"
    won, lost = await asyncio.gather(calls[first](), calls[second]())
    assert isinstance(won, Ok)
    assert isinstance(lost, Err)
    assert isinstance(lost.error, LaneBusy)
    started = await rig.session.find_records(type="operation_started")
    assert len(started) == 3
    await rig.harness.close()


async def test_an_abort_while_the_summary_request_runs_ends_it(repo: SessionRepo) -> None:
    """Race 10: the effect is signalled; what it reported is in the ledger, nothing of it in the tree."""
    asked, released = asyncio.Event(), asyncio.Event()

    async def respond(request: ScriptedRequest) -> AssistantMessage:
        if request.context.system_prompt is None:
            return answer("Answer.")
        asked.set()
        await released.wait()
        return answer("Too late.")

    rig = await open_rig(await repo.create(id="requests"), respond=respond)
    await rig.harness.prompt("First question.")
    await rig.harness.prompt("Second question.")
    work = await start(rig.harness.compact())
    await asked.wait()
    assert isinstance(await rig.harness.abort(), Ok)
    released.set()
    result = await work
    assert isinstance(result, Ok)
    assert result.value.kind == "aborted"
    assert (await rig.lines(usage=True))[-3:] == ["R abort_requested", "R usage", "R operation_finished"]
    await rig.harness.close()


async def test_an_abort_before_the_move_moves_nothing(repo: SessionRepo) -> None:
    rig = await talked_by_hand(repo)
    leaf = await rig.harness.get_leaf_id()
    options = NavigateOptions(summarize=True, label="x")
    work = await start(rig.harness.navigate_tree(await first_answer(rig), options))
    await drive_until(rig.harness, lambda action: action.kind == "append_record" and action.record_type == "usage")
    assert isinstance(await rig.harness.abort(), Ok)
    await rig.harness.run_to_completion()
    result = await work
    assert isinstance(result, Ok)
    assert (result.value.kind, await rig.harness.get_leaf_id()) == ("aborted", leaf)
    await rig.harness.close()


@pytest.mark.parametrize("kind", ["compaction", "navigation"])
async def test_an_abort_behind_a_supplied_summary_keeps_it_out_of_the_tree(repo: SessionRepo, kind: str) -> None:
    rig = await talked_by_hand(repo)
    leaf, usage = await rig.harness.get_leaf_id(), Usage(input=7)
    compaction = CompactionDecision(compaction=CompactResult(summary="Supplied.", usage=usage))
    navigation = NavigationDecision(summary=SummaryResult(summary="Supplied.", usage=usage))
    rig.harness.hooks.on("before_compaction", lambda _: compaction)
    rig.harness.hooks.on("before_navigation", lambda _: navigation)
    options = NavigateOptions(summarize=True)
    target = await first_answer(rig)
    work = await start(rig.harness.compact() if kind == "compaction" else rig.harness.navigate_tree(target, options))
    await drive_until(rig.harness, "append_record")  # the hook's usage
    assert isinstance(await rig.harness.abort(), Ok)
    await rig.harness.run_to_completion()
    result = await work
    assert isinstance(result, Ok)
    assert (result.value.kind, await rig.harness.get_leaf_id()) == ("aborted", leaf)
    assert (await rig.lines(usage=True))[-4:] == [
        "R operation_started",
        "R abort_requested",
        "R usage",
        "R operation_finished",
    ]
    await rig.harness.close()


async def test_next_run_items_pass_over_structural_operations(repo: SessionRepo) -> None:
    rig = await talked(repo, "Summary.", "Third answer.")

    async def during(event: BeforeCompaction | BeforeNavigation) -> None:
        assert isinstance(await rig.harness.next_run("Queued."), Ok)

    rig.harness.hooks.on("before_compaction", during)
    await rig.harness.compact()
    await rig.harness.prompt("Third question.")
    texts = [m.content for m in rig.provider.requests[-1].context.messages if isinstance(m, UserMessage)]
    assert texts[-2:] == ["Queued.", "Third question."]
    await rig.harness.close()
