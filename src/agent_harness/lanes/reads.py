"""LaneReads: what a procedure may look at (`effects.base.Reads`), from the lane's runtime."""

from collections.abc import Sequence
from itertools import takewhile

from ..abort_signal import AbortSignal
from ..events.catalog import HarnessEvent
from ..hooks.catalog import HookName
from ..options import CompactionSettings, RetryPolicy, ToolExecution
from ..providers.base import Model, StreamOptions
from ..reducer.predicates import QueueMode
from ..session.context import project_entries
from ..types.entries import Entry
from ..types.messages import AgentMessage, AssistantMessage
from ..types.state import LaneReductionResult, OperationState
from ..types.tools import AgentTool
from .lane import LaneRuntime


class LaneReads:
    """Live values: nothing here is cached between two calls."""

    def __init__(self, lane: LaneRuntime) -> None:
        self._lane = lane
        self._env = lane.env

    @property
    def lane(self) -> str:
        """See `Reads`."""
        return self._lane.name

    @property
    def state(self) -> LaneReductionResult:
        """See `Reads`."""
        return self._lane.state

    @property
    def op(self) -> OperationState:
        """See `Reads`."""
        return self._lane.op()

    @property
    def aborting(self) -> bool:
        """See `Reads`."""
        operation = self._lane.operation
        return operation is not None and operation.aborting

    @property
    def signal(self) -> AbortSignal:
        """See `Reads`."""
        return self._lane.signal

    @property
    def answer(self) -> tuple[str, AssistantMessage] | None:
        """See `Reads`."""
        return self._lane.answer

    @property
    def recovery(self) -> bool:
        """See `Reads`."""
        return self._lane.recovery

    @property
    def retry(self) -> RetryPolicy:
        """See `Reads`."""
        return self._env.retry

    @property
    def compaction(self) -> CompactionSettings:
        """See `Reads`."""
        return self._env.compaction

    @property
    def steering_mode(self) -> QueueMode:
        """See `Reads`."""
        return self._env.steering_mode

    @property
    def follow_up_mode(self) -> QueueMode:
        """See `Reads`."""
        return self._env.follow_up_mode

    @property
    def tool_execution(self) -> ToolExecution:
        """See `Reads`."""
        return self._env.tool_execution

    @property
    def stream_options(self) -> StreamOptions:
        """See `Reads`."""
        return self._env.stream_options

    def model(self) -> Model:
        """See `Reads`."""
        ref = self.state.effective_configuration.model
        model = self._env.models.find(ref)
        if model is None:
            raise LookupError(f"model {ref.provider}/{ref.model_id} is not known here")
        return model

    def tools(self) -> Sequence[AgentTool]:
        """See `Reads`."""
        active = self.state.effective_configuration.active_tool_names
        return [self._env.tools[name] for name in active if name in self._env.tools]

    def tool(self, name: str) -> AgentTool | None:
        """See `Reads`."""
        return self._env.tools.get(name)

    def has_hook(self, name: HookName) -> bool:
        """See `Reads`."""
        return self._env.hooks.has(name)

    @property
    def redacts_results(self) -> bool:
        """See `Reads`."""
        return self._env.hooks.redacts_results

    def new_id(self) -> str:
        """See `Reads`."""
        return self._env.session.id_generator.next()

    def now_ms(self) -> int:
        """See `Reads`."""
        return self._env.clock.now_ms()

    def emit(self, event: HarnessEvent) -> None:
        """See `Reads`."""
        self._lane.emit(event)

    def tool_announced(self, tool_index: int) -> bool:
        """See `Reads`."""
        operation = self._lane.view.operation
        return operation is not None and any(tool.tool_index == tool_index for tool in operation.running_tools)

    async def context_messages(self) -> Sequence[AgentMessage]:
        """See `Reads`."""
        return await self._lane.context.messages()

    async def inherited_messages(self) -> int:
        """See `Reads`."""
        return await self._lane.context.inherited()

    async def abandoned(self, source: str | None, target: str | None) -> tuple[Entry, ...]:
        """See `Reads`."""
        if source is None:
            return ()
        kept: set[str] = set()
        if target is not None:
            kept = {entry.id for entry in await self._env.session.find_entries_on_branch(start=target)}
        left = takewhile(
            lambda entry: entry.id not in kept, await self._env.session.find_entries_on_branch(start=source)
        )
        return tuple(left)[::-1]

    def as_said(self, messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        """See `Reads`."""
        return self._env.as_said(messages)

    def project(self, entries: Sequence[Entry]) -> Sequence[AgentMessage]:
        """See `Reads`."""
        return project_entries(entries, self._env.entry_projectors)

    async def run_messages(self) -> tuple[AgentMessage, ...]:
        """See `Reads`."""
        leaf_id = self.state.lane_state.leaf_id
        if leaf_id is None:
            return ()
        entries = await self._env.session.find_entries_on_branch(
            type="message", start=leaf_id, after_seq=self.op.started_seq, order="oldestFirst"
        )
        return tuple(entry.message for entry in entries if entry.message is not None)

    async def get_entry(self, entry_id: str) -> Entry | None:
        """See `Reads`."""
        return await self._env.session.get_entry(entry_id)
