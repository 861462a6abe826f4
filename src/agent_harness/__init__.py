"""agent-harness: the durable runtime for AI agents.

An accepted prompt is a durable operation: nothing accepted is lost, nothing finished is repeated, and every crash site
can be stepped to and tested.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clock import Clock as Clock
    from .clock import SystemClock as SystemClock
    from .errors import CorruptLog as CorruptLog
    from .errors import CorruptSession as CorruptSession
    from .errors import HarnessClosed as HarnessClosed
    from .errors import HarnessFault as HarnessFault
    from .errors import InvalidPayload as InvalidPayload
    from .errors import InvalidSessionId as InvalidSessionId
    from .errors import MissingExtra as MissingExtra
    from .errors import SessionError as SessionError
    from .errors import SessionLocked as SessionLocked
    from .errors import SessionNotFound as SessionNotFound
    from .errors import StorageError as StorageError
    from .errors import WatchOverflow as WatchOverflow
    from .events.bus import Events as Events
    from .events.catalog import CompactionEnd as CompactionEnd
    from .events.catalog import CompactionStart as CompactionStart
    from .events.catalog import ConfigUpdate as ConfigUpdate
    from .events.catalog import EntryAdded as EntryAdded
    from .events.catalog import EventType as EventType
    from .events.catalog import FactUpdate as FactUpdate
    from .events.catalog import Fault as Fault
    from .events.catalog import HandlerError as HandlerError
    from .events.catalog import HarnessEvent as HarnessEvent
    from .events.catalog import LaneCreated as LaneCreated
    from .events.catalog import MessageEnd as MessageEnd
    from .events.catalog import MessageStart as MessageStart
    from .events.catalog import MessageUpdate as MessageUpdate
    from .events.catalog import NavigationEnd as NavigationEnd
    from .events.catalog import NavigationStart as NavigationStart
    from .events.catalog import QueuedItem as QueuedItem
    from .events.catalog import QueueUpdate as QueueUpdate
    from .events.catalog import RetryEnd as RetryEnd
    from .events.catalog import RetryScheduled as RetryScheduled
    from .events.catalog import RetryStart as RetryStart
    from .events.catalog import RunAbort as RunAbort
    from .events.catalog import RunEnd as RunEnd
    from .events.catalog import RunResume as RunResume
    from .events.catalog import RunStart as RunStart
    from .events.catalog import RunSuspend as RunSuspend
    from .events.catalog import ToolEnd as ToolEnd
    from .events.catalog import ToolStart as ToolStart
    from .events.catalog import ToolUpdate as ToolUpdate
    from .events.catalog import TurnEnd as TurnEnd
    from .events.catalog import TurnStart as TurnStart
    from .events.catalog import UsageEvent as UsageEvent
    from .events.catalog import WritePending as WritePending
    from .events.snapshot import LaneSnapshot as LaneSnapshot
    from .events.snapshot import OperationSnapshot as OperationSnapshot
    from .events.snapshot import SessionSnapshot as SessionSnapshot
    from .events.snapshot import reduce_lane_snapshot as reduce_lane_snapshot
    from .events.watch import LaneWatch as LaneWatch
    from .events.watch import SessionWatch as SessionWatch
    from .extensions.api import Extension as Extension
    from .harness import AgentHarness as AgentHarness
    from .hooks.catalog import AfterResponse as AfterResponse
    from .hooks.catalog import AfterResponseResult as AfterResponseResult
    from .hooks.catalog import AfterTool as AfterTool
    from .hooks.catalog import BeforeCompaction as BeforeCompaction
    from .hooks.catalog import BeforeNavigation as BeforeNavigation
    from .hooks.catalog import BeforePayload as BeforePayload
    from .hooks.catalog import BeforePayloadResult as BeforePayloadResult
    from .hooks.catalog import BeforeRequest as BeforeRequest
    from .hooks.catalog import BeforeRequestResult as BeforeRequestResult
    from .hooks.catalog import BeforeResume as BeforeResume
    from .hooks.catalog import BeforeRun as BeforeRun
    from .hooks.catalog import BeforeRunEnd as BeforeRunEnd
    from .hooks.catalog import BeforeRunEndResult as BeforeRunEndResult
    from .hooks.catalog import BeforeRunResult as BeforeRunResult
    from .hooks.catalog import BeforeTool as BeforeTool
    from .hooks.catalog import CompactionDecision as CompactionDecision
    from .hooks.catalog import HookName as HookName
    from .hooks.catalog import NavigationDecision as NavigationDecision
    from .hooks.catalog import ToolDecision as ToolDecision
    from .hooks.catalog import ToolResultPatch as ToolResultPatch
    from .hooks.catalog import TransformContext as TransformContext
    from .hooks.catalog import TransformContextResult as TransformContextResult
    from .hooks.runner import Hooks as Hooks
    from .lanes.output import InvalidOutput as InvalidOutput
    from .lanes.output import parse_output as parse_output
    from .lanes.restore import inspect_lane as inspect_lane
    from .lanes.surface import AgentLane as AgentLane
    from .options import CompactionSettings as CompactionSettings
    from .options import MessageType as MessageType
    from .options import QueueMode as QueueMode
    from .options import RetryPolicy as RetryPolicy
    from .options import SystemPromptContext as SystemPromptContext
    from .outcomes import AbortAccepted as AbortAccepted
    from .outcomes import AbortResult as AbortResult
    from .outcomes import CancelQueued as CancelQueued
    from .outcomes import Closed as Closed
    from .outcomes import CompactionCompleted as CompactionCompleted
    from .outcomes import CompactionEnded as CompactionEnded
    from .outcomes import CompactionOutcome as CompactionOutcome
    from .outcomes import CompactionResult as CompactionResult
    from .outcomes import InvalidLane as InvalidLane
    from .outcomes import InvalidMessage as InvalidMessage
    from .outcomes import LaneBusy as LaneBusy
    from .outcomes import LaneExists as LaneExists
    from .outcomes import LaneInfo as LaneInfo
    from .outcomes import LaneOperation as LaneOperation
    from .outcomes import Missing as Missing
    from .outcomes import MissingIdentities as MissingIdentities
    from .outcomes import NavigationCompleted as NavigationCompleted
    from .outcomes import NavigationEnded as NavigationEnded
    from .outcomes import NavigationOutcome as NavigationOutcome
    from .outcomes import NavigationResult as NavigationResult
    from .outcomes import NoActiveOperation as NoActiveOperation
    from .outcomes import NoActiveRun as NoActiveRun
    from .outcomes import NothingToCompact as NothingToCompact
    from .outcomes import NothingToResume as NothingToResume
    from .outcomes import OperationOutcome as OperationOutcome
    from .outcomes import Queued as Queued
    from .outcomes import QueueResult as QueueResult
    from .outcomes import ResumeResult as ResumeResult
    from .outcomes import RunAborted as RunAborted
    from .outcomes import RunCompleted as RunCompleted
    from .outcomes import RunFailed as RunFailed
    from .outcomes import RunOutcome as RunOutcome
    from .outcomes import RunResult as RunResult
    from .outcomes import RunSuspended as RunSuspended
    from .outcomes import SuspendedOperation as SuspendedOperation
    from .outcomes import UnknownQueueItem as UnknownQueueItem
    from .outcomes import UnknownSkill as UnknownSkill
    from .outcomes import UnknownTarget as UnknownTarget
    from .outcomes import UnknownTemplate as UnknownTemplate
    from .providers.base import AssistantMessageEvent as AssistantMessageEvent
    from .providers.base import DeferredProvider as DeferredProvider
    from .providers.base import Model as Model
    from .providers.base import ModelRegistry as ModelRegistry
    from .providers.base import Models as Models
    from .providers.base import Provider as Provider
    from .providers.base import ProviderContext as ProviderContext
    from .providers.base import ProviderResponse as ProviderResponse
    from .providers.base import RequestContext as RequestContext
    from .providers.base import StreamDelta as StreamDelta
    from .providers.base import StreamEnd as StreamEnd
    from .providers.base import StreamOptions as StreamOptions
    from .providers.base import StreamStart as StreamStart
    from .providers.base import ToolSpec as ToolSpec
    from .result import Err as Err
    from .result import Ok as Ok
    from .result import RejectedError as RejectedError
    from .result import Result as Result
    from .session.context import Context as Context
    from .session.context import build_context as build_context
    from .session.session import Session as Session
    from .telemetry.context import AttributeValue as AttributeValue
    from .telemetry.context import SpanAttributes as SpanAttributes
    from .telemetry.context import SpanError as SpanError
    from .telemetry.context import SpanStatus as SpanStatus
    from .telemetry.context import TelemetryContext as TelemetryContext
    from .telemetry.context import TelemetrySpan as TelemetrySpan
    from .telemetry.memory import InMemoryTelemetryContext as InMemoryTelemetryContext
    from .telemetry.memory import RecordedSpan as RecordedSpan
    from .telemetry.spans import AgentSpanStarter as AgentSpanStarter
    from .telemetry.spans import create_typed_span_starter as create_typed_span_starter
    from .telemetry.spans import start_ai_span as start_ai_span
    from .telemetry.spans import start_harness_span as start_harness_span
    from .telemetry.vocabulary import AGENT_TELEMETRY_SCHEMAS as AGENT_TELEMETRY_SCHEMAS
    from .telemetry.vocabulary import AI_TELEMETRY_SCHEMA as AI_TELEMETRY_SCHEMA
    from .telemetry.vocabulary import HARNESS_TELEMETRY_SCHEMA as HARNESS_TELEMETRY_SCHEMA
    from .telemetry.vocabulary import AgentSpanName as AgentSpanName
    from .telemetry.vocabulary import AiSpanName as AiSpanName
    from .telemetry.vocabulary import HarnessSpanName as HarnessSpanName
    from .types.messages import AgentMessage as AgentMessage
    from .types.messages import AssistantMessage as AssistantMessage
    from .types.messages import CustomMessage as CustomMessage
    from .types.messages import ImageContent as ImageContent
    from .types.messages import TextContent as TextContent
    from .types.messages import ThinkingContent as ThinkingContent
    from .types.messages import ToolCall as ToolCall
    from .types.messages import ToolResultMessage as ToolResultMessage
    from .types.messages import Usage as Usage
    from .types.messages import UserMessage as UserMessage
    from .types.structural import CompactResult as CompactResult
    from .types.structural import NavigateOptions as NavigateOptions
    from .types.structural import SummaryResult as SummaryResult
    from .types.tools import AgentTool as AgentTool
    from .types.tools import AgentToolResult as AgentToolResult
    from .types.tools import ToolFailed as ToolFailed
    from .types.tools import ToolInvocation as ToolInvocation
    from .types.tools import ToolOrigin as ToolOrigin

_HOMES = {
    "clock": (
        "Clock",
        "SystemClock",
    ),
    "errors": (
        "CorruptLog",
        "CorruptSession",
        "HarnessClosed",
        "HarnessFault",
        "InvalidPayload",
        "InvalidSessionId",
        "MissingExtra",
        "SessionError",
        "SessionLocked",
        "SessionNotFound",
        "StorageError",
        "WatchOverflow",
    ),
    "events.bus": ("Events",),
    "events.catalog": (
        "CompactionEnd",
        "CompactionStart",
        "ConfigUpdate",
        "EntryAdded",
        "EventType",
        "FactUpdate",
        "Fault",
        "HandlerError",
        "HarnessEvent",
        "LaneCreated",
        "MessageEnd",
        "MessageStart",
        "MessageUpdate",
        "NavigationEnd",
        "NavigationStart",
        "QueueUpdate",
        "QueuedItem",
        "RetryEnd",
        "RetryScheduled",
        "RetryStart",
        "RunAbort",
        "RunEnd",
        "RunResume",
        "RunStart",
        "RunSuspend",
        "ToolEnd",
        "ToolStart",
        "ToolUpdate",
        "TurnEnd",
        "TurnStart",
        "UsageEvent",
        "WritePending",
    ),
    "events.snapshot": (
        "LaneSnapshot",
        "OperationSnapshot",
        "SessionSnapshot",
        "reduce_lane_snapshot",
    ),
    "events.watch": (
        "LaneWatch",
        "SessionWatch",
    ),
    "extensions.api": ("Extension",),
    "harness": ("AgentHarness",),
    "hooks.catalog": (
        "AfterResponse",
        "AfterResponseResult",
        "AfterTool",
        "BeforeCompaction",
        "BeforeNavigation",
        "BeforePayload",
        "BeforePayloadResult",
        "BeforeRequest",
        "BeforeRequestResult",
        "BeforeResume",
        "BeforeRun",
        "BeforeRunEnd",
        "BeforeRunEndResult",
        "BeforeRunResult",
        "BeforeTool",
        "CompactionDecision",
        "HookName",
        "NavigationDecision",
        "ToolDecision",
        "ToolResultPatch",
        "TransformContext",
        "TransformContextResult",
    ),
    "hooks.runner": ("Hooks",),
    "lanes.output": (
        "InvalidOutput",
        "parse_output",
    ),
    "lanes.restore": ("inspect_lane",),
    "lanes.surface": ("AgentLane",),
    "options": (
        "CompactionSettings",
        "MessageType",
        "QueueMode",
        "RetryPolicy",
        "SystemPromptContext",
    ),
    "outcomes": (
        "AbortAccepted",
        "AbortResult",
        "CancelQueued",
        "Closed",
        "CompactionCompleted",
        "CompactionEnded",
        "CompactionOutcome",
        "CompactionResult",
        "InvalidLane",
        "InvalidMessage",
        "LaneBusy",
        "LaneExists",
        "LaneInfo",
        "LaneOperation",
        "Missing",
        "MissingIdentities",
        "NavigationCompleted",
        "NavigationEnded",
        "NavigationOutcome",
        "NavigationResult",
        "NoActiveOperation",
        "NoActiveRun",
        "NothingToCompact",
        "NothingToResume",
        "OperationOutcome",
        "QueueResult",
        "Queued",
        "ResumeResult",
        "RunAborted",
        "RunCompleted",
        "RunFailed",
        "RunOutcome",
        "RunResult",
        "RunSuspended",
        "SuspendedOperation",
        "UnknownQueueItem",
        "UnknownSkill",
        "UnknownTarget",
        "UnknownTemplate",
    ),
    "providers.base": (
        "AssistantMessageEvent",
        "DeferredProvider",
        "Model",
        "ModelRegistry",
        "Models",
        "Provider",
        "ProviderContext",
        "ProviderResponse",
        "RequestContext",
        "StreamDelta",
        "StreamEnd",
        "StreamOptions",
        "StreamStart",
        "ToolSpec",
    ),
    "result": (
        "Err",
        "Ok",
        "RejectedError",
        "Result",
    ),
    "session.context": (
        "Context",
        "build_context",
    ),
    "session.session": ("Session",),
    "telemetry.context": (
        "AttributeValue",
        "SpanAttributes",
        "SpanError",
        "SpanStatus",
        "TelemetryContext",
        "TelemetrySpan",
    ),
    "telemetry.memory": (
        "InMemoryTelemetryContext",
        "RecordedSpan",
    ),
    "telemetry.spans": (
        "AgentSpanStarter",
        "create_typed_span_starter",
        "start_ai_span",
        "start_harness_span",
    ),
    "telemetry.vocabulary": (
        "AGENT_TELEMETRY_SCHEMAS",
        "AI_TELEMETRY_SCHEMA",
        "AgentSpanName",
        "AiSpanName",
        "HARNESS_TELEMETRY_SCHEMA",
        "HarnessSpanName",
    ),
    "types.messages": (
        "AgentMessage",
        "AssistantMessage",
        "CustomMessage",
        "ImageContent",
        "TextContent",
        "ThinkingContent",
        "ToolCall",
        "ToolResultMessage",
        "Usage",
        "UserMessage",
    ),
    "types.structural": (
        "CompactResult",
        "NavigateOptions",
        "SummaryResult",
    ),
    "types.tools": (
        "AgentTool",
        "AgentToolResult",
        "ToolFailed",
        "ToolInvocation",
        "ToolOrigin",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    # A module is imported with its first name: the command line and the backends need few of them.
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
