"""A session's log, one line per item: `E` entry, `R` record, `L` lane, `F` fact."""

from datetime import UTC, datetime
from typing import assert_never

from ..session.storage import EntryItem, LabelItem, LaneItem, LogItem, NameItem, RecordItem
from ..types.codec import dump_entry, dump_record
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
from ..types.json import JsonValue
from ..types.messages import (
    AgentMessage,
    AssistantMessage,
    BashExecutionMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ExtensionMessage,
    TextContent,
    ToolResultMessage,
    UserContent,
    UserMessage,
)
from ..types.records import (
    AbortRequested,
    AdjustmentUsage,
    HookUsage,
    LaneRecord,
    OperationFinished,
    OperationStarted,
    QueueCancelled,
    QueueEnqueued,
    RequestUsage,
    RunIntent,
    StepAttempt,
    ToolSettled,
    ToolStarted,
    ToolUsage,
    WriteDeferred,
)
from .output import one_line

TEXT_CHARS = 100


def log_line(item: LogItem) -> str:
    """`   12  E assistant: Let me look. [calls read]`: printable, without a line break."""
    match item:
        case EntryItem(entry=entry):
            told, when = f"E {entry_text(entry)}", clock(entry.timestamp)
        case RecordItem(record=record):
            told, when = f"R {record_text(record)}", clock(record.timestamp)
        case LaneItem(lane=lane, leaf_id=leaf):
            told, when = f"L lane {lane} at {leaf or 'the root'}", ""
        case NameItem(name=name):
            told, when = f"F name {name!r}", ""
        case LabelItem(target_id=target, label=label):
            told, when = f"F label {label!r} of {target}", ""
        case _:
            assert_never(item)
    return f"{item.seq:>5}  {when:<12}  {one_line(told)}"


def log_json(item: LogItem) -> dict[str, JsonValue]:
    """The item as the stores keep it, with its `kind`."""
    match item:
        case EntryItem(entry=entry):
            return {"kind": "entry", **dump_entry(entry)}
        case RecordItem(record=record):
            return {"kind": "record", **dump_record(record)}
        case LaneItem(lane=lane, leaf_id=leaf):
            return {"kind": "lane", "seq": item.seq, "lane": lane, "leafId": leaf}
        case NameItem(name=name):
            return {"kind": "fact", "fact": "name", "seq": item.seq, "name": name}
        case LabelItem(target_id=target, label=label):
            return {"kind": "fact", "fact": "label", "seq": item.seq, "targetId": target, "label": label}
        case _:
            assert_never(item)


def clock(timestamp_ms: int) -> str:
    """`20:37:18.123`, UTC."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (OverflowError, OSError, ValueError):
        return "?"


def entry_text(entry: Entry) -> str:
    """What an entry says, in short."""
    match entry.body:
        case MessageBody(message=message):
            return message_text(message)
        case ModelChangeBody(provider=provider, model_id=model_id):
            return f"model {provider}/{model_id}"
        case ThinkingLevelBody(thinking_level=level):
            return f"thinking level {level}"
        case ActiveToolsBody(active_tool_names=names):
            return f"active tools {', '.join(names) or 'none'}"
        case CompactionBody(summary=summary):
            return f"compaction: {_short(summary)}"
        case BranchSummaryBody(summary=summary):
            return f"branch summary: {_short(summary)}"
        case CustomBody(custom_type=custom_type):
            return f"custom {custom_type}"
        case _:
            assert_never(entry.body)


def message_text(message: AgentMessage) -> str:
    """What a message says, in short."""
    match message:
        case UserMessage(content=content):
            return f"user: {_short(content_text(content))}"
        case AssistantMessage():
            calls = f"[calls {', '.join(call.name for call in message.tool_calls)}]" if message.tool_calls else ""
            stop = "" if message.stop_reason in ("stop", "toolUse") else f"<{message.stop_reason}>"
            error = f"({_short(message.error_message)})" if message.error_message else ""
            return " ".join(part for part in ("assistant:", _short(message.text), calls, stop, error) if part)
        case ToolResultMessage(content=content):
            failed = "error" if message.is_error else "result"
            return f"{failed} of {message.tool_name}: {_short(content_text(content))}"
        case BashExecutionMessage(command=command):
            return f"command of the user: {_short(command)}"
        case CustomMessage(custom_type=custom_type, content=content):
            return f"{custom_type}: {_short(content_text(content))}"
        case BranchSummaryMessage(summary=summary) | CompactionSummaryMessage(summary=summary):
            return f"summary: {_short(summary)}"
        case ExtensionMessage(role=role):
            return f"message of role {role}"
        case _:
            assert_never(message)


def content_text(content: str | tuple[UserContent, ...]) -> str:
    """The text of a message; an image is named."""
    if isinstance(content, str):
        return content
    return " ".join(part.text if isinstance(part, TextContent) else f"[{part.mime_type}]" for part in content)


def record_text(record: LaneRecord) -> str:
    """What a record says, in short."""
    match record.body:
        case OperationStarted(intent=intent):
            told = f"{record.type} {intent.kind}"
            prompt = intent.original_prompt if isinstance(intent, RunIntent) else ()
            return f"{told}: {'; '.join(message_text(message) for message in prompt)}" if prompt else told
        case OperationFinished(outcome=outcome, error=error):
            return f"{record.type} {outcome}" + (f": {error.code}: {_short(error.message)}" if error else "")
        case StepAttempt(step=step, attempt=attempt):
            return f"{record.type} {step} {attempt}"
        case ToolStarted(tool_name=name, replay=replay):
            return f"{record.type} {name} (replay {replay})"
        case ToolSettled(tool_call_id=call, is_error=failed):
            return f"{record.type} {call} ({'error' if failed else 'ok'})"
        case QueueEnqueued(queue=queue, target=target):
            text = message_text(target.body.message) if isinstance(target.body, MessageBody) else target.body.type
            return f"{record.type} {queue}: {text}"
        case QueueCancelled(entry_id=entry_id):
            return f"{record.type} {entry_id}"
        case WriteDeferred(target=target):
            return f"{record.type} {target.body.type}"
        case RequestUsage() | ToolUsage() | HookUsage() | AdjustmentUsage():
            usage = record.body.usage
            return f"{record.type} {record.body.cause}: {usage.input} in, {usage.output} out"
        case AbortRequested():
            return record.type
        case _:
            assert_never(record.body)


def _short(text: str | None) -> str:
    return one_line(text or "", TEXT_CHARS)
