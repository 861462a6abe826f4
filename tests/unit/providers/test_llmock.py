"""Every adapter against llmock, a server that imitates the real ones and breaks them on demand."""

import pytest
from adapters import Adapter
from streaming import WEATHER, ask

from agent_harness.providers.arguments import INVALID_ARGUMENTS
from agent_harness.providers.base import is_retryable
from agent_harness.types.messages import ToolResultMessage, UserMessage
from conftest import Llmock


def url(adapter: Adapter, server: Llmock) -> str:
    return server.url + adapter.llmock_path


async def test_a_text_answer(adapter: Adapter, server: Llmock) -> None:
    server.script({"type": "reply", "text": "four words of text"})
    message = await ask(adapter, url(adapter, server))
    assert (message.text, message.stop_reason) == ("four words of text", "stop")
    assert message.usage.input > 0
    assert message.usage.output > 0


async def test_a_tool_round(adapter: Adapter, server: Llmock) -> None:
    prompt = UserMessage(content="What is the weather in Paris?", timestamp=1)
    server.script({"type": "reply", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]})
    asked = await ask(adapter, url(adapter, server), messages=[prompt], tools=[WEATHER])
    assert asked.stop_reason == "toolUse"
    (call,) = asked.tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    result = ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(),
        is_error=False,
        timestamp=2,
    )
    answer = await ask(adapter, url(adapter, server), messages=[prompt, asked, result], tools=[WEATHER])
    assert (answer.stop_reason, answer.tool_calls) == ("stop", ())
    assert answer.text


async def test_broken_tool_arguments_are_marked(adapter: Adapter, server: Llmock) -> None:
    server.script({"type": "tool_fault", "kind": "malformed_arguments"})
    message = await ask(adapter, url(adapter, server), tools=[WEATHER])
    assert message.stop_reason == "toolUse"
    assert [call.arguments for call in message.tool_calls] == [{}]
    if not adapter.args_are_text:  # llmock cannot break an object: it sends an empty one
        assert message.tool_calls[0].extra == {}
        return
    assert message.tool_calls[0].extra[INVALID_ARGUMENTS]


@pytest.mark.parametrize(
    ("kind", "codes"),
    [("truncate", {"stream_cut"}), ("disconnect", {"transport"}), ("malformed", {"transport"}), ("stall", {"timeout"})],
)
@pytest.mark.parametrize("tools", [False, True])
async def test_a_broken_stream_is_retryable_and_runs_no_call(
    adapter: Adapter, server: Llmock, kind: str, codes: set[str], *, tools: bool
) -> None:
    given = [WEATHER] if tools else []
    whole = tools and not adapter.args_are_text  # the first chunk holds the call and the end
    server.script({"type": "stream_fault", "kind": kind, "after_chunks": 0 if whole else 2, "stall_seconds": 3})
    message = await ask(adapter, url(adapter, server), tools=given, read_timeout_ms=500)
    assert (message.stop_reason, message.tool_calls) == ("error", ())
    assert message.error_code in codes
    assert is_retryable(message)


@pytest.mark.parametrize(("status", "code"), [(401, "auth"), (429, "rate_limit"), (503, "overloaded")])
async def test_an_error_is_one_attempt_with_its_code(adapter: Adapter, server: Llmock, status: int, code: str) -> None:
    server.script({"type": "fail", "status": status, "retry_after": 2, "times": None})
    message = await ask(adapter, url(adapter, server))
    assert (message.error_code, message.retry_after_ms) == (code, 2_000)
    assert len(server.requests()) == 1
