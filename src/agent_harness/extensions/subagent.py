"""Subagents: tools that hand a task to a child agent (harness-v2 §17 "Forks and subagents").

The child's name is derived from the identity of the call, (parent session, assistant entry, index), and not from the
provider's call id, which may repeat. So a replay after a crash finds the child that is there: it resumes it if it was
interrupted, takes its answer if it has one, and never starts a twin. That is why these tools may say `replay="safe"`.

`subagent_tool` runs the child in a session of its own. `lane_subagent_tool` runs it on a lane of the parent's session.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol, TypeAlias

import orjson

from ..clock import Clock, SystemClock
from ..errors import SessionExists
from ..lanes.surface import AgentLane
from ..outcomes import CreateLaneRejected, LaneBusy, LaneExists, NothingToResume, OperationOutcome, RunSuspended
from ..result import Err, Ok, Result
from ..session.repo import SessionRepo
from ..session.session import Session
from ..session.storage import MAIN
from ..types.json import JsonValue
from ..types.messages import AssistantMessage, TextContent, Usage
from ..types.records import LaneRecord, OperationFinished
from ..types.tools import AgentTool, AgentToolResult, ToolFailed, ToolInvocation, ToolOrigin
from ..types.usage import usage_difference

LOCK_WAIT_SECONDS = 10.0
"""How long a replay waits for the previous execution to let go of the child session."""

DEFAULT_POLL_MS = 5_000
"""How long to wait before asking for a deferred answer again, when the provider does not say."""

TASK_SCHEMA: Mapping[str, JsonValue] = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, with everything one needs to know for it."}},
    "required": ["task"],
    "additionalProperties": False,
}


class ChildHarness(Protocol):
    """What is needed of a harness on the child session; `AgentHarness` is one."""

    async def lane(self, name: str) -> AgentLane | None:
        """The lane of this name."""
        ...

    async def close(self) -> None:
        """Detach, and release the session."""
        ...


class LaneHost(Protocol):
    """What is needed of the parent's harness; `AgentHarness` is one."""

    async def lane(self, name: str) -> AgentLane | None:
        """The lane of this name."""
        ...

    async def create_lane(self, name: str, at: str | None) -> Result[AgentLane, CreateLaneRejected]:
        """A new lane."""
        ...


OpenChild: TypeAlias = Callable[[Session, ToolInvocation], Awaitable[ChildHarness]]
"""Opens a harness on the child session: the application's choice of model, tools and prompt. It owns the session."""


def child_id(origin: ToolOrigin) -> str:
    """The name of the child session or lane of a call: the same in every replay, another one for every other call."""
    identity = orjson.dumps([origin.session_id, origin.assistant_entry_id, origin.tool_index])
    return f"sub-{sha256(identity).hexdigest()[:32]}"


def subagent_tool(
    *,
    name: str,
    description: str,
    repo: SessionRepo,
    open_child: OpenChild,
    cwd: str | None = None,
    clock: Clock | None = None,
) -> AgentTool:
    """A tool whose call runs `task` in a child session of `repo` and answers with the child's last message.

    The result's `details` name the child session; its `usage` is the child's whole ledger, so that the parent's ledger
    counts it (once: a replay reports what is not counted yet). An abort of the parent aborts the child, closing the
    parent only detaches it. A child that failed gives an error result, with its usage.
    """

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        origin = _origin(invocation)
        session = await _open_session(repo, origin, cwd)
        try:
            harness = await open_child(session, invocation)
        except BaseException:
            await session.close()
            raise
        try:
            lane = await harness.lane(MAIN)
            assert lane is not None
            child = _Child(lane=lane, session=session, clock=clock or SystemClock())
            answer = await child.answer(invocation)
            spent = (await session.get_stats()).usage
        finally:
            await harness.close()
        return _result(answer, session.id, MAIN, _unbilled(spent, origin))

    return _tool(name, description, execute)


def lane_subagent_tool(
    *,
    name: str,
    description: str,
    session: Session,
    harness: Callable[[], LaneHost],
    share_context: bool = False,
    clock: Clock | None = None,
) -> AgentTool:
    """A tool whose call runs `task` on a lane of the parent's own session, with the parent's model and tools.

    `harness` is asked when the tool runs, since tools exist before their harness. The lane begins at the root, or with
    `share_context` where the parent stands. What it costs is in the session's ledger under its own lane, so the result
    reports no usage: it would count twice. An abort of the parent aborts the child.
    """

    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        origin = _origin(invocation)
        lane = await _open_lane(harness(), child_id(origin), origin.assistant_entry_id if share_context else None)
        answer = await _Child(lane=lane, session=session, clock=clock or SystemClock()).answer(invocation)
        return _result(answer, session.id, lane.name, None)

    return _tool(name, description, execute)


def _tool(name: str, description: str, execute: Callable[[ToolInvocation], Awaitable[AgentToolResult]]) -> AgentTool:
    return AgentTool(
        name=name,
        description=description,
        parameters=TASK_SCHEMA,
        validate=_checked_task,
        execute=execute,
        replay="safe",
    )


def _checked_task(args: dict[str, JsonValue]) -> dict[str, JsonValue]:
    task = args.get("task")
    if set(args) != {"task"} or not isinstance(task, str) or not task.strip():
        raise ValueError("give exactly one argument, task, a text that is not empty")
    return args


def _origin(invocation: ToolInvocation) -> ToolOrigin:
    if invocation.origin is None:
        raise RuntimeError("a subagent needs a session: its parent runs in none")
    return invocation.origin


# Finding or making the child -----------------------------------------------------------------------------------------


async def _open_session(repo: SessionRepo, origin: ToolOrigin, cwd: str | None) -> Session:
    name = child_id(origin)
    try:
        return await repo.create(id=name, cwd=cwd, parent_session_id=origin.session_id)
    except SessionExists:
        return await repo.open(name, wait=LOCK_WAIT_SECONDS)


async def _open_lane(host: LaneHost, name: str, at: str | None) -> AgentLane:
    lane = await host.lane(name)
    if lane is not None:
        return lane
    created = await host.create_lane(name, at)
    if isinstance(created, Err) and isinstance(created.error, LaneExists):
        lane = await host.lane(name)
        assert lane is not None
        return lane
    return created.unwrap()


# Running it ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """How the child's first run ended: `text` is its last answer, or why there is none."""

    run_id: str
    outcome: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    """A child agent on a lane that has this one task, whoever is executing it."""

    lane: AgentLane
    session: Session
    clock: Clock = field(default_factory=SystemClock)

    async def answer(self, invocation: ToolInvocation) -> _Answer:
        """Bring the task to its end from wherever it stands."""
        task = invocation.args["task"]
        assert isinstance(task, str)
        where: JsonValue = {"subagent": {"sessionId": self.session.id, "lane": self.lane.name}}
        invocation.update(AgentToolResult(details=where))
        try:
            while (found := await self._finished()) is None:
                await self._advance(task)
            return found
        except asyncio.CancelledError:
            if invocation.signal.aborted:
                await self.lane.abort()
                await self.lane.wait_for_idle()
            raise  # otherwise the parent only detaches, and so does the child

    async def _advance(self, task: str) -> None:
        resumed = await self.lane.resume()
        if isinstance(resumed, Ok):
            await self._wait_if_deferred(resumed.value)
        elif isinstance(resumed.error, LaneBusy):
            await self.lane.wait_for_idle()  # the application resumed it already
        elif isinstance(resumed.error, NothingToResume):
            if await self._first_run() is not None:
                return  # somebody else brought it to its end between the two questions
            accepted = await self.lane.prompt(task)
            if isinstance(accepted, Ok):
                await self._wait_if_deferred(accepted.value)
            elif not isinstance(accepted.error, LaneBusy):
                raise RuntimeError(f"the subagent could not start: {accepted.error.message}")
        else:
            raise RuntimeError(f"the subagent could not be resumed: {resumed.error.message}")

    async def _wait_if_deferred(self, outcome: OperationOutcome) -> None:
        if isinstance(outcome, RunSuspended):
            await self.clock.sleep(outcome.deferred.poll_after_ms or DEFAULT_POLL_MS)

    async def _finished(self) -> _Answer | None:
        """The end of the lane's first run; later ones are conversations somebody had with the child."""
        start = await self._first_run()
        if start is None:
            return None
        ends = await self.session.find_records(lane=self.lane.name, type="operation_finished", run_id=start.id, limit=1)
        if not ends:
            return None
        end = ends[0].body
        assert isinstance(end, OperationFinished)
        if end.outcome == "completed":
            text = await self._last_words(start.seq, ends[0].seq)
        else:
            reason = f": {end.error.message}" if end.error is not None else ""
            text = f"The subagent's run {end.outcome}{reason}"
        return _Answer(run_id=start.id, outcome=end.outcome, text=text)

    async def _first_run(self) -> LaneRecord | None:
        starts = await self.session.find_records(
            lane=self.lane.name, type="operation_started", operation_kind="run", order="oldestFirst", limit=1
        )
        return starts[0] if starts else None

    async def _last_words(self, after_seq: int, before_seq: int) -> str:
        entries = await self.session.view(self.lane.name).find_entries_on_branch(after_seq=after_seq)
        for entry in entries:
            message = entry.message
            if entry.seq < before_seq and isinstance(message, AssistantMessage) and message.stop_reason != "deferred":
                return message.text
        return ""


def _unbilled(spent: Usage, origin: ToolOrigin) -> Usage | None:
    """What the parent's ledger does not hold yet; an earlier execution may have died right after it was billed."""
    missing = spent if origin.billed is None else usage_difference(spent, origin.billed)
    return None if missing == Usage() else missing


def _result(answer: _Answer, session_id: str, lane: str, usage: Usage | None) -> AgentToolResult:
    where: JsonValue = {
        "subagent": {"sessionId": session_id, "lane": lane, "runId": answer.run_id, "outcome": answer.outcome}
    }
    result = AgentToolResult(content=(TextContent(text=answer.text),), details=where, usage=usage)
    if answer.outcome != "completed":
        raise ToolFailed(result)
    return result
