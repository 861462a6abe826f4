"""Live execution writes exactly the traces of harness-v2 §6, letter by letter."""

from collections.abc import Callable

import pytest

from agent_harness import AgentHarness, AgentTool, AgentToolResult, Ok, RetryPolicy, TextContent, ToolInvocation
from agent_harness.hooks.catalog import BeforeRun, BeforeRunResult, BeforeTool, ToolDecision
from agent_harness.outcomes import RunCompleted, RunFailed
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import (
    SCRIPTED_MODEL,
    ManualClock,
    ScriptedProvider,
    Trace,
    answer,
    call,
    log_lines,
    start,
)
from agent_harness.types.codec import dump
from agent_harness.types.messages import AssistantMessage, Usage
from session_backends.faults import Faults, FaultyRepo
from tests.support.backends import make_repo

OVERLOADED = answer(error_message="overloaded", error_code="overloaded")


def echo(name: str, *, terminate: bool = False, usage: Usage | None = None) -> AgentTool:
    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        return AgentToolResult(content=(TextContent(text=name),), terminate=terminate or None, usage=usage)

    return AgentTool(name=name, description=name, parameters={"type": "object"}, execute=execute)


async def open_harness(repo: SessionRepo, *answers: AssistantMessage, **options: object):
    session = await repo.create(id="trace")
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([ScriptedProvider(answers=answers)], [SCRIPTED_MODEL]),
        model=SCRIPTED_MODEL,
        tools=[echo("measure"), echo("water"), echo("stop", terminate=True), echo("rest", terminate=True)],
        retry=RetryPolicy(max_attempts=3),
        clock=ManualClock(),
        **options,
    )
    return session, created.harness


async def test_run_with_one_tool_call(repo: SessionRepo) -> None:
    session, harness = await open_harness(repo, answer("Working.", calls=[call("measure")]), answer("Done."))
    trace = Trace(session)
    trace.watch(harness, "before_run", "before_tool", "after_tool", "before_run_end")
    result = await harness.prompt("Fix the bug.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunCompleted)
    assert await trace.lines() == [
        "H before_run",
        "R operation_started",
        "E user",
        "R step_attempt",
        "E assistant toolUse",
        "H before_tool",
        "R tool_started",
        "R tool_settled",  # an after_tool handler stands between the effect and its entry
        "H after_tool",
        "E toolResult",
        "R step_attempt",
        "E assistant stop",
        "H before_run_end",
        "R operation_finished",
    ]
    await harness.close()


async def test_without_handlers_no_hook_letter_and_at_most_twelve_writes(repo: SessionRepo) -> None:
    faults = Faults()  # none is due: it counts
    counted = FaultyRepo(repo, faults)
    session, harness = await open_harness(counted, answer("Working.", calls=[call("measure")]), answer("Done."))
    await harness.prompt("Fix the bug.")
    assert log_lines(await session.get_log(), usage=True) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R usage",
        "E assistant toolUse",
        "R tool_started",
        "E toolResult",
        "R step_attempt",
        "R usage",
        "E assistant stop",
        "R operation_finished",
    ]
    assert faults.writes == 11  # each line by one write; the limit is twelve
    await harness.close()


async def test_retry(repo: SessionRepo) -> None:
    session, harness = await open_harness(repo, OVERLOADED, answer("At last."))
    await harness.prompt("Try.")
    assert log_lines(await session.get_log(), usage=True) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R usage",  # the failed attempt's cost, never lost
        "R step_attempt",
        "R usage",
        "E assistant stop",
        "R operation_finished",
    ]
    await harness.close()


async def test_terminal_failure(repo: SessionRepo) -> None:
    session, harness = await open_harness(repo, OVERLOADED, OVERLOADED, OVERLOADED)
    result = await harness.prompt("Try.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert log_lines(await session.get_log()) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "R step_attempt",
        "R step_attempt",
        "E assistant error",
        "R operation_finished",
    ]
    await harness.close()


async def test_a_non_retryable_error_ends_at_once(repo: SessionRepo) -> None:
    session, harness = await open_harness(repo, answer(error_message="bad key", error_code="auth"))
    result = await harness.prompt("Try.")
    assert isinstance(result, Ok)
    assert isinstance(result.value, RunFailed)
    assert result.value.error.code == "auth"
    assert log_lines(await session.get_log())[-2:] == ["E assistant error", "R operation_finished"]
    await harness.close()


async def test_a_blocked_call_writes_no_tool_started(repo: SessionRepo) -> None:
    session, harness = await open_harness(repo, answer(calls=[call("water")]), answer("Not allowed, then."))

    def refuse(event: BeforeTool) -> ToolDecision:
        return ToolDecision(block="not allowed")

    harness.hooks.on("before_tool", refuse)
    await harness.prompt("Water it.")
    assert log_lines(await session.get_log()) == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "E assistant toolUse",
        "E toolResult",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]
    await harness.close()


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_a_batch_delivers_in_source_order(mode: str, repo: SessionRepo) -> None:
    calls = [call("measure", id="c1"), call("nope", id="c2"), call("water", id="c3")]
    session, harness = await open_harness(repo, answer(calls=calls), answer("Done."), tool_execution=mode)
    await harness.prompt("Do three.")
    started_then_results = ["R tool_started", "R tool_started", "E toolResult", "E toolResult", "E toolResult"]
    one_by_one = ["R tool_started", "E toolResult", "E toolResult", "R tool_started", "E toolResult"]
    lines = log_lines(await session.get_log())
    assert [line for line in lines if "tool" in line.lower() and "assistant" not in line] == (
        started_then_results if mode == "parallel" else one_by_one
    )
    results = [e.message.tool_call_id for e in await session.find_entries_on_branch(type="message", order="oldestFirst")
               if e.message is not None and e.message.role == "toolResult"]  # fmt: skip
    assert results == ["c1", "c2", "c3"]
    await harness.close()


async def test_a_truncated_batch_executes_nothing(repo: SessionRepo) -> None:
    cut = answer(calls=[call("measure", id="c1")], stop_reason="length", usage=Usage(output=8_000, total_tokens=8_000))
    session, harness = await open_harness(repo, cut, answer("Done."))
    await harness.prompt("Go.")
    assert await session.find_records(type="tool_started") == []
    assert log_lines(await session.get_log())[3:5] == ["E assistant length", "E toolResult"]
    await harness.close()


@pytest.mark.parametrize(
    ("names", "continues"), [(("stop", "rest"), False), (("stop", "measure"), True)], ids=["all", "not all"]
)
async def test_terminate_ends_continuation_only_if_every_result_has_it(
    names: tuple[str, ...], continues: bool, repo: SessionRepo
) -> None:
    calls = [call(name, id=name) for name in names]
    session, harness = await open_harness(repo, answer(calls=calls), answer("Went on."))
    await harness.prompt("Go.")
    lines = log_lines(await session.get_log())
    assert ("E assistant stop" in lines) is continues
    terminating = [e for e in await session.find_entries(type="message") if getattr(e.body, "terminate", None)]
    assert len(terminating) == sum(name != "measure" for name in names)
    await harness.close()


async def test_tool_usage_is_in_the_ledger_and_on_the_entry(repo: SessionRepo) -> None:
    session = await repo.create()
    used = Usage(input=7, output=3, total_tokens=10)
    async with AgentHarness.open(
        session=session,
        models=ModelRegistry([ScriptedProvider(answers=[answer(calls=[call("ask")]), answer("Done.")])], []),
        model=SCRIPTED_MODEL,
        tools=[echo("ask", usage=used)],
    ) as harness:
        totals: list[object] = []
        harness.events.on("usage", lambda event: totals.append(dump(event.totals)))
        await harness.prompt("Go.")
        await harness.events.flush()
        records = await session.find_records(type="usage", order="oldestFirst")
        assert [record.body.cause for record in records] == ["assistant", "tool", "assistant"]
        assert totals[-1] == dump((await session.get_stats()).usage)


Scripted = Callable[[], list[AssistantMessage]]
SCRIPTS: dict[str, Scripted] = {
    "one tool": lambda: [answer("Working.", calls=[call("measure")]), answer("Done.")],
    "retry": lambda: [OVERLOADED, OVERLOADED, answer("At last.")],
    "failure": lambda: [OVERLOADED, OVERLOADED, OVERLOADED],
    "batch": lambda: [answer(calls=[call("measure", id="c1"), call("water", id="c2")]), answer("Done.")],
    "unknown tool": lambda: [answer(calls=[call("nope")]), answer("Done.")],
}


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
async def test_automatic_and_manual_drive_write_identical_logs(script: str, backend: str, tmp_path) -> None:
    logs = []
    for drive in ("automatic", "manual"):
        folder = tmp_path / drive
        folder.mkdir()
        session, harness = await open_harness(make_repo(backend, folder), *SCRIPTS[script](), drive=drive)
        run = await start(harness.prompt("Go."))
        if drive == "manual":
            await harness.run_to_completion()
        outcome = await run
        logs.append((await session.get_log(), outcome))
        await harness.close()
    assert logs[0] == logs[1]


async def test_before_run_output_is_persisted_with_the_acceptance(repo: SessionRepo) -> None:
    session, harness = await open_harness(repo, answer("Done."))

    def prepare(event: BeforeRun) -> BeforeRunResult:
        assert event.system_prompt == ""
        return BeforeRunResult(system_prompt="Be brief.", resume_data={"version": 1})

    harness.hooks.on("before_run", prepare, id="extension.example")
    await harness.prompt("Go.")
    started = (await session.find_records(type="operation_started"))[0].body
    assert started.intent.system_prompt_override == "Be brief."
    assert started.intent.resume_data == {"extension.example": {"version": 1}}
    await harness.close()
