"""To-do list: the model keeps a list with a tool, the session keeps it in custom entries, a
projector shows it.

The list belongs to the path: another lane or branch has its own, and a fork takes its list
along. The newest `todo` entry on the path is the list.

The tool only checks its arguments; the entry is written by `after_tool`, which knows the
lane. If the process dies between the entry and the tool's result, the hook runs again and
writes an equal entry: the list stays the same.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_harness import AgentHarness, AgentMessage, AgentToolResult, CustomMessage
from agent_harness.hooks.catalog import AfterTool
from agent_harness.lanes.surface import AgentLane
from agent_harness.session.context import EntryProjector
from agent_harness.tools import text_result, tool
from agent_harness.types.entries import CustomBody, Entry
from agent_harness.types.json import JsonValue

CUSTOM_TYPE = "todo"
TOOL_NAME = "todo"


class Item(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    state: Literal["open", "doing", "done"] = "open"


@tool(name=TOOL_NAME, replay="safe")
async def todo(
    items: Annotated[list[Item], Field(description="The whole list, in order.")],
) -> AgentToolResult:
    """Replace the to-do list. Use it for work of several steps, and whenever the state of
    an item changes.
    """
    kept: list[JsonValue] = [item.model_dump() for item in items]
    return text_result(f"The list has {len(kept)} items.", {"items": kept})


class TodoList:
    """Install with `extensions=[TodoList()]` and `entry_projectors=PROJECTORS`."""

    def __init__(self) -> None:
        self._harness: AgentHarness | None = None

    async def setup(self, harness: AgentHarness) -> None:
        """Add the tool to the harness's and register the hook that writes the entries."""
        self._harness = harness
        await harness.set_tools([*await harness.get_tools(), todo])
        harness.hooks.on("after_tool", self._write, id="examples.todo-list")

    async def teardown(self) -> None:
        """Let go of the harness."""
        self._harness = None

    async def _write(self, event: AfterTool) -> None:
        if event.tool_name != TOOL_NAME or event.is_error:
            return
        assert self._harness is not None
        lane = await self._harness.lane(event.lane)
        assert lane is not None
        await lane.session.append_custom_entry(CUSTOM_TYPE, event.details)

    @staticmethod
    async def items(lane: AgentLane) -> list[Item]:
        """The list on the lane's path; empty when there is none. During a run, as of its
        last checkpoint.
        """
        entry = await lane.session.find_entry_on_branch(
            type="custom", custom_type=CUSTOM_TYPE
        )
        return [] if entry is None else _items(entry)


def project(entry: Entry) -> tuple[AgentMessage, ...]:
    """What the model reads where the entry stands."""
    lines = (
        "\n".join(f"- [{item.state}] {item.text}" for item in _items(entry)) or "(empty)"
    )
    content = f"The to-do list is now:\n{lines}"
    return (
        CustomMessage(custom_type=CUSTOM_TYPE, content=content, timestamp=entry.timestamp),
    )


PROJECTORS: Mapping[str, EntryProjector] = {CUSTOM_TYPE: project}
"""For `AgentHarness.create(entry_projectors=...)`."""


def _items(entry: Entry) -> list[Item]:
    data = entry.body.data if isinstance(entry.body, CustomBody) else None
    try:
        return _Stored.model_validate(data).items
    except ValidationError:
        return []  # written by another version: not ours to show


class _Stored(BaseModel):
    items: list[Item]
