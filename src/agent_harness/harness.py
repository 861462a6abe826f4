"""AgentHarness: one harness writes one session; it is also the lane `main` (harness-v2 §8 "The harness")."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal, NamedTuple, Self

from .clock import Clock, SystemClock
from .errors import HarnessClosed, HarnessFault, InvalidWrite
from .events.bus import Events
from .events.catalog import HandlerError, LaneCreated
from .events.snapshot import LaneOverview, SessionSnapshot
from .events.watch import SessionWatch
from .extensions.api import Extension, Installed
from .hooks.runner import Hooks
from .lanes.configuration import adopt_defaults
from .lanes.environment import Environment
from .lanes.lane import LaneRuntime
from .lanes.restore import restore_lane, suspended_operation
from .lanes.surface import AgentLane
from .options import (
    CompactionSettings,
    Drive,
    EntryProjectors,
    MessageType,
    QueueMode,
    RetryPolicy,
    SystemPrompt,
    ToolExecution,
    ToProviderMessages,
)
from .outcomes import (
    Closed,
    CreateLaneRejected,
    InvalidLane,
    LaneExists,
    LaneInfo,
    LaneOperation,
    SuspendedOperation,
    UnknownTarget,
)
from .providers.base import Model, Models, StreamOptions
from .result import Err, Ok, Result
from .session.core import check_name
from .session.session import Session
from .session.storage import MAIN
from .settings import QUEUE_MODES, Settings, check_choice, copy_options, copy_resources, tool_registry
from .telemetry.attributes import WriteStart
from .telemetry.context import NOOP, TelemetryContext
from .telemetry.spans import start_harness_span
from .types.state import ModelRef
from .types.structural import Resources
from .types.tools import AgentTool

CLOSE_TIMEOUT_SECONDS = 10.0
"""How long `close()` waits for a running effect to let go."""


class Created(NamedTuple):
    """What `AgentHarness.create` returns."""

    harness: "AgentHarness"
    suspended: list[SuspendedOperation]


class AgentHarness(AgentLane):
    """Opens a session, restores every lane, executes operations durably. Leaving it as a context manager closes it."""

    def __init__(self, env: Environment, lanes: dict[str, LaneRuntime], suspended: list[SuspendedOperation]) -> None:
        super().__init__(lanes[MAIN])
        self._lanes = lanes
        self._closing: asyncio.Task[None] | None = None
        self._settings = Settings(env, self._adopt_defaults)
        self._extensions = Installed()
        self.suspended = suspended
        """Operations that were open when the session was opened: resume or abort each."""
        self.hooks = env.hooks
        """Where handlers are registered."""
        self.events = env.events
        """Where listeners are registered."""
        env.on_fault.append(self._faulted)

    @classmethod
    async def create(
        cls,
        *,
        session: Session,
        models: Models,
        model: Model,
        thinking_level: str = "off",
        active_tool_names: Sequence[str] | None = None,
        tools: Sequence[AgentTool] = (),
        tool_context: object = None,
        system_prompt: SystemPrompt | None = None,
        resources: Resources | None = None,
        stream_options: StreamOptions | None = None,
        retry: RetryPolicy | None = None,
        compaction: CompactionSettings | None = None,
        steering_mode: QueueMode = "one-at-a-time",
        follow_up_mode: QueueMode = "one-at-a-time",
        tool_execution: ToolExecution = "parallel",
        drive: Drive = "automatic",
        to_provider_messages: ToProviderMessages | None = None,
        entry_projectors: EntryProjectors | None = None,
        message_types: Sequence[MessageType] = (),
        extensions: Sequence[Extension] = (),
        telemetry_context: TelemetryContext = NOOP,
        clock: Clock | None = None,
    ) -> Created:
        """Open a harness on a session. Restores every lane; writes nothing and starts no effect.

        `model`, `thinking_level` and `active_tool_names` apply where a lane's path names none; persisted configuration
        wins. `active_tool_names` None offers every tool.

        Returns:
            The harness, and one `SuspendedOperation` per lane with an open operation.

        Raises:
            CorruptLog: the session's facts break a validity rule.
            ValueError: two tools of one name, or an unknown option value.
        """
        registry = tool_registry(tools)
        check_choice("drive", drive, ("automatic", "manual"))
        check_choice("steering_mode", steering_mode, QUEUE_MODES)
        check_choice("follow_up_mode", follow_up_mode, QUEUE_MODES)
        check_choice("tool_execution", tool_execution, ("sequential", "parallel"))
        types = {message_type.role: message_type for message_type in message_types}
        session.register_message_types({role: registered.validate for role, registered in types.items()})
        events = Events(telemetry_context)
        env = Environment(
            session=session,
            models=_WithDefault(models, model),
            model=model,
            thinking_level=thinking_level,
            default_tool_names=None if active_tool_names is None else tuple(active_tool_names),
            tools=registry,
            tool_context=tool_context,
            system_prompt=system_prompt,
            resources=copy_resources(resources or Resources()),
            stream_options=copy_options(stream_options or StreamOptions()),
            retry=retry or RetryPolicy(),
            compaction=compaction or CompactionSettings(),
            steering_mode=steering_mode,
            follow_up_mode=follow_up_mode,
            tool_execution=tool_execution,
            drive=drive,
            to_provider_messages=to_provider_messages,
            entry_projectors=dict(entry_projectors or {}),
            message_types=types,
            hooks=Hooks(events.publish),
            events=events,
            clock=clock or SystemClock(),
            telemetry=telemetry_context,
            totals=(await session.get_stats()).usage,
        )
        lanes: dict[str, LaneRuntime] = {}
        suspended: list[SuspendedOperation] = []
        for pointer in await session.get_lanes():
            restored = await restore_lane(session, pointer.lane, pointer.leaf_id, env.defaults)
            lanes[pointer.lane] = LaneRuntime(pointer.lane, env, restored)
            operation = suspended_operation(restored.reduction, env.tools, env.models)
            if operation is not None:
                suspended.append(operation)
        harness = cls(env, lanes, suspended)
        try:
            for extension in extensions:
                await harness.use(extension)
        except BaseException:
            await harness._extensions.teardown()  # nobody else holds them; the session stays the caller's
            raise
        return Created(harness, suspended)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        session: Session,
        models: Models,
        model: Model,
        thinking_level: str = "off",
        active_tool_names: Sequence[str] | None = None,
        tools: Sequence[AgentTool] = (),
        tool_context: object = None,
        system_prompt: SystemPrompt | None = None,
        resources: Resources | None = None,
        stream_options: StreamOptions | None = None,
        retry: RetryPolicy | None = None,
        compaction: CompactionSettings | None = None,
        steering_mode: QueueMode = "one-at-a-time",
        follow_up_mode: QueueMode = "one-at-a-time",
        tool_execution: ToolExecution = "parallel",
        drive: Drive = "automatic",
        to_provider_messages: ToProviderMessages | None = None,
        entry_projectors: EntryProjectors | None = None,
        message_types: Sequence[MessageType] = (),
        extensions: Sequence[Extension] = (),
        telemetry_context: TelemetryContext = NOOP,
        clock: Clock | None = None,
    ) -> AsyncGenerator["AgentHarness"]:
        """`async with AgentHarness.open(...) as harness`: `create`, and `close` on leaving; see `harness.suspended`."""
        created = await cls.create(
            session=session,
            models=models,
            model=model,
            thinking_level=thinking_level,
            active_tool_names=active_tool_names,
            tools=tools,
            tool_context=tool_context,
            system_prompt=system_prompt,
            resources=resources,
            stream_options=stream_options,
            retry=retry,
            compaction=compaction,
            steering_mode=steering_mode,
            follow_up_mode=follow_up_mode,
            tool_execution=tool_execution,
            drive=drive,
            to_provider_messages=to_provider_messages,
            entry_projectors=entry_projectors,
            message_types=message_types,
            extensions=extensions,
            telemetry_context=telemetry_context,
            clock=clock,
        )
        async with created.harness as harness:
            yield harness

    # Lanes -----------------------------------------------------------------

    async def lane(self, name: str) -> AgentLane | None:
        """Look a lane up; never creates one."""
        self._env.require_alive()
        runtime = self._lanes.get(name)
        return AgentLane(runtime) if runtime is not None else None

    async def create_lane(self, name: str, at: str | None) -> Result[AgentLane, CreateLaneRejected]:
        """Create a lane at an existing entry, or at the root. Names are permanent application keys."""
        if (closed := self._closed()) is not None:
            return Err(closed)
        try:
            check_name("lane name", name)
        except InvalidWrite as error:
            return Err(InvalidLane(lane=name, reason=str(error), message=f"the lane was refused: {error}"))

        async def job() -> Result[AgentLane, LaneExists | UnknownTarget | InvalidLane | Closed]:
            if name in self._lanes:
                return Err(LaneExists(lane=name, message=f"a lane {name!r} exists"))
            if at is not None and await self._env.session.get_entry(at) is None:
                return Err(UnknownTarget(target_id=at, message=f"the session has no entry {at!r}"))
            attributes: WriteStart = {"pi.lane.name": name, "pi.session.mutation": "lane"}
            await start_harness_span(
                self._env.telemetry,
                "pi.session.write",
                attributes,
                lambda _span: self._lane.guard(self._env.session.create_lane(name, at)),
            )
            restored = await restore_lane(self._env.session, name, at, self._env.defaults)
            runtime = LaneRuntime(name, self._env, restored)
            self._lanes[name] = runtime
            self._env.events.publish(LaneCreated(lane=name, at=at))
            return Ok(AgentLane(runtime))

        return await self._lane.accept(job)

    async def lanes(self) -> list[LaneInfo]:
        """Inventory; always includes "main"."""
        self._env.require_alive()
        return [_lane_info(runtime) for runtime in self._lanes.values()]

    async def watch_session(self, *, max_buffer: int | None = None) -> SessionWatch:
        """The inventory of lanes and every event of the session after it; no transcripts (harness-v2 §9).

        Raises:
            HarnessClosed: the harness was closed.
            ValueError: `max_buffer` is below 1; see `watch`.
        """
        if self._env.closed:
            raise HarnessClosed("the harness is closed")
        lanes = tuple(_overview(runtime) for runtime in self._lanes.values())
        snapshot = SessionSnapshot(lanes=lanes, faulted=self._env.fault is not None)
        return SessionWatch(self._env.events, lambda _event: True, snapshot, max_buffer)

    # Extensions ------------------------------------------------------------

    async def use(self, extension: Extension) -> None:
        """Install an extension; when the harness closes, extensions are torn down in reverse order.

        Raises:
            ValueError: this object is installed already.
            whatever its `setup` raises: it is not installed then.
        """
        self._env.require_alive()
        await self._extensions.use(extension, self)

    # Settings: values are copied in and out and take effect at the next request -----------------------------------

    async def get_tools(self) -> list[AgentTool]:
        """The registered tools."""
        return self._settings.tools()

    async def set_tools(self, tools: Sequence[AgentTool], active_names: Sequence[str] | None = None) -> None:
        """Replace the tool registry; with `active_names`, also the tools that `main` offers.

        Raises:
            ValueError: two tools of one name, or an active name that is not among them.
        """
        await self._settings.set_tools(tools)
        if active_names is not None:
            await self.set_active_tools(active_names)

    async def get_resources(self) -> Resources:
        """Skills and prompt templates."""
        return self._settings.resources()

    async def set_resources(self, resources: Resources) -> None:
        """Replace skills and prompt templates."""
        self._settings.set_resources(resources)

    async def get_stream_options(self) -> StreamOptions:
        """The options every request starts from."""
        return self._settings.stream_options()

    async def set_stream_options(self, options: StreamOptions) -> None:
        """Replace the options every request starts from."""
        self._settings.set_stream_options(options)

    async def get_retry_policy(self) -> RetryPolicy:
        """How often and how patiently a step is retried."""
        return self._settings.retry_policy()

    async def set_retry_policy(self, policy: RetryPolicy) -> None:
        """Replace the retry policy."""
        self._settings.set_retry_policy(policy)

    async def get_compaction_settings(self) -> CompactionSettings:
        """When to compact, and what stays."""
        return self._settings.compaction_settings()

    async def set_compaction_settings(self, settings: CompactionSettings) -> None:
        """Replace the compaction settings."""
        self._settings.set_compaction_settings(settings)

    async def get_steering_mode(self) -> QueueMode:
        """How much of the steering queue one checkpoint takes."""
        return self._settings.steering_mode()

    async def set_steering_mode(self, mode: QueueMode) -> None:
        """Change how much of the steering queue one checkpoint takes."""
        self._settings.set_steering_mode(mode)

    async def get_follow_up_mode(self) -> QueueMode:
        """How much of the follow-up queue one checkpoint takes."""
        return self._settings.follow_up_mode()

    async def set_follow_up_mode(self, mode: QueueMode) -> None:
        """Change how much of the follow-up queue one checkpoint takes."""
        self._settings.set_follow_up_mode(mode)

    async def _adopt_defaults(self) -> None:
        for runtime in self._lanes.values():
            await adopt_defaults(runtime)

    # The end ---------------------------------------------------------------

    def _faulted(self, fault: HarnessFault) -> None:
        """A failed write or a broken invariant stops every lane: nothing is written after it."""
        for runtime in self._lanes.values():
            runtime.line.close(fault)
            if runtime.gate is not None:
                runtime.gate.close(fault)
            if runtime.procedure is not None and runtime.procedure is not _current_task():
                runtime.signal.abort()
                runtime.procedure.cancel()
            runtime.idle.set()

    async def close(self) -> None:
        """Detach cleanly: stop running effects, let the append in progress end, release the writer claim.

        Open operations stay resumable; nothing is recorded. Idempotent, bounded in time, safe from any task.
        """
        if self._closing is None:
            self._env.closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close(_current_task()))
        own = _current_task()
        await asyncio.shield(self._closing)
        if own is not None and any(runtime.procedure is own for runtime in self._lanes.values()):
            own.cancel()  # called from a hook: the run that it belongs to ends at its next await

    async def _close(self, caller: "asyncio.Task[object] | None") -> None:
        reason: BaseException = self._env.fault or HarnessClosed()
        lanes = list(self._lanes.values())
        await asyncio.gather(*(runtime.detach(reason, CLOSE_TIMEOUT_SECONDS, caller) for runtime in lanes))
        for name in await self._extensions.teardown():
            self._env.events.publish(HandlerError(lane=None, kind="extension", name=name, error="teardown failed"))
        for runtime in self._lanes.values():
            runtime.idle.set()
        await self._env.abandoned.close()
        await self._env.events.close(caller)
        await self._env.session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class _WithDefault:
    """The caller's models, and the default model even if the collection does not list it."""

    def __init__(self, models: Models, model: Model) -> None:
        self._models = models
        self._model = model
        self.provider = models.provider

    def find(self, ref: ModelRef) -> Model | None:
        return self._models.find(ref) or (self._model if ref == self._model.ref else None)


def _lane_info(runtime: LaneRuntime) -> LaneInfo:
    op = runtime.operation
    operation = None
    if op is not None:
        running: Literal["running", "suspended"] = "suspended" if runtime.suspended else "running"
        operation = LaneOperation(id=op.id, kind=op.kind, status="aborting" if op.aborting else running)
    return LaneInfo(name=runtime.name, leaf_id=runtime.state.lane_state.leaf_id, operation=operation)


def _overview(runtime: LaneRuntime) -> LaneOverview:
    info = _lane_info(runtime)
    return LaneOverview(
        name=info.name,
        leaf_id=info.leaf_id,
        operation=info.operation,
        suspended=runtime.view.suspended() if runtime.suspended else None,
    )
