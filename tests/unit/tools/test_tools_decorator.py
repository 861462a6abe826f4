"""`@tool` (decisions section 8)."""

import functools
import threading
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import orjson
import pytest
from pydantic import BaseModel, Field
from tools_support import invoke, text_of

from agent_harness.tools import ToolDeclarationError, tool
from agent_harness.types.messages import TextContent
from agent_harness.types.tools import AgentTool, AgentToolResult, ToolInvocation


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    y: int = 0


@tool
async def add(a: Annotated[int, Field(description="one number", ge=0)], b: int = 2) -> str:
    """Add two numbers."""
    return str(a + b)


def test_the_schema_the_description_and_the_name_come_from_the_function() -> None:
    assert (add.name, add.description) == ("add", "Add two numbers.")
    assert add.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0, "description": "one number"},
            "b": {"type": "integer", "default": 2},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert (add.replay, add.execution_mode, add.timeout_ms) == ("never", "parallel", None)


def test_options_are_carried_over() -> None:
    @tool(name="other", description="Does it.", replay="safe", execution_mode="sequential", timeout_ms=5, label="L")
    def f() -> str:
        return ""

    assert (f.name, f.description, f.replay, f.execution_mode, f.timeout_ms, f.label) == (
        *("other", "Does it.", "safe", "sequential", 5, "L"),
    )
    assert f.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


async def test_defaults_are_filled_in_and_arguments_reach_the_function() -> None:
    assert text_of(await invoke(add, {"a": 1})) == "3"
    assert text_of(await invoke(add, {"a": 1, "b": 9_007_199_254_740_993})) == "9007199254740994"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"a": "12"}, "a: Input should be a valid integer"),
        ({"a": True}, "a: Input should be a valid integer"),
        ({"a": 1.0}, "a: Input should be a valid integer"),
        ({"a": -1}, "a: Input should be greater than or equal to 0"),
        ({}, "a: Field required"),
        ({"a": 1, "c": 1}, "c: Extra inputs are not permitted"),
        ({"a": 2**64}, r"\$.a: integer does not fit in 64 bits"),
    ],
)
def test_what_is_not_exactly_the_declared_type_is_refused_by_name(args: dict[str, Any], said: str) -> None:
    assert add.validate is not None
    with pytest.raises(ValueError, match=said):
        add.validate(args)


def test_the_refused_value_is_not_repeated() -> None:
    assert add.validate is not None
    with pytest.raises(ValueError) as caught:
        add.validate({"a": "CANARY-1234"})
    assert "CANARY" not in str(caught.value)


async def test_rich_types_are_read_from_their_json_form() -> None:
    @tool
    async def shape(points: list[Point], colour: Colour, pair: tuple[int, int], copy: str | None = None) -> str:
        """Take them."""
        return f"{points[0].x}{points[0].y} {colour is Colour.RED} {pair} {copy}"

    result = await invoke(shape, {"points": [{"x": 1}], "colour": "red", "pair": [1, 2], "copy": "c"})
    assert text_of(result) == "10 True (1, 2) c"
    assert shape.validate is not None
    with pytest.raises(ValueError, match=r"points\[0\]\.x"):
        shape.validate({"points": [{"x": "1"}], "colour": "red", "pair": [1, 2]})


async def test_a_parameter_of_type_tool_invocation_receives_it() -> None:
    @tool
    async def who(call: ToolInvocation, n: int) -> str:
        """Say it."""
        call.update(AgentToolResult())
        return f"{call.tool_call_id} {call.context} {n}"

    seen: list[AgentToolResult] = []
    assert list(who.parameters["properties"]) == ["n"]
    assert text_of(await invoke(who, {"n": 1}, context="ctx", update=seen.append)) == "call-1 ctx 1"
    assert seen == [AgentToolResult()]


async def test_def_runs_blocking_and_async_def_on_the_loop() -> None:
    @tool
    def where() -> str:
        """Say the thread."""
        return threading.current_thread().name

    @tool
    async def where_async() -> str:
        """Say the thread."""
        return threading.current_thread().name

    assert where.execute is None
    assert where_async.execute_blocking is None
    assert text_of(await invoke(where, {})) != "MainThread"
    assert text_of(await invoke(where_async, {})) == "MainThread"


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ("text", "text"),
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        ([], "[]"),
        (None, "null"),
        (7, "7"),
        ("bad \ud83d!", "bad \ufffd!"),
        ({"k": ["\udc9c"]}, '{"k":["\ufffd"]}'),
        ("a\u0000b", "a\u0000b"),
    ],
)
async def test_text_and_json_values_become_one_text_part(returned: object, shown: str) -> None:
    @tool
    async def give() -> object:
        """Give."""
        return returned

    assert await invoke(give, {}) == AgentToolResult(content=(TextContent(text=shown),))


async def test_a_tool_result_is_passed_through() -> None:
    given = AgentToolResult(content=(), details={"a": 1}, terminate=True)

    @tool
    async def give() -> AgentToolResult:
        """Give."""
        return given

    assert await invoke(give, {}) is given


@pytest.mark.parametrize("returned", [{1, 2}, object(), b"x", float("nan"), 2**70])
async def test_what_is_no_json_is_an_error_that_says_the_tool_ran(returned: object) -> None:
    @tool
    async def give() -> object:
        """Give."""
        return returned

    with pytest.raises(TypeError, match=r"'give' ran, but"):
        await invoke(give, {})


async def test_a_coroutine_from_a_plain_function_is_an_error_not_a_result() -> None:
    async def later() -> str:
        return "x"

    @tool(name="sneaky", description="Give.")
    def sneaky() -> object:
        return later()

    with pytest.raises(TypeError, match="coroutine, which did not run"):
        await invoke(sneaky, {})


async def test_a_method_and_a_callable_object_can_be_tools() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        async def up(self, by: int) -> str:
            """Count up."""
            self.n += by
            return str(self.n)

        async def __call__(self, by: int) -> str:
            """Count up."""
            return await self.up(by)

    counter = Counter()
    assert text_of(await invoke(tool(counter.up), {"by": 2})) == "2"
    assert text_of(await invoke(tool(name="up")(counter), {"by": 3})) == "5"


def no_docs(a: int) -> str:
    return str(a)


def unannotated(a) -> str:
    """Documented."""
    return str(a)


def variadic(*a: int) -> str:
    """Documented."""
    return str(a)


def keywords(**a: int) -> str:
    """Documented."""
    return str(a)


def positional(a: int, /) -> str:
    """Documented."""
    return str(a)


def unknown_type(a: "Nowhere") -> str:  # noqa: F821
    """Documented."""
    return str(a)


def no_schema(a: threading.Lock) -> str:
    """Documented."""
    return str(a)


def no_json_schema(a: Callable[[], int]) -> str:
    """Documented."""
    return str(a)


def wrong_default(a: int = "x") -> str:
    """Documented."""
    return str(a)


NOT_JSON = object()


def no_json_default(a: Point | None = NOT_JSON) -> str:
    """Documented."""
    return str(a)


def aliased(a: Annotated[int, Field(alias="b")]) -> str:
    """Documented."""
    return str(a)


def two_invocations(a: ToolInvocation, b: ToolInvocation) -> str:
    """Documented."""
    return str((a, b))


def generator(a: int):
    """Documented."""
    yield a


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_docs, "'no_docs': write a docstring"),
        (unannotated, "'unannotated', parameter 'a': annotate it"),
        (variadic, "parameter 'a': .* have no schema"),
        (keywords, "parameter 'a': .* have no schema"),
        (positional, "positional-only"),
        (unknown_type, "'Nowhere' is not defined"),
        (no_schema, "'no_schema': "),
        (no_json_schema, "no JSON Schema"),
        (wrong_default, "parameter 'a': the default does not fit"),
        (no_json_default, "parameter 'a': the default does not fit"),
        (aliased, "rename it"),
        (two_invocations, "'a' receives the invocation already"),
        (generator, "a generator cannot be a tool"),
        (dict, "a function is needed"),
        (lambda: 1, "tool name '<lambda>'"),
    ],
)
def test_a_declaration_that_cannot_work_fails_where_it_stands(function: Any, said: str) -> None:
    with pytest.raises(ToolDeclarationError, match=said):
        tool(function)


@pytest.mark.parametrize(
    "options",
    [{"name": "a b"}, {"name": ""}, {"name": "é"}, {"replay": "maybe"}, {"execution_mode": "x"}, {"timeout_ms": 0}],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDeclarationError):
        tool(description="D", **options)(add.execute)


def test_parameters_named_as_model_attributes_are_fine() -> None:
    @tool
    async def odd(copy: int, schema: int, model_config: int, json: int, validate: int, _private: int) -> str:
        """Take them."""
        return f"{copy}{schema}{model_config}{json}{validate}{_private}"

    assert odd.validate is not None
    odd.validate(dict.fromkeys(["copy", "schema", "model_config", "json", "validate", "_private"], 1))


def test_a_wrapped_function_keeps_its_signature() -> None:
    def logged(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def inner(*args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

        return inner

    @tool
    @logged
    def f(a: int) -> str:
        """Wrapped."""
        return str(a)

    assert list(f.parameters["properties"]) == ["a"]


async def test_textual_annotations_are_resolved_also_those_of_local_types() -> None:
    source = """
from __future__ import annotations
from typing import Annotated
from pydantic import BaseModel, Field
from agent_harness.tools import tool
from agent_harness.types.tools import ToolInvocation

def make():
    class Here(BaseModel):
        n: int

    @tool(name="f")
    async def f(a: Annotated[int, Field(description="d")], here: Here, call: ToolInvocation) -> str:
        "Documented."
        return f"{a} {here.n} {call.tool_call_id}"

    return f
"""
    names: dict[str, Any] = {"__name__": "future_module"}
    exec(compile(source, "future_module.py", "exec", dont_inherit=True), names)
    made: AgentTool = names["make"]()
    assert text_of(await invoke(made, {"a": 1, "here": {"n": 2}})) == "1 2 call-1"
    assert orjson.loads(orjson.dumps(dict(made.parameters)))["properties"]["a"] == {
        "type": "integer",
        "description": "d",
    }
