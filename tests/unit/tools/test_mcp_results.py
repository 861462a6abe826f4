"""What a server says of its tools: names that fit, hints that bind nobody, results within bounds."""

import pytest
from mcp_types import CallToolResult, TextContent, Tool, ToolAnnotations

from agent_harness.tools.mcp import HttpServer, McpServers, StdioServer
from agent_harness.tools.mcp_results import parameters_of, replay_of, result_of, tool_name
from agent_harness.types import messages


def described(**options: object) -> Tool:
    return Tool.model_validate({"name": "t", "inputSchema": {"type": "object"}, **options})


@pytest.mark.parametrize(
    ("tool", "name"),
    [("read", "files__read"), ("a.b/c", "files__a_b_c_"), ("x" * 100, f"files__{'x' * 48}_"), ("é", "files____")],
)
def test_names_fit_every_provider_and_stay_apart(tool: str, name: str) -> None:
    given = tool_name("files", tool)
    assert given == name or (given.startswith(name) and len(given) == len(name) + 8 <= 64)


def test_two_names_that_look_alike_once_they_fit_are_still_two() -> None:
    assert len({tool_name("s", one) for one in ("a.b", "a/b", "a b", "a_b")}) == 4


@pytest.mark.parametrize(
    ("hints", "trusted", "replay"),
    [
        (None, True, "never"),
        (ToolAnnotations(read_only_hint=True), False, "never"),
        (ToolAnnotations(read_only_hint=True), True, "safe"),
        (ToolAnnotations(idempotent_hint=True), True, "safe"),
        (ToolAnnotations(destructive_hint=False), True, "never"),
    ],
)
def test_a_call_is_replayable_only_if_the_server_says_so_and_the_user_believes_it(
    hints: ToolAnnotations | None, trusted: bool, replay: str
) -> None:
    assert replay_of(described(annotations=hints), trusted=trusted) == replay


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "object", "x": float("nan")}, {"type": ["object"]}])
def test_a_schema_that_cannot_be_sent_is_none(schema: dict[str, object]) -> None:
    assert parameters_of(described().model_copy(update={"input_schema": schema})) is None


def test_long_text_keeps_its_beginning_and_its_end() -> None:
    answer = CallToolResult(content=[TextContent(text="a" * 5_000), TextContent(text="z" * 5_000)])
    (part,) = result_of("s", "t", answer, 1_000).content
    assert isinstance(part, messages.TextContent)
    assert part.text.startswith("a" * 500)
    assert part.text.endswith("z" * 500)
    assert "9001 bytes left out" in part.text


def test_structured_content_is_kept_and_shown_if_nothing_else_is() -> None:
    answer = CallToolResult(content=[], structured_content={"n": 1})
    result = result_of("s", "t", answer, 1_000)
    assert result.details == {"server": "s", "tool": "t", "structuredContent": {"n": 1}}
    assert [part.text for part in result.content if isinstance(part, messages.TextContent)] == ['{"n":1}']


@pytest.mark.parametrize("name", ["", "a b", "x" * 33, "a/b", "ok\n"])
def test_a_server_has_a_name_that_can_be_a_prefix(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an MCP server"):
        StdioServer(name=name, command="x")


def test_two_servers_have_two_names_and_secrets_are_not_shown() -> None:
    server = HttpServer(name="a", url="http://localhost/mcp", headers={"authorization": "CANARY"})
    assert "CANARY" not in repr(server)
    with pytest.raises(ValueError, match="one name"):
        McpServers([server, server])
