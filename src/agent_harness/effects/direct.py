"""DirectEffects: `Effects` passed straight through to line jobs, providers, tools and hooks (harness-v2 §15)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal, TypeVar

from ..abort_signal import AbortSignal
from ..events.catalog import HarnessEvent, MessageStart, MessageUpdate, ToolUpdate
from ..hooks.catalog import (
    AfterResponse,
    AfterTool,
    BeforeCompaction,
    BeforeNavigation,
    BeforePayload,
    BeforeRequest,
    BeforeResume,
    BeforeRunEnd,
    BeforeTool,
    CompactionDecision,
    HookName,
    NavigationDecision,
    ToolDecision,
    ToolResultPatch,
    TransformContext,
)
from ..lanes import commits, jobs
from ..lanes.lane import HOOK_OF, LaneRuntime
from ..lanes.reads import LaneReads
from ..loop.provider_stream import NoAnswer, ask_provider
from ..loop.requests import RequestSpan, record_answer, record_failure, request_span
from ..loop.stream import (
    StreamAssistantConfig,
    aborted_answer,
    storable_message,
    stream_assistant,
    transport_error,
)
from ..loop.stream import presentable as presentable_delta
from ..loop.tools import create_error_tool_result, execute_tool_call, reporter
from ..loop.tools import presentable as presentable_report
from ..providers.base import (
    AssistantMessageEvent,
    Model,
    ProviderResponse,
    RequestContext,
    StreamDelta,
    StreamOptions,
)
from ..telemetry.attributes import SleepEnd, ToolEnd
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from ..telemetry.status import error_status
from ..types.actions import HookAction
from ..types.entries import Entry, ProvisionedEntry
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage, DeferredHandle, Usage
from ..types.records import LaneRecord, OperationError, Outcome, RecordBody, RunIntent, ToolStarted, ToolUsage
from ..types.tools import AgentToolResult, ExecutedToolCall, PreparedToolCall, ToolOrigin
from ..types.usage import sum_usage
from .base import AssistantRequest, FactWrite, Reads

T = TypeVar("T")
CANCEL_LIMIT_S = 5.0
"""How long an abort waits for a provider to cancel a deferred answer."""


class DirectEffects:
    """One lane's effects. Hooks inside a request go through the gate by themselves when there is one."""

    def __init__(self, lane: LaneRuntime) -> None:
        self._lane = lane
        self._env = lane.env
        self._reads = LaneReads(lane)

    @property
    def reads(self) -> Reads:
        """See `Effects`."""
        return self._reads

    # Durable writes --------------------------------------------------------

    async def append_entry(self, entry: ProvisionedEntry, parent: TelemetryContext) -> Entry:
        """See `Effects`."""
        return await self._lane.line.run(lambda: commits.write_entry(self._lane, entry, parent))

    async def append_record(self, body: RecordBody, parent: TelemetryContext) -> LaneRecord:
        """See `Effects`."""
        return await self._lane.line.run(lambda: commits.write_record(self._lane, body, parent))

    async def move_lane(self, to: str | None, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._lane.line.run(lambda: commits.write_move(self._lane, to, parent))

    async def set_fact(self, fact: FactWrite, parent: TelemetryContext) -> None:
        """See `Effects`."""
        await self._lane.line.run(
            lambda: jobs.set_label(self._lane, fact.target_id, fact.label, parent, rerun=self._lane.recovery)
        )

    async def try_finish_run(
        self,
        run_id: str,
        outcome: Literal["completed", "failed"],
        parent: TelemetryContext,
        error: OperationError | None = None,
    ) -> Literal["finished", "continue"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.try_finish_run(self._lane, run_id, outcome, error, parent))

    async def finish_operation(
        self,
        run_id: str,
        outcome: Outcome,
        parent: TelemetryContext,
        error: OperationError | None = None,
        event: HarnessEvent | None = None,
    ) -> Literal["finished", "continue"]:
        """See `Effects`."""
        return await self._lane.line.run(
            lambda: jobs.finish_operation(self._lane, run_id, outcome, error, parent, event=event)
        )

    async def commit_run_end_follow_up(
        self, run_id: str, item: ProvisionedEntry, parent: TelemetryContext
    ) -> Literal["committed", "dropped"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.commit_run_end_follow_up(self._lane, run_id, item, parent))

    async def consume_queue_item(
        self, run_id: str, queue: Literal["steer", "followUp"], entry_id: str, parent: TelemetryContext
    ) -> Literal["consumed", "skipped"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.consume_queue_item(self._lane, run_id, queue, entry_id, parent))

    async def apply_pending_write(
        self, run_id: str, entry_id: str, parent: TelemetryContext
    ) -> Literal["applied", "skipped"]:
        """See `Effects`."""
        return await self._lane.line.run(lambda: jobs.apply_pending_write(self._lane, run_id, entry_id, parent))

    # External effects ------------------------------------------------------

    async def stream_assistant(self, request: AssistantRequest, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        self._env.require_alive()
        model = self._reads.model()
        streamed = request.messages is None
        head = ProviderResponse(status=200)

        async def on_response(response: ProviderResponse) -> None:
            nonlocal head
            head = response

        config = StreamAssistantConfig(
            model=model,
            models=self._env.models,
            now_ms=self._env.clock.now_ms,
            system_prompt=await self._system_prompt(request, model),
            tools=self._reads.tools() if streamed else (),
            options=self._options(request, model),
            transform_context=lambda messages: self._transform(messages, parent),
            to_provider_messages=self._env.convert,
            on_payload=(lambda payload, span: self._payload(model, payload, span))
            if self._env.hooks.has("before_payload")
            else None,
            on_response=on_response,
            signal=self._lane.signal,
            abandoned=self._env.abandoned,
            telemetry=parent,
        )
        messages = await self._lane.context.messages() if request.messages is None else request.messages
        if streamed:
            self._env.session.tell_request(self._lane.name, request.run_id, model.ref, messages)

        def emit(event: AssistantMessageEvent) -> None:
            if streamed:  # a summary streams to nobody
                self._stream_event(request.run_id, event)

        final = await stream_assistant(messages, config, emit)
        return await self._after_response(head, final, parent)

    async def _system_prompt(self, request: AssistantRequest, model: Model) -> str | None:
        if request.system_prompt is not None or request.messages is not None:
            return request.system_prompt
        configuration = self._reads.state.effective_configuration
        return await self._env.resolve_system_prompt(self._lane.name, model, configuration)

    def _options(self, request: AssistantRequest, model: Model) -> StreamOptions:
        options = request.options
        level = options.thinking_level or self._reads.state.effective_configuration.thinking_level
        return replace(
            options,
            thinking_level=level if level != "off" and level in model.thinking_levels else None,
            deferred=options.deferred and model.deferred and request.step == "assistant",
        )

    def _stream_event(self, run_id: str, event: AssistantMessageEvent) -> None:
        if not isinstance(event, StreamDelta):
            return
        event = presentable_delta(event)
        if not self._lane.view.message_open:
            self._lane.view.message_open = True
            self._lane.emit(MessageStart(lane=self._lane.name, run_id=run_id, message=event.partial))
        self._lane.emit(MessageUpdate(lane=self._lane.name, run_id=run_id, message=event.partial, event=event))

    async def execute_tool(
        self, prepared: PreparedToolCall, turn_id: str | None, parent: TelemetryContext
    ) -> ExecutedToolCall:
        """See `Effects`."""
        self._env.require_alive()
        call, lane = prepared.tool_call, self._lane
        run_id = lane.op().id
        finished = False

        def update(partial: AgentToolResult) -> None:
            shown = presentable_report(partial)
            if finished or shown is None:
                return  # a late report of a call whose result is already decided, or none that can be shown
            lane.emit(
                ToolUpdate(
                    lane=lane.name,
                    run_id=run_id,
                    turn_id=turn_id,
                    tool_index=prepared.tool_index,
                    tool_call_id=call.id,
                    tool_name=call.name,
                    partial_result=shown,
                )
            )

        async def work() -> ExecutedToolCall:
            try:
                context = await self._env.resolve_tool_context()
            except Exception as error:
                text = f"the tool's context failed: {type(error).__name__}"
                return ExecutedToolCall(result=create_error_tool_result(text), is_error=True)
            return await execute_tool_call(
                prepared,
                lane.signal,
                context=context,
                update=reporter(prepared.tool, update),
                origin=await self._origin(prepared),
            )

        try:
            if lane.signal.aborted:  # it does not begin: no span
                return await work()
            return await self._in_tool_span(prepared, turn_id, parent, work)
        finally:
            finished = True

    async def _in_tool_span(
        self,
        prepared: PreparedToolCall,
        turn_id: str | None,
        parent: TelemetryContext,
        work: Callable[[], Awaitable[ExecutedToolCall]],
    ) -> ExecutedToolCall:
        async def executed(span: Span[ToolEnd]) -> ExecutedToolCall:
            raw = await work()
            span.set_attributes({"pi.tool.is_error": raw.is_error})
            if raw.is_error:
                span.set_status(error_status("tool_error", "the raw result is an error"))
            return raw

        return await start_harness_span(
            parent,
            "pi.harness.tool",
            {
                "pi.lane.name": self._lane.name,
                "pi.operation.id": self._lane.op().id,
                "pi.turn.id": turn_id,
                "pi.tool.name": prepared.tool_call.name,
                "pi.tool.call_id": prepared.tool_call.id,
                "pi.tool.replay": prepared.tool.replay,
                "pi.tool.recovery": turn_id is None,
            },
            executed,
        )

    async def _origin(self, prepared: PreparedToolCall) -> ToolOrigin | None:
        op = self._lane.op()
        batch = op.tool_batch
        if batch is None:
            return None
        started = batch.calls[prepared.tool_index].started
        billed: list[Usage] = []
        if self._lane.recovery and started is not None and isinstance(started.body, ToolStarted):
            entry_id = started.body.result_entry_id
            records = await self._env.session.find_records(lane=self._lane.name, type="usage", run_id=op.id)
            billed = [r.body.usage for r in records if isinstance(r.body, ToolUsage) and r.body.entry_id == entry_id]
        return ToolOrigin(
            session_id=self._env.session.id,
            lane=self._lane.name,
            run_id=op.id,
            assistant_entry_id=batch.assistant_entry_id,
            tool_index=prepared.tool_index,
            billed=sum_usage(billed) if billed else None,
        )

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> AssistantMessage:
        """See `Effects`."""
        self._env.require_alive()

        async def work(span: RequestSpan) -> tuple[AssistantMessage, bool]:
            try:
                fetch = getattr(self._env.models.provider(model), "fetch_deferred", None)
                if fetch is None:
                    raise LookupError(f"provider {model.api!r} cannot fetch deferred answers")
                asked = self._request_context(span, self._lane.signal)
                message: AssistantMessage = await ask_provider(
                    fetch(model, handle, asked), asked.signal, self._env.abandoned
                )
            except NoAnswer:
                message = aborted_answer(model, self._env.clock.now_ms())
            except Exception as error:
                failed = transport_error(model, error, self._env.clock.now_ms())
                record_answer(span, failed)
                return failed, False
            message = storable_message(message, model, self._env.clock.now_ms())
            record_answer(span, message)
            return message, True

        message, answered = await request_span(parent, model, "fetch_deferred", work, deferred=True)
        if not answered:
            return message
        return await self._after_response(ProviderResponse(status=200), message, parent)

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> None:
        """See `Effects`."""
        try:
            cancel = getattr(self._env.models.provider(model), "cancel_deferred", None)
        except Exception:
            return
        if cancel is None:
            return

        async def work(span: RequestSpan) -> None:
            try:
                # A signal of its own: the lane's has fired already, which would cancel the cancellation.
                asked = self._request_context(span, AbortSignal())
                await ask_provider(
                    cancel(model, handle, asked), asked.signal, self._env.abandoned, limit_s=CANCEL_LIMIT_S
                )
            except Exception as error:  # best effort; the abort goes on
                record_failure(span, type(error).__name__)

        await request_span(parent, model, "cancel_deferred", work, deferred=True)

    def _request_context(self, parent: TelemetryContext, signal: AbortSignal) -> RequestContext:
        return RequestContext(signal=signal, telemetry=parent, now_ms=self._env.clock.now_ms)

    # Hooks -----------------------------------------------------------------

    async def before_request(self, event: BeforeRequest, parent: TelemetryContext) -> StreamOptions:
        """See `Effects`."""
        return await self._in_hook(lambda: self._env.hooks.before_request(event, parent, self._lane.op().id))

    async def before_tool(self, event: BeforeTool, parent: TelemetryContext) -> ToolDecision:
        """See `Effects`."""
        return await self._env.hooks.before_tool(event, parent)

    async def after_tool(self, event: AfterTool, parent: TelemetryContext) -> ToolResultPatch:
        """See `Effects`."""
        return await self._env.hooks.after_tool(event, parent)

    async def before_run_end(self, event: BeforeRunEnd, parent: TelemetryContext) -> tuple[str, ...]:
        """See `Effects`."""
        return await self._env.hooks.before_run_end(event, parent)

    async def before_compaction(self, event: BeforeCompaction, parent: TelemetryContext) -> CompactionDecision:
        """See `Effects`."""
        return await self._in_hook(lambda: self._env.hooks.before_compaction(event, parent))

    async def before_navigation(self, event: BeforeNavigation, parent: TelemetryContext) -> NavigationDecision:
        """See `Effects`."""
        return await self._in_hook(lambda: self._env.hooks.before_navigation(event, parent))

    async def before_resume(self, parent: TelemetryContext) -> None:
        """See `Effects`."""
        op = self._lane.op()
        run = op.intent if isinstance(op.intent, RunIntent) else None
        event = BeforeResume(
            lane=self._lane.name,
            run_id=op.id,
            kind=op.kind,
            prompt=run.original_prompt if run else (),
            system_prompt_override=run.system_prompt_override if run else None,
        )
        resume_data = dict(run.resume_data or {}) if run else {}
        await self._in_hook(lambda: self._env.hooks.before_resume(event, resume_data, parent))

    async def _transform(
        self, messages: tuple[AgentMessage, ...], parent: TelemetryContext
    ) -> tuple[AgentMessage, ...]:
        if not self._env.hooks.has("transform_context"):
            return messages
        event = TransformContext(lane=self._lane.name, messages=messages)
        return await self._nested(
            "transform_context", lambda: self._env.hooks.transform_context(event, parent, self._lane.op().id)
        )

    async def _payload(self, model: Model, payload: JsonValue, parent: TelemetryContext) -> JsonValue:
        event = BeforePayload(lane=self._lane.name, model=model, payload=payload)
        return await self._nested(
            "before_payload", lambda: self._env.hooks.before_payload(event, parent, self._lane.op().id)
        )

    async def _after_response(
        self, head: ProviderResponse, message: AssistantMessage, parent: TelemetryContext
    ) -> AssistantMessage:
        if not self._env.hooks.has("after_response"):
            return message
        event = AfterResponse(lane=self._lane.name, status=head.status, headers=head.headers, message=message)
        return await self._nested(
            "after_response", lambda: self._env.hooks.after_response(event, parent, self._lane.op().id)
        )

    async def _nested(self, name: HookName, run: Callable[[], Awaitable[T]]) -> T:
        """A hook inside a released action parks as its own action (harness-v2 §15 "The gate is reentrant")."""
        gate = self._lane.gate
        if gate is None:
            result = await self._in_hook(run)
        else:
            result = await gate.pass_through(HookAction(name=name), lambda: self._in_hook(run))
        self._env.require_alive()  # a hook may have closed the harness: no request is sent after that
        return result

    async def _in_hook(self, run: Callable[[], Awaitable[T]]) -> T:
        """Mark what runs inside as a hook of the open operation, in tasks that it starts too (A-10)."""
        token = HOOK_OF.set(self._lane.op().id)
        try:
            return await run()
        finally:
            HOOK_OF.reset(token)

    # Time ------------------------------------------------------------------

    async def sleep(self, delay_ms: int, parent: TelemetryContext) -> Literal["elapsed", "aborted"]:
        """See `Effects`."""

        async def work(span: Span[SleepEnd]) -> Literal["elapsed", "aborted"]:
            outcome = await self._wait(delay_ms)
            span.set_attributes({"pi.sleep.outcome": outcome})
            return outcome

        return await start_harness_span(
            parent,
            "pi.harness.sleep",
            {"pi.operation.id": self._lane.op().id, "pi.sleep.delay_ms": delay_ms},
            work,
        )

    async def _wait(self, delay_ms: int) -> Literal["elapsed", "aborted"]:
        if self._lane.signal.aborted:
            return "aborted"
        waiting = asyncio.ensure_future(self._env.clock.sleep(delay_ms))
        aborted = asyncio.ensure_future(self._lane.signal.wait())
        try:
            await asyncio.wait({waiting, aborted}, return_when=asyncio.FIRST_COMPLETED)
            return "aborted" if self._lane.signal.aborted else "elapsed"
        finally:
            waiting.cancel()
            aborted.cancel()
