"""Hooks: registration, order, aggregation, isolation (harness-v2 §11).

Handlers run sequentially in registration order; each sees the output of the one before. A throwing handler is skipped
and reported, except in `before_tool`, which fails closed.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

from ..events.catalog import HandlerError
from ..providers.base import StreamOptions
from ..providers.options import merge_options
from ..telemetry.context import TelemetryContext
from ..types.json import JsonValue
from ..types.messages import AgentMessage, AssistantMessage, TextContent
from .catalog import (
    AfterResponse,
    AfterResponseResult,
    AfterTool,
    BeforeCompaction,
    BeforeNavigation,
    BeforePayload,
    BeforePayloadResult,
    BeforeRequest,
    BeforeRequestResult,
    BeforeResume,
    BeforeRun,
    BeforeRunEnd,
    BeforeRunEndResult,
    BeforeRunOutcome,
    BeforeRunResult,
    BeforeTool,
    CompactionDecision,
    HookName,
    NavigationDecision,
    ToolDecision,
    ToolResultPatch,
    TransformContext,
    TransformContextResult,
)
from .handlers import Handlers, Registration

E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")
Handler: TypeAlias = Callable[[E], Awaitable[R | None] | R | None]
Unregister: TypeAlias = Callable[[], None]

NOT_REDACTED = ToolResultPatch(
    content=(TextContent(text="The call finished, but its result was not kept: a redacting handler failed."),),
    details={},
)
"""What stands for a result whose redaction failed."""
NOT_ALLOWED = ToolDecision(block="A policy handler failed, so the call was not allowed.")
"""What stands for the decision of a handler that failed."""
ID_REQUIRED: frozenset[HookName] = frozenset({"before_run", "before_resume"})


class Hooks:
    """The harness-global hook registry and runner."""

    def __init__(self, report: Callable[[HandlerError], None]) -> None:
        self._report = report
        self._registrations: dict[HookName, list[Registration]] = {name: [] for name in get_args(HookName)}

    # One overload per name: a wrong handler or a misspelt name is a type error.
    @overload
    def on(
        self, name: Literal["before_run"], handler: Handler[BeforeRun, BeforeRunResult], *, id: str
    ) -> Unregister: ...
    @overload
    def on(self, name: Literal["before_resume"], handler: Handler[BeforeResume, None], *, id: str) -> Unregister: ...
    @overload
    def on(
        self, name: Literal["before_run_end"], handler: Handler[BeforeRunEnd, BeforeRunEndResult], *, id: str = ...
    ) -> Unregister: ...
    @overload
    def on(
        self,
        name: Literal["transform_context"],
        handler: Handler[TransformContext, TransformContextResult],
        *,
        id: str = ...,
    ) -> Unregister: ...
    @overload
    def on(
        self, name: Literal["before_request"], handler: Handler[BeforeRequest, BeforeRequestResult], *, id: str = ...
    ) -> Unregister: ...
    @overload
    def on(
        self, name: Literal["before_payload"], handler: Handler[BeforePayload, BeforePayloadResult], *, id: str = ...
    ) -> Unregister: ...
    @overload
    def on(
        self, name: Literal["after_response"], handler: Handler[AfterResponse, AfterResponseResult], *, id: str = ...
    ) -> Unregister: ...
    @overload
    def on(
        self,
        name: Literal["before_tool"],
        handler: Handler[BeforeTool, ToolDecision],
        *,
        id: str = ...,
        timeout_ms: int | None = ...,
    ) -> Unregister: ...
    @overload
    def on(
        self,
        name: Literal["after_tool"],
        handler: Handler[AfterTool, ToolResultPatch],
        *,
        id: str = ...,
        redacts: bool = ...,
    ) -> Unregister: ...
    @overload
    def on(
        self,
        name: Literal["before_compaction"],
        handler: Handler[BeforeCompaction, CompactionDecision],
        *,
        id: str = ...,
    ) -> Unregister: ...
    @overload
    def on(
        self,
        name: Literal["before_navigation"],
        handler: Handler[BeforeNavigation, NavigationDecision],
        *,
        id: str = ...,
    ) -> Unregister: ...
    def on(
        self,
        name: HookName,
        handler: Callable[[Any], Any],
        *,
        id: str | None = None,
        redacts: bool = False,
        timeout_ms: int | None = None,
    ) -> Unregister:
        """Register a handler (sync or async); returns the way to unregister it.

        `id` is stable across restarts and unique within one hook; `before_run` and `before_resume` need one.
        `redacts` (after_tool): the unredacted result must not be stored, so a crash loses it (A-4).
        `timeout_ms` (before_tool): past it the call is blocked.

        Raises:
            ValueError: unknown name, missing or duplicate id.
        """
        if name not in self._registrations:
            known = ", ".join(get_args(HookName))
            raise ValueError(f"unknown hook {name!r}; hooks are {known}")
        registrations = self._registrations[name]
        if name in ID_REQUIRED and not id:
            raise ValueError(f"a {name} handler needs a stable id")
        if id is not None and any(r.id == id for r in registrations):
            raise ValueError(f"hook {name} already has a handler with id {id!r}")
        registration = Registration(handler, id, redacts, timeout_ms)
        registrations.append(registration)

        def off() -> None:
            if registration in registrations:
                registrations.remove(registration)

        return off

    def has(self, name: HookName) -> bool:
        """Whether any handler is registered: without one there is no gate and no effect."""
        return bool(self._registrations[name])

    @property
    def redacts_results(self) -> bool:
        """Whether some `after_tool` handler redacts."""
        return any(r.redacts for r in self._registrations["after_tool"])

    # Running, one method per name because each aggregates in its own way --------------------------------------------

    async def before_run(self, event: BeforeRun, parent: TelemetryContext) -> BeforeRunOutcome:
        """Messages append, a system prompt replaces, resume data is kept by registration id."""
        outcome = BeforeRunOutcome()
        handlers = self._handlers("before_run", event.lane, None, parent)
        for registration in handlers.registered:
            result = await handlers.call(registration, BeforeRunResult, event)
            if result is None:
                continue
            resume_data = dict(outcome.resume_data)
            if result.resume_data is not None and registration.id is not None:
                resume_data[registration.id] = result.resume_data
            outcome = BeforeRunOutcome(
                messages=(*outcome.messages, *result.messages),
                system_prompt=result.system_prompt if result.system_prompt is not None else outcome.system_prompt,
                resume_data=resume_data,
            )
            if result.system_prompt is not None:
                event = replace(event, system_prompt=result.system_prompt)
        return outcome

    async def before_resume(
        self, event: BeforeResume, resume_data: dict[str, JsonValue], parent: TelemetryContext
    ) -> None:
        """Each handler sees only the resume data under its own id."""
        handlers = self._handlers("before_resume", event.lane, event.run_id, parent)
        for registration in handlers.registered:
            own = replace(event, resume_data=resume_data.get(registration.id or ""))
            await handlers.call(registration, object, own)

    async def before_run_end(self, event: BeforeRunEnd, parent: TelemetryContext) -> tuple[str, ...]:
        """The follow-ups of all handlers, in order."""
        follow_ups: list[str] = []
        handlers = self._handlers("before_run_end", event.lane, event.run_id, parent)
        for registration in handlers.registered:
            result = await handlers.call(registration, BeforeRunEndResult, event)
            if result is not None and result.follow_up:
                follow_ups.append(result.follow_up)
        return tuple(follow_ups)

    async def transform_context(
        self, event: TransformContext, parent: TelemetryContext, operation_id: str | None = None
    ) -> tuple[AgentMessage, ...]:
        """Each handler transforms the output of the one before."""
        handlers = self._handlers("transform_context", event.lane, operation_id, parent)
        for registration in handlers.registered:
            result = await handlers.call(registration, TransformContextResult, event)
            if result is not None:
                event = replace(event, messages=result.messages)
        return event.messages

    async def before_request(
        self, event: BeforeRequest, parent: TelemetryContext, operation_id: str | None = None
    ) -> StreamOptions:
        """Patches merge, later ones win."""
        handlers = self._handlers("before_request", event.lane, operation_id, parent)
        for registration in handlers.registered:
            result = await handlers.call(registration, BeforeRequestResult, event)
            if result is not None and result.stream_options is not None:
                event = replace(event, stream_options=merge_options(event.stream_options, result.stream_options))
        return event.stream_options

    async def before_payload(
        self, event: BeforePayload, parent: TelemetryContext, operation_id: str | None = None
    ) -> JsonValue:
        """Each handler replaces the payload of the one before."""
        handlers = self._handlers("before_payload", event.lane, operation_id, parent)
        for registration in handlers.registered:
            result = await handlers.call(registration, BeforePayloadResult, event)
            if result is not None:
                event = replace(event, payload=result.payload)
        return event.payload

    async def after_response(
        self, event: AfterResponse, parent: TelemetryContext, operation_id: str | None = None
    ) -> AssistantMessage:
        """Each handler may replace the message; an unsettled one is an error of the handler."""
        handlers = self._handlers("after_response", event.lane, operation_id, parent)
        for registration in handlers.registered:
            result = await handlers.call(registration, AfterResponseResult, event)
            if result is not None and result.message is not None:
                event = replace(event, message=result.message)
        return event.message

    async def before_tool(self, event: BeforeTool, parent: TelemetryContext) -> ToolDecision:
        """Arguments pass through; the first block ends the chain. Fails closed: an exception or a timeout blocks."""
        args: dict[str, JsonValue] | None = None
        handlers = self._handlers("before_tool", event.lane, event.run_id, parent)
        for registration in handlers.registered:
            result = await handlers.call(
                registration, ToolDecision, event, failed=NOT_ALLOWED, timeout_ms=registration.timeout_ms
            )
            if result is None:
                continue
            if result.block is not None:
                await handlers.skip_after(registration)
                return ToolDecision(block=result.block)
            if result.args is not None:
                args = result.args
                event = replace(event, args=args)
        return ToolDecision(args=args)

    async def after_tool(self, event: AfterTool, parent: TelemetryContext) -> ToolResultPatch:
        """Patches merge field by field; each handler sees the patched result."""
        merged = ToolResultPatch()
        handlers = self._handlers("after_tool", event.lane, event.run_id, parent)
        for registration in handlers.registered:
            # What a redacting handler would have removed must not be stored.
            failed = NOT_REDACTED if registration.redacts else None
            patch = await handlers.call(registration, ToolResultPatch, event, failed=failed)
            if patch is None:
                continue
            fields = {
                name: value
                for name in ("content", "details", "is_error", "usage", "terminate")
                if (value := getattr(patch, name)) is not None
            }
            merged = replace(merged, **fields)
            event = replace(event, **fields)
        return merged

    async def before_compaction(self, event: BeforeCompaction, parent: TelemetryContext) -> CompactionDecision:
        """The first handler that declines or supplies a summary decides."""
        handlers = self._handlers("before_compaction", event.lane, event.run_id, parent)
        for registration in handlers.registered:
            decision = await handlers.call(registration, CompactionDecision, event)
            if decision is not None and (decision.decline or decision.compaction is not None):
                await handlers.skip_after(registration)
                return decision
        return CompactionDecision()

    async def before_navigation(self, event: BeforeNavigation, parent: TelemetryContext) -> NavigationDecision:
        """The first handler that declines or supplies a summary decides."""
        handlers = self._handlers("before_navigation", event.lane, event.run_id, parent)
        for registration in handlers.registered:
            decision = await handlers.call(registration, NavigationDecision, event)
            if decision is not None and (decision.decline or decision.summary is not None):
                await handlers.skip_after(registration)
                return decision
        return NavigationDecision()

    def _handlers(self, name: HookName, lane: str, operation_id: str | None, parent: TelemetryContext) -> Handlers:
        return Handlers(tuple(self._registrations[name]), name, lane, operation_id, parent, self._report)
