"""ADR 0001 pins each type that the specification names without defining it: its row names every field."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args

import pytest

from agent_harness.options import CompactionSettings, RetryPolicy
from agent_harness.providers.base import AssistantMessageEvent, StreamOptions
from agent_harness.reducer.predicates import QueueMode
from agent_harness.types.structural import CompactionPreparation, CompactResult, NavigateOptions, Resources
from agent_harness.types.tools import AgentToolResult

ADR = Path(__file__).parents[2] / "docs/adr/0001-types-the-specification-names.md"
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \| `[\w/]+\.py` \|$", ADR.read_text(), re.MULTILINE))
PINNED = (
    RetryPolicy,
    CompactionSettings,
    StreamOptions,
    Resources,
    CompactionPreparation,
    CompactResult,
    NavigateOptions,
    AgentToolResult,
)


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)} if is_dataclass(kind) else set(kind.model_fields)


@pytest.mark.parametrize("kind", PINNED)
def test_a_row_names_the_fields_of_its_type_and_no_other(kind: type) -> None:
    assert set(re.findall(r"`(\w+)`", ROWS[kind.__name__])) == names(kind)


def test_unions_are_pinned_by_their_members() -> None:
    assert set(re.findall(r'"([\w-]+)', ROWS["QueueMode"])) == set(get_args(QueueMode))
    members = get_args(AssistantMessageEvent)
    wanted = {member.__name__ for member in members} | {name for member in members for name in names(member)}
    assert set(re.findall(r"`(\w+)`", ROWS["AssistantMessageEvent"])) == wanted


def test_every_type_has_its_row() -> None:
    assert set(ROWS) == {kind.__name__ for kind in PINNED} | {"QueueMode", "EntryCursor", "AssistantMessageEvent"}
