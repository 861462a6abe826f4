"""Effects: everything a procedure can do to the world (harness-v2 §15).

The method list is the complete crash-site catalogue: stopping before or after one of these calls is a state that
recovery handles. Reads, id allocation and event emission are not effects and never park; they are `Reads`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ..abort_signal import AbortSignal
from ..events.catalog import HarnessEvent
from ..hooks.catalog import (
    AfterTool,
    BeforeCompaction,
    BeforeNavigation,
    BeforeRequest,
    BeforeRunEnd,
    BeforeTool,
    CompactionDecision,
    HookName,
    NavigationDecision,
    ToolDecision,
    ToolResultPatch,
)
from ..options import CompactionSettings, RetryPolicy, ToolExecution
from ..providers.base import Model, StreamOptions
from ..reducer.predicates import QueueMode
from ..telemetry.context import TelemetryContext
from ..types.entries import Entry, ProvisionedEntry
from ..types.messages import AgentMessage, AssistantMessage, DeferredHandle
from ..types.records import LaneRecord, OperationError, Outcome, RecordBody, StepKind
from ..types.state import LaneReductionResult, OperationState
from ..types.tools import AgentTool, ExecutedToolCall, PreparedToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelWrite:
    """A global fact that a procedure writes."""

    target_id: str
    label: str
    fact: Literal["label"] = "label"


FactWrite: TypeAlias = LabelWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantRequest:
    """One provider request. `messages` None sends the lane's projected context, with its system prompt and tools."""

    step: StepKind
    attempt: int
    run_id: str
    options: StreamOptions
    turn_id: str | None = None
    system_prompt: str | None = field(default=None, repr=False)  # the run's persisted override, the summary's own
    messages: Sequence[AgentMessage] | None = field(default=None, repr=False)


class Reads(Protocol):
    """What a procedure may look at."""

    @property
    def lane(self) -> str:
        """The lane's name."""
        ...

    @property
    def state(self) -> LaneReductionResult:
        """Live state: always the reduction of what is committed."""
        ...

    @property
    def op(self) -> OperationState:
        """The open operation of the state."""
        ...

    @property
    def aborting(self) -> bool:
        """An abort is accepted for the open operation."""
        ...

    @property
    def signal(self) -> AbortSignal:
        """Fires when the open operation is aborted."""
        ...

    @property
    def answer(self) -> tuple[str, AssistantMessage] | None:
        """Entry id and message of the newest assistant message this operation appended, deferred ones apart."""
        ...

    @property
    def recovery(self) -> bool:
        """This invocation continues an operation that another one began."""
        ...

    @property
    def retry(self) -> RetryPolicy:
        """The policy as of now."""
        ...

    @property
    def compaction(self) -> CompactionSettings:
        """The settings as of now."""
        ...

    @property
    def steering_mode(self) -> QueueMode:
        """How much of the steering queue one checkpoint takes."""
        ...

    @property
    def follow_up_mode(self) -> QueueMode:
        """How much of the follow-up queue one checkpoint takes."""
        ...

    @property
    def tool_execution(self) -> ToolExecution:
        """The batch default."""
        ...

    @property
    def stream_options(self) -> StreamOptions:
        """The harness's request options as of now."""
        ...

    def model(self) -> Model:
        """The lane's effective model.

        Raises:
            LookupError: it is not known here.
        """
        ...

    def tools(self) -> Sequence[AgentTool]:
        """The registered tools of the lane's active set."""
        ...

    def tool(self, name: str) -> AgentTool | None:
        """A registered tool, active or not."""
        ...

    def has_hook(self, name: HookName) -> bool:
        """Whether a handler is registered."""
        ...

    @property
    def redacts_results(self) -> bool:
        """An `after_tool` handler forbids storing raw results (A-4)."""
        ...

    def new_id(self) -> str:
        """A provisioned id."""
        ...

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    def emit(self, event: HarnessEvent) -> None:
        """Tell the watchers; passive."""
        ...

    def tool_announced(self, tool_index: int) -> bool:
        """Whether the watchers saw a `tool_start` of this call of the running batch, and no `tool_end`."""
        ...

    async def context_messages(self) -> Sequence[AgentMessage]:
        """The lane's projected context, before any hook."""
        ...

    async def inherited_messages(self) -> int:
        """How many leading messages of `context_messages` come from the newest compaction on the path (A-6)."""
        ...

    async def abandoned(self, source: str | None, target: str | None) -> tuple[Entry, ...]:
        """What a move from `source` to `target` leaves behind, oldest first."""
        ...

    def as_said(self, messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        """`messages`, each registered custom one as the user message it tells the model."""
        ...

    def project(self, entries: Sequence[Entry]) -> Sequence[AgentMessage]:
        """The context messages of a path, oldest first."""
        ...

    async def run_messages(self) -> tuple[AgentMessage, ...]:
        """The messages this operation appended, oldest first."""
        ...

    async def get_entry(self, entry_id: str) -> Entry | None:
        """Point lookup."""
        ...


class Effects(Protocol):
    """One method per crash site. The last argument is always the telemetry parent."""

    @property
    def reads(self) -> Reads:
        """What is not an effect."""
        ...

    # Durable writes: each validates and commits at the head of the lane's mutation line, then updates live state.

    async def append_entry(self, entry: ProvisionedEntry, parent: TelemetryContext) -> Entry:
        """Append at the lane's leaf; a provisioned id that exists with equal content is returned as it is."""
        ...

    async def append_record(self, body: RecordBody, parent: TelemetryContext) -> LaneRecord:
        """Append to the lane's operation log under a fresh id."""
        ...

    async def move_lane(self, to: str | None, parent: TelemetryContext) -> None:
        """Jump the lane's leaf: the commit point of a navigation."""
        ...

    async def set_fact(self, fact: FactWrite, parent: TelemetryContext) -> None:
        """Write a global fact; the latest wins."""
        ...

    # Conditional commits: decision and write in one job.

    async def try_finish_run(
        self,
        run_id: str,
        outcome: Literal["completed", "failed"],
        parent: TelemetryContext,
        error: OperationError | None = None,
    ) -> Literal["finished", "continue"]:
        """Close the run if nothing is pending: a steer comes before or after, never between.

        A failed run looks at queues and pending writes only (A-15).

        Returns:
            "finished": `operation_finished` is durable and the lane is idle.
            "continue": accepted input or an abort came first; nothing was written.
        """
        ...

    async def finish_operation(
        self,
        run_id: str,
        outcome: Outcome,
        parent: TelemetryContext,
        error: OperationError | None = None,
        event: HarnessEvent | None = None,
    ) -> Literal["finished", "continue"]:
        """Close the operation unless preempted. `event` is published with the close, before anything that follows it.

        "continue": a non-abort outcome met an abort marker, or an abort met deferred writes that come first.
        """
        ...

    async def commit_run_end_follow_up(
        self, run_id: str, item: ProvisionedEntry, parent: TelemetryContext
    ) -> Literal["committed", "dropped"]:
        """Queue a `before_run_end` follow-up, unless an abort won."""
        ...

    async def consume_queue_item(
        self, run_id: str, queue: Literal["steer", "followUp"], entry_id: str, parent: TelemetryContext
    ) -> Literal["consumed", "skipped"]:
        """Append a queued message, unless it was cancelled or an abort cleared it."""
        ...

    async def apply_pending_write(
        self, run_id: str, entry_id: str, parent: TelemetryContext
    ) -> Literal["applied", "skipped"]:
        """Append a deferred write; also while aborting."""
        ...

    # External effects.

    async def stream_assistant(self, request: AssistantRequest, parent: TelemetryContext) -> AssistantMessage:
        """One provider request to its settled message; errors are in-band."""
        ...

    async def execute_tool(
        self, prepared: PreparedToolCall, turn_id: str | None, parent: TelemetryContext
    ) -> ExecutedToolCall:
        """Phase 2 of a call. Never raises for the tool's own failures."""
        ...

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> AssistantMessage:
        """Redeem a handle, checking once; a rejection becomes an error message."""
        ...

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, parent: TelemetryContext) -> None:
        """Best effort; a failure is reported, not raised."""
        ...

    # Interception and time. Without a handler a hook is no effect: no gate, no letter in a trace.

    async def before_request(self, event: BeforeRequest, parent: TelemetryContext) -> StreamOptions:
        """Patch request options."""
        ...

    async def before_tool(self, event: BeforeTool, parent: TelemetryContext) -> ToolDecision:
        """Clear a call."""
        ...

    async def after_tool(self, event: AfterTool, parent: TelemetryContext) -> ToolResultPatch:
        """Patch a result."""
        ...

    async def before_run_end(self, event: BeforeRunEnd, parent: TelemetryContext) -> tuple[str, ...]:
        """Follow-ups at a finish boundary."""
        ...

    async def before_compaction(self, event: BeforeCompaction, parent: TelemetryContext) -> CompactionDecision:
        """Decline or supply a compaction."""
        ...

    async def before_navigation(self, event: BeforeNavigation, parent: TelemetryContext) -> NavigationDecision:
        """Decline or supply a branch summary."""
        ...

    async def before_resume(self, parent: TelemetryContext) -> None:
        """Let extensions rebuild their process-local state, each with its own resume data."""
        ...

    async def sleep(self, delay_ms: int, parent: TelemetryContext) -> Literal["elapsed", "aborted"]:
        """Wait; an abort ends it at once."""
        ...
