"""Checks recorded spans against schemas, for tests of instrumentation; production checks nothing (harness-v2 §18)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from .memory import RecordedSpan
from .recording import RecordedValue
from .schema import AttributeDefinition, RequirableAttributeDefinition, SpanDefinition
from .vocabulary import AGENT_TELEMETRY_SCHEMAS


def agent_span_definitions() -> dict[str, SpanDefinition]:
    """All spans of the agent vocabulary by name."""
    return {
        name: cast("SpanDefinition", definition)
        for schema in AGENT_TELEMETRY_SCHEMAS
        for name, definition in schema["spans"].items()
    }


def schema_violations(
    spans: Sequence[RecordedSpan], definitions: Mapping[str, SpanDefinition] | None = None
) -> list[str]:
    """What in `spans` the schema does not allow; empty when all conform.

    Spans of no `pi.` name are the application's and are passed over. Judged are names, parents, required and undeclared
    attributes (start and end bags apart), types, closed sets and events. Values are not repeated in the answer.
    """
    known = agent_span_definitions() if definitions is None else definitions
    by_id = {span.id: span for span in spans}
    found: list[str] = []
    for span in spans:
        definition = known.get(span.name)
        if definition is not None:
            parent = None if span.parent_id is None else by_id[span.parent_id]
            found += [f"{span.name} #{span.id}: {problem}" for problem in _problems(span, parent, definition, known)]
        elif span.name.startswith("pi."):
            found.append(f"{span.name} #{span.id}: undeclared span")
    return found


def _problems(
    span: RecordedSpan, parent: RecordedSpan | None, definition: SpanDefinition, known: Mapping[str, SpanDefinition]
) -> Iterator[str]:
    rule = definition["parents"]
    match rule["kind"]:
        case "any":
            pass
        case "root_or_external":
            if parent is not None and parent.name in known:
                yield f"must not stand under {parent.name}"
        case "spans":
            if parent is None or parent.name not in rule["spans"]:
                yield f"must not stand {'at the root' if parent is None else f'under {parent.name}'}"
    yield from _bag("start attribute", span.start_attributes, definition["startAttributes"])
    yield from _bag("end attribute", span.end_attributes, definition["endAttributes"])
    events = definition.get("events", {})
    for event in span.events:
        if event.name not in events:
            yield f"undeclared event {event.name}"
        else:
            yield from _bag(f"attribute of event {event.name}:", event.attributes, events[event.name]["attributes"])


def _bag(
    what: str,
    bag: Mapping[str, RecordedValue],
    declared: Mapping[str, AttributeDefinition] | Mapping[str, RequirableAttributeDefinition],
) -> Iterator[str]:
    for name, definition in declared.items():
        if name not in bag and definition.get("required", False):
            yield f"missing {what} {name}"
    for name, value in bag.items():
        if name not in declared:
            yield f"undeclared {what} {name}"
        elif not _fits(value, declared[name]):
            yield f"{what} {name} has a value outside of its type or set"


def _fits(value: RecordedValue, definition: AttributeDefinition) -> bool:
    if isinstance(value, tuple):
        allowed = definition.get("elementValues")
        element = definition["type"].removesuffix("[]")
        return definition["type"].endswith("[]") and all(
            _is(item, element) and (allowed is None or item in allowed) for item in value
        )
    allowed = definition.get("values")
    return _is(value, definition["type"]) and (allowed is None or value in allowed)


def _is(value: object, scalar: str) -> bool:
    match scalar:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case _:
            return False
