"""A tool batch of the in-memory loop: `execute_tool_batch` with its events, and a result for every call."""

from collections.abc import Awaitable, Callable, Sequence

from ..abort_signal import AbortSignal
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage, ToolCall, ToolResultMessage
from ..types.tools import AgentTool, AgentToolResult, ExecutedToolCall, FinalizedToolCall, PreparedToolCall
from .agent_events import ToolExecutionEndEvent, ToolExecutionStartEvent, ToolExecutionUpdateEvent
from .event_stream import OrderedSink
from .loop_config import AgentLoopConfig
from .tools import (
    ABORTED,
    INTERRUPTED,
    Clearance,
    ResultPatch,
    ToolCallbacks,
    create_error_tool_result,
    create_tool_result_message,
    execute_tool_batch,
    execute_tool_call,
    finalize_tool_call,
    reporter,
)


async def run_reported_batch(
    answer: AssistantMessage,
    tools: Sequence[AgentTool],
    config: AgentLoopConfig,
    sink: OrderedSink,
    *,
    signal: AbortSignal,
    report: Callable[[AgentMessage], Awaitable[None]],
) -> tuple[tuple[ToolResultMessage, ...], bool]:
    """Run every call of `answer`; each gets exactly one result, in source order, aborted or not.

    Returns:
        The results, and whether every one of them said terminate.
    """
    batch = _Reported(config, sink, signal, report)
    outcome = await execute_tool_batch(
        answer, tools, batch.callbacks(), sequential=config.sequential_tools, signal=signal, now_ms=config.now_ms
    )
    await batch.complete(answer)
    return tuple(batch.results), outcome.terminate


class _Reported:
    def __init__(
        self,
        config: AgentLoopConfig,
        sink: OrderedSink,
        signal: AbortSignal,
        report: Callable[[AgentMessage], Awaitable[None]],
    ) -> None:
        self.results: list[ToolResultMessage] = []
        self._config = config
        self._sink = sink
        self._signal = signal
        self._report = report
        self._seen = 0  # calls with a tool_execution_start, in source order
        self._started: set[int] = set()
        self._settled: dict[int, tuple[PreparedToolCall, ExecutedToolCall]] = {}

    def callbacks(self) -> ToolCallbacks:
        return ToolCallbacks(
            on_tool_call=self.announce,
            before_tool_call=self.clear if self._config.before_tool_call is not None else None,
            after_tool_call=self.patch if self._config.after_tool_call is not None else None,
            on_tool_settled=self.settle,
            on_tool_result=self.deliver,
            execute_tool=self.execute,
        )

    async def announce(self, call: ToolCall, tool_index: int) -> None:
        self._seen = tool_index + 1
        args: JsonValue = dict(call.arguments)
        await self._sink.send(ToolExecutionStartEvent(tool_call_id=call.id, tool_name=call.name, args=args))

    async def clear(self, call: ToolCall, args: dict[str, JsonValue]) -> Clearance | None:
        if self._signal.aborted:
            return Clearance(block=ABORTED)
        assert self._config.before_tool_call is not None
        try:
            decision = await self._config.before_tool_call(call, args)
        except Exception as error:
            return Clearance(block=_said(error))
        return Clearance(block=ABORTED) if self._signal.aborted else decision

    async def execute(self, prepared: PreparedToolCall) -> ExecutedToolCall:
        call = prepared.tool_call
        settled = False
        if not self._signal.aborted:
            self._started.add(prepared.tool_index)

        def update(partial: AgentToolResult) -> None:
            if settled:
                return  # a late report of a call whose result is already decided
            args: JsonValue = prepared.args
            self._sink.push(
                ToolExecutionUpdateEvent(tool_call_id=call.id, tool_name=call.name, args=args, partial_result=partial)
            )

        try:
            return await execute_tool_call(
                prepared,
                self._signal,
                context=self._config.tool_context,
                update=reporter(prepared.tool, update),
            )
        finally:
            settled = True

    async def settle(self, prepared: PreparedToolCall, executed: ExecutedToolCall, waits: bool) -> None:
        self._settled[prepared.tool_index] = prepared, executed

    async def patch(self, prepared: PreparedToolCall, executed: ExecutedToolCall) -> ResultPatch | None:
        assert self._config.after_tool_call is not None
        try:
            return await self._config.after_tool_call(prepared, executed)
        except Exception as error:
            return ResultPatch(result=create_error_tool_result(_said(error)), is_error=True)

    async def deliver(self, finalized: FinalizedToolCall) -> None:
        call = finalized.tool_call
        await self._sink.send(
            ToolExecutionEndEvent(
                tool_call_id=call.id, tool_name=call.name, result=finalized.result, is_error=finalized.is_error
            )
        )
        message = create_tool_result_message(finalized, self._config.now_ms())
        self.results.append(message)
        await self._report(message)

    async def complete(self, answer: AssistantMessage) -> None:
        """What an interruption left open: finished calls keep their results, the others say what happened to them."""
        for index in range(len(self.results), len(answer.tool_calls)):
            call = answer.tool_calls[index]
            if index >= self._seen:
                await self.announce(call, index)
            if index in self._settled:
                prepared, executed = self._settled[index]
                await self.deliver(await finalize_tool_call(prepared, executed, self.callbacks()))
                continue
            text = INTERRUPTED if index in self._started else ABORTED
            result = create_error_tool_result(text)
            await self.deliver(FinalizedToolCall(tool_call=call, tool_index=index, result=result, is_error=True))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
