"""Values that the cases and the machine write: every kind of entry and record, and the clock they are stamped with."""

from dataclasses import fields, is_dataclass
from typing import cast

from agent_harness.types.entries import (
    ActiveToolsBody,
    BranchSummaryBody,
    CompactionBody,
    CustomBody,
    EntryBody,
    MessageBody,
    ModelChangeBody,
    ProvisionedEntry,
    ThinkingLevelBody,
)
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import (
    AssistantMessage,
    Cost,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agent_harness.types.records import (
    AbortRequested,
    AdjustmentUsage,
    CompactionIntent,
    HookUsage,
    Intent,
    NavigationIntent,
    NewRecord,
    OperationFinished,
    OperationKind,
    OperationStarted,
    QueueCancelled,
    QueueEnqueued,
    RecordBody,
    RequestUsage,
    RunIntent,
    StepAttempt,
    ToolSettled,
    ToolStarted,
    ToolUsage,
    WriteDeferred,
)


class TickingClock:
    """A clock that a test owns: it stands still until told."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self.now


class CountingIds:
    """`id-1`, `id-2`, ...: the same in every run."""

    def __init__(self, prefix: str = "id") -> None:
        self._prefix = prefix
        self._last = 0

    def next(self) -> str:
        """The next id."""
        self._last += 1
        return f"{self._prefix}-{self._last}"


USAGE = Usage(
    input=10,
    output=5,
    cache_read=2,
    cache_write=1,
    total_tokens=18,
    cost=Cost(input=0.001, output=0.002, total=0.003, extra={"currency": "USD"}),
    extra={"serviceTier": "flex"},
)


def user(text: str) -> UserMessage:
    """A user message."""
    return UserMessage(content=(TextContent(text=text),), timestamp=1_700_000_000_001)


def assistant(text: str, *calls: ToolCall) -> AssistantMessage:
    """A settled answer, with unknown keys of its provider at every level."""
    return AssistantMessage(
        content=(
            ThinkingContent(thinking="hm", thinking_signature="sig"),
            TextContent(text=text, extra={"annotations": [{"a": 1}]}),
            *calls,
        ),
        api="demo-api",
        provider="demo",
        model="demo-1",
        usage=USAGE,
        stop_reason="toolUse" if calls else "stop",
        timestamp=1_700_000_000_002,
        extra={"providerData": {"trace": ["x", None]}},
    )


CALL = ToolCall(id="c1", name="measure", arguments={"bed": 1, "big": 2**64 - 1, "nested": {"list": [1, 2.5, None]}})


def message(entry_id: str, text: str = "hello") -> ProvisionedEntry:
    """A message entry with a provisioned id."""
    return ProvisionedEntry(id=entry_id, body=MessageBody(message=user(text)))


def custom(entry_id: str, custom_type: str = "kit.note", data: JsonValue = None) -> ProvisionedEntry:
    """A custom entry with a provisioned id."""
    return ProvisionedEntry(id=entry_id, body=CustomBody(custom_type=custom_type, data=data))


def every_entry_body() -> list[EntryBody]:
    """One body of each kind, with data from outside wherever it may stand."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    result = ToolResultMessage(
        tool_call_id="c1",
        tool_name="measure",
        content=(TextContent(text="3.5 m"), image),
        is_error=False,
        timestamp=1_700_000_000_003,
        details={"paths": ["a", "b"]},
        usage=USAGE,
    )
    return [
        MessageBody(message=user("hello")),
        MessageBody(message=assistant("working", CALL)),
        MessageBody(message=result, terminate=True),
        ModelChangeBody(provider="demo", model_id="demo-2"),
        ThinkingLevelBody(thinking_level="high"),
        ActiveToolsBody(active_tool_names=("measure", "water")),
        CompactionBody(
            summary="earlier", retained_tail=(user("kept"),), tokens_before=99, details={"x": [1]}, usage=USAGE
        ),
        BranchSummaryBody(from_id="e1", summary="left", details={"y": {}}, usage=USAGE),
        CustomBody(custom_type="kit.state", data={"a": [1, None, "s"], "b": {"c": [True]}}),
        CustomBody(custom_type="kit.none"),
    ]


def started(run_id: str, lane: str = "main", kind: OperationKind = "run") -> NewRecord:
    """The start of an operation of one of the three kinds."""
    intent: Intent
    match kind:
        case "run":
            intent = RunIntent(
                original_prompt=(user("go"),),
                initial_messages=(message(f"{run_id}-prompt", "go"),),
                resume_data={"ext.a": {"n": [1]}},
            )
        case "compaction":
            intent = CompactionIntent(result_entry_id=f"{run_id}-result")
        case "navigation":
            intent = NavigationIntent(target_id=None, summarize=False)
    return NewRecord(id=run_id, lane=lane, body=OperationStarted(source_leaf_id=None, intent=intent))


def finished(record_id: str, run_id: str, lane: str = "main") -> NewRecord:
    """The end of an operation."""
    return NewRecord(id=record_id, lane=lane, body=OperationFinished(run_id=run_id, outcome="completed"))


def adjustment(record_id: str, usage: Usage, lane: str = "main") -> NewRecord:
    """A ledger entry that an application may write."""
    return NewRecord(id=record_id, lane=lane, body=AdjustmentUsage(usage=usage, details={"why": ["test"]}))


def every_record_body(run_id: str) -> list[RecordBody]:
    """One body of each kind that may stand inside a run, data from outside included."""
    return [
        StepAttempt(run_id=run_id, step="assistant", attempt=1, result_entry_id="a1"),
        StepAttempt(run_id=run_id, step="compaction", attempt=1, result_entry_id="k1", compaction_reason="threshold"),
        ToolStarted(
            run_id=run_id,
            assistant_entry_id="a1",
            tool_index=0,
            tool_call_id="c1",
            tool_name="measure",
            effective_args={"bed": [1, {"deep": True}]},
            result_entry_id="r1",
            replay="safe",
        ),
        ToolSettled(
            run_id=run_id,
            assistant_entry_id="a1",
            tool_index=0,
            tool_call_id="c1",
            result_entry_id="r1",
            result={"content": [{"type": "text", "text": "3.5 m"}]},
            is_error=False,
        ),
        QueueEnqueued(queue="steer", run_id=run_id, target=message("q1")),
        QueueEnqueued(queue="nextRun", target=message("q2")),
        QueueCancelled(run_id=run_id, entry_id="q1"),
        WriteDeferred(run_id=run_id, target=custom("w1", data={"k": [1]})),
        RequestUsage(usage=USAGE, cause="assistant", run_id=run_id, entry_id="a1", attempt=1, stop_reason="toolUse"),
        ToolUsage(usage=USAGE, run_id=run_id, entry_id="r1", tool_call_id="c1"),
        HookUsage(usage=USAGE, run_id=run_id, entry_id="k1"),
        AdjustmentUsage(usage=Usage(input=-3, cost=Cost(total=-0.5)), details={"why": "refund"}),
        AbortRequested(run_id=run_id),
    ]


def vandalize(value: object) -> None:
    """Change every container that can be reached from `value`: what a careless reader could do to an answer."""
    if isinstance(value, dict):
        inside = cast("dict[str, object]", value)
        for item in list(inside.values()):
            vandalize(item)
        inside["vandalized"] = True
    elif isinstance(value, list):
        items = cast("list[object]", value)
        for item in list(items):
            vandalize(item)
        items.append("vandalized")
    elif isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            vandalize(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            vandalize(getattr(value, part.name))
