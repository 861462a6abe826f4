"""docs/events.schema.json is generated, a stale one is noticed, and it refuses what is no event."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from agent_harness import HarnessEvent
from agent_harness.events.catalog import EventType, RunStart
from agent_harness.events.wire import event_to_wire, suspended_to_wire
from agent_harness.outcomes import Missing, SuspendedOperation
from agent_harness.types.messages import UserMessage
from tests.support.event_schema import schema, validator

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_event_schema.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_schema_in_docs_is_fresh() -> None:
    done = run("--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_schema_fails_the_check_and_is_left_alone(tmp_path: Path) -> None:
    stale = tmp_path / "events.schema.json"
    stale.write_text("{}\n", encoding="utf-8")
    done = run("--check", "--output", str(stale))
    assert (done.returncode, stale.read_text(encoding="utf-8")) == (1, "{}\n")
    assert "stale" in done.stderr
    assert run("--output", str(stale)).returncode == 0
    assert run("--check", "--output", str(stale)).returncode == 0


def test_it_is_a_schema_with_one_definition_per_event() -> None:
    Draft202012Validator.check_schema(schema())
    names = [option["$ref"].removeprefix("#/$defs/") for option in schema()["oneOf"]]
    assert names == [cls.__name__ for cls in get_args(HarnessEvent)]
    types: list[Any] = []
    for name in names:
        definition = schema()["$defs"][name]
        options = definition.get("anyOf", [definition])
        types.append(options[0]["properties"]["type"]["const"])
    assert sorted(types) == sorted(get_args(EventType))


STARTED = event_to_wire(RunStart(lane="main", run_id="r1", started_at=5))


def test_a_whole_event_is_valid_and_of_one_type_only() -> None:
    assert STARTED == {"type": "run_start", "lane": "main", "runId": "r1", "startedAt": 5}
    assert list(Draft202012Validator(schema()).iter_errors(STARTED)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {**STARTED, "run_id": "r1"},
        {**STARTED, "startedAt": "5"},
        {key: value for key, value in STARTED.items() if key != "runId"},
        {**STARTED, "type": "run_started"},
        {"type": "fact_update", "fact": "label", "label": "x"},
        {"type": "handler_error", "kind": "hook", "error": "ValueError", "event": "usage"},
    ],
    ids=["snake case", "text for a number", "key missing", "unknown type", "label of nothing", "kind and name differ"],
)
def test_what_is_no_event_is_invalid(wrong: dict[str, Any]) -> None:
    assert list(Draft202012Validator(schema()).iter_errors(wrong)) != []


def test_a_suspended_operation_on_the_wire() -> None:
    prompt = (UserMessage(content="Go.", timestamp=1),)
    suspended = SuspendedOperation(
        lane="main",
        kind="run",
        id="r1",
        started_at=5,
        reason="crash",
        prompt=prompt,
        aborting_steer=prompt,
        aborting_follow_up=(),
        missing=Missing(tools=("measure",)),
    )
    wire = suspended_to_wire(suspended)
    message = {"role": "user", "content": "Go.", "timestamp": 1}
    assert wire == {
        "lane": "main",
        "kind": "run",
        "id": "r1",
        "startedAt": 5,
        "reason": "crash",
        "prompt": [message],
        "aborting": {"steer": [message], "followUp": []},
        "missing": {"tools": ["measure"], "models": []},
    }
    assert list(validator("SuspendedOperation").iter_errors(wire)) == []
