"""The little checker agrees with pydantic on the schemas that pydantic writes."""

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from agent_harness.types.json_schema import root_of, schema_errors


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: Annotated[int, Field(ge=1, lt=10)]
    tags: Annotated[list[Annotated[str, Field(min_length=2, pattern="^[a-z]+$")]], Field(max_length=2)] = []


class Tree(BaseModel):
    name: str
    kind: Literal["oak", "elm"]
    colour: Colour | None = None
    leaves: dict[str, Leaf] = {}
    pair: tuple[int, str] | None = None
    parent: "Tree | None" = None


SCHEMA: Any = Tree.model_json_schema()
GOOD: dict[str, Any] = {"name": "x", "kind": "oak"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": 1}, "name is not of type string"),
        ({"kind": "fir"}, "kind is not one of 'oak', 'elm'"),
        ({"colour": "green"}, "colour is not one of 'red', 'blue'"),
        ({"leaves": {"a": {}}}, "leaves.a.size is missing"),
        ({"leaves": {"a": {"size": 0}}}, "leaves.a.size is less than 1"),
        ({"leaves": {"a": {"size": 10}}}, "leaves.a.size is not less than 10"),
        ({"leaves": {"a": {"size": True}}}, "leaves.a.size is not of type integer"),
        ({"leaves": {"a": {"size": 1, "x": 1}}}, "leaves.a.x is not allowed"),
        ({"leaves": {"a": {"size": 1, "tags": ["b"]}}}, "leaves.a.tags.0 has a length that is less than 2"),
        ({"leaves": {"a": {"size": 1, "tags": ["BB"]}}}, "leaves.a.tags.0 does not match '^[a-z]+$'"),
        ({"leaves": {"a": {"size": 1, "tags": ["bb"] * 3}}}, "leaves.a.tags has a number of items that is more than 2"),
        ({"pair": ["1", "a"]}, "pair.0 is not of type integer"),
        ({"parent": {"name": "y"}}, "parent.kind is missing"),
    ],
)
def test_the_place_and_the_reason_are_told(change: dict[str, Any], error: str) -> None:
    assert schema_errors(SCHEMA, {**GOOD, **change}) == [error]


def test_a_recursive_schema_is_followed_to_its_root_and_ends() -> None:
    class Node(BaseModel):
        next: "Node | None" = None

    assert root_of(Node.model_json_schema())["type"] == "object"
    loop: Any = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert schema_errors(loop, {}) == []
    nested: Any = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}
    assert schema_errors(nested, {}) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from(["oak", "elm", "red", "a", "bb", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "kind", "colour", "leaves", "size", "tags", "pair"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(JSON, JSON, JSON)
def test_it_agrees_with_a_complete_validator(leaves: Any, colour: Any, pair: Any) -> None:
    value = {**GOOD, "leaves": leaves, "colour": colour, "pair": pair}
    for schema in (SCHEMA, Leaf.model_json_schema()):
        for candidate in (value, leaves, {"size": colour, "tags": pair}):
            assert (schema_errors(schema, candidate) == []) == Draft202012Validator(schema).is_valid(candidate)
