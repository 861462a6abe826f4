"""A seeded simulator: random schedules over the real harness, each reproduced by its seed (issue 4, A-15).

A schedule mixes prompts, queues, aborts, deferred writes, settings, compaction, navigation, clock moves, settle orders,
failing writes and crashes over several lanes. After every released action the fixed-point law is checked; at the end
everything is resumed to its end and the invariants of the specification must hold.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import HarnessClosed, HarnessFault, SessionError
from ..harness import AgentHarness
from ..lanes.surface import AgentLane
from ..options import CompactionSettings, RetryPolicy
from ..outcomes import RunResult
from ..providers.base import ModelRegistry
from ..providers.faux import SCRIPTED_MODEL, ScriptedProvider, ScriptedRequest, answer, call
from ..result import Ok
from ..session.repo import SessionRepo
from ..session.session import Session
from ..session.storage import EntryItem, RecordItem
from ..types.actions import ExecuteToolAction
from ..types.entries import MessageBody
from ..types.messages import AssistantMessage, DeferredHandle, TextContent, ToolResultMessage, Usage, UserMessage
from ..types.records import OperationFinished, OperationStarted, RunIntent, ToolStarted
from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from ..types.usage import sum_usage
from .clock import ManualClock
from .drive import start
from .fixed_point import check_fixed_point

SESSION_ID = "simulated"
DRY_STEPS = 1_000
"""A schedule that releases this many actions in a row without a durable write makes no progress (A-15)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a schedule may do, as weights; 0 leaves a move out."""

    steps: int = 60
    lanes: int = 2
    release: int = 60
    prompt: int = 8
    queue: int = 6
    cancel: int = 2
    write: int = 4
    settings: int = 2
    abort: int = 2
    crash: int = 2
    resume: int = 4
    compact: int = 1
    navigate: int = 1
    clock: int = 2
    fault: int = 0  # needs `Simulation.break_next_write`


@dataclass(slots=True, kw_only=True)
class Report:
    """What a schedule did."""

    seed: int
    moves: Counter[str] = field(default_factory=Counter[str])
    writes: int = 0
    crashes: int = 0


@dataclass(slots=True)
class _World:
    """Outside of the session: what tools did and models were asked. It outlives crashes."""

    random: random.Random
    executions: Counter[str] = field(default_factory=Counter[str])  # by the call's own token
    requests: int = 0
    tokens: int = 0

    def token(self) -> str:
        self.tokens += 1
        return f"t{self.tokens}"

    def respond(self, request: ScriptedRequest) -> AssistantMessage:
        self.requests += 1
        used = Usage(input=self.random.randint(1, 50), output=self.random.randint(1, 20), total_tokens=30)
        roll = self.random.random()
        if roll < 0.12:
            return answer(error_message="overloaded", error_code="overloaded", usage=used)
        if roll < 0.16:
            return answer(error_message="no access", error_code="auth", usage=used)
        if roll < 0.19:
            return answer("cut", stop_reason="length", usage=Usage(output=1, total_tokens=1))
        if roll < 0.22:
            handle = DeferredHandle(provider="scripted", model_id="scripted-1", api="scripted", id=self.token())
            return answer(deferred=handle, usage=used)
        if roll < 0.55:
            names = self.random.choices(["safe", "never", "boom", "end", "unknown"], k=self.random.randint(1, 3))
            calls = [call(name, {"token": self.token()}, id=f"c{i}") for i, name in enumerate(names)]
            return answer("working", calls=calls, usage=used)
        return answer(f"answer {self.requests}", usage=used)

    def fetched(self, handle: DeferredHandle) -> AssistantMessage:
        roll = self.random.random()
        if roll < 0.4:
            return answer(deferred=handle, usage=Usage())
        if roll < 0.6:
            return answer(error_message="expired", error_code="not_found")
        return answer("late answer")


class _Fetching(ScriptedProvider):
    """The scripted provider whose deferred answers the world decides."""

    world: _World

    async def fetch_deferred(self, model: object, handle: DeferredHandle, request: object) -> AssistantMessage:
        return self.world.fetched(handle)


def _tools(world: _World) -> list[AgentTool]:
    async def count(invocation: ToolInvocation) -> AgentToolResult:
        token = str(invocation.args["token"])
        world.executions[token] += 1
        return AgentToolResult(content=(TextContent(text=token),))

    async def boom(invocation: ToolInvocation) -> AgentToolResult:
        world.executions[str(invocation.args["token"])] += 1
        raise RuntimeError("boom")

    async def end(invocation: ToolInvocation) -> AgentToolResult:
        world.executions[str(invocation.args["token"])] += 1
        return AgentToolResult(content=(TextContent(text="end"),), terminate=True)

    schema = {"type": "object"}
    return [
        AgentTool(name="safe", description="", parameters=schema, execute=count, replay="safe"),
        AgentTool(name="never", description="", parameters=schema, execute=count),
        AgentTool(name="boom", description="", parameters=schema, execute=boom),
        AgentTool(name="end", description="", parameters=schema, execute=end),
    ]


class Simulation:
    """One schedule. `run()` raises an AssertionError that names the seed when an invariant breaks.

    `break_next_write` plans a failing write with the given chooser, or takes a planned one back when given None.
    """

    def __init__(
        self,
        seed: int,
        make_repo: Callable[[Path], SessionRepo],
        directory: Path,
        plan: Plan | None = None,
        break_next_write: Callable[[random.Random | None], None] | None = None,
    ) -> None:
        self.report = Report(seed=seed)
        self._random = random.Random(seed)
        self._world = _World(random.Random(seed + 1))
        self._repo = make_repo(directory)
        self._plan = plan or Plan()
        self._break_next_write = break_next_write
        self._accepted: dict[str, str] = {}  # text of every accepted input -> how it was accepted
        self._returned: set[str] = set()  # texts an abort or a cancellation gave back
        self._queued: dict[str, str] = {}  # entry id -> text
        self._calls: list[asyncio.Task[object]] = []
        self._texts = 0
        self._dry = 0
        self._harness: AgentHarness | None = None
        self._session: Session | None = None
        self._clock = ManualClock()

    async def run(self) -> Report:
        """Play the schedule, recover everything, check."""
        try:
            await (await self._repo.create(id=SESSION_ID)).close()
            await self._play()
            await self._recover_all()
            await self._check()
        except AssertionError as broken:
            raise AssertionError(f"seed {self.report.seed}: {broken}") from broken
        except Exception as error:
            raise AssertionError(f"seed {self.report.seed}: {type(error).__name__}: {error}") from error
        finally:
            await self._close()
            await self._repo.close()
        return self.report

    # Moves -----------------------------------------------------------------

    async def _play(self) -> None:
        await self._open()
        moves = {name: weight for name, weight in _weights(self._plan).items() if weight}
        for _ in range(self._plan.steps):
            move = self._random.choices(list(moves), weights=list(moves.values()))[0]
            self.report.moves[move] += 1
            try:
                await getattr(self, f"_move_{move}")()
            except (HarnessFault, HarnessClosed, SessionError):
                await self._crash()  # a failed write faults the harness; the application opens the session again

    async def _open(self) -> None:
        self._session = await self._repo.open(SESSION_ID)
        provider = _Fetching(respond=self._world.respond)
        provider.world = self._world
        created = await AgentHarness.create(
            session=self._session,
            models=ModelRegistry([provider], [SCRIPTED_MODEL]),
            model=SCRIPTED_MODEL,
            tools=_tools(self._world),
            retry=RetryPolicy(max_attempts=3, base_delay_ms=10),
            compaction=CompactionSettings(reserve_tokens=100, keep_recent_tokens=10),
            clock=self._clock,
            drive="manual",
            steering_mode=self._random.choice(["all", "one-at-a-time"]),
        )
        self._harness = created.harness
        for operation in created.suspended:  # an abort that was durable though its caller saw a failure
            offered = (*(operation.aborting_steer or ()), *(operation.aborting_follow_up or ()))
            self._returned |= {_text_of(message) for message in offered}
        for number in range(1, self._plan.lanes):
            name = f"lane-{number}"
            if await created.harness.lane(name) is None:
                await created.harness.create_lane(name, None)

    async def _lane(self) -> AgentLane:
        assert self._harness is not None
        number = self._random.randrange(self._plan.lanes)
        lane = await self._harness.lane("main" if number == 0 else f"lane-{number}")
        assert lane is not None
        return lane

    def _text(self) -> str:
        self._texts += 1
        return f"input {self._texts}"

    async def _call(self, lane: AgentLane, work: "asyncio.Task[object]") -> None:
        self._calls.append(work)
        await lane.peek_action()  # returns when the admission is over and the operation, if any, is parked

    async def _move_prompt(self) -> None:
        lane, text = await self._lane(), self._text()
        work = await start(lane.prompt(text))
        work.add_done_callback(lambda done: self._prompted(text, done))
        await self._call(lane, work)

    def _prompted(self, text: str, done: asyncio.Task[RunResult]) -> None:
        """An outcome proves the acceptance; whoever crashed first reads it off the records at the end."""
        if not done.cancelled() and done.exception() is None and isinstance(done.result(), Ok):
            self._accepted[text] = "prompt"

    async def _move_queue(self) -> None:
        lane, text = await self._lane(), self._text()
        name = self._random.choice(["steer", "follow_up", "next_run"])
        calls = {"steer": lane.steer, "follow_up": lane.follow_up, "next_run": lane.next_run}
        result = await calls[name](text)
        if isinstance(result, Ok):
            self._accepted[text] = name
            self._queued[result.value.entry_id] = text

    async def _move_cancel(self) -> None:
        lane = await self._lane()
        if not self._queued:
            return
        entry_id = self._random.choice(list(self._queued))
        text = self._queued[entry_id]
        try:
            result = await lane.cancel_queued(entry_id)
        except HarnessFault:
            self._accepted.pop(text, None)  # cancelled or not: both are right after a failed write
            raise
        if isinstance(result, Ok) and result.value.outcome == "cancelled":
            self._returned.add(text)

    async def _move_write(self) -> None:
        lane, text = await self._lane(), self._text()
        if await self._structural(lane):
            return  # it would wait for an operation that this schedule drives itself
        await lane.session.append_message(UserMessage(content=text, timestamp=1))
        self._accepted[text] = "write"

    async def _move_settings(self) -> None:
        lane = await self._lane()
        if not await self._structural(lane):
            await lane.set_thinking_level(self._random.choice(["off", "low", "high"]))

    async def _structural(self, lane: AgentLane) -> bool:
        assert self._harness is not None
        operations = {info.name: info.operation for info in await self._harness.lanes()}
        operation = operations[lane.name]
        return operation is not None and operation.kind != "run"

    async def _move_abort(self) -> None:
        lane = await self._lane()
        result = await lane.abort()
        if isinstance(result, Ok):
            self._returned |= {_text_of(m) for m in (*result.value.steer, *result.value.follow_up)}

    async def _move_resume(self) -> None:
        lane = await self._lane()
        await self._call(lane, await start(lane.resume()))

    async def _move_compact(self) -> None:
        lane = await self._lane()
        await self._call(lane, await start(lane.compact()))

    async def _move_navigate(self) -> None:
        lane = await self._lane()
        assert self._session is not None
        entries = await self._session.find_entries(limit=20)
        if entries:
            target = self._random.choice(entries)
            await self._call(lane, await start(lane.navigate_tree(target.id)))

    async def _move_fault(self) -> None:
        if self._break_next_write is not None:
            self._break_next_write(self._random)

    async def _move_clock(self) -> None:
        self._clock.advance(self._random.choice([1, 1_000, 3_600_000]))

    async def _move_crash(self) -> None:
        await self._crash()

    async def _move_release(self) -> None:
        await self._release(await self._lane())

    async def _release(self, lane: AgentLane) -> None:
        assert self._session is not None
        before = self._session.delivered_seq
        parked = await lane.parked_actions()
        tools = [action.tool_call_id for action in parked if isinstance(action, ExecuteToolAction)]
        choice = self._random.choice(tools) if len(tools) > 1 and isinstance(parked[0], ExecuteToolAction) else None
        if await lane.peek_action() is None:
            return
        await lane.execute_action(choice)
        await check_fixed_point(lane)
        self._dry = 0 if self._session.delivered_seq > before else self._dry + 1
        assert self._dry < DRY_STEPS, f"{DRY_STEPS} actions without a durable write"

    # Crashes ---------------------------------------------------------------

    async def _crash(self) -> None:
        self.report.crashes += 1
        await self._close()
        while self._harness is None:
            try:
                await self._open()
            except HarnessFault:
                await self._close()

    async def _close(self) -> None:
        if self._harness is not None:
            harness, self._harness = self._harness, None
            await harness.close()
        for work in self._calls:
            if not work.done():
                work.cancel()
        if self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)
        self._calls = []

    async def _recover_all(self) -> None:
        """Resume every lane until all are idle."""
        if self._break_next_write is not None:
            self._break_next_write(None)  # a fault that did not strike yet is taken back
        await self._crash()
        assert self._harness is not None
        for _ in range(60):
            busy = [info.name for info in await self._harness.lanes() if info.operation is not None]
            if not busy:
                return
            for name in busy:
                lane = await self._harness.lane(name)
                assert lane is not None
                work = await start(lane.resume())
                while not work.done():
                    await self._drive_to_rest(lane)
                result = await work
                assert isinstance(result, Ok), f"{name} could not be resumed: {result}"
        raise AssertionError("lanes never came to rest")

    async def _drive_to_rest(self, lane: AgentLane) -> None:
        while await lane.peek_action() is not None:
            await self._release(lane)
        await asyncio.sleep(0)

    # Invariants ------------------------------------------------------------

    async def _check(self) -> None:
        assert self._session is not None
        session = self._session
        log = await session.get_log()
        self.report.writes = len(log)
        findings = await session.verify()
        assert findings == [], f"verify found {findings[:3]}"
        records = [item.record for item in log if isinstance(item, RecordItem)]
        entries = [item.entry for item in log if isinstance(item, EntryItem)]
        started = {r.id for r in records if isinstance(r.body, OperationStarted)}
        finished = [r.body.run_id for r in records if isinstance(r.body, OperationFinished)]
        assert Counter(finished) == Counter(started), "an operation was not finished exactly once"
        ledger = sum_usage(r.body.usage for r in records if r.body.type == "usage")
        stats = await session.get_stats()
        assert stats.usage == ledger, "the statistics are not the ledger's sum"
        self._check_tools(records_started=[r.body for r in records if isinstance(r.body, ToolStarted)])
        self._check_results([e.message for e in entries if isinstance(e.body, MessageBody)])
        for record in records:
            if isinstance(record.body, OperationStarted) and isinstance(record.body.intent, RunIntent):
                self._accepted |= {_text_of(message): "prompt" for message in record.body.intent.original_prompt}
        self._check_input(entries_text={_text_of(e.message) for e in entries if e.message is not None})
        captured = [
            item.id
            for r in records
            if isinstance(r.body, OperationStarted) and isinstance(r.body.intent, RunIntent)
            for item in r.body.intent.initial_messages
        ]
        assert len(captured) == len(set(captured)), "an input was captured by two runs"

    def _check_tools(self, records_started: list[ToolStarted]) -> None:
        replay = {str(body.effective_args["token"]): body.replay for body in records_started}
        for token, count in self._world.executions.items():
            assert token in replay, f"call {token} ran without an intent"
            assert count == 1 or replay[token] == "safe", f"call {token} ran {count} times"

    def _check_results(self, messages: "list[object]") -> None:
        texts = Counter(_text_of(message) for message in messages if isinstance(message, ToolResultMessage))
        repeated = [text for text, count in texts.items() if text.startswith("t") and count > 1]
        assert repeated == [], f"results {repeated} were delivered twice"

    def _check_input(self, entries_text: set[str]) -> None:
        for text, how in self._accepted.items():
            if how == "next_run" and text not in entries_text:
                continue  # kept for a run that did not come
            assert text in entries_text or text in self._returned, f"{how} {text!r} was accepted and is gone"
        both = {text for text in self._returned if text in entries_text}
        assert both == set(), f"{both} were returned and consumed"


def _text_of(message: object) -> str:
    content: object = getattr(message, "content", "")
    if isinstance(content, str):
        return content
    assert isinstance(content, tuple)
    return "".join(part.text for part in content if isinstance(part, TextContent))  # pyright: ignore[reportUnknownVariableType]


def _weights(plan: Plan) -> dict[str, int]:
    return {
        "release": plan.release,
        "prompt": plan.prompt,
        "queue": plan.queue,
        "cancel": plan.cancel,
        "write": plan.write,
        "settings": plan.settings,
        "abort": plan.abort,
        "crash": plan.crash,
        "resume": plan.resume,
        "compact": plan.compact,
        "clock": plan.clock,
        "navigate": plan.navigate,
        "fault": plan.fault,
    }
