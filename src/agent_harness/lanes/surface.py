"""AgentLane: the stateless facade of one lane that users hold (harness-v2 §8 "The lane surface").

Any number of facades may exist for a lane; identity is the name. Every refusal is an `Err`, nothing is written for it;
faults and closure raise.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence

from ..effects.gate import Gate
from ..errors import HarnessClosed, StorageError
from ..events.snapshot import is_for_lane
from ..events.watch import LaneWatch
from ..extensions.resources import expand_skill, expand_template
from ..outcomes import (
    AbortResult,
    CancelQueuedResult,
    Closed,
    CompactionResult,
    NavigationResult,
    QueueResult,
    RecordUsageResult,
    ResumeResult,
    RunResult,
    UnknownSkill,
    UnknownTemplate,
)
from ..providers.base import Model
from ..result import Err, Ok
from ..types.actions import ActionInfo
from ..types.json import JsonValue
from ..types.messages import ImageContent, ThinkingLevel, Usage
from ..types.records import AdjustmentUsage, QueueName
from ..types.structural import NavigateOptions
from . import configuration, jobs, operations
from .lane import LaneRuntime
from .messages import Input, Unacceptable, normalise
from .output import OutputSpec
from .view import LaneSession


class AgentLane:
    """The operations of one lane. At most one operation runs per lane; other lanes are unaffected."""

    def __init__(self, runtime: LaneRuntime) -> None:
        self._lane = runtime
        self._env = runtime.env

    @property
    def name(self) -> str:
        """The lane's permanent name; "main" on the harness itself."""
        return self._lane.name

    async def get_leaf_id(self) -> str | None:
        """The entry that future work extends, from live state."""
        self._env.require_alive()
        return self._lane.state.lane_state.leaf_id

    # Operations ------------------------------------------------------------

    async def prompt(
        self,
        prompt: Input,
        images: Sequence[ImageContent] = (),
        *,
        output_type: type[object] | None = None,
        output_retries: int = 2,
    ) -> RunResult:
        """Accept a prompt as a durable run and wait for its outcome.

        Cancelling the waiting task does not cancel the run: its outcome reaches events and `wait_for_idle()`. Cancelled
        before acceptance, nothing is written.

        With `output_type` (a model, a dataclass, a TypedDict) the final answer is validated; one that does not fit is
        asked for again, up to `output_retries` times in the life of the run. `RunCompleted.output` is the value, or
        None with the reason in `output_error` (ADR 0007).

        Returns:
            Ok with the outcome (completed, aborted, failed or suspended), or Err: LaneBusy, InvalidMessage,
            MissingIdentities, Closed.

        Raises:
            HarnessFault: a write failed; reopen the session.
            HarnessClosed: closed while the run was active; it stays resumable.
            TypeError: `output_type` is no object with a JSON Schema; nothing was written.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        output = OutputSpec.of(output_type, output_retries) if output_type is not None else None
        return await operations.prompt(self._lane, prompt, images, output)

    async def skill(self, name: str, additional_instructions: str | None = None) -> RunResult:
        """Prompt with a skill of `resources`, and what the caller adds. What is stored is the expanded text.

        Returns:
            As `prompt`, or Err: UnknownSkill.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        skill = self._env.resources.skills.get(name)
        if skill is None:
            return Err(UnknownSkill(name=name, message=_unknown("skill", name, self._env.resources.skills)))
        return await self.prompt(expand_skill(skill, additional_instructions))

    async def prompt_from_template(self, name: str, args: Sequence[str] = ()) -> RunResult:
        """Prompt with a template of `resources`, its placeholders filled from `args`. Stored is the expanded text.

        Returns:
            As `prompt`, or Err: UnknownTemplate.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        templates = self._env.resources.prompt_templates
        template = templates.get(name)
        if template is None:
            return Err(UnknownTemplate(name=name, message=_unknown("prompt template", name, templates)))
        return await self.prompt(expand_template(template, args))

    async def compact(self, custom_instructions: str | None = None) -> CompactionResult:
        """Replace old context with a summary, as an operation of its own, and wait for its outcome.

        Returns:
            Ok with the outcome (completed, declined, aborted or failed), or Err: LaneBusy, NothingToCompact,
            MissingIdentities, Closed.

        Raises:
            InvalidPayload: the instructions are not valid text; nothing was written.
            HarnessFault, HarnessClosed: as for `prompt`.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        return await operations.compact(self._lane, custom_instructions)

    async def navigate_tree(self, target_id: str | None, options: NavigateOptions | None = None) -> NavigationResult:
        """Move this lane's leaf to an existing entry (None: the root), and wait for the outcome.

        With `options.summarize`, what was said on the branch that is left is summarised onto the target's branch; with
        `options.label`, the target gets that label.

        Returns:
            Ok with the outcome (completed, declined, aborted or failed), or Err: LaneBusy, UnknownTarget (no such
            entry, or the lane stands there already), MissingIdentities, Closed.

        Raises:
            InvalidWrite: the label or the instructions are not valid text; nothing was written.
            HarnessFault, HarnessClosed: as for `prompt`.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        return await operations.navigate_tree(self._lane, target_id, options or NavigateOptions())

    async def resume(self, *, output_type: type[object] | None = None) -> ResumeResult:
        """Continue this lane's open operation from its last safe boundary, and wait for its outcome.

        A run that was started with an output type is held to that type's JSON Schema, which was stored; hand the type
        in again to have its validators run and to get its instance. Otherwise `output` is plain JSON.

        Raises:
            TypeError: `output_type` is no object with a JSON Schema; nothing was resumed.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        return await operations.resume(self._lane, output_type)

    async def abort(self) -> AbortResult:
        """Record the cancellation, signal the running effect and return; reconciliation follows.

        The payloads of cleared steer and follow-up items are in the answer. With no procedure running, one starts at
        the abort path.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        return await operations.abort(self._lane)

    # Queues ----------------------------------------------------------------

    async def steer(self, message: Input, images: Sequence[ImageContent] = ()) -> QueueResult:
        """Correct the current work: the model sees it before its next answer. Needs a run that is not aborting."""
        return await self._enqueue("steer", message, images)

    async def follow_up(self, message: Input, images: Sequence[ImageContent] = ()) -> QueueResult:
        """Add work for when the model would stop. Needs a run that is not aborting."""
        return await self._enqueue("followUp", message, images)

    async def next_run(self, message: Input, images: Sequence[ImageContent] = ()) -> QueueResult:
        """Seed the lane's next run; always accepted and kept."""
        return await self._enqueue("nextRun", message, images)

    async def _enqueue(self, queue: QueueName, message: Input, images: Sequence[ImageContent]) -> QueueResult:
        if (closed := self._closed()) is not None:
            return Err(closed)
        try:
            messages = normalise(message, images, self._env.clock.now_ms(), self._env.message_types)
        except Unacceptable as reason:
            return Err(jobs.invalid_message(self._lane, reason))
        if len(messages) != 1:
            return Err(jobs.invalid_message(self._lane, "a queue item is one message"))
        return await self._lane.accept(lambda: jobs.enqueue(self._lane, queue, messages[0]))

    async def cancel_queued(self, entry_id: str) -> CancelQueuedResult:
        """Durably retract a pending queue item."""
        if (closed := self._closed()) is not None:
            return Err(closed)
        return await self._lane.accept(lambda: jobs.cancel_queued(self._lane, entry_id))

    async def record_usage(
        self, usage: Usage, *, entry_id: str | None = None, details: JsonValue = None
    ) -> RecordUsageResult:
        """Append an adjustment to the ledger: reconciliation, estimates, corrections. Negative values are legal.

        Raises:
            InvalidPayload: `details` is not JSON as we accept it; nothing was written.
        """
        if (closed := self._closed()) is not None:
            return Err(closed)
        adjustment = AdjustmentUsage(usage=usage, entry_id=entry_id, details=details)
        await self._lane.accept(lambda: jobs.record_usage(self._lane, adjustment))
        return Ok(None)

    # The tree and persisted configuration ----------------------------------

    @property
    def session(self) -> LaneSession:
        """This lane's view of the tree: appends defer while a run is open and otherwise chain to the leaf."""
        return LaneSession(self._lane)

    async def get_model(self) -> Model:
        """The model the next request uses.

        Raises:
            LookupError: the lane's path names a model that is not known here.
        """
        self._env.require_alive()
        return configuration.current_model(self._lane)

    async def set_model(self, model: Model) -> None:
        """Use `model` from the next request on. Durable when it returns; equal settings write nothing (A-9).

        Raises:
            ValueError: the harness's models do not know it.
            WriteRefused: the lane has a suspended structural operation.
        """
        await configuration.set_model(self._lane, model)

    async def get_thinking_level(self) -> ThinkingLevel:
        """The thinking level the next request uses."""
        self._env.require_alive()
        return self._lane.state.effective_configuration.thinking_level

    async def set_thinking_level(self, level: ThinkingLevel) -> None:
        """Think at `level` from the next request on. Durable when it returns; equal settings write nothing (A-9)."""
        await configuration.set_thinking_level(self._lane, level)

    async def get_active_tools(self) -> list[str]:
        """Names of the tools this lane offers, registered or not."""
        self._env.require_alive()
        return list(self._lane.state.effective_configuration.active_tool_names)

    async def set_active_tools(self, names: Sequence[str]) -> None:
        """Offer these tools from the next request on. Durable when it returns; equal settings write nothing (A-9).

        Raises:
            ValueError: a name that is not registered.
        """
        await configuration.set_active_tools(self._lane, names)

    async def get_unavailable_tools(self) -> list[str]:
        """Active tools that are not registered: kept in the set, not sent to the provider (A-12)."""
        return [name for name in await self.get_active_tools() if name not in self._env.tools]

    # Watching --------------------------------------------------------------

    async def watch(self, *, max_buffer: int | None = None) -> LaneWatch:
        """This lane's transcript and live state, and every event after it: no gap and no duplicate (harness-v2 §9).

        Works on a faulted harness too; its snapshot says so.

        Args:
            max_buffer: the most undelivered events, at least 1; one more ends the watch with `WatchOverflow` (A-13).
                None: no bound.

        Raises:
            HarnessClosed: the harness was closed.
            HarnessFault: the harness stopped, and its transcript cannot be read any more.
            StorageError: the transcript could not be read; the lane's work goes on.
            ValueError: `max_buffer` is below 1.
        """
        if self._env.closed:
            raise HarnessClosed("the harness is closed")
        view = self._lane.view
        try:
            await view.load()
        except StorageError as error:
            if self._env.fault is not None:
                raise self._env.fault from error
            raise
        # From here on nothing awaits: the snapshot and the place in the stream are one moment.
        return LaneWatch(self._env.events, lambda event: is_for_lane(event, self.name), view.snapshot(), max_buffer)

    # Waiting ---------------------------------------------------------------

    async def wait_for_idle(self) -> None:
        """Return once no operation is open on this lane.

        A suspended operation keeps it waiting: resume or abort it.

        Raises:
            HarnessFault, HarnessClosed: the harness ended first.
        """
        while True:
            self._env.require_alive()
            if self._lane.operation is None and not self._lane.executing:
                return
            await self._lane.idle.wait()

    async def run_when_idle(self, callback: Callable[[], Awaitable[None] | None]) -> None:
        """Call `callback` once the lane is idle. Process-local: nothing is stored."""
        await self.wait_for_idle()
        result = callback()
        if result is not None:
            await result

    # Manual drive ----------------------------------------------------------

    async def peek_action(self) -> ActionInfo | None:
        """The action that is parked next; None when no operation is in flight. No side effect.

        Raises:
            RuntimeError: the harness does not drive manually.
        """
        return await self._gate().peek()

    async def parked_actions(self) -> tuple[ActionInfo, ...]:
        """All parked actions, the next one first: several while a parallel batch runs.

        Raises:
            RuntimeError: the harness does not drive manually.
        """
        return self._gate().parked

    async def execute_action(self, tool_call_id: str | None = None) -> ActionInfo | None:
        """Release exactly the parked action and return the next one.

        `tool_call_id` releases that parked `execute_tool` instead (A-4).

        Raises:
            RuntimeError: the harness does not drive manually, or two drivers act at once.
        """
        return await self._gate().execute(tool_call_id)

    async def run_to_completion(self) -> None:
        """Release actions until the operation settles."""
        gate = self._gate()
        while await gate.peek() is not None:
            await gate.execute()

    def _gate(self) -> Gate:
        self._env.require_alive()
        if self._lane.gate is None:
            raise RuntimeError('manual drive needs AgentHarness.create(drive="manual")')
        return self._lane.gate

    # Helpers ---------------------------------------------------------------

    def _closed(self) -> Closed | None:
        if self._env.fault is not None:
            raise self._env.fault
        return Closed() if self._env.closed else None


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    return f"there is no {what} {name!r}; there are: {', '.join(sorted(known)) or 'none'}"
