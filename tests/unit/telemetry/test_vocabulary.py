"""The vocabulary as data equals the normative tables, and the types equal the data."""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_overloads, get_type_hints

import orjson

from agent_harness.events import catalog as events_catalog
from agent_harness.hooks import catalog as hooks_catalog
from agent_harness.telemetry import (
    AGENT_TELEMETRY_SCHEMAS,
    AI_TELEMETRY_SCHEMA,
    EVENT_TYPES,
    HARNESS_TELEMETRY_SCHEMA,
    HOOK_NAMES,
    start_ai_span,
    start_harness_span,
    telemetry_stop_reason,
)
from agent_harness.telemetry import spans as spans_module
from agent_harness.telemetry.attributes import AgentSpanData, HarnessSpanData
from agent_harness.telemetry.vocabulary import AiSpanName, HarnessSpanName
from agent_harness.types.messages import TerminalStopReason

TABLES = (Path(__file__).resolve().parents[3] / "fixtures" / "telemetry" / "tables.md").read_text(encoding="utf-8")
ALL_SPANS: dict[str, Any] = {**AI_TELEMETRY_SCHEMA["spans"], **HARNESS_TELEMETRY_SCHEMA["spans"]}

Shape = tuple[str, bool, tuple[str, ...]]
"""Type, whether it is required, closed set."""


def section(title: str) -> str:
    return TABLES.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def names_listed(title: str) -> list[str]:
    return re.findall(r"^- (\w+)$", section(title), re.MULTILINE)


def rows(text: str) -> list[list[str]]:
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [row for row in found if not set(row[0]) <= {"-"}]


def attributes_in(cell: str) -> dict[str, Shape]:
    """The attributes that a cell of the harness table declares: name, mark, type word, values."""
    found: dict[str, Shape] = {}
    for piece in re.split(r"(?=`pi\.)", cell):
        match = re.match(r"`(pi\.[\w.]+)`([!?]?)", piece)
        if match is None:
            continue
        rest = piece[match.end() :]
        values = tuple(re.findall(r"`(\w+)`", rest))
        if values == ("HookName",):
            values = tuple(names_listed("Hook names"))
        if "section 10 event discriminants" in rest:
            values = tuple(names_listed("Event types"))
        word = re.search(r"\b(string|number|boolean)\b", rest)
        found[match[1]] = (word[1] if word else "string", match[2] != "?", values)
    return found


def shape(definition: Mapping[str, Any]) -> Shape:
    return definition["type"], definition.get("required", True), tuple(definition.get("values", ()))


def shapes(definitions: Mapping[str, Mapping[str, Any]]) -> dict[str, Shape]:
    return {name: shape(definition) for name, definition in definitions.items()}


def test_the_ai_schema_equals_the_normative_tables() -> None:
    request = AI_TELEMETRY_SCHEMA["spans"]["pi.ai.request"]
    start: dict[str, Shape] = {}
    end: dict[str, Shape] = {}
    for row in rows(section("AI request")):
        if not row[0].startswith("`pi.ai.request`"):
            name = row[0].strip("`")
            closed = len(row) == 4 or name == "pi.ai.response.stop_reason"
            values = tuple(re.findall(r"`(\w+)`", row[-1].split(";")[0])) if closed else ()
            if len(row) == 4:
                start[name] = (row[1], row[2] == "!", values)
            else:
                end[name] = (row[1], True, values)
    assert (len(start), len(end)) == (6, 14)
    assert shapes(request["startAttributes"]) == start
    assert shapes(request["endAttributes"]) == end
    assert request["parents"] == {"kind": "any"}
    assert list(AI_TELEMETRY_SCHEMA["spans"]) == ["pi.ai.request"]


def test_the_harness_schema_equals_the_normative_table() -> None:
    text = section("Harness")
    shared, errors = text.split("|", 1)[0].split("their error status may add")
    table = rows(text)[1:]
    assert [row[0].strip("`") for row in table] == list(HARNESS_TELEMETRY_SCHEMA["spans"])
    for name, parents, start_cell, end_cell, _ in table:
        definition = ALL_SPANS[name.strip("`")]
        start, end = attributes_in(start_cell), attributes_in(end_cell)
        if "common operation attributes" in start_cell:
            start |= attributes_in(shared)
            end |= attributes_in(errors)
        assert shapes(definition["startAttributes"]) == start, name
        assert shapes(definition["endAttributes"]) == end, name
        expected: dict[str, Any] = {"kind": "spans", "spans": re.findall(r"`([^`]+)`", parents)}
        if parents.startswith(("root or the", "root or any")):
            expected = {"kind": "any"}
        elif parents == "root or application span":
            expected = {"kind": "root_or_external"}
        assert definition["parents"] == expected, name


def test_cardinality_is_flagged_where_the_tables_say_so() -> None:
    flagged = {
        (span, name): definition["cardinality"]
        for span, parts in ALL_SPANS.items()
        for name, definition in {**parts["startAttributes"], **parts["endAttributes"]}.items()
        if "cardinality" in definition
    }
    for (span, name), cardinality in flagged.items():
        low = name in {"pi.error.code", "pi.error.type", "pi.ai.error.type", "pi.event.type"}
        assert cardinality == ("low" if low else "high"), (span, name)
    high = {"pi.session.id", "pi.lane.name", "pi.operation.id", "pi.turn.id", "pi.tool.call_id", "pi.ai.response.id"}
    for span, parts in ALL_SPANS.items():
        for name in high & {*parts["startAttributes"], *parts["endAttributes"]}:
            assert flagged[span, name] == "high", (span, name)


def test_hook_names_and_event_types_equal_their_catalogues() -> None:
    assert list(HOOK_NAMES) == names_listed("Hook names")
    assert list(EVENT_TYPES) == names_listed("Event types")
    assert (len(HOOK_NAMES), len(EVENT_TYPES)) == (11, 29)
    assert get_args(hooks_catalog.HookName) == HOOK_NAMES
    assert get_args(events_catalog.EventType) == EVENT_TYPES


def test_the_schemas_are_plain_data_with_disjoint_names_and_version_1() -> None:
    for schema in AGENT_TELEMETRY_SCHEMAS:
        assert json.loads(json.dumps(schema)) == schema
        assert orjson.loads(orjson.dumps(schema)) == schema
        assert schema["version"] == 1
    names = [name for schema in AGENT_TELEMETRY_SCHEMAS for name in schema["spans"]]
    assert len(names) == len(set(names)) == 12
    assert list(get_args(AiSpanName)) == list(AI_TELEMETRY_SCHEMA["spans"])
    assert list(get_args(HarnessSpanName)) == list(HARNESS_TELEMETRY_SCHEMA["spans"])


def typed(cls: Any, *, end: bool = False) -> dict[str, Shape]:
    """A TypedDict in the terms of the data. What is optional must also take None, what is required must not."""
    found: dict[str, Shape] = {}
    for name, hint in get_type_hints(cls).items():
        options = [arg for arg in get_args(hint) if arg is not type(None)] if get_origin(hint) is not Literal else []
        optional = name in cls.__optional_keys__
        assert (type(None) in get_args(hint)) == optional, name
        base = options[0] if optional and len(options) == 1 else hint
        if optional and len(options) > 1:
            base = Union[tuple(options)]  # noqa: UP007 - its members are computed
        values = get_args(base) if get_origin(base) is Literal else ()
        type_name = "string" if values else {str: "string", float: "number", bool: "boolean"}[base]
        found[name] = (type_name, end or not optional, values)
    return found


def span_types() -> dict[str, tuple[Any, Any]]:
    """Start and end TypedDict by span name, from the starters' own signatures."""
    found: dict[str, tuple[Any, Any]] = {}
    for overload in [start_ai_span, *get_overloads(start_harness_span)]:
        hints = get_type_hints(overload)
        (name,) = get_args(hints["name"])
        (span,) = get_args(hints["callback"])[0]
        found[name] = (hints["attributes"], get_args(span)[0])
    return found


def test_the_types_of_the_starters_equal_the_data() -> None:
    types = span_types()
    assert list(types) == list(ALL_SPANS)
    for name, (start, end) in types.items():
        assert typed(start) == shapes(ALL_SPANS[name]["startAttributes"]), name
        assert typed(end, end=True) == shapes(ALL_SPANS[name]["endAttributes"]), name


def test_the_bound_starter_has_the_signatures_of_the_domain_starters() -> None:
    tree = ast.parse(Path(spans_module.__file__).read_text(encoding="utf-8"))
    (starter,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AgentSpanStarter"]
    found: dict[str, tuple[str, str]] = {}
    for node in starter.body:
        if isinstance(node, ast.FunctionDef):
            _, name, attributes, callback = [ast.unparse(arg.annotation) for arg in _annotated(node)]
            found[re.findall(r"'(pi[^']+)'", name)[0]] = (
                attributes,
                re.findall(r"NestedWork\[(\w+), T\]", callback)[0],
            )
    assert found == {name: (start.__name__, end.__name__) for name, (start, end) in span_types().items()}


def _annotated(node: ast.FunctionDef) -> list[Any]:
    arguments = [*node.args.posonlyargs, *node.args.args]
    arguments[0].annotation = arguments[0].annotation or ast.Name("self")
    return arguments


def test_the_span_data_unions_carry_start_and_end_attributes_of_each_span() -> None:
    members = [get_args(member) for member in get_args(AgentSpanData)]
    assert len(get_args(HarnessSpanData)) == 11
    found = {get_args(name)[0]: set(get_type_hints(attributes)) for name, attributes in members}
    assert found == {
        name: {*definition["startAttributes"], *definition["endAttributes"]} for name, definition in ALL_SPANS.items()
    }


def test_terminal_stop_reasons_become_those_of_the_schema() -> None:
    values = ALL_SPANS["pi.ai.request"]["endAttributes"]["pi.ai.response.stop_reason"]["values"]
    assert [telemetry_stop_reason(reason) for reason in get_args(TerminalStopReason)] == values
