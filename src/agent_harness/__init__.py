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
    from .events.catalog import HarnessEvent as HarnessEvent
    from .events.snapshot import LaneSnapshot as LaneSnapshot
    from .events.snapshot import OperationSnapshot as OperationSnapshot
    from .events.snapshot import SessionSnapshot as SessionSnapshot
    from .events.snapshot import reduce_lane_snapshot as reduce_lane_snapshot
    from .events.watch import LaneWatch as LaneWatch
    from .events.watch import SessionWatch as SessionWatch
    from .harness import AgentHarness as AgentHarness
    from .lanes.output import InvalidOutput as InvalidOutput
    from .lanes.output import parse_output as parse_output
    from .lanes.restore import inspect_lane as inspect_lane
    from .lanes.surface import AgentLane as AgentLane
    from .options import CompactionSettings as CompactionSettings
    from .options import MessageType as MessageType
    from .options import QueueMode as QueueMode
    from .options import RetryPolicy as RetryPolicy
    from .options import SystemPromptContext as SystemPromptContext
    from .providers.base import Model as Model
    from .providers.base import ModelRegistry as ModelRegistry
    from .providers.base import Models as Models
    from .providers.base import Provider as Provider
    from .providers.base import StreamOptions as StreamOptions
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
    "events.catalog": ("HarnessEvent",),
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
    "harness": ("AgentHarness",),
    "lanes.output": ("InvalidOutput", "parse_output"),
    "lanes.restore": ("inspect_lane",),
    "lanes.surface": ("AgentLane",),
    "options": (
        "CompactionSettings",
        "MessageType",
        "QueueMode",
        "RetryPolicy",
        "SystemPromptContext",
    ),
    "providers.base": (
        "Model",
        "ModelRegistry",
        "Models",
        "Provider",
        "StreamOptions",
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
        "HARNESS_TELEMETRY_SCHEMA",
        "AgentSpanName",
        "AiSpanName",
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
