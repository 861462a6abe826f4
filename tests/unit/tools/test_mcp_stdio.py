"""Stdio MCP servers that misbehave, as real processes: a call ends within its deadline, whatever they do (T13, T27)."""

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agent_harness import AgentHarness, AgentTool, AgentToolResult, ToolInvocation, ToolResultMessage
from agent_harness.abort_signal import AbortSignal
from agent_harness.loop.tools import execute_tool_call
from agent_harness.testing import SCRIPTED_MODEL, answer, call, scripted_models
from agent_harness.tools.mcp import McpServers, McpUnavailable, StdioServer
from agent_harness.tools.mcp_connection import Connection, McpError
from agent_harness.types.messages import ImageContent, TextContent, ToolCall
from agent_harness.types.tools import PreparedToolCall
from session_backends import MemorySessionRepo

SERVER = Path(__file__).with_name("mcp_fake_server.py")


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    yield
    gc.collect()  # an unclosed stream or transport warns here, and a warning fails the test


def fake(start: str = "good", log: Path | None = None, **options: Any) -> StdioServer:
    args = [str(SERVER), start, *([str(log)] if log else [])]
    return StdioServer(**{"name": "fake", "command": sys.executable, "args": args, "call_timeout_s": 5.0, **options})


@asynccontextmanager
async def connected(server: StdioServer) -> AsyncIterator[Connection]:
    connection = Connection(server)
    try:
        yield connection
    finally:
        await connection.close()


async def text(connection: Connection, tool: str, **args: Any) -> str:
    result = await connection.call(tool, args)
    return "".join(part.text for part in result.content if part.type == "text")


async def used(tools: list[AgentTool], name: str, args: dict[str, Any] | None = None) -> tuple[bool, AgentToolResult]:
    tool = next(tool for tool in tools if tool.name == name)
    prepared = PreparedToolCall(
        tool_call=ToolCall(id="c", name=name, arguments=args or {}), tool_index=0, tool=tool, args=args or {}
    )
    done = await execute_tool_call(prepared, AbortSignal())
    return done.is_error, done.result


def said(result: AgentToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))


async def gone(pid: int) -> bool:
    """Whether the process ends soon; a zombie counts."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        await asyncio.sleep(0.02)
    return False


async def test_tools_of_a_server_are_tools_of_an_agent() -> None:
    session = await MemorySessionRepo().create()
    models = scripted_models(answer(calls=[call("fake__echo", {"a": 1})]), "Done.")
    servers = McpServers([fake()])
    created = await AgentHarness.create(session=session, models=models, model=SCRIPTED_MODEL, extensions=[servers])
    outcome = (await created.harness.prompt("go")).unwrap()
    assert outcome.kind == "completed"
    results = [e.message for e in await session.find_entries() if isinstance(e.message, ToolResultMessage)]
    assert [(r.is_error, said_by(r)) for r in results] == [(False, '{"a": 1}')]
    assert results[0].details == {"server": "fake", "tool": "echo"}
    pid = int(said((await used(servers.tools, "fake__pid"))[1]))
    await created.harness.close()
    assert await gone(pid)


def said_by(message: ToolResultMessage) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextContent))


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("slow", "at last"),
        ("utf8", "after invalid bytes"),
        ("garbage", "after garbage"),
        ("twice", "first"),
        ("flood", "after the flood"),
    ],
)
async def test_what_is_no_message_is_passed_over_and_the_answer_still_arrives(tool: str, expected: str) -> None:
    async with connected(fake()) as connection:
        assert await text(connection, tool) == expected
        assert await text(connection, "echo", n=1) == '{"n": 1}'


@pytest.mark.parametrize("tool", ["never", "partial", "late", "wrong_id", "endless", "deaf", "nan"])
async def test_a_call_without_an_answer_is_given_up_at_its_deadline(tool: str) -> None:
    async with connected(fake(call_timeout_s=0.4)) as connection:
        await connection.list_tools()
        began = monotonic()
        with pytest.raises(McpUnavailable, match=r"took longer than 0\.4 s"):
            await connection.call(tool, {})
        assert monotonic() - began < 2


async def test_an_answer_after_the_deadline_is_nobodys() -> None:
    async with connected(fake(call_timeout_s=0.3)) as connection:
        await connection.list_tools()
        with pytest.raises(McpUnavailable):
            await connection.call("late", {})
        for _ in range(100):  # the late answer is on its way while these are asked
            try:
                assert await text(connection, "echo", n=2) == '{"n": 2}'
                return
            except McpUnavailable:
                continue
        raise AssertionError("the server never came back")


@pytest.mark.parametrize("tool", ["exit", "half_exit", "huge"])
async def test_a_server_that_dies_in_a_call_gives_an_error_and_the_next_call_a_new_server(
    tool: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with connected(fake(log=log, call_timeout_s=20.0, max_message_bytes=1_000_000)) as connection:
        began = monotonic()
        with pytest.raises(McpUnavailable, match="the connection closed during the call"):
            await connection.call(tool, {})
        assert monotonic() - began < 10
        assert await text(connection, "echo", n=3) == '{"n": 3}'
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["started", "call", "started", "call"]
    assert lines.count(f"call {tool}") == 1  # nothing is asked twice


async def test_a_server_that_died_between_two_calls_is_started_again_unseen(tmp_path: Path) -> None:
    async with connected(fake()) as connection:
        pid = int(await text(connection, "pid"))
        os.kill(pid, 9)
        assert await gone(pid)
        again = 0
        while again in (0, pid):
            try:
                again = int(await text(connection, "pid"))
            except McpUnavailable as error:  # the end may be noticed while the call is under way
                assert "connection closed" in str(error)
        assert again != pid


async def test_calls_at_the_same_time_share_one_server_and_none_waits_for_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with connected(fake(log=log, call_timeout_s=2.0)) as connection:
        results = await asyncio.gather(
            text(connection, "never"), *(text(connection, "echo", n=n) for n in range(20)), return_exceptions=True
        )
    assert isinstance(results[0], McpUnavailable)
    assert results[1:] == [json.dumps({"n": n}) for n in range(20)]
    assert log.read_text().count("started") == 1


@pytest.mark.parametrize(("start", "reason"), [("mute", "did not start within"), ("dies", "could not be started")])
async def test_a_server_that_does_not_start_is_an_error_within_the_start_deadline(start: str, reason: str) -> None:
    began = monotonic()
    async with connected(fake(start, start_timeout_s=1.0)) as connection:
        with pytest.raises(McpUnavailable, match=reason):
            await connection.call("echo", {})
        assert monotonic() - began < 3


async def test_a_command_that_does_not_exist_is_an_error() -> None:
    async with connected(StdioServer(name="none", command="/does/not/exist")) as connection:
        with pytest.raises(McpUnavailable, match="could not be started: FileNotFoundError"):
            await connection.list_tools()


@pytest.mark.parametrize(
    ("tool", "expected"),
    [("refuses", "refused: wrong arguments"), ("shape", "does not follow the protocol")],
)
async def test_a_refusal_and_a_malformed_answer_are_errors_of_that_call_alone(tool: str, expected: str) -> None:
    async with connected(fake()) as connection:
        with pytest.raises(McpError, match=expected):
            await connection.call(tool, {})
        assert await text(connection, "echo") == "{}"


async def test_a_servers_own_error_keeps_its_text_and_is_an_error_result() -> None:
    async with McpServers([fake()]) as servers:
        assert [(e, said(r)) for e, r in [await used(servers.tools, "fake__fails")]] == [(True, "no such file")]


async def test_a_dead_server_gives_an_error_result_and_not_a_hang() -> None:
    async with McpServers([fake()]) as servers:
        is_error, result = await used(servers.tools, "fake__exit")
    assert is_error
    assert "the connection closed during the call of 'exit'" in said(result)


async def test_images_pass_within_a_budget_and_what_is_left_out_is_said() -> None:
    async with McpServers([fake()]) as servers:
        _, result = await used(servers.tools, "fake__image")
    assert [part.data for part in result.content if isinstance(part, ImageContent)] == ["iVBORw0KGgo="]
    assert said(result).splitlines() == [
        "[image left out: image/png, 6000000 characters of base64]",
        "[audio left out: audio/wav, 4 characters of base64]",
    ]


async def test_a_server_sees_no_variable_that_was_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "CANARY-1")
    monkeypatch.setenv("SOME_TOKEN", "CANARY-2")
    monkeypatch.setenv("WANTED", "given")
    async with connected(fake(env={"OWN": "set"}, inherit_env=["WANTED", "ABSENT"])) as connection:
        seen = json.loads(await text(connection, "env"))
    assert "CANARY" not in json.dumps(seen)
    assert (seen["WANTED"], seen["OWN"], seen["PATH"]) == ("given", "set", os.environ["PATH"])
    assert "CANARY" not in repr(fake(env={"KEY": "CANARY-3"}))


async def test_closing_ends_the_server_and_everything_it_started_even_if_it_refuses() -> None:
    connection = Connection(fake("stubborn"))
    child, pid = int(await text(connection, "child")), int(await text(connection, "pid"))
    began = monotonic()
    await connection.close()
    assert monotonic() - began < 5
    assert await gone(pid)
    assert await gone(child)
    await connection.close()
    with pytest.raises(McpUnavailable, match="was closed"):
        await connection.call("echo", {})


@pytest.mark.parametrize("moment", ["before", "while starting", "in a call"])
async def test_a_connection_is_closed_from_any_task_at_any_moment(moment: str) -> None:
    connection = Connection(fake("mute" if moment == "while starting" else "good"))
    if moment == "in a call":
        await connection.list_tools()
    waiting = None if moment == "before" else asyncio.create_task(connection.call("never", {}))
    for _ in range(5):
        await asyncio.sleep(0)
    began = monotonic()
    await asyncio.create_task(connection.close())
    assert monotonic() - began < 5
    if waiting is not None:
        with pytest.raises(McpUnavailable):
            await waiting
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_a_cancelled_caller_leaves_the_connection_to_others() -> None:
    async with connected(fake()) as connection:
        await connection.list_tools()
        waiting = asyncio.create_task(connection.call("never", {}))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await text(connection, "echo") == "{}"


async def test_a_deaf_server_is_given_up_when_too_much_waits_for_it() -> None:
    async with connected(fake(call_timeout_s=10.0)) as connection:
        with pytest.raises(McpUnavailable):
            await asyncio.gather(connection.call("deaf", {}), connection.call("echo", {"text": "x" * 20_000_000}))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never happened")


async def test_tools_that_a_server_adds_later_are_offered_and_others_tools_stay() -> None:
    async def own(_: ToolInvocation) -> AgentToolResult:
        return AgentToolResult()

    tools = [
        AgentTool(name="own", description="", parameters={"type": "object"}, execute=own),
        AgentTool(name="fake__slow", description="mine", parameters={"type": "object"}, execute=own),
    ]
    servers = McpServers([fake(), fake(name="second")])
    created = await AgentHarness.create(
        session=await MemorySessionRepo().create(),
        models=scripted_models("Hi."),
        model=SCRIPTED_MODEL,
        tools=tools,
        extensions=[servers],
    )
    async with created.harness as harness:
        before = [tool.name for tool in await harness.get_tools()]
        assert before[:2] == ["own", "fake__slow"]
        assert "second__slow" in before
        assert [(one.server, one.tool, one.reason) for one in servers.left_out] == [
            ("fake", "fake__slow", "the name is taken")
        ]
        await used(servers.tools, "fake__changed")
        await until(lambda: "fake__added" in [tool.name for tool in servers.tools])
        await until(lambda: "fake__added" in [*harness._env.tools])
        after = [tool.name for tool in await harness.get_tools()]
        assert sorted(after) == sorted([*before, "fake__added"])
        mine = next(tool for tool in await harness.get_tools() if tool.name == "fake__slow")
        assert mine.description == "mine"


async def test_a_server_that_must_start_and_does_not_refuses_the_setup_and_an_optional_one_is_told() -> None:
    broken = fake("dies", name="broken")
    with pytest.raises(McpUnavailable, match="'broken' could not be started"):
        async with McpServers([fake(), broken]):
            raise AssertionError("it was set up")
    async with McpServers([fake(), fake("dies", name="broken", optional=True)]) as servers:
        assert list(servers.unavailable) == ["broken"]
        assert {tool.name.partition("__")[0] for tool in servers.tools} == {"fake"}
