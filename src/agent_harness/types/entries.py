"""Entries: the conversation tree (harness-v2 §12). An entry is an envelope around a body."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, with_config

from .messages import AgentMessage, Usage
from .wire import WIRE, Absent, Flattened, Int, Json, Number


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBody:
    """A message. `terminate` is the durable batch-control decision of a tool result, never context."""

    type: Literal["message"] = "message"
    message: AgentMessage
    terminate: Absent[Literal[True]] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChangeBody:
    """From here on the lane uses this model."""

    type: Literal["model_change"] = "model_change"
    provider: str
    model_id: str


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLevelBody:
    """From here on the lane thinks at this level."""

    type: Literal["thinking_level_change"] = "thinking_level_change"
    thinking_level: str


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveToolsBody:
    """From here on the lane offers these tools."""

    type: Literal["active_tools_change"] = "active_tools_change"
    active_tool_names: tuple[str, ...]


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionBody:
    """A self-contained checkpoint: context builds never read past it."""

    type: Literal["compaction"] = "compaction"
    summary: str
    retained_tail: tuple[AgentMessage, ...]
    tokens_before: Number
    details: Absent[Json] = None
    usage: Absent[Usage] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSummaryBody:
    """What was left behind when a lane navigated away from `from_id`."""

    type: Literal["branch_summary"] = "branch_summary"
    from_id: str
    summary: str
    details: Absent[Json] = None
    usage: Absent[Usage] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class CustomBody:
    """An extension's own state on the path. Enters context only through a registered projector."""

    type: Literal["custom"] = "custom"
    custom_type: str
    data: Absent[Json] = None


EntryBody: TypeAlias = Annotated[
    MessageBody
    | ModelChangeBody
    | ThinkingLevelBody
    | ActiveToolsBody
    | CompactionBody
    | BranchSummaryBody
    | CustomBody,
    Discriminator("type"),
]

EntryType: TypeAlias = Literal[
    "message",
    "model_change",
    "thinking_level_change",
    "active_tools_change",
    "compaction",
    "branch_summary",
    "custom",
]


@with_config(WIRE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionedEntry(Flattened):
    """An entry that does not exist yet: its id is allocated, its place is not (harness-v2 §5)."""

    ENVELOPE: ClassVar[frozenset[str]] = frozenset({"id"})

    id: str
    body: EntryBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A committed entry. `seq`, `parent_id` and `timestamp` were assigned by storage."""

    id: str
    seq: Int  # 1-based position in the session's one sequence
    parent_id: str | None
    timestamp: Int  # Unix ms
    body: EntryBody

    @property
    def type(self) -> EntryType:
        """The body's discriminant."""
        return self.body.type

    @property
    def message(self) -> AgentMessage | None:
        """The message, when this is a message entry."""
        return self.body.message if isinstance(self.body, MessageBody) else None
