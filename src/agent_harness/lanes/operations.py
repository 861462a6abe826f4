"""Operations as callers start them: admission, the procedure of the open one, its outcome (harness-v2 §8, §15).

Each function is the work of the method of `AgentLane` that has its name and its contract.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from ..effects.base import Effects
from ..effects.direct import DirectEffects
from ..effects.gate import GatedEffects
from ..events.catalog import RunResume
from ..hooks.catalog import BeforeRun, BeforeRunOutcome
from ..outcomes import (
    AbortResult,
    CompactionCompleted,
    CompactionEnded,
    CompactionResult,
    NavigationCompleted,
    NavigationEnded,
    NavigationResult,
    OperationOutcome,
    ResumeResult,
    RunAborted,
    RunCompleted,
    RunFailed,
    RunResult,
    RunSuspended,
)
from ..procedures.compaction import compaction_procedure
from ..procedures.navigation import navigation_procedure
from ..procedures.run import run_procedure
from ..providers.base import Model
from ..result import Err, Ok
from ..session.core import one_line
from ..telemetry.context import TelemetryContext
from ..types.messages import AgentMessage, ImageContent
from ..types.structural import NavigateOptions
from . import execution, jobs
from .lane import LaneRuntime
from .messages import Input, Unacceptable, normalise
from .output import OutputSpec
from .reads import LaneReads


async def prompt(
    lane: LaneRuntime, prompt: Input, images: Sequence[ImageContent], output: OutputSpec | None
) -> RunResult:
    """Hooks first, outside the line; then acceptance, which starts the run."""
    env = lane.env
    with lane.admission():
        try:
            messages = normalise(prompt, images, env.clock.now_ms(), env.message_types)
        except Unacceptable as reason:
            return Err(jobs.invalid_message(lane, reason))
        prepared = await _before_run(lane, messages)
        if output is not None:
            prepared = output.prepared(prepared, _model(lane), env.clock.now_ms())
        accepted = await lane.accept(
            lambda: jobs.accept_run(lane, messages, prepared, lambda: _begin(lane, output, recovery=False))
        )
    if isinstance(accepted, Err):
        return accepted
    outcome = await execution.outcome_of(lane)
    if output is not None:
        outcome = output.completed(outcome)
    assert isinstance(outcome, RunCompleted | RunAborted | RunFailed | RunSuspended)
    return Ok(outcome)


async def _before_run(lane: LaneRuntime, messages: tuple[AgentMessage, ...]) -> BeforeRunOutcome:
    env = lane.env
    if not env.hooks.has("before_run"):
        return BeforeRunOutcome()
    prompt = await env.resolve_system_prompt(lane.name, _model(lane), lane.state.effective_configuration)
    event = BeforeRun(lane=lane.name, prompt=messages, system_prompt=prompt or "", resources=env.resources)
    return await env.hooks.before_run(event, env.telemetry)


def _model(lane: LaneRuntime) -> Model:
    return lane.env.models.find(lane.state.effective_configuration.model) or lane.env.model


async def compact(lane: LaneRuntime, custom_instructions: str | None) -> CompactionResult:
    """A compaction, accepted only if there is something to compact."""
    with lane.admission():
        accepted = await lane.accept(
            lambda: jobs.accept_compaction(
                lane, LaneReads(lane), custom_instructions, lambda: _begin(lane, recovery=False)
            )
        )
    if isinstance(accepted, Err):
        return accepted
    outcome = await execution.outcome_of(lane)
    assert isinstance(outcome, CompactionCompleted | CompactionEnded)
    return Ok(outcome)


async def navigate_tree(lane: LaneRuntime, target_id: str | None, options: NavigateOptions) -> NavigationResult:
    """A move, accepted only to an entry that exists."""
    if options.label is not None:
        options = replace(options, label=one_line("label", options.label))
    with lane.admission():
        accepted = await lane.accept(
            lambda: jobs.accept_navigation(
                lane, LaneReads(lane), target_id, options, lambda: _begin(lane, recovery=False)
            )
        )
    if isinstance(accepted, Err):
        return accepted
    outcome = await execution.outcome_of(lane)
    assert isinstance(outcome, NavigationCompleted | NavigationEnded)
    return Ok(outcome)


async def resume(lane: LaneRuntime, output_type: type[object] | None) -> ResumeResult:
    """The procedure of the open operation, from wherever its records end."""
    if output_type is not None:
        OutputSpec.of(output_type, 0)
    output: OutputSpec | None = None

    def begin() -> None:
        nonlocal output
        output = OutputSpec.of_intent(lane.op().intent, output_type)
        _begin(lane, output, recovery=True)

    with lane.admission():
        admitted = await lane.accept(lambda: jobs.admit_resume(lane, begin))
    if isinstance(admitted, Err):
        return admitted
    outcome = await execution.outcome_of(lane)
    return Ok(outcome if output is None else output.completed(outcome))


async def abort(lane: LaneRuntime) -> AbortResult:
    """The marker; a lane on which nothing runs begins at the abort path."""
    with lane.admission():
        return await lane.accept(lambda: jobs.request_abort(lane, lambda: _begin(lane, recovery=True, resumed=False)))


def _begin(lane: LaneRuntime, output: OutputSpec | None = None, *, recovery: bool, resumed: bool = True) -> None:
    effects = _effects(lane)
    announce = recovery and resumed

    async def procedure(parent: TelemetryContext) -> OperationOutcome:
        nonlocal announce
        if announce:
            announce = False
            await effects.before_resume(parent)
        return await _procedure(lane, effects, parent)

    if announce:
        lane.emit(RunResume(lane=lane.name, run_id=lane.op().id))
    outcome = execution.start(lane, procedure, recovery=recovery)
    if output is not None:
        off = output.install(lane)
        outcome.add_done_callback(lambda _outcome: off())


async def _procedure(lane: LaneRuntime, effects: Effects, parent: TelemetryContext) -> OperationOutcome:
    kind = lane.op().kind
    match kind:
        case "run":
            return await run_procedure(effects, parent)
        case "compaction":
            return await compaction_procedure(effects, parent)
        case "navigation":
            return await navigation_procedure(effects, parent)
        case _:
            assert_never(kind)


def _effects(lane: LaneRuntime) -> Effects:
    direct = DirectEffects(lane)
    return direct if lane.gate is None else GatedEffects(direct, lane.gate)
