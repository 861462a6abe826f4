"""Hooks: registration, order, aggregation, isolation (harness-v2 §11).

Handlers run sequentially in registration order; each sees the output of the one before. A throwing handler is skipped
and reported, except in `before_tool`, which fails closed.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

from ..compaction.prepare import require_usable, supplied_body
from ..events.catalog import HandlerError
from ..providers.base import StreamOptions
from ..providers.options import merge_options
from ..telemetry.attributes import HookEnd, HookStart
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span, Starting, Work
from ..telemetry.spans import start_harness_span
from ..telemetry.status import error_status
from ..types.codec import dump, dump_object, load_message, load_tool_result, seal_entry
from ..types.entries import ProvisionedEntry
from ..types.json import DEPTH_OUTSIDE, JsonValue, canon, check_text
from ..types.messages import AgentMessage, AssistantMessage, TextContent
from ..types.structural import CompactResult, SummaryResult
from ..types.tools import AgentToolResult
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

E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")
Handler: TypeAlias = Callable[[E], Awaitable[R | None] | R | None]
Unregister: TypeAlias = Callable[[], None]

ID_REQUIRED: frozenset[HookName] = frozenset({"before_run", "before_resume"})


@dataclass(frozen=True, slots=True, eq=False)
class _Registration:
    handler: Callable[[Any], Any]  # the overloads of `on` bind the types per name
    id: str | None
    redacts: bool
    timeout_ms: int | None


class Hooks:
    """The harness-global hook registry and runner."""

    def __init__(self, report: Callable[[HandlerError], None]) -> None:
        self._report = report
        self._failures = 0
        self._registrations: dict[HookName, list[_Registration]] = {name: [] for name in get_args(HookName)}

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
        registration = _Registration(handler, id, redacts, timeout_ms)
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
        at = _Place("before_run", event.lane, None, parent)
        for registration in tuple(self._registrations["before_run"]):
            result = await self._call(BeforeRunResult, at, registration, event)
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
        at = _Place("before_resume", event.lane, event.run_id, parent)
        for registration in tuple(self._registrations["before_resume"]):
            own = replace(event, resume_data=resume_data.get(registration.id or ""))
            await self._call(object, at, registration, own)

    async def before_run_end(self, event: BeforeRunEnd, parent: TelemetryContext) -> tuple[str, ...]:
        """The follow-ups of all handlers, in order."""
        follow_ups: list[str] = []
        at = _Place("before_run_end", event.lane, event.run_id, parent)
        for registration in tuple(self._registrations["before_run_end"]):
            result = await self._call(BeforeRunEndResult, at, registration, event)
            if result is not None and result.follow_up:
                follow_ups.append(result.follow_up)
        return tuple(follow_ups)

    async def transform_context(
        self, event: TransformContext, parent: TelemetryContext, operation_id: str | None = None
    ) -> tuple[AgentMessage, ...]:
        """Each handler transforms the output of the one before."""
        at = _Place("transform_context", event.lane, operation_id, parent)
        for registration in tuple(self._registrations["transform_context"]):
            result = await self._call(TransformContextResult, at, registration, event)
            if result is not None:
                event = replace(event, messages=result.messages)
        return event.messages

    async def before_request(
        self, event: BeforeRequest, parent: TelemetryContext, operation_id: str | None = None
    ) -> StreamOptions:
        """Patches merge, later ones win."""
        at = _Place("before_request", event.lane, operation_id, parent)
        for registration in tuple(self._registrations["before_request"]):
            result = await self._call(BeforeRequestResult, at, registration, event)
            if result is not None and result.stream_options is not None:
                event = replace(event, stream_options=merge_options(event.stream_options, result.stream_options))
        return event.stream_options

    async def before_payload(
        self, event: BeforePayload, parent: TelemetryContext, operation_id: str | None = None
    ) -> JsonValue:
        """Each handler replaces the payload of the one before."""
        at = _Place("before_payload", event.lane, operation_id, parent)
        for registration in tuple(self._registrations["before_payload"]):
            result = await self._call(BeforePayloadResult, at, registration, event)
            if result is not None:
                event = replace(event, payload=result.payload)
        return event.payload

    async def after_response(
        self, event: AfterResponse, parent: TelemetryContext, operation_id: str | None = None
    ) -> AssistantMessage:
        """Each handler may replace the message; an unsettled one is an error of the handler."""
        at = _Place("after_response", event.lane, operation_id, parent)
        for registration in tuple(self._registrations["after_response"]):
            result = await self._call(AfterResponseResult, at, registration, event)
            if result is not None and result.message is not None:
                event = replace(event, message=result.message)
        return event.message

    async def before_tool(self, event: BeforeTool, parent: TelemetryContext) -> ToolDecision:
        """Arguments pass through; the first block ends the chain. Fails closed: an exception or a timeout blocks."""
        args: dict[str, JsonValue] | None = None
        at = _Place("before_tool", event.lane, event.run_id, parent)
        registrations = tuple(self._registrations["before_tool"])
        for position, registration in enumerate(registrations, 1):
            result = await self._decision(at, registration, event)
            if result is None:
                continue
            if result.block is not None:
                await _skipped(at, registrations[position:])
                return ToolDecision(block=result.block)
            if result.args is not None:
                args = result.args
                event = replace(event, args=args)
        return ToolDecision(args=args)

    async def after_tool(self, event: AfterTool, parent: TelemetryContext) -> ToolResultPatch:
        """Patches merge field by field; each handler sees the patched result."""
        merged = ToolResultPatch()
        at = _Place("after_tool", event.lane, event.run_id, parent)
        for registration in tuple(self._registrations["after_tool"]):
            failures = self._failures
            patch = await self._call(ToolResultPatch, at, registration, event)
            if patch is None and registration.redacts and self._failures > failures:
                patch = NOT_REDACTED  # what it would have removed must not be stored
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
        at = _Place("before_compaction", event.lane, event.run_id, parent)
        registrations = tuple(self._registrations["before_compaction"])
        for position, registration in enumerate(registrations, 1):
            decision = await self._call(CompactionDecision, at, registration, event)
            if decision is not None and (decision.decline or decision.compaction is not None):
                await _skipped(at, registrations[position:])
                return decision
        return CompactionDecision()

    async def before_navigation(self, event: BeforeNavigation, parent: TelemetryContext) -> NavigationDecision:
        """The first handler that declines or supplies a summary decides."""
        at = _Place("before_navigation", event.lane, event.run_id, parent)
        registrations = tuple(self._registrations["before_navigation"])
        for position, registration in enumerate(registrations, 1):
            decision = await self._call(NavigationDecision, at, registration, event)
            if decision is not None and (decision.decline or decision.summary is not None):
                await _skipped(at, registrations[position:])
                return decision
        return NavigationDecision()

    async def _decision(self, at: "_Place", registration: _Registration, event: BeforeTool) -> ToolDecision | None:
        async def work(span: Span[HookEnd]) -> ToolDecision | None:
            try:
                async with asyncio.timeout(_seconds(registration.timeout_ms)):
                    result = _checked(ToolDecision, await _invoke(registration, event))
            except (Exception, asyncio.CancelledError) as error:
                _pass_on_cancellation(error)
                self._failed(at, span, error)
                return ToolDecision(block="A policy handler failed, so the call was not allowed.")
            _succeeded(span, result)
            return result

        return await _in_span(at, registration, work)

    async def _call(self, expected: type[R], at: "_Place", registration: _Registration, event: object) -> R | None:
        async def work(span: Span[HookEnd]) -> R | None:
            try:
                result = _checked(expected, await _invoke(registration, event))
                if result is not None:
                    _check_storable(result)
            except (Exception, asyncio.CancelledError) as error:
                _pass_on_cancellation(error)
                self._failed(at, span, error)
                return None
            _succeeded(span, result)
            return result

        return await _in_span(at, registration, work)

    def _failed(self, at: "_Place", span: Span[HookEnd], error: BaseException) -> None:
        self._failures += 1
        self._report(HandlerError(lane=at.lane, kind="hook", name=at.name, error=type(error).__name__))
        span.set_attributes({"pi.hook.outcome": "failed"})
        span.set_status(error_status(type(error).__name__, "the handler failed"))


@dataclass(frozen=True, slots=True)
class _Place:
    """Which hook runs, where, and under which span."""

    name: HookName
    lane: str
    operation_id: str | None
    parent: TelemetryContext


def _in_span(at: _Place, registration: _Registration, work: Work[HookEnd, T]) -> Starting[T]:
    attributes: HookStart = {
        "pi.lane.name": at.lane,
        "pi.operation.id": at.operation_id,
        "pi.hook.name": at.name,
        "pi.hook.registration_id": registration.id,
    }
    return start_harness_span(at.parent, "pi.harness.hook", attributes, work)


def _succeeded(span: Span[HookEnd], result: object) -> None:
    match result:
        case ToolDecision(block=str()) | CompactionDecision(decline=True) | NavigationDecision(decline=True):
            span.set_attributes({"pi.hook.outcome": "blocked"})
        case _:
            span.set_attributes({"pi.hook.outcome": "completed"})


async def _skipped(at: _Place, registrations: Sequence[_Registration]) -> None:
    """The handlers behind the one that decided are not asked: each has its span, which says so."""

    async def work(span: Span[HookEnd]) -> None:
        span.set_attributes({"pi.hook.outcome": "skipped"})

    for registration in registrations:
        await _in_span(at, registration, work)


NOT_REDACTED = ToolResultPatch(
    content=(TextContent(text="The call finished, but its result was not kept: a redacting handler failed."),),
    details={},
)
"""What stands for a result whose redaction failed."""


def _pass_on_cancellation(error: BaseException) -> None:
    """A cancellation of the run goes on; one that a handler made itself is that handler's failure."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error


def _check_storable(result: object) -> None:
    """What a handler returns for storage must survive it, or the failure would be the run's and not the handler's.

    Raises:
        ValueError, TypeError: it would not.
    """
    match result:
        case ToolResultPatch():
            patched = AgentToolResult(
                content=result.content or (), details=result.details, usage=result.usage, terminate=result.terminate
            )
            load_tool_result(canon(dump_object(patched), depth=DEPTH_OUTSIDE))
            if result.is_error is not None and not isinstance(result.is_error, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError("is_error is not a bool")
        case AfterResponseResult(message=AssistantMessage() as message):
            if message.stop_reason == "pending":
                raise ValueError("a replaced message must be settled")
            load_message(canon(dump(message), depth=DEPTH_OUTSIDE))
        case AfterResponseResult(message=message) if message is not None:
            raise TypeError("a replaced message must be an assistant message")
        case CompactionDecision(compaction=CompactResult() as supplied):
            require_usable(supplied)
            seal_entry(ProvisionedEntry(id="supplied", body=supplied_body(supplied)))
        case NavigationDecision(summary=SummaryResult() as supplied):
            require_usable(supplied)
            seal_entry(ProvisionedEntry(id="supplied", body=supplied_body(supplied)))
        case BeforeRunEndResult(follow_up=str() as text):
            check_text(text)
        case BeforeRunEndResult(follow_up=text) if text is not None:
            raise TypeError("a follow-up is text")
        case _:
            pass


async def _invoke(registration: _Registration, event: object) -> object:
    result = registration.handler(event)
    return await result if inspect.isawaitable(result) else result


def _checked(expected: type[R], result: object) -> R | None:
    if result is None or isinstance(result, expected):
        return result
    raise TypeError(f"a handler returned {type(result).__name__}, expected {expected.__name__} or None")


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None else timeout_ms / 1000
