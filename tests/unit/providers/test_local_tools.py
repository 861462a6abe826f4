"""Tools in words: what a model is told, what it is held to, and what its reply means."""

from itertools import pairwise
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from agent_harness import AssistantMessage, TextContent, ToolResultMessage, UserMessage
from agent_harness.providers.base import ProviderContext, ToolSpec
from agent_harness.providers.local_tools import answer_schema, goes_in_circles, partial_answer, read_answer, spoken
from agent_harness.testing import answer, call


class Node(BaseModel):
    name: str = Field(pattern="^a")
    next: "Node | None" = None


class Args(BaseModel):
    path: str
    nodes: list[Node] = []


READ = ToolSpec(name="read", description="Read a file.", parameters=Args.model_json_schema())
STOP = ToolSpec(name="stop", description="Stop.", parameters={"type": "object", "properties": {}, "not": {"x": 1}})


def result(text: str, *, is_error: bool = False) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id="call-1", tool_name="read", content=(TextContent(text=text),), is_error=is_error, timestamp=0
    )


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        ({"answer": "yes"}, True),
        ({"tool": "read", "arguments": {"path": "a"}}, True),
        ({"tool": "read", "arguments": {"path": "a", "nodes": [{"name": "b", "next": {"name": "c"}}]}}, True),
        ({"tool": "stop", "arguments": {}}, True),
        ({"tool": "read", "arguments": {}}, False),
        ({"tool": "read", "arguments": {"path": "a", "nodes": [{"next": None}]}}, False),
        ({"tool": "write", "arguments": {}}, False),
        ({"tool": "stop"}, False),
        ({"answer": "yes", "tool": "stop"}, False),
        ({}, False),
    ],
)
def test_a_reply_is_held_to_a_call_that_fits_or_an_answer(reply: dict[str, Any], valid: bool) -> None:
    assert Draft202012Validator(answer_schema([READ, STOP], None)).is_valid(reply) == valid


def test_a_structured_answer_has_its_own_schema_beside_the_tools() -> None:
    schema = answer_schema([READ], Node.model_json_schema())
    assert Draft202012Validator(schema).is_valid({"answer": {"name": "a", "next": {"name": "b"}}})
    assert not Draft202012Validator(schema).is_valid({"answer": {"name": "a", "next": {"nom": "b"}}})
    assert not Draft202012Validator(schema).is_valid({"answer": "text"})


def test_the_conversation_is_told_without_any_tool_in_its_form() -> None:
    messages = (
        UserMessage(content="go", timestamp=0),
        answer("thinking", calls=[call("read", {"path": "a"})]),
        result("no such file", is_error=True),
        answer("Sorry."),
    )
    told = spoken(ProviderContext(messages=messages, system_prompt="Be brief.", tools=[READ]))
    assert told.tools == ()
    assert told.system_prompt is not None
    assert told.system_prompt.startswith("Be brief.\n\nYou can use these tools:\n- read: Read a file.")
    assert [(m.role, m.text if isinstance(m, AssistantMessage) else m.content) for m in told.messages] == [
        ("user", "go"),
        ("assistant", '{"tool":"read","arguments":{"path":"a"}}'),
        ("user", "The tool read failed:\nno such file"),
        ("assistant", '{"answer":"Sorry."}'),
    ]


def test_a_reply_is_read_as_a_call_or_as_text() -> None:
    called = read_answer(answer('{"tool": "read", "arguments": {"path": "a"}}'), "call-7")
    assert (called.stop_reason, called.text) == ("toolUse", "")
    assert [(c.id, c.name, c.arguments) for c in called.tool_calls] == [("call-7", "read", {"path": "a"})]
    assert read_answer(answer('{"answer": "It is \\u00e9."}'), "c").text == "It is é."
    assert read_answer(answer('{"answer": {"n": 1}}'), "c").text == '{"n":1}'


@pytest.mark.parametrize("text", ["", "prose", "[]", '{"tool": 1, "arguments": {}}', '{"answer"'])
def test_a_reply_that_is_none_of_both_is_an_error_that_may_be_tried_again(text: str) -> None:
    message = read_answer(answer(text), "c")
    assert (message.stop_reason, message.error_code, message.content) == ("error", "server_error", ())


def test_a_reply_that_was_cut_keeps_its_text_and_is_never_a_call() -> None:
    cut = read_answer(answer('{"answer": "It was a dar', stop_reason="length"), "c")
    assert (cut.stop_reason, cut.text) == ("length", "It was a dar")
    call_cut = read_answer(answer('{"tool": "read", "arguments": {"path": "/et', stop_reason="length"), "c")
    assert (call_cut.stop_reason, call_cut.content) == ("length", ())


def test_the_text_of_an_answer_grows_with_every_prefix_of_it() -> None:
    whole = '{ "answer" : "a \\"quoted\\" word and \\u00e9" }'
    seen = [partial_answer(whole[:end]) for end in range(len(whole) + 1)]
    assert seen[-1] == 'a "quoted" word and é'
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert partial_answer('{"tool": "answer", "arguments": {"answer": "x"}}') == ""


def test_a_model_that_repeats_one_call_is_noticed_and_a_new_word_forgives_it() -> None:
    turn = (answer(calls=[call("read", {"path": "a"})]), result("x"))
    other = (answer(calls=[call("read", {"path": "b"})]), result("x"))
    start = (UserMessage(content="go", timestamp=0),)
    assert not goes_in_circles([*start, *turn, *turn])
    assert not goes_in_circles([*start, *turn, *other, *turn])
    assert goes_in_circles([*start, *turn, *other, *turn, *turn])
    assert not goes_in_circles([*start, *turn, *turn, *turn, *start])
