"""Tool calls in three phases, and the batch driver (harness-v2 §14, A-4). No durable state, no harness.

The phases are separate because durability writes stand between them, and because recovery needs phases 2 and 3 without
phase 1. Phase 2 itself is handed in (`ToolCallbacks.execute_tool`), so that a harness can put its gate around it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..abort_signal import AbortSignal
from ..providers.arguments import INVALID_ARGUMENTS
from ..types.codec import dump_object, encode, load_tool_result
from ..types.json import DEPTH_OUTSIDE, MAX_BYTES, InvalidJson, JsonValue, canon, replace_surrogates
from ..types.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserContent
from ..types.tools import (
    AgentTool,
    AgentToolResult,
    ExecutedToolCall,
    FinalizedToolCall,
    ImmediateOutcome,
    PreparedToolCall,
    ToolBatchResult,
    ToolFailed,
    ToolInvocation,
    ToolOrigin,
)

CANCEL_GRACE_SECONDS = 5.0
"""How long a cancelled tool may take to clean up before its result is given up."""

MAX_RESULT_BYTES = MAX_BYTES - 64 * 1024
"""Largest result, in bytes of JSON; what is around it in an entry must fit as well."""

TRUNCATED = "The response was truncated before completion, so this call was not executed."
INTERRUPTED = "The call was interrupted. It may have had effects; its result is not known."
ABORTED = "The call was aborted before it started."


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """What a `before_tool_call` callback decided."""

    args: dict[str, JsonValue] | None = None
    block: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPatch:
    """What an `after_tool_call` callback changes; None keeps."""

    content: tuple[UserContent, ...] | None = None
    details: JsonValue = None
    is_error: bool | None = None
    result: AgentToolResult | None = None  # replaces the whole result


OnToolCall = Callable[[ToolCall, int], Awaitable[None]]
BeforeToolCall = Callable[[ToolCall, dict[str, JsonValue]], Awaitable[Clearance | None]]
AfterToolCall = Callable[[PreparedToolCall, ExecutedToolCall], Awaitable[ResultPatch | None]]
OnToolStart = Callable[[PreparedToolCall], Awaitable[None]]
OnToolSettled = Callable[[PreparedToolCall, ExecutedToolCall, bool], Awaitable[None]]
OnToolResult = Callable[[FinalizedToolCall], Awaitable[None]]
ExecuteTool = Callable[[PreparedToolCall], Awaitable[ExecutedToolCall]]


async def _default_execute(prepared: PreparedToolCall) -> ExecutedToolCall:
    return await execute_tool_call(prepared, AbortSignal())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallbacks:
    """The seams of a batch. All are called from one coroutine, never concurrently."""

    on_tool_call: OnToolCall | None = None  # before phase 1, source order; the ordinal among the calls
    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    on_tool_start: OnToolStart | None = None  # between phases 1 and 2, source order: the durability point
    on_tool_settled: OnToolSettled | None = None  # settle order; the flag says that its entry must wait
    on_tool_result: OnToolResult | None = None  # after phase 3, source order
    execute_tool: ExecuteTool = field(default=_default_execute)


# Phase 1 -------------------------------------------------------------------------------------------------------------


async def prepare_tool_call(
    call: ToolCall, tool_index: int, tools: Mapping[str, AgentTool], callbacks: ToolCallbacks
) -> PreparedToolCall | ImmediateOutcome:
    """Look the tool up, validate the arguments, ask `before_tool_call`, validate what it replaced. No effect starts."""
    refusal = call.extra.get(INVALID_ARGUMENTS)
    if refusal is not None:
        return _refused(call, tool_index, f"The arguments of the call were not valid: {refusal}")
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return _refused(call, tool_index, f"There is no tool {call.name!r}. Available tools: {known}.")
    checked = _validated(tool, dict(call.arguments))
    if isinstance(checked, str):
        return _refused(call, tool_index, checked)
    if callbacks.before_tool_call is not None:
        clearance = await callbacks.before_tool_call(call, checked)
        if clearance is not None and clearance.block is not None:
            return _refused(call, tool_index, clearance.block)
        if clearance is not None and clearance.args is not None:
            replaced = _validated(tool, clearance.args)
            if isinstance(replaced, str):
                return _refused(call, tool_index, replaced)
            checked = replaced
    return PreparedToolCall(tool_call=call, tool_index=tool_index, tool=tool, args=checked)


def _validated(tool: AgentTool, args: dict[str, JsonValue]) -> dict[str, JsonValue] | str:
    """A copy of the arguments that will survive storage, or what is wrong with them."""
    try:
        given = canon(args, depth=DEPTH_OUTSIDE)
        if not isinstance(given, dict):
            return f"The arguments of {tool.name} are not valid: not a JSON object"
        if tool.validate is None:
            return given
        checked = canon(tool.validate(given), depth=DEPTH_OUTSIDE)
    except ValueError as error:
        return f"The arguments of {tool.name} are not valid: {error}"
    except Exception as error:
        return f"The arguments of {tool.name} could not be checked: {type(error).__name__}"
    return checked if isinstance(checked, dict) else f"The check of the arguments of {tool.name} gave no object."


def _refused(call: ToolCall, tool_index: int, reason: str) -> ImmediateOutcome:
    return ImmediateOutcome(tool_call=call, tool_index=tool_index, result=create_error_tool_result(reason))


# Phase 2 -------------------------------------------------------------------------------------------------------------


async def execute_tool_call(
    prepared: PreparedToolCall,
    signal: AbortSignal,
    *,
    context: object = None,
    update: Callable[[AgentToolResult], None] | None = None,
    origin: ToolOrigin | None = None,
) -> ExecutedToolCall:
    """Run the tool. Never raises for the tool's own failures: they become error results.

    An abort or a timeout cancels an async tool and gives it a bounded time to clean up; a blocking tool's thread
    cannot be stopped, so its late result is dropped (decisions section 3). A tool that finishes in spite of an abort
    has its real result kept.
    """
    invocation = ToolInvocation(
        tool_call_id=prepared.tool_call.id,
        args=prepared.args,
        signal=signal,
        context=context,
        update=update or (lambda _partial: None),
        origin=origin,
    )
    if signal.aborted:
        return _interrupted()
    work = asyncio.ensure_future(_outcome(prepared.tool, invocation))
    work.add_done_callback(_retrieve)  # a tool that is given up may still fail
    aborted = asyncio.ensure_future(signal.wait())
    timeout = None if prepared.tool.timeout_ms is None else prepared.tool.timeout_ms / 1000
    try:
        await asyncio.wait({work, aborted}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        stopped = not work.done()
        timed_out = stopped and not signal.aborted
        if stopped:
            work.cancel()
            await asyncio.wait({work}, timeout=CANCEL_GRACE_SECONDS)
    except asyncio.CancelledError:  # the harness lets go: so must the tool, within bounds
        work.cancel()
        await asyncio.wait({work}, timeout=CANCEL_GRACE_SECONDS)
        raise
    finally:
        aborted.cancel()
    if not work.done() or work.cancelled():
        if timed_out:
            return _failed(f"The call timed out after {prepared.tool.timeout_ms} ms.")
        # Without an abort the cancellation was the tool's own, and it is over: not interrupted, failed.
        return _interrupted() if signal.aborted else _failed("CancelledError")
    outcome = work.result()
    if isinstance(outcome, ToolFailed):
        return replace(_settled(outcome.result), is_error=True)
    if isinstance(outcome, BaseException):
        return _failed(f"{type(outcome).__name__}: {outcome}" if str(outcome) else type(outcome).__name__)
    return _settled(outcome)


def reporter(tool: AgentTool, update: Callable[[AgentToolResult], None]) -> Callable[[AgentToolResult], None]:
    """`update` as `tool` may call it: a blocking one reports from its thread, and events belong to the loop."""
    if tool.execute is not None:
        return update
    loop = asyncio.get_running_loop()

    def from_thread(partial: AgentToolResult) -> None:
        try:
            loop.call_soon_threadsafe(update, partial)
        except RuntimeError:
            pass  # the loop is gone; so is everybody who would look

    return from_thread


async def _outcome(tool: AgentTool, invocation: ToolInvocation) -> AgentToolResult | BaseException:
    """What the tool returned or raised. A `SystemExit` of a tool is its failure too, not the end of the program."""
    try:
        return await _call(tool, invocation)
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return error


def _retrieve(work: asyncio.Future[AgentToolResult | BaseException]) -> None:
    if not work.cancelled():
        work.exception()


async def _call(tool: AgentTool, invocation: ToolInvocation) -> AgentToolResult:
    if tool.execute is not None:
        return await tool.execute(invocation)
    from anyio.to_thread import run_sync

    assert tool.execute_blocking is not None
    return await run_sync(tool.execute_blocking, invocation, abandon_on_cancel=True)


def _settled(result: object) -> ExecutedToolCall:
    if not isinstance(result, AgentToolResult):
        return _failed(f"the tool returned {type(result).__name__}, not an AgentToolResult")
    try:
        content = tuple(
            replace(part, text=replace_surrogates(part.text)) if isinstance(part, TextContent) else part
            for part in result.content or ()
        )
        kept = storable(replace(result, content=content))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return _failed(f"the tool's result cannot be kept: {error}")
    return ExecutedToolCall(result=kept, is_error=False)


def presentable(partial: object) -> AgentToolResult | None:
    """A progress report as watchers may see it: a copy that is JSON; None for what is not."""
    settled = _settled(partial)
    return None if settled.is_error else settled.result


def storable(result: AgentToolResult) -> AgentToolResult:
    """A copy of the result as it will be read back.

    Raises:
        ValueError, TypeError, AttributeError, RecursionError: it would not survive storage.
    """
    wire = dump_object(result)
    canon(wire, depth=DEPTH_OUTSIDE)
    if len(encode(wire)) > MAX_RESULT_BYTES:
        raise InvalidJson("$", f"more than {MAX_RESULT_BYTES} bytes")
    return load_tool_result(wire)


def _failed(text: str) -> ExecutedToolCall:
    return ExecutedToolCall(result=create_error_tool_result(text), is_error=True)


def _interrupted() -> ExecutedToolCall:
    return ExecutedToolCall(result=create_error_tool_result("interrupted"), is_error=True, interrupted=True)


# Phase 3 -------------------------------------------------------------------------------------------------------------


async def finalize_tool_call(
    prepared: PreparedToolCall, executed: ExecutedToolCall, callbacks: ToolCallbacks
) -> FinalizedToolCall:
    """Apply the `after_tool_call` patch, field by field."""
    result, is_error = executed.result, executed.is_error
    if callbacks.after_tool_call is not None:
        patch = await callbacks.after_tool_call(prepared, executed)
        if patch is not None:
            result = patch.result if patch.result is not None else result
            if patch.content is not None:
                result = replace(result, content=patch.content)
            if patch.details is not None:
                result = replace(result, details=patch.details)
            is_error = patch.is_error if patch.is_error is not None else is_error
    return FinalizedToolCall(
        tool_call=prepared.tool_call, tool_index=prepared.tool_index, result=result, is_error=is_error
    )


def finalized_refusal(outcome: ImmediateOutcome) -> FinalizedToolCall:
    """A call that was answered instead of executed: unknown, invalid, blocked or truncated."""
    return FinalizedToolCall(
        tool_call=outcome.tool_call, tool_index=outcome.tool_index, result=outcome.result, is_error=True
    )


def create_error_tool_result(text: str) -> AgentToolResult:
    """A result that says what went wrong."""
    return AgentToolResult(content=(TextContent(text=replace_surrogates(text)),))


def create_tool_result_message(finalized: FinalizedToolCall, timestamp: int) -> ToolResultMessage:
    """What the model reads of a finished call."""
    result = finalized.result
    return ToolResultMessage(
        tool_call_id=finalized.tool_call.id,
        tool_name=finalized.tool_call.name,
        content=result.content,
        details=result.details,
        usage=result.usage,
        is_error=finalized.is_error,
        timestamp=timestamp,
    )


# The batch -----------------------------------------------------------------------------------------------------------


async def execute_tool_batch(
    assistant: AssistantMessage,
    tools: Sequence[AgentTool],
    callbacks: ToolCallbacks,
    *,
    sequential: bool = False,
    signal: AbortSignal | None = None,
    now_ms: Callable[[], int] = lambda: 0,
) -> ToolBatchResult:
    """Run every call of an assistant message.

    - A `length` stop fails every call without executing: truncated arguments can validate by accident.
    - Sequential when asked for, or when a called tool declares it; else phase 1 and `on_tool_start` run in source
      order, phase 2 concurrently, and results are delivered in source order, each as soon as those before it are.
    - After an abort no further call is prepared; running ones settle. A call that was interrupted is not delivered,
      nor is any after it: whoever aborts owns the synthetic results.
    """
    batch = _Batch(assistant, tools, callbacks, signal or AbortSignal(), now_ms)
    if assistant.stop_reason == "length":
        await batch.truncate()
    elif sequential or batch.wants_sequential():
        await batch.run_sequential()
    else:
        await batch.run_parallel()
    return batch.result()


class _Batch:
    def __init__(
        self,
        assistant: AssistantMessage,
        tools: Sequence[AgentTool],
        callbacks: ToolCallbacks,
        signal: AbortSignal,
        now_ms: Callable[[], int],
    ) -> None:
        self._calls = assistant.tool_calls
        self._tools = {tool.name: tool for tool in tools}
        self._callbacks = callbacks
        self._signal = signal
        self._now_ms = now_ms
        self._delivered: list[FinalizedToolCall] = []

    def wants_sequential(self) -> bool:
        called = (self._tools.get(call.name) for call in self._calls)
        return any(tool is not None and tool.execution_mode == "sequential" for tool in called)

    async def truncate(self) -> None:
        for index, call in enumerate(self._calls):
            await self._announce(call, index)
            await self._deliver(finalized_refusal(_refused(call, index, TRUNCATED)))

    async def run_sequential(self) -> None:
        for index, call in enumerate(self._calls):
            if self._signal.aborted:
                return
            cleared = await self._clear(call, index)
            if isinstance(cleared, ImmediateOutcome):
                await self._deliver(finalized_refusal(cleared))
                continue
            executed = await self._callbacks.execute_tool(cleared)
            if executed.interrupted:
                return
            await self._settle(cleared, executed, waits=self._callbacks.after_tool_call is not None)
            await self._finish(cleared, executed)

    async def run_parallel(self) -> None:
        cleared: list[PreparedToolCall | ImmediateOutcome] = []
        settled: asyncio.Queue[int] = asyncio.Queue()
        running: dict[int, asyncio.Task[ExecutedToolCall]] = {}
        try:
            for index, call in enumerate(self._calls):
                if self._signal.aborted:
                    break
                cleared.append(await self._clear(call, index))
            for index, item in enumerate(cleared):
                if isinstance(item, PreparedToolCall):
                    task = asyncio.ensure_future(self._callbacks.execute_tool(item))
                    # The queue keeps the settle order; asyncio.wait would give a set.
                    task.add_done_callback(partial(_note, settled, index))
                    running[index] = task
            await self._collect(cleared, settled, running)
        finally:
            for task in running.values():
                task.cancel()
            if running:  # all done, unless the batch itself was stopped
                await asyncio.wait(running.values())

    async def _collect(
        self,
        cleared: Sequence[PreparedToolCall | ImmediateOutcome],
        settled: asyncio.Queue[int],
        running: Mapping[int, asyncio.Task[ExecutedToolCall]],
    ) -> None:
        done: dict[int, ExecutedToolCall] = {}
        position = await self._advance(cleared, done, 0)
        for _ in running:
            index = await settled.get()
            executed = running[index].result()
            item = cleared[index]
            assert isinstance(item, PreparedToolCall)
            done[index] = executed
            if not executed.interrupted:
                waits = index != position or self._callbacks.after_tool_call is not None
                await self._settle(item, executed, waits=waits)
            position = await self._advance(cleared, done, position)

    async def _advance(
        self,
        cleared: Sequence[PreparedToolCall | ImmediateOutcome],
        done: Mapping[int, ExecutedToolCall],
        position: int,
    ) -> int:
        """Deliver, in source order, everything that nothing stands before any more."""
        while position < len(cleared):
            item = cleared[position]
            if isinstance(item, ImmediateOutcome):
                await self._deliver(finalized_refusal(item))
            else:
                executed = done.get(position)
                if executed is None or executed.interrupted:
                    return position
                await self._finish(item, executed)
            position += 1
        return position

    async def _announce(self, call: ToolCall, index: int) -> None:
        if self._callbacks.on_tool_call is not None:
            await self._callbacks.on_tool_call(call, index)

    async def _clear(self, call: ToolCall, index: int) -> PreparedToolCall | ImmediateOutcome:
        await self._announce(call, index)
        cleared = await prepare_tool_call(call, index, self._tools, self._callbacks)
        if isinstance(cleared, PreparedToolCall) and self._callbacks.on_tool_start is not None:
            await self._callbacks.on_tool_start(cleared)
        return cleared

    async def _settle(self, prepared: PreparedToolCall, executed: ExecutedToolCall, *, waits: bool) -> None:
        if self._callbacks.on_tool_settled is not None:
            await self._callbacks.on_tool_settled(prepared, executed, waits)

    async def _finish(self, prepared: PreparedToolCall, executed: ExecutedToolCall) -> None:
        await self._deliver(await finalize_tool_call(prepared, executed, self._callbacks))

    async def _deliver(self, finalized: FinalizedToolCall) -> None:
        if self._callbacks.on_tool_result is not None:
            await self._callbacks.on_tool_result(finalized)
        self._delivered.append(finalized)

    def result(self) -> ToolBatchResult:
        messages = tuple(create_tool_result_message(item, self._now_ms()) for item in self._delivered)
        complete = len(self._delivered) == len(self._calls)
        terminate = complete and bool(messages) and all(item.result.terminate is True for item in self._delivered)
        return ToolBatchResult(messages=messages, terminate=terminate)


def _note(settled: asyncio.Queue[int], index: int, _task: asyncio.Task[ExecutedToolCall]) -> None:
    settled.put_nowait(index)
