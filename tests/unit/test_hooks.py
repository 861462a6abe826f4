"""Hooks: order, aggregation, isolation, and a policy that fails closed (harness-v2 §11, threat T28)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent_harness import HarnessFault
from agent_harness.hooks.catalog import (
    AfterResponseResult,
    AfterTool,
    BeforePayloadResult,
    BeforeRequestResult,
    BeforeResume,
    BeforeRun,
    BeforeRunEndResult,
    BeforeRunResult,
    BeforeTool,
    ToolDecision,
    ToolResultPatch,
    TransformContextResult,
)
from agent_harness.providers.base import StreamOptions
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import answer, start
from agent_harness.types.messages import TextContent, Usage, UserMessage
from session_backends import MemorySessionRepo
from tests.support.prefix import Prefix, calls, real, user
from tests.support.rig import Calls, Rig, assert_sound, close_rigs, open_rig, results_of, said, turns


async def one_tool(*hooks: tuple[str, Callable[..., Any]], **options: Any) -> tuple[Rig, Calls]:
    """A run with one call of a counting tool, with these handlers registered."""
    tools = Calls()
    rig = await open_rig(
        await MemorySessionRepo().create(), answer(calls=calls(1)), "done", tools=[tools.tool(**options)]
    )
    register: Callable[..., object] = rig.harness.hooks.on
    for name, handler in hooks:
        register(name, handler)
    return rig, tools


async def finished(rig: Rig) -> Rig:
    assert (await rig.harness.prompt("go")).unwrap().kind == "completed"
    await assert_sound(rig.session)
    return rig


@pytest.fixture(autouse=True)
async def closed():
    yield
    await close_rigs()


# Registration --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["before_run", "before_resume"])
async def test_hooks_with_durable_data_need_a_stable_id(name: str) -> None:
    rig, _ = await one_tool()
    register: Callable[..., object] = rig.harness.hooks.on
    with pytest.raises(ValueError, match="stable id"):
        register(name, lambda event: None)


async def test_an_id_is_unique_within_one_hook_and_free_again_after_unregistering() -> None:
    rig, _ = await one_tool()
    off = rig.harness.hooks.on("before_run", lambda event: None, id="ext")
    rig.harness.hooks.on("before_resume", lambda event: None, id="ext")
    with pytest.raises(ValueError, match="ext"):
        rig.harness.hooks.on("before_run", lambda event: None, id="ext")
    off()
    off()
    rig.harness.hooks.on("before_run", lambda event: None, id="ext")


async def test_an_unknown_name_is_refused() -> None:
    rig, _ = await one_tool()
    with pytest.raises(ValueError, match="before_tools"):
        rig.harness.hooks.on("before_tools", lambda event: None)


# before_tool fails closed --------------------------------------------------------------------------------------------


def raises(event: BeforeTool) -> ToolDecision | None:
    raise RuntimeError("policy server down")


async def raises_later(event: BeforeTool) -> ToolDecision | None:
    await asyncio.sleep(0)
    raise RuntimeError("policy server down")


async def cancels_itself(event: BeforeTool) -> ToolDecision | None:
    raise asyncio.CancelledError


async def awaits_a_cancelled_task(event: BeforeTool) -> ToolDecision | None:
    task = asyncio.ensure_future(asyncio.sleep(0))
    task.cancel()
    await task
    return None


def answers_nonsense(event: BeforeTool) -> Any:
    return True


def answers_bad_arguments(event: BeforeTool) -> ToolDecision:
    return ToolDecision(args={"n": float("nan")})


def answers_no_object(event: BeforeTool) -> ToolDecision:
    return ToolDecision(args=["bed"])


def blocks_without_a_reason(event: BeforeTool) -> ToolDecision:
    return ToolDecision(block="")


POLICIES = [
    (raises, 1),
    (raises_later, 1),
    (cancels_itself, 1),
    (awaits_a_cancelled_task, 1),
    (answers_nonsense, 1),
    # These decided, if badly: the call's result says why it was refused.
    (answers_bad_arguments, 0),
    (answers_no_object, 0),
    (blocks_without_a_reason, 0),
]


@pytest.mark.parametrize(("policy", "failures"), POLICIES)
async def test_a_policy_that_does_not_say_yes_blocks_the_call(policy: Callable[..., Any], failures: int) -> None:
    rig, tools = await one_tool(("before_tool", policy))
    reports: list[Any] = []
    rig.harness.events.on("handler_error", reports.append)
    await finished(rig)
    await turns()
    assert [(report.kind, report.name) for report in reports] == [("hook", "before_tool")] * failures
    assert tools.made == []
    assert await rig.session.find_records(type="tool_started") == []
    assert results_of(await rig.session.get_log())["c1"].is_error


class Interrupt(BaseException):
    """Like KeyboardInterrupt: no failure of the policy, and nothing that a harness may answer."""


async def interrupts(event: BeforeTool) -> ToolDecision | None:
    raise Interrupt


async def test_a_policy_that_is_interrupted_stops_the_harness_and_executes_nothing(repo: SessionRepo) -> None:
    """Case 61: it goes on to whoever waits, as a cancellation does; the run stays as it was, and can be resumed."""
    tools = Calls()
    session = await repo.create()
    rig = await open_rig(session, answer(calls=calls(1)), tools=[tools.tool()])
    rig.harness.hooks.on("before_tool", interrupts)
    with pytest.raises(HarnessFault) as stopped:
        await rig.harness.prompt("go")
    assert isinstance(stopped.value.__cause__, Interrupt)
    await rig.harness.close()

    session = await repo.open(session.id)
    assert await session.find_records(type="tool_started") == []
    again = await open_rig(session, "done", tools=[tools.tool()])
    assert tools.made == []
    again.harness.hooks.on("before_tool", lambda event: ToolDecision(block="no"))
    assert (await again.harness.resume()).unwrap().kind == "completed"
    assert tools.made == []
    assert said(results_of(await session.get_log())["c1"]) == "no"


async def test_a_policy_that_hangs_is_cut_off_and_blocks() -> None:
    rig, tools = await one_tool()

    async def hang(event: BeforeTool) -> ToolDecision | None:
        await asyncio.Event().wait()
        return None

    rig.harness.hooks.on("before_tool", hang, timeout_ms=1)
    await finished(rig)
    assert tools.made == []
    assert await rig.session.find_records(type="tool_started") == []


async def test_a_closed_harness_does_not_execute_what_its_policy_was_asked_about() -> None:
    rig, tools = await one_tool()
    asked = asyncio.Event()

    async def hang(event: BeforeTool) -> ToolDecision | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    rig.harness.hooks.on("before_tool", hang)
    work = await start(rig.harness.prompt("go"))
    await asked.wait()
    await rig.harness.close()
    await asyncio.wait({work})
    assert tools.made == []


async def test_a_failing_policy_is_reported_and_ends_the_chain() -> None:
    after: list[str] = []
    rig, tools = await one_tool(("before_tool", raises), ("before_tool", lambda event: after.append("asked")))
    reports: list[Any] = []
    rig.harness.events.on("handler_error", reports.append)
    await finished(rig)
    await turns()
    assert [(r.kind, r.name, r.error) for r in reports] == [("hook", "before_tool", "RuntimeError")]
    assert (after, tools.made) == ([], [])


async def test_arguments_pass_through_the_handlers_and_are_what_is_recorded_and_executed() -> None:
    seen: list[Any] = []
    used: list[Any] = []

    def add(key: str) -> Callable[[BeforeTool], ToolDecision]:
        return lambda event: ToolDecision(args={**event.args, key: 1})

    rig, _ = await one_tool(
        ("before_tool", add("a")),
        ("before_tool", lambda event: seen.append(dict(event.args))),
        ("before_tool", add("b")),
        validate=lambda args: used.append(dict(args)) or args,
    )
    await finished(rig)
    assert seen == [{"bed": 1, "a": 1}]
    started = await rig.session.find_records(type="tool_started")
    assert started[0].body.effective_args == {"bed": 1, "a": 1, "b": 1}
    assert used == [{"bed": 1}, {"bed": 1, "a": 1, "b": 1}]  # what the model sent, and what replaced it


async def test_replaced_arguments_are_validated_again() -> None:
    def check(args: dict[str, Any]) -> dict[str, Any]:
        if args["bed"] > 3:
            raise ValueError("there is no such bed")
        return args

    rig, tools = await one_tool(("before_tool", lambda event: ToolDecision(args={"bed": 9})), validate=check)
    await finished(rig)
    assert tools.made == []
    assert "no such bed" in said(results_of(await rig.session.get_log())["c1"])


async def test_a_handler_that_changes_its_event_in_place_changes_nothing_it_did_not_return() -> None:
    nested = [replace(calls(1)[0], arguments={"deep": {"x": 1}})]
    rig = await open_rig(await MemorySessionRepo().create(), answer(calls=nested), "done", tools=[Calls().tool()])

    def spoil(event: BeforeTool) -> None:
        deep = event.args["deep"]
        assert isinstance(deep, dict)
        deep["x"] = 2

    rig.harness.hooks.on("before_tool", spoil)
    await finished(rig)
    entries = await rig.session.find_entries(type="message", order="oldestFirst")
    assert entries[1].message.tool_calls[0].arguments == {"deep": {"x": 1}}


# Transformations -----------------------------------------------------------------------------------------------------


async def test_patches_of_a_result_merge_field_by_field_and_are_seen_by_the_next() -> None:
    seen: list[AfterTool] = []
    usage = Usage(input=1, output=1, total_tokens=2)
    rig, _ = await one_tool(
        ("after_tool", lambda event: ToolResultPatch(content=(TextContent(text="one"),), details={"a": 1})),
        ("after_tool", seen.append),
        ("after_tool", lambda event: ToolResultPatch(is_error=True, usage=usage, terminate=True)),
    )
    await finished(rig)
    assert (seen[0].content, seen[0].details, seen[0].is_error) == ((TextContent(text="one"),), {"a": 1}, False)
    result = results_of(await rig.session.get_log())["c1"]
    assert (said(result), result.details, result.is_error, result.usage) == ("one", {"a": 1}, True, usage)
    assert len(rig.provider.requests) == 1  # terminate


BAD_PATCHES = [
    ToolResultPatch(content=(TextContent(text="\ud800"),)),
    ToolResultPatch(content="text"),
    ToolResultPatch(content=(5,)),
    ToolResultPatch(details=object()),
    ToolResultPatch(details=2**70),
    ToolResultPatch(is_error="no"),
    ToolResultPatch(terminate="yes"),
    ToolResultPatch(usage=Usage(input=float("inf"))),
    "not a patch",
]


@pytest.mark.parametrize("patch", BAD_PATCHES, ids=range(len(BAD_PATCHES)))
async def test_a_patch_that_cannot_be_stored_is_the_handlers_error_and_not_the_harness_fault(patch: Any) -> None:
    rig, _ = await one_tool(("after_tool", lambda event: patch))
    reports: list[Any] = []
    rig.harness.events.on("handler_error", reports.append)
    await finished(rig)
    await turns()
    assert said(results_of(await rig.session.get_log())["c1"]) == "real c1"
    assert [report.name for report in reports] == ["after_tool"]


BAD_RETURNS: list[tuple[str, Any]] = [
    ("after_response", AfterResponseResult(message=answer("\ud800"))),
    ("after_response", AfterResponseResult(message=user("x"))),
    ("after_response", "x"),
    ("before_run_end", BeforeRunEndResult(follow_up="\ud800")),
    ("before_run_end", BeforeRunEndResult(follow_up=5)),
    ("before_request", 5),
    ("before_payload", 5),
    ("transform_context", [user("x")]),
]


@pytest.mark.parametrize(("name", "result"), BAD_RETURNS, ids=range(len(BAD_RETURNS)))
async def test_what_a_handler_may_not_return_is_skipped_and_reported(name: str, result: Any) -> None:
    rig, tools = await one_tool((name, lambda event: result))
    reports: list[Any] = []
    rig.harness.events.on("handler_error", reports.append)
    await finished(rig)
    await turns()
    assert {report.name for report in reports} == {name}
    assert tools.made == ["c1"]


@pytest.mark.parametrize(
    "name", ["transform_context", "before_request", "before_payload", "after_response", "after_tool", "before_run_end"]
)
@pytest.mark.parametrize("error", [RuntimeError("no"), asyncio.CancelledError()], ids=["raises", "cancels"])
async def test_a_failing_handler_is_skipped_and_the_next_one_runs(name: str, error: BaseException) -> None:
    ran: list[str] = []

    async def fail(event: object) -> None:
        raise error

    rig, tools = await one_tool((name, fail), (name, lambda event: ran.append(name)))
    await finished(rig)
    assert ran
    assert tools.made == ["c1"]


async def test_requests_are_shaped_in_registration_order_and_the_session_is_not() -> None:
    def say(text: str) -> Callable[[Any], TransformContextResult]:
        return lambda event: TransformContextResult(messages=(*event.messages, user(text)))

    rig, _ = await one_tool(
        ("transform_context", say("one")),
        ("transform_context", say("two")),
        ("before_request", lambda event: BeforeRequestResult(stream_options=StreamOptions(max_tokens=5))),
        ("before_request", lambda event: BeforeRequestResult(stream_options=StreamOptions(temperature=0.5))),
    )
    await finished(rig)
    first = rig.provider.requests[0]
    assert [m.content for m in first.context.messages if isinstance(m, UserMessage)] == ["go", "one", "two"]
    assert (first.options.max_tokens, first.options.temperature) == (5, 0.5)
    entries = await rig.session.find_entries(type="message")
    assert [e.message.content for e in entries if isinstance(e.message, UserMessage)] == ["go"]


async def test_payload_and_response_pass_through_every_handler() -> None:
    payloads: list[Any] = []
    rig, _ = await one_tool(
        ("before_payload", lambda event: BeforePayloadResult(payload={"replaced": True})),
        ("before_payload", lambda event: payloads.append(event.payload)),
        ("after_response", lambda event: AfterResponseResult(message=replace(event.message, response_id="r1"))),
    )
    await finished(rig)
    assert payloads[0] == {"replaced": True}
    entries = await rig.session.find_entries(type="message", order="oldestFirst")
    assert entries[1].message.response_id == "r1"


async def test_follow_ups_of_all_handlers_continue_the_run_in_order() -> None:
    rig = await open_rig(await MemorySessionRepo().create(), "a", "b", "c")
    asked: list[int] = []

    def once(text: str) -> Callable[[Any], BeforeRunEndResult | None]:
        def handler(event: Any) -> BeforeRunEndResult | None:
            asked.append(len(event.messages))
            return BeforeRunEndResult(follow_up=text) if len(event.messages) == 2 else None

        return handler

    rig.harness.hooks.on("before_run_end", once("one"))
    rig.harness.hooks.on("before_run_end", once("two"))
    await finished(rig)
    entries = await rig.session.find_entries(type="message", order="oldestFirst")
    assert [e.message.content for e in entries if isinstance(e.message, UserMessage)] == ["go", "one", "two"]


# Runs and resumes ----------------------------------------------------------------------------------------------------


async def test_before_run_injects_overrides_and_keeps_data_under_its_own_id(repo: SessionRepo) -> None:
    session = await repo.create()
    rig = await open_rig(session, "done", system_prompt="from the options", drive="manual")
    prompts: list[str] = []

    def first(event: BeforeRun) -> BeforeRunResult:
        prompts.append(event.system_prompt)
        return BeforeRunResult(messages=(user("one"),), system_prompt="from a hook", resume_data={"n": 1})

    def second(event: BeforeRun) -> BeforeRunResult:
        prompts.append(event.system_prompt)
        return BeforeRunResult(messages=(user("two"),), resume_data=[2])

    rig.harness.hooks.on("before_run", first, id="ext.one")
    rig.harness.hooks.on("before_run", second, id="ext.two")
    rig.harness.hooks.on("before_run", lambda event: None, id="ext.silent")
    work = await start(rig.harness.prompt("go"))
    await rig.harness.peek_action()
    await rig.harness.close()
    await asyncio.wait({work})
    assert prompts == ["from the options", "from a hook"]

    session = await repo.open(session.id)
    again = await open_rig(session, "done", system_prompt="changed")
    seen: dict[str, BeforeResume] = {}
    for name in ("ext.two", "ext.one", "ext.silent", "ext.new"):
        again.harness.hooks.on("before_resume", lambda event, name=name: seen.update({name: event}), id=name)
    assert (await again.harness.resume()).unwrap().kind == "completed"
    assert {name: event.resume_data for name, event in seen.items()} == {
        "ext.one": {"n": 1},
        "ext.two": [2],
        "ext.silent": None,
        "ext.new": None,
    }
    assert [str(m.content) for m in seen["ext.one"].prompt] == ["go"]
    request = again.provider.requests[0]
    assert request.context.system_prompt == "from a hook"
    assert [m.content for m in request.context.messages] == ["go", "one", "two"]


async def test_a_failing_before_resume_is_skipped_and_before_run_does_not_run_again(repo: SessionRepo) -> None:
    session = await repo.create()
    await Prefix(session).start()
    rig = await open_rig(session, "done")
    ran: list[str] = []

    def fail(event: BeforeResume) -> None:
        raise RuntimeError("cannot rebuild")

    rig.harness.hooks.on("before_run", lambda event: ran.append("before_run"), id="a")
    rig.harness.hooks.on("before_resume", fail, id="a")
    rig.harness.hooks.on("before_resume", lambda event: ran.append("before_resume"), id="b")
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert ran == ["before_resume"]


async def test_a_prompt_whose_injected_messages_cannot_be_stored_is_refused(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(), "done")
    off = rig.harness.hooks.on("before_run", lambda event: BeforeRunResult(messages=(user("\ud800"),)), id="bad")
    refused = await rig.harness.prompt("go")
    assert type(refused.error).__name__ == "InvalidMessage"
    assert await rig.session.get_log() == []
    off()
    assert (await rig.harness.prompt("go")).ok


async def test_results_of_synthetic_calls_are_not_offered_to_after_tool(repo: SessionRepo) -> None:
    session = await repo.create()
    prefix = Prefix(session)
    await prefix.batch(2)
    await prefix.tool_started(1)
    await prefix.tool_settled(1, real("settled"))
    await prefix.tool_started(2)
    rig = await open_rig(session, "done", tools=[Calls().tool()])
    seen: list[str] = []
    rig.harness.hooks.on("after_tool", lambda event: seen.append(event.tool_call_id))
    assert (await rig.harness.resume()).unwrap().kind == "completed"
    assert seen == ["c1"]
