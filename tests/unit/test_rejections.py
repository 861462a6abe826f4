"""Rejections are values: each survives a transport, and a match that forgets one is found by the type checkers."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args

import orjson
import pytest

from agent_harness import outcomes
from agent_harness.outcomes import Closed, Rejected, rejection_from_wire, rejection_to_wire
from agent_harness.result import Err, Ok, RejectedError
from tests.unit.telemetry.test_typing import CHECKERS

CLASSES = get_args(Rejected)

# harness-v2 §8: the payload of each class besides `message`.
PAYLOADS = {
    "LaneBusy": {"lane", "operationId", "operationKind"},
    "MissingIdentities": {"lane", "tools", "models"},
    "NoActiveRun": {"lane"},
    "NoActiveOperation": {"lane"},
    "NothingToResume": {"lane"},
    "InvalidMessage": {"lane", "reason"},
    "UnknownSkill": {"name"},
    "UnknownTemplate": {"name"},
    "UnknownTarget": {"targetId"},
    "UnknownQueueItem": {"lane", "entryId"},
    "LaneExists": {"lane"},
    "InvalidLane": {"lane", "reason"},
    "NothingToCompact": {"lane"},
    "Closed": set(),
}


def sample(cls: type[Rejected]) -> Rejected:
    """One rejection with a value of its own in every field."""
    values: dict[str, object] = {}
    for field in fields(cls):
        match field.name:
            case "tools" | "models":
                values[field.name] = (f"{field.name}-1", f"{field.name}-2")
            case "operation_kind":
                values[field.name] = "navigation"
            case name:
                values[name] = f"the {name}"
    return cls(**values)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_rejection_survives_a_transport(cls: type[Rejected]) -> None:
    rejection = sample(cls)
    wire = rejection_to_wire(rejection)
    assert wire["_tag"] == cls.__name__
    assert wire["message"] == "the message"
    assert set(wire) == {"_tag", "message"} | PAYLOADS[cls.__name__]
    assert rejection_from_wire(orjson.loads(orjson.dumps(wire))) == rejection


def test_the_table_of_payloads_is_complete() -> None:
    assert {cls.__name__ for cls in CLASSES} == set(PAYLOADS)


def test_a_target_at_the_root_survives_as_null() -> None:
    rejection = outcomes.UnknownTarget(target_id=None, message="the lane stands there already")
    assert rejection_from_wire(rejection_to_wire(rejection)) == rejection


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_wire_form_that_lacks_a_field_is_refused_by_name(cls: type[Rejected]) -> None:
    for field in fields(cls):
        if field.default is not MISSING:
            continue  # `Closed` always says the same
        wire = rejection_to_wire(sample(cls))
        lacking = {key: value for key, value in wire.items() if value != wire_value(cls, field.name)}
        with pytest.raises(ValueError, match=f"{cls.__name__}.*{field.name}"):
            rejection_from_wire(lacking)


def wire_value(cls: type[Rejected], name: str) -> object:
    value = getattr(sample(cls), name)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("wire", [{}, {"_tag": "LaneBsy", "message": "m"}, {"_tag": None}], ids=str)
def test_an_unknown_tag_is_refused(wire: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="unknown rejection tag"):
        rejection_from_wire(wire)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_unwrapping_a_refusal_raises_it_with_its_tag_and_sentence(cls: type[Rejected]) -> None:
    with pytest.raises(RejectedError, match=f"{cls.__name__}: the message") as caught:
        Err(sample(cls)).unwrap()
    assert caught.value.error == sample(cls)
    assert not Err(sample(cls)).ok
    assert Ok(3).unwrap() == 3


# Exhaustive matches ---------------------------------------------------------------------------------------------------

UNIONS = sorted(name for name in vars(outcomes) if name.endswith("Rejected"))
RESULTS = sorted(name for name in vars(outcomes) if name.endswith("Result") and name != "Result")


def matching(function: str, subject: str, cases: list[str]) -> str:
    lines = [f"def {function}(given: {subject}) -> str:", "    match given:"]
    lines += [line for case in cases for line in (f"        case {case}():", f"            return {case!r}")]
    return "\n".join([*lines, "        case _:", "            assert_never(given)"])


def programs() -> str:
    """For every union and every result: one match with all cases, and one without each of them."""
    parts = [
        "from typing import assert_never",
        "from agent_harness.outcomes import *",
        "from agent_harness.result import Err, Ok",
    ]
    tags = {name: [cls.__name__ for cls in get_args(getattr(outcomes, name))] for name in UNIONS}
    tags |= {name: ["Ok", "Err"] for name in RESULTS}
    for name, cases in tags.items():
        parts.append(matching(f"complete_{name}", name, cases))
        parts += [matching(f"reject_{name}_without_{c}", name, [k for k in cases if k != c]) for c in cases]
    return "\n\n\n".join(parts) + "\n"


@pytest.mark.parametrize("error_lines", CHECKERS)
def test_a_match_without_one_case_does_not_type_check(error_lines: Callable[[Path], set[int]], tmp_path: Path) -> None:
    assert "RunRejected" in UNIONS
    assert "RunResult" in RESULTS
    program = tmp_path / "matches.py"
    program.write_text(programs())
    owners: list[str] = []
    for line in program.read_text().splitlines():
        owners.append(line[4:].partition("(")[0] if line.startswith("def ") else owners[-1] if owners else "the head")
    found = {owners[number - 1] for number in error_lines(program)}
    rejected = {owner for owner in owners if owner.startswith("reject_")}
    assert len(rejected) > 2 * len(CLASSES)
    assert found == rejected


def test_closed_says_the_way_out() -> None:
    assert "open the session again" in Closed().message
