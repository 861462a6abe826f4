"""Durable prefixes, written by hand through the public session API: one crash state at a time (Tier A)."""

from agent_harness.session.session import Session
from agent_harness.testing import answer, call
from agent_harness.types.codec import dump_object
from agent_harness.types.entries import CustomBody, EntryBody, MessageBody, ProvisionedEntry
from agent_harness.types.messages import (
    AgentMessage,
    AssistantMessage,
    DeferredHandle,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agent_harness.types.records import (
    AbortRequested,
    NewRecord,
    OperationStarted,
    QueueCancelled,
    QueueEnqueued,
    QueueName,
    RecordBody,
    Replay,
    RunIntent,
    StepAttempt,
    ToolSettled,
    ToolStarted,
    ToolUsage,
    WriteDeferred,
)
from agent_harness.types.tools import AgentToolResult

RUN = "run-1"
HANDLE = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id="job-1")


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def message_entry(entry_id: str, message: AgentMessage, *, terminate: bool = False) -> ProvisionedEntry:
    return ProvisionedEntry(id=entry_id, body=MessageBody(message=message, terminate=True if terminate else None))


def calls(count: int = 1, name: str = "measure") -> list[ToolCall]:
    return [call(name, {"bed": n}, id=f"c{n}") for n in range(1, count + 1)]


class Prefix:
    """Writes facts of one run on one lane."""

    def __init__(self, session: Session, lane: str = "main") -> None:
        self.session = session
        self.lane = lane
        self.count = 0

    async def record(self, body: RecordBody, record_id: str | None = None) -> None:
        self.count += 1
        await self.session.append_record(
            NewRecord(id=record_id or f"{self.lane}-r{self.count}", lane=self.lane, body=body)
        )

    async def entry(self, entry_id: str, message: AgentMessage, *, terminate: bool = False) -> None:
        await self.session.append_entry(message_entry(entry_id, message, terminate=terminate), self.lane)

    async def body(self, entry_id: str, body: EntryBody) -> None:
        await self.session.append_entry(ProvisionedEntry(id=entry_id, body=body), self.lane)

    async def start(self, *texts: str, written: int | None = None) -> None:
        """An accepted run; the first `written` of its initial messages are in the tree (default: all)."""
        texts = texts or ("go",)
        initial = tuple(message_entry(f"u{n}", user(text)) for n, text in enumerate(texts, 1))
        leaf = await self.session.view(self.lane).get_leaf_id()
        intent = RunIntent(original_prompt=(user(texts[-1]),), initial_messages=initial)
        await self.record(OperationStarted(source_leaf_id=leaf, intent=intent), RUN)
        for item in initial[: len(initial) if written is None else written]:
            await self.session.append_entry(item, self.lane)

    async def attempt(self, number: int = 1, result_id: str = "a1") -> None:
        await self.record(StepAttempt(run_id=RUN, step="assistant", attempt=number, result_entry_id=result_id))

    async def batch(self, count: int = 1, *, stop_reason: str | None = None, name: str = "measure") -> None:
        """A run up to an assistant message with `count` calls, under the id `a1`."""
        await self.start()
        await self.attempt()
        await self.entry("a1", answer(calls=calls(count, name), stop_reason=stop_reason))

    async def tool_started(self, number: int = 1, replay: Replay = "never", name: str = "measure") -> None:
        """Call number `number` (1-based) started; its result will be `t<number>`."""
        await self.record(
            ToolStarted(
                run_id=RUN,
                assistant_entry_id="a1",
                tool_index=number - 1,
                tool_call_id=f"c{number}",
                tool_name=name,
                effective_args={"bed": number},
                result_entry_id=f"t{number}",
                replay=replay,
            )
        )

    async def tool_usage(self, number: int, usage: Usage) -> None:
        await self.record(ToolUsage(run_id=RUN, entry_id=f"t{number}", tool_call_id=f"c{number}", usage=usage))

    async def tool_settled(
        self, number: int = 1, result: AgentToolResult | None = None, *, error: bool = False
    ) -> None:
        await self.record(
            ToolSettled(
                run_id=RUN,
                assistant_entry_id="a1",
                tool_index=number - 1,
                tool_call_id=f"c{number}",
                result_entry_id=f"t{number}",
                result=None if result is None else dump_object(result),
                is_error=error,
            )
        )

    async def result(self, number: int = 1, text: str = "kept", *, terminate: bool = False) -> None:
        message = ToolResultMessage(
            tool_call_id=f"c{number}",
            tool_name="measure",
            content=(TextContent(text=text),),
            is_error=False,
            timestamp=1,
        )
        await self.entry(f"t{number}", message, terminate=terminate)

    async def queued(self, queue: QueueName, entry_id: str, text: str) -> None:
        run_id = None if queue == "nextRun" else RUN
        await self.record(QueueEnqueued(queue=queue, run_id=run_id, target=message_entry(entry_id, user(text))))

    async def cancelled(self, entry_id: str, *, next_run: bool = False) -> None:
        await self.record(QueueCancelled(run_id=None if next_run else RUN, entry_id=entry_id))

    async def write(self, entry_id: str = "w1") -> None:
        body = CustomBody(custom_type="note", data={"id": entry_id})
        await self.record(WriteDeferred(run_id=RUN, target=ProvisionedEntry(id=entry_id, body=body)))

    async def aborted(self) -> None:
        await self.record(AbortRequested(run_id=RUN))

    async def deferred(self, handle: DeferredHandle = HANDLE) -> None:
        """A run that is parked on a handle."""
        await self.start()
        await self.attempt()
        await self.entry("a1", answer(deferred=handle))


def real(text: str, usage: Usage | None = None) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text=text),), usage=usage)


def errored(code: str = "auth", text: str = "no") -> AssistantMessage:
    return answer(error_message=text, error_code=code)
