"""The handlers of one hook: each called in its span, isolated, and what it returned checked (harness-v2 §11, §18)."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..compaction.prepare import require_usable, supplied_body
from ..events.catalog import HandlerError
from ..telemetry.attributes import HookEnd, HookStart
from ..telemetry.context import TelemetryContext
from ..telemetry.schema import Span, Starting, Work
from ..telemetry.spans import start_harness_span
from ..telemetry.status import error_status
from ..types.codec import dump, dump_object, load_message, load_tool_result, seal_entry
from ..types.entries import ProvisionedEntry
from ..types.json import DEPTH_OUTSIDE, canon, check_text
from ..types.messages import AssistantMessage
from ..types.structural import CompactResult, SummaryResult
from ..types.tools import AgentToolResult
from .catalog import (
    AfterResponseResult,
    BeforeRunEndResult,
    CompactionDecision,
    HookName,
    NavigationDecision,
    ToolDecision,
    ToolResultPatch,
)

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """One handler, and how it was registered."""

    handler: Callable[[Any], Any]  # the overloads of `on` bind the types per name
    id: str | None
    redacts: bool
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers that one event is put to: of which hook, where, and under which span."""

    registered: tuple[Registration, ...]
    name: HookName
    lane: str
    operation_id: str | None
    parent: TelemetryContext
    report: Callable[[HandlerError], None]

    async def call(
        self,
        registration: Registration,
        expected: type[R],
        event: object,
        *,
        failed: R | None = None,
        timeout_ms: int | None = None,
    ) -> R | None:
        """What the handler returned. If it throws, or returns what it may not, that is reported and `failed` is it."""

        async def work(span: Span[HookEnd]) -> R | None:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    result = _checked(expected, await _invoke(registration, event))
                if result is not None:
                    _check_storable(result)
            except (Exception, asyncio.CancelledError) as error:
                _pass_on_cancellation(error)
                self.report(HandlerError(lane=self.lane, kind="hook", name=self.name, error=type(error).__name__))
                span.set_attributes({"pi.hook.outcome": "failed"})
                span.set_status(error_status(type(error).__name__, "the handler failed"))
                return failed
            _succeeded(span, result)
            return result

        return await self._in_span(registration, work)

    async def skip_after(self, decided: Registration) -> None:
        """The handlers behind the one that decided are not asked: each has its span, which says so."""

        async def work(span: Span[HookEnd]) -> None:
            span.set_attributes({"pi.hook.outcome": "skipped"})

        for registration in self.registered[self.registered.index(decided) + 1 :]:
            await self._in_span(registration, work)

    def _in_span(self, registration: Registration, work: Work[HookEnd, T]) -> Starting[T]:
        attributes: HookStart = {
            "pi.lane.name": self.lane,
            "pi.operation.id": self.operation_id,
            "pi.hook.name": self.name,
            "pi.hook.registration_id": registration.id,
        }
        return start_harness_span(self.parent, "pi.harness.hook", attributes, work)


def _succeeded(span: Span[HookEnd], result: object) -> None:
    match result:
        case ToolDecision(block=str()) | CompactionDecision(decline=True) | NavigationDecision(decline=True):
            span.set_attributes({"pi.hook.outcome": "blocked"})
        case _:
            span.set_attributes({"pi.hook.outcome": "completed"})


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


async def _invoke(registration: Registration, event: object) -> object:
    result = registration.handler(event)
    return await result if inspect.isawaitable(result) else result


def _checked(expected: type[R], result: object) -> R | None:
    if result is None or isinstance(result, expected):
        return result
    raise TypeError(f"a handler returned {type(result).__name__}, expected {expected.__name__} or None")
