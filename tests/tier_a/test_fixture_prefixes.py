"""Every line prefix of the structural fixtures, as the original writer left it, is resumed to its end."""

from pathlib import Path

import pytest

from agent_harness import (
    AgentHarness,
    AgentTool,
    AgentToolResult,
    Model,
    ModelRegistry,
    Ok,
    TextContent,
    ToolInvocation,
)
from agent_harness.outcomes import RunCompleted
from agent_harness.testing import ManualClock, ScriptedProvider, ScriptedRequest, answer
from agent_harness.types.messages import AssistantMessage
from session_backends import JsonlSessionRepo

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v4"
NAMES = ("run-auto-compaction", "run-overflow", "manual-compaction", "navigation")
PREFIXES = [
    (name, lines) for name in NAMES for lines in range(1, (FIXTURES / f"{name}.jsonl").read_bytes().count(b"\n") + 1)
]
NOTHING_LEFT = ("manual-compaction", 10)  # a second compaction of nothing but a summary: we refuse to accept one
DEMO = Model(provider="demo", id="demo-1", api="scripted", context_window=100_000, max_tokens=8_000)


def respond(request: ScriptedRequest) -> AssistantMessage:
    summary = "You write summaries" in (request.context.system_prompt or "")
    return answer("Summary." if summary else "Done.")


async def measure(invocation: ToolInvocation) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text="1"),))


@pytest.mark.parametrize(("name", "lines"), PREFIXES)
async def test_each_prefix_of_the_original_writer_is_resumed_to_its_end(name: str, lines: int, tmp_path: Path) -> None:
    raw = (FIXTURES / f"{name}.jsonl").read_bytes().split(b"\n")[:lines]
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(b"\n".join(raw) + b"\n")
    session = await JsonlSessionRepo(tmp_path).open(str(path))
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([ScriptedProvider(respond=respond)], [DEMO]),
        model=DEMO,
        tools=[
            AgentTool(name="measure", description="", parameters={"type": "object"}, execute=measure, replay="safe")
        ],
        clock=ManualClock(),
    )
    before = len(await session.get_log())
    for suspended in created.suspended:
        result = await created.harness.resume()
        assert isinstance(result, Ok), suspended
        assert result.value.kind == ("failed" if (name, lines) == NOTHING_LEFT else "completed")
    if created.suspended == []:
        assert len(await session.get_log()) == before
    assert await session.find_open_operations("main") == []
    assert await session.verify() == []
    follow = await created.harness.prompt("And now?")
    assert isinstance(follow, Ok)
    assert isinstance(follow.value, RunCompleted)
    await created.harness.close()
