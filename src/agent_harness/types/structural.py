"""Values of compaction, navigation and resources that hooks and options share (ADR 0001)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .entries import Entry
from .json import JsonValue
from .messages import AgentMessage, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPreparation:
    """What a compaction is about to do: everything a summary needs, and what stays beside it."""

    messages_to_summarize: tuple[AgentMessage, ...]
    retained_tail: tuple[AgentMessage, ...]
    turn_prefix: tuple[AgentMessage, ...] = ()  # head of a turn that the cut split; summarised on its own
    previous_summary: str | None = None
    tokens_before: int  # estimate of the context that is replaced

    @property
    def empty(self) -> bool:
        """Nothing would be summarised: a compaction could not make progress."""
        return not self.messages_to_summarize and not self.turn_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResult:
    """A finished summary; `retained_tail` None keeps the preparation's."""

    summary: str
    retained_tail: tuple[AgentMessage, ...] | None = None
    details: JsonValue = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationPreparation:
    """What a navigation leaves behind: entries from the common ancestor to the old leaf, oldest first."""

    source_leaf_id: str | None
    abandoned: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryResult:
    """A finished branch summary."""

    summary: str
    details: JsonValue = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigateOptions:
    """How to navigate: with or without a summary of the branch that is left."""

    summarize: bool = False
    custom_instructions: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """Instructions that a prompt can load by name."""

    name: str
    description: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A prompt with placeholders `$1`, `$2`, ... and `$@` for all arguments."""

    name: str
    content: str
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Skills and prompt templates by name."""

    skills: Mapping[str, Skill] = field(default_factory=dict[str, Skill])
    prompt_templates: Mapping[str, PromptTemplate] = field(default_factory=dict[str, PromptTemplate])
