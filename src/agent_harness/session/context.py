"""From a path of the tree to what a provider is sent (harness-v2 §12 "Context build", A-8).

Two pure levels. `project_entries` gives the agent messages of a path; `to_provider_messages` makes them valid for a
provider: every call has exactly one result, directly after it, and nothing is ever moved.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TypeAlias, assert_never

from ..types.entries import (
    ActiveToolsBody,
    BranchSummaryBody,
    CompactionBody,
    CustomBody,
    Entry,
    MessageBody,
    ModelChangeBody,
    ThinkingLevelBody,
)
from ..types.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ExtensionMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from ..types.state import ModelRef
from .queries import EntryCursor
from .views import SessionTree

EntryProjector: TypeAlias = Callable[[Entry], Sequence[AgentMessage]]
"""A custom entry -> context messages. Entries without a projector never enter provider context."""

PAGE = 32
"""Entries per page when looking back for the newest assistant message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The projected context of a leaf. None means that the path does not say."""

    messages: tuple[AgentMessage, ...]
    model: ModelRef | None
    thinking_level: str
    active_tools: tuple[str, ...] | None


async def build_context(
    view: SessionTree, leaf_id: str | None = None, *, projectors: Mapping[str, EntryProjector] | None = None
) -> Context:
    """The context of a leaf (default: the view's own), as a request would send it.

    Reads the branch back to its newest compaction and not further, but for point lookups of the configuration.
    """
    start = leaf_id if leaf_id is not None else await view.get_leaf_id()
    if start is None:
        return Context(messages=(), model=None, thinking_level="off", active_tools=None)
    entries = await view.find_entries_on_branch(start=start, stop_at_type="compaction")
    configuration = await configuration_entries(view, start)
    model: ModelRef | None = None
    thinking, tools = "off", None
    for entry in configuration:
        match entry.body:
            case ModelChangeBody(provider=provider, model_id=model_id):
                model = ModelRef(provider=provider, model_id=model_id)
            case MessageBody(message=AssistantMessage() as message):
                model = ModelRef(provider=message.provider, model_id=message.model)
            case ThinkingLevelBody(thinking_level=level):
                thinking = level
            case ActiveToolsBody(active_tool_names=names):
                tools = names
            case _:
                pass
    return Context(
        messages=tuple(project_entries(reversed(entries), projectors or {})),
        model=model,
        thinking_level=thinking,
        active_tools=tools,
    )


async def configuration_entries(view: SessionTree, start: str | None) -> list[Entry]:
    """The entries that decide the configuration at `start`, oldest first: four bounded lookups."""
    if start is None:
        return []
    found: list[Entry] = []
    for kind in ("model_change", "thinking_level_change", "active_tools_change"):
        found += await view.find_entries_on_branch(type=kind, start=start, limit=1)
    answer = await _newest_assistant(view, start)
    if answer is not None:
        found.append(answer)
    return sorted(found, key=lambda entry: entry.seq)


async def _newest_assistant(view: SessionTree, start: str) -> Entry | None:
    cursor: EntryCursor | None = None
    while True:
        page = await view.find_entries_on_branch(type="message", start=start, limit=PAGE, cursor=cursor)
        for entry in page:
            if isinstance(entry.message, AssistantMessage):
                return entry
        if len(page) < PAGE:
            return None
        cursor = EntryCursor(page[-1].seq)


def project_entries(path: Iterable[Entry], projectors: Mapping[str, EntryProjector]) -> list[AgentMessage]:
    """A path, oldest first -> its agent messages. A compaction replaces everything before it."""
    messages: list[AgentMessage] = []
    for entry in path:
        if isinstance(entry.body, CompactionBody):
            messages = []
        messages += project_entry(entry, projectors)
    return messages


def project_entry(entry: Entry, projectors: Mapping[str, EntryProjector]) -> Sequence[AgentMessage]:
    """What one entry adds to the context."""
    body = entry.body
    match body:
        case MessageBody(message=AssistantMessage(stop_reason="deferred")):
            return ()  # a handle, not content
        case MessageBody(message=message):
            return (message,)
        case CompactionBody():
            summary = CompactionSummaryMessage(
                summary=body.summary, tokens_before=body.tokens_before, timestamp=entry.timestamp
            )
            system = tuple(takewhile(is_system, body.retained_tail))
            return (*system, summary, *body.retained_tail[len(system) :])
        case BranchSummaryBody():
            return (BranchSummaryMessage(summary=body.summary, from_id=body.from_id, timestamp=entry.timestamp),)
        case CustomBody():
            projector = projectors.get(body.custom_type)
            return projector(entry) if projector is not None else ()
        case ModelChangeBody() | ThinkingLevelBody() | ActiveToolsBody():
            return ()
        case _:
            assert_never(body)


def is_system(message: AgentMessage) -> bool:
    """A system message of its time, as compactions of v3 files open with; it stays in front of the summary."""
    return isinstance(message, ExtensionMessage) and message.role == "system"


# Provider level ------------------------------------------------------------------------------------------------------

SUMMARY_FRAME = "Summary of the conversation so far:\n\n"
BRANCH_FRAME = "Summary of a branch of this conversation that was left:\n\n"
NO_RESULT = "No result: the call was not completed."
UNSENT = frozenset({"error", "aborted", "deferred", "pending"})
"""Stop reasons of answers that a provider is never sent."""


def to_provider_messages(messages: Sequence[AgentMessage]) -> list[Message]:
    """Agent messages -> messages that every provider accepts.

    Drops an errored, aborted or deferred answer together with its results; gives every remaining call exactly one
    result directly after its message (a synthetic one where it has none); drops a result that comes later. The output
    for a longer input extends the output for a shorter one once that one's calls are answered (A-8).
    """
    out: list[Message] = []
    awaiting: list[ToolCall] = []
    for message in messages:
        match message:
            case ToolResultMessage():
                index = next((i for i, call in enumerate(awaiting) if call.id == message.tool_call_id), None)
                if index is not None:
                    out += [_synthetic(call, message.timestamp) for call in awaiting[:index]]
                    out.append(message)
                    awaiting = awaiting[index + 1 :]
                continue
            case AssistantMessage():
                out += [_synthetic(call, message.timestamp) for call in awaiting]
                awaiting = []
                if message.stop_reason not in UNSENT and message.content:
                    out.append(message)
                    awaiting = list(message.tool_calls)
                continue
            case _:
                converted = to_user_message(message)
        if converted is not None:
            out += [_synthetic(call, converted.timestamp) for call in awaiting]
            awaiting = []
            out.append(converted)
    last = messages[-1].timestamp if messages else 0
    return [*out, *(_synthetic(call, last) for call in awaiting)]


def _synthetic(call: ToolCall, timestamp: int) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text=NO_RESULT),),
        is_error=True,
        timestamp=timestamp,
    )


def to_user_message(
    message: UserMessage
    | BashExecutionMessage
    | CustomMessage
    | BranchSummaryMessage
    | CompactionSummaryMessage
    | ExtensionMessage,
) -> UserMessage | None:
    """What a message that is neither answer nor result says to the model; None when it says nothing."""
    match message:
        case UserMessage():
            return message if message.content else None
        case BashExecutionMessage():
            if message.exclude_from_context:
                return None
            return UserMessage(content=_bash_text(message), timestamp=message.timestamp)
        case CustomMessage():
            return UserMessage(content=message.content, timestamp=message.timestamp) if message.content else None
        case BranchSummaryMessage():
            return UserMessage(content=BRANCH_FRAME + message.summary, timestamp=message.timestamp)
        case CompactionSummaryMessage():
            return UserMessage(content=SUMMARY_FRAME + message.summary, timestamp=message.timestamp)
        case ExtensionMessage():
            return None  # only its registered converter knows what it says
        case _:
            assert_never(message)


def _bash_text(message: BashExecutionMessage) -> str:
    lines = [f"The user ran this command:\n$ {message.command}", message.output or "(no output)"]
    if message.cancelled:
        lines.append("(cancelled)")
    elif message.exit_code:
        lines.append(f"(exit code {message.exit_code})")
    if message.truncated:
        lines.append("(output truncated)")
    return "\n".join(lines)


def unique_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Give calls with empty or repeated ids unique ones, results likewise: pairs are adjacent, so position decides.

    Providers reuse ids across turns or leave them empty (cases 55, 56); identity here is (message, index).
    """
    seen: set[str] = set()
    out: list[Message] = []
    queue: list[str] = []
    for number, message in enumerate(messages):
        match message:
            case AssistantMessage():
                ids = [_fresh(call.id, number, index, seen) for index, call in enumerate(message.tool_calls)]
                queue = list(ids)
                out.append(_renamed(message, ids))
            case ToolResultMessage() if queue:
                out.append(replace(message, tool_call_id=queue.pop(0)))
            case _:
                out.append(message)
    return out


def _fresh(call_id: str, number: int, index: int, seen: set[str]) -> str:
    fresh = call_id if call_id and call_id not in seen else f"call_{number}_{index}"
    while fresh in seen:  # a provider may have named one of its calls like that
        fresh += "_"
    seen.add(fresh)
    return fresh


def _renamed(message: AssistantMessage, ids: Sequence[str]) -> AssistantMessage:
    if list(ids) == [call.id for call in message.tool_calls]:
        return message
    remaining = iter(ids)
    content = tuple(
        replace(part, id=next(remaining)) if isinstance(part, ToolCall) else part for part in message.content
    )
    return replace(message, content=content)
