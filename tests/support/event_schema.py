"""Events on the wire, checked against the published schema and for balanced brackets."""

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from jsonschema import Draft202012Validator

from agent_harness import HarnessEvent
from agent_harness.events.wire import event_to_wire, snapshot_to_wire
from agent_harness.types.json import canon

SCHEMA = Path(__file__).parents[2] / "docs" / "events.schema.json"


@cache
def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return loaded


@cache
def validator(definition: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": schema()["$defs"]})


def assert_on_the_wire(events: Iterable[HarnessEvent]) -> list[dict[str, Any]]:
    """Each event is JSON as we accept it and valid against its own type's schema. Returns the wire forms."""
    wires = []
    for event in events:
        wire = event_to_wire(event)
        canon(wire)
        again = orjson.loads(orjson.dumps(wire))
        assert again == wire
        problems = [problem.message for problem in validator(type(event).__name__).iter_errors(again)]
        assert problems == [], (event.type, problems, wire)
        wires.append(again)
    return wires


def assert_snapshot_on_the_wire(snapshot: Any) -> dict[str, Any]:
    wire = snapshot_to_wire(snapshot)
    canon(wire)
    problems = [problem.message for problem in validator(type(snapshot).__name__).iter_errors(wire)]
    assert problems == [], problems
    return wire


BRACKETS = {
    "message_start": "message_end",
    "turn_start": "turn_end",
    "retry_scheduled": "retry_end",
    "tool_start": "tool_end",
    "compaction_start": "compaction_end",
    "navigation_start": "navigation_end",
    "run_start": "run_end",
}


def assert_balanced(events: Iterable[HarnessEvent]) -> None:
    """Every bracket that opens closes, and none closes that did not open. For streams that begin and end idle."""
    depth: Counter[tuple[str, str]] = Counter()
    for event in events:
        lane = getattr(event, "lane", None) or ""
        if event.type == "retry_scheduled":
            depth[lane, "retry_end"] = 1  # several attempts, one end
            continue
        if event.type in BRACKETS:
            depth[lane, BRACKETS[event.type]] += 1
        elif event.type in BRACKETS.values():
            depth[lane, event.type] -= 1
            assert depth[lane, event.type] >= 0, f"{event.type} closes what never began"
        elif event.type in {"message_update", "tool_update"}:
            end = "message_end" if event.type == "message_update" else "tool_end"
            assert depth[lane, end] > 0, f"{event.type} outside its bracket"
    left = {key for key, count in depth.items() if count}
    assert left == set(), f"never closed: {sorted(left)}"
