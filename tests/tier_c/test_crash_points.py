"""Every crash site of the run traces, derived by driving and copying, resumed, and crashed again in its recovery."""

from pathlib import Path

from agent_harness.session.session import Session
from agent_harness.session.storage import EntryItem, RecordItem
from agent_harness.testing import CrashPoint, Scenario, crash_points
from agent_harness.types.messages import AssistantMessage, ToolResultMessage
from agent_harness.types.usage import sum_usage
from tests.support.backends import make_repo
from tests.support.scenarios import (
    BLOCKED,
    ONE_TOOL_NEVER,
    ONE_TOOL_SAFE,
    RETRY,
    TERMINAL_FAILURE,
    text_of,
)


async def transcript(session: Session) -> list[str]:
    """Roles with stop reasons, in path order."""
    lines = []
    for entry in await session.find_entries_on_branch(order="oldestFirst"):
        message = entry.message
        assert message is not None
        lines.append(f"{message.role} {message.stop_reason}" if isinstance(message, AssistantMessage) else message.role)
    return lines


async def assert_sound(point: CrashPoint) -> None:
    """What holds after every recovery, whatever the scenario."""
    session = point.session
    assert await session.verify() == [], point.label
    log = await session.get_log()
    started = [i.record.id for i in log if isinstance(i, RecordItem) and i.record.type == "operation_started"]
    finished = [i.record.run_id for i in log if isinstance(i, RecordItem) and i.record.type == "operation_finished"]
    assert finished == started, point.label
    entries = [i.entry for i in log if isinstance(i, EntryItem)]
    results = [e.message.tool_call_id for e in entries if isinstance(e.message, ToolResultMessage)]
    calls = [c.id for e in entries if isinstance(e.message, AssistantMessage) for c in e.message.tool_calls]
    assert results == calls, point.label
    ledger = sum_usage(i.record.body.usage for i in log if isinstance(i, RecordItem) and i.record.body.type == "usage")
    assert (await session.get_stats()).usage == ledger, point.label


async def recovered(scenario: Scenario, backend: str, tmp_path: Path):
    """Each crash point, resumed; the two without an accepted run are yielded with nothing written."""
    seen = 0
    async for point in crash_points(scenario, lambda path: make_repo(backend, path), tmp_path):
        await point.recover()
        await assert_sound(point)
        seen += 1
        if (await point.session.find_records(type="operation_started")) == []:
            assert point.label.startswith("0 before acceptance")
            assert await point.session.get_log() == []
            continue
        yield point
    assert seen > 20, f"only {seen} crash points were derived"


async def test_a_tool_that_must_not_run_twice_never_does(backend: str, tmp_path: Path) -> None:
    interrupted = 0
    async for point in recovered(ONE_TOOL_NEVER, backend, tmp_path):
        assert await transcript(point.session) == ["user", "assistant toolUse", "toolResult", "assistant stop"]
        results = [e.message for e in await point.session.find_entries() if isinstance(e.message, ToolResultMessage)]
        runs = point.world.count("measure")
        assert runs <= 1, point.label
        if results[0].is_error:
            interrupted += 1
            assert "interrupted" in text_of(results[0]), point.label
        else:
            assert runs == 1, point.label
    assert interrupted > 0


async def test_a_safe_tool_always_ends_with_its_real_result(backend: str, tmp_path: Path) -> None:
    repeated = 0
    async for point in recovered(ONE_TOOL_SAFE, backend, tmp_path):
        assert await transcript(point.session) == ["user", "assistant toolUse", "toolResult", "assistant stop"]
        results = [e.message for e in await point.session.find_entries() if isinstance(e.message, ToolResultMessage)]
        assert not results[0].is_error, point.label
        assert text_of(results[0]) == "ok"
        runs = point.world.count("measure")
        assert 1 <= runs <= 1 + point.depth, point.label
        repeated += runs > 1
    assert repeated > 0


async def test_retries_count_through_crashes(backend: str, tmp_path: Path) -> None:
    async for point in recovered(RETRY, backend, tmp_path):
        attempts = [r.body.attempt for r in await point.session.find_records(type="step_attempt", order="oldestFirst")]
        assert attempts == list(range(1, len(attempts) + 1)), point.label
        # A crash can lose an answer that was given, never the count: each crash costs at most one attempt more.
        assert 3 <= len(attempts) <= 3 + point.depth, point.label
        assert await transcript(point.session) == ["user", "assistant stop"]


async def test_exhausted_retries_fail_durably_and_never_complete(backend: str, tmp_path: Path) -> None:
    async for point in recovered(TERMINAL_FAILURE, backend, tmp_path):
        attempts = await point.session.find_records(type="step_attempt")
        assert len(attempts) == 3, point.label
        assert await transcript(point.session) == ["user", "assistant error"]
        finished = await point.session.find_records(type="operation_finished")
        assert [record.body.outcome for record in finished] == ["failed"], point.label


async def test_a_blocked_call_starts_nothing(backend: str, tmp_path: Path) -> None:
    async for point in recovered(BLOCKED, backend, tmp_path):
        assert await transcript(point.session) == ["user", "assistant toolUse", "toolResult", "assistant stop"]
        assert await point.session.find_records(type="tool_started") == []
        assert point.world.count("water") == 0
