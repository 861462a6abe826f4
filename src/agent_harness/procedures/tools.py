"""Tool batches: the live path with its durability callbacks, and the reconciliation of a batch that a crash or an
abort left half done, each call at its own site in source order (harness-v2 §6, §15, A-4)."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from ..effects.base import Effects
from ..events.catalog import ToolEnd, ToolStart
from ..hooks.catalog import AfterTool, BeforeTool
from ..loop.tools import (
    ABORTED,
    INTERRUPTED,
    TRUNCATED,
    Clearance,
    ResultPatch,
    ToolCallbacks,
    create_error_tool_result,
    create_tool_result_message,
    execute_tool_batch,
    finalize_tool_call,
    finalized_refusal,
    prepare_tool_call,
)
from ..telemetry.context import TelemetryContext
from ..types.codec import dump_object, load_tool_result
from ..types.entries import ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import AssistantMessage, ToolCall, ToolResultMessage, Usage
from ..types.records import AdjustmentUsage, ToolSettled, ToolStarted
from ..types.state import ToolBatchState, ToolCallState
from ..types.tools import (
    AgentTool,
    AgentToolResult,
    ExecutedToolCall,
    FinalizedToolCall,
    PreparedToolCall,
)
from ..types.usage import usage_difference
from .build import result_entry, synthetic_message, tool_usage

NOT_KEPT = "The call finished, but its result was not kept."


@dataclass(slots=True, kw_only=True)
class Turn:
    """A live turn while it grows: what `turn_end` will tell. Recovered work has no turn (harness-v2 §18)."""

    id: str
    message: AssistantMessage | None = None
    results: list[ToolResultMessage] = field(default_factory=list[ToolResultMessage])  # source order


async def run_tool_batch(
    fx: Effects, assistant_entry_id: str, assistant: AssistantMessage, turn: Turn | None, parent: TelemetryContext
) -> None:
    """The live path: every call of an assistant message that was just appended. Results go to `turn` as well."""
    runner = _BatchRunner(fx, assistant_entry_id, turn, parent)
    await execute_tool_batch(
        assistant,
        fx.reads.tools(),
        runner.callbacks(),
        sequential=fx.reads.tool_execution == "sequential",
        signal=fx.reads.signal,
        now_ms=fx.reads.now_ms,
    )


class _BatchRunner:
    """The callbacks of one batch: all of its writes go through `fx`, in order."""

    def __init__(self, fx: Effects, assistant_entry_id: str, turn: Turn | None, parent: TelemetryContext) -> None:
        self._fx = fx
        self._assistant_entry_id = assistant_entry_id
        self._turn = turn
        self._turn_id = turn.id if turn is not None else None
        self._parent = parent
        self._result_ids: dict[int, str] = {}
        self._raw_usage: dict[int, Usage] = {}

    def callbacks(self) -> ToolCallbacks:
        reads = self._fx.reads
        return ToolCallbacks(
            before_tool_call=self.clear,
            after_tool_call=self.patch if reads.has_hook("after_tool") else None,
            on_tool_start=self.start,
            on_tool_settled=self.settle,
            on_tool_result=self.finish,
            execute_tool=self.execute,
        )

    async def clear(self, call: ToolCall, args: dict[str, JsonValue]) -> Clearance | None:
        if self._aborted():
            return Clearance(block=ABORTED)
        event = BeforeTool(
            lane=self._fx.reads.lane, run_id=self._fx.reads.op.id, tool_call_id=call.id, tool_name=call.name, args=args
        )
        decision = await self._fx.before_tool(event, self._parent)
        return Clearance(args=decision.args, block=ABORTED if self._aborted() else decision.block)

    def _aborted(self) -> bool:
        return self._fx.reads.aborting

    async def start(self, prepared: PreparedToolCall) -> None:
        reads, call = self._fx.reads, prepared.tool_call
        entry_id = reads.new_id()
        self._result_ids[prepared.tool_index] = entry_id
        await self._fx.append_record(
            ToolStarted(
                run_id=reads.op.id,
                assistant_entry_id=self._assistant_entry_id,
                tool_index=prepared.tool_index,
                tool_call_id=call.id,
                tool_name=call.name,
                effective_args=prepared.args,
                result_entry_id=entry_id,
                replay=prepared.tool.replay,
            ),
            self._parent,
        )
        self.announce(prepared.tool_index, call, prepared.args)

    def resume_at(self, call: ToolCallState, started: ToolStarted) -> None:
        """Take over a call whose `tool_started` another process wrote."""
        self._result_ids[call.tool_index] = started.result_entry_id

    def announce(self, index: int, call: ToolCall, args: Mapping[str, JsonValue]) -> None:
        """Open the call's bracket, unless it is open. Every call has one, also one that was refused or interrupted."""
        reads = self._fx.reads
        if reads.tool_announced(index):
            return
        reads.emit(
            ToolStart(
                lane=reads.lane,
                run_id=reads.op.id,
                turn_id=self._turn_id,
                tool_index=index,
                tool_call_id=call.id,
                tool_name=call.name,
                args=_copy(args),  # a tool may change what it is handed
                recovery=reads.recovery,
            )
        )

    async def execute(self, prepared: PreparedToolCall) -> ExecutedToolCall:
        return await self._fx.execute_tool(prepared, self._turn_id, self._parent)

    async def settle(self, prepared: PreparedToolCall, executed: ExecutedToolCall, waits: bool) -> None:
        """The ledger first; then, if anything stands before the entry, the outcome itself (A-4)."""
        reads, index = self._fx.reads, prepared.tool_index
        usage = executed.result.usage
        if usage is not None:
            self._raw_usage[index] = usage
            record = tool_usage(reads.op.id, self._result_ids[index], prepared.tool_call.id, usage)
            await self._fx.append_record(record, self._parent)
        if not waits:
            return
        await self._fx.append_record(
            ToolSettled(
                run_id=reads.op.id,
                assistant_entry_id=self._assistant_entry_id,
                tool_index=index,
                tool_call_id=prepared.tool_call.id,
                result_entry_id=self._result_ids[index],
                result=None if reads.redacts_results else dump_object(executed.result),
                is_error=executed.is_error,
            ),
            self._parent,
        )

    async def patch(self, prepared: PreparedToolCall, executed: ExecutedToolCall) -> ResultPatch | None:
        reads, result = self._fx.reads, executed.result
        event = AfterTool(
            lane=reads.lane,
            run_id=reads.op.id,
            tool_call_id=prepared.tool_call.id,
            tool_name=prepared.tool_call.name,
            args=prepared.args,
            content=result.content,
            details=result.details,
            is_error=executed.is_error,
            usage=result.usage,
            terminate=result.terminate,
        )
        patch = await self._fx.after_tool(event, self._parent)
        patched = AgentToolResult(
            content=result.content if patch.content is None else patch.content,
            details=result.details if patch.details is None else patch.details,
            usage=result.usage if patch.usage is None else patch.usage,
            terminate=result.terminate if patch.terminate is None else patch.terminate,
        )
        return ResultPatch(result=patched, is_error=patch.is_error)

    async def finish(self, finalized: FinalizedToolCall) -> None:
        reads, index = self._fx.reads, finalized.tool_index
        # A blocked or invalid call has no tool_started and no provisioned id.
        entry_id = self._result_ids.get(index) or reads.new_id()
        await self._adjust(index, entry_id, finalized.result.usage)
        terminate = finalized.result.terminate is True
        message = create_tool_result_message(finalized, reads.now_ms())
        self.announce(index, finalized.tool_call, finalized.tool_call.arguments)
        await self._deliver(index, result_entry(entry_id, message, terminate), message, finalized.result)

    async def synthesize(self, call: ToolCallState, text: str) -> None:
        """An error result that no execution produced, under the provisioned id if the call has one."""
        reads = self._fx.reads
        entry_id = _started(call).result_entry_id if call.started is not None else reads.new_id()
        args = _started(call).effective_args if call.started is not None else call.tool_call.arguments
        self.announce(call.tool_index, call.tool_call, args)
        message = synthetic_message(call.tool_call, text, reads.now_ms())
        entry = result_entry(entry_id, message, terminate=False)
        await self._deliver(call.tool_index, entry, message, create_error_tool_result(text))

    async def _deliver(
        self, index: int, entry: ProvisionedEntry, message: ToolResultMessage, result: AgentToolResult
    ) -> None:
        reads = self._fx.reads
        reads.emit(
            ToolEnd(
                lane=reads.lane,
                run_id=reads.op.id,
                turn_id=self._turn_id,
                tool_index=index,
                tool_call_id=message.tool_call_id,
                tool_name=message.tool_name,
                result=result,
                is_error=message.is_error,
                terminate=result.terminate is True,
                recovery=reads.recovery,
            )
        )
        await self._fx.append_entry(entry, self._parent)
        if self._turn is not None:
            self._turn.results.append(message)

    async def _adjust(self, index: int, entry_id: str, final: Usage | None) -> None:
        """A hook that corrects the reported usage corrects the ledger too."""
        raw = self._raw_usage.get(index)
        if final is None or final == raw:
            return
        difference = usage_difference(final, raw or Usage())
        await self._fx.append_record(
            AdjustmentUsage(run_id=self._fx.reads.op.id, entry_id=entry_id, usage=difference), self._parent
        )

    def already_billed(self, index: int, usage: Usage | None) -> None:
        """The `tool_settled` record says that the ledger has this usage."""
        if usage is not None:
            self._raw_usage[index] = usage


# Reconciliation ------------------------------------------------------------------------------------------------------


async def reconcile_tool_batch(fx: Effects, batch: ToolBatchState, parent: TelemetryContext) -> None:
    """Recovery of an unresolved batch: skip, finalize, re-execute, interrupt or run each call, in source order."""
    runner = _BatchRunner(fx, batch.assistant_entry_id, None, parent)
    for index in range(len(batch.calls)):
        call = _current(fx, batch, index)
        if call.result_exists or fx.reads.aborting:
            continue
        if batch.truncated:
            await runner.synthesize(call, TRUNCATED)
        elif call.settled is not None:
            await _finalize_settled(fx, runner, call)
        elif call.started is not None:
            await _replay_or_interrupt(fx, runner, call)
        else:
            await _run_single(fx, runner, call)


def _current(fx: Effects, batch: ToolBatchState, index: int) -> ToolCallState:
    """The call as it is now: the batch in the state changes with every write."""
    live = fx.reads.op.tool_batch
    source = live if live is not None and live.assistant_entry_id == batch.assistant_entry_id else batch
    return source.calls[index]


async def _run_single(fx: Effects, runner: _BatchRunner, call: ToolCallState) -> None:
    """X1, X2: nothing durable yet; the full path, with the original ordinal."""
    callbacks = runner.callbacks()
    tools = {tool.name: tool for tool in fx.reads.tools()}
    prepared = await prepare_tool_call(call.tool_call, call.tool_index, tools, callbacks)
    if not isinstance(prepared, PreparedToolCall):
        if not fx.reads.aborting:
            await runner.finish(finalized_refusal(prepared))
        return
    await runner.start(prepared)
    await _execute(runner, prepared, callbacks)


async def _replay_or_interrupt(fx: Effects, runner: _BatchRunner, call: ToolCallState) -> None:
    """X3, X4: the outcome is unknown. Replay only if the record and the current declaration both say safe."""
    started = _started(call)
    tool = fx.reads.tool(started.tool_name)
    if started.replay != "safe" or tool is None or tool.replay != "safe":
        await runner.synthesize(call, INTERRUPTED)
        return
    runner.resume_at(call, started)
    prepared = _prepared(call, started, tool)
    runner.announce(call.tool_index, call.tool_call, prepared.args)
    await _execute(runner, prepared, runner.callbacks())


async def _execute(runner: _BatchRunner, prepared: PreparedToolCall, callbacks: ToolCallbacks) -> None:
    executed = await runner.execute(prepared)
    if executed.interrupted:
        return  # the abort path owns the synthetic result
    await runner.settle(prepared, executed, waits=callbacks.after_tool_call is not None)
    await runner.finish(await finalize_tool_call(prepared, executed, callbacks))


async def _finalize_settled(fx: Effects, runner: _BatchRunner, call: ToolCallState) -> None:
    """The effect finished before the crash: phase 3 on its recorded result, never again the effect (A-4)."""
    started = _started(call)
    assert call.settled is not None
    settled = call.settled.body
    assert isinstance(settled, ToolSettled)
    if settled.result is None:
        await runner.synthesize(call, NOT_KEPT)
        return
    runner.resume_at(call, started)
    executed = ExecutedToolCall(result=load_tool_result(settled.result), is_error=settled.is_error)
    runner.already_billed(call.tool_index, executed.result.usage)
    tool = fx.reads.tool(started.tool_name) or _absent_tool(started)
    await runner.finish(await finalize_tool_call(_prepared(call, started, tool), executed, runner.callbacks()))


def _started(call: ToolCallState) -> ToolStarted:
    assert call.started is not None
    assert isinstance(call.started.body, ToolStarted)
    return call.started.body


def _prepared(call: ToolCallState, started: ToolStarted, tool: AgentTool) -> PreparedToolCall:
    # The persisted arguments, not derived again (harness-v2 §6).
    return PreparedToolCall(
        tool_call=call.tool_call, tool_index=call.tool_index, tool=tool, args=_copy(started.effective_args)
    )


def _copy(args: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A tool may change what it is handed; the record in live state may not change with it."""
    return deepcopy(dict(args))


def _absent_tool(started: ToolStarted) -> AgentTool:
    """Stands for a tool that is no longer registered: only its name is read after it settled."""

    async def never(_invocation: object) -> AgentToolResult:
        return create_error_tool_result("not registered")

    return AgentTool(name=started.tool_name, description="", parameters={}, execute=never)


async def abort_tool_batch(fx: Effects, parent: TelemetryContext, turn: Turn | None = None) -> None:
    """Close the batch of an aborting run: finished effects keep their results, the others get synthetic ones (A-4)."""
    batch = fx.reads.op.tool_batch
    if batch is None:
        return
    runner = _BatchRunner(fx, batch.assistant_entry_id, turn, parent)
    for index in range(len(batch.calls)):
        call = _current(fx, batch, index)
        if call.result_exists:
            continue
        if call.settled is not None:
            await _finalize_settled(fx, runner, call)
        else:
            await runner.synthesize(call, INTERRUPTED if call.started is not None else ABORTED)
