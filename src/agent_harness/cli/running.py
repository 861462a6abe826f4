"""`run` and `resume`: one operation of a session, in this process, until it ends or is interrupted."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, TypeAlias, assert_never

from ..harness import AgentHarness
from ..outcomes import (
    CompactionCompleted,
    CompactionEnded,
    NavigationCompleted,
    NavigationEnded,
    OperationOutcome,
    RunAborted,
    RunCompleted,
    RunFailed,
    RunSuspended,
    SuspendedOperation,
)
from ..result import Err
from ..session.session import Session
from ..tools import coding_tools
from ..types.codec import dump
from ..types.json import JsonValue
from ..types.messages import AssistantMessage
from .failure import INTERRUPTED, TRY_LATER, Failure
from .models import Chosen, check_reachable, choose_model, settle_model
from .output import note, printable, say, to_json
from .progress import Progress
from .settings import (
    Settings,
    as_before,
    at_terminal,
    check_prompt,
    create_session,
    resume_command,
    suspended_text,
)
from .store import find_interrupted, is_interrupted, open_session, open_store, prepare_default
from .variables import MODEL_VARIABLE

Interrupted: TypeAlias = Literal["ask", "resume", "abort"]


async def run(settings: Settings, prompt: str, session_id: str | None, interrupted: Interrupted) -> int:
    """Give a prompt to a new session, or to an existing one; print the answer."""
    check_prompt(prompt)
    if session_id is None:
        model = settings.model or os.environ.get(MODEL_VARIABLE)
        chosen = choose_model(model, settings.base_url, settings.folder, settings.api)
        await check_reachable(chosen.server)
        await _tell_interrupted(settings)
        prepare_default(settings.store)
        async with (
            open_store(settings.store, must_exist=False) as repo,
            await create_session(repo, settings, chosen, prompt) as session,
        ):
            return await _operate(settings, session, chosen, lambda harness: _prompt(harness, prompt))
    async with (
        open_store(settings.store, must_exist=True) as repo,
        await open_session(repo, session_id, settings.store) as session,
    ):
        wanted = settings.model is not None
        settings = as_before(settings, session)
        chosen = choose_model(settings.model, settings.base_url, settings.folder, settings.api)
        await check_reachable(chosen.server)

        async def work(harness: AgentHarness) -> OperationOutcome:
            await _settle_interrupted(harness, session_id, interrupted, settings)
            await settle_model(harness, chosen, wanted=wanted)
            return await _prompt(harness, prompt)

        return await _operate(settings, session, chosen, work)


async def resume(settings: Settings, session_id: str | None) -> int:
    """Finish what a session has open; without an id, of the newest session that has something open."""
    async with open_store(settings.store, must_exist=True) as repo:
        if session_id is None:
            found = await find_interrupted(repo)
            if found is None:
                raise Failure(f"nothing to resume in {settings.store.shown}")
            session_id = found.id
        async with await open_session(repo, session_id, settings.store) as session:
            if not await is_interrupted(session):
                raise Failure(f"session {session_id} has nothing to resume")
            settings = as_before(settings, session)
            chosen = choose_model(settings.model, settings.base_url, settings.folder, settings.api)
            await check_reachable(chosen.server)
            return await _operate(settings, session, chosen, _resume_all)


async def _tell_interrupted(settings: Settings) -> None:
    if settings.store.path is None or not settings.store.path.exists() or settings.quiet:
        return
    async with open_store(settings.store, must_exist=True) as repo:
        found = await find_interrupted(repo)
    if found is not None:
        note(
            f"note: session {found.id} has an unfinished run; if nobody is working on it, "
            f"`{resume_command(settings, found.id)}` goes on with it"
        )


# Operating -----------------------------------------------------------------------------------------------------------


async def _operate(
    settings: Settings,
    session: Session,
    chosen: Chosen,
    work: Callable[[AgentHarness], Awaitable[OperationOutcome]],
) -> int:
    task = asyncio.current_task()
    assert task is not None
    signals: list[int] = []

    def stop(number: int) -> None:
        # The first one detaches; a second one ends the program at once.
        signals.append(number)
        task.cancel()
        _listen(None)

    try:
        _listen(stop)
        async with AgentHarness.open(
            session=session,
            models=chosen.models,
            model=chosen.model,
            tools=coding_tools(settings.folder),
            system_prompt=settings.instructions,
        ) as harness:
            if not settings.quiet:
                harness.events.on(None, Progress())
            outcome = await work(harness)
            await harness.events.flush()
            usage = (await session.get_stats()).usage
        return _report(settings, session.id, outcome, dump(usage))
    except asyncio.CancelledError:
        if not signals:
            raise
        command = resume_command(settings, session.id)
        raise Failure(
            f"interrupted; the run is kept, `{command}` goes on with it", INTERRUPTED if signals[0] == 2 else 143
        ) from None
    finally:
        _listen(None)


def _listen(stop: Callable[[int], None] | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(RuntimeError, ValueError):  # not in the main thread: whoever runs us handles signals
            if stop is None:
                loop.remove_signal_handler(number)
            else:
                loop.add_signal_handler(number, stop, number)


async def _prompt(harness: AgentHarness, prompt: str) -> OperationOutcome:
    result = await harness.prompt(prompt)
    if isinstance(result, Err):
        raise Failure(result.error.message)
    return result.value


async def _resume_all(harness: AgentHarness) -> OperationOutcome:
    """Resume every lane that has something open; the outcome of the last one, `main` by preference."""
    outcomes: list[OperationOutcome] = []
    for suspended in sorted(harness.suspended, key=lambda one: one.lane == harness.name):
        lane = await harness.lane(suspended.lane)
        assert lane is not None
        result = await lane.resume()
        if isinstance(result, Err):
            raise Failure(result.error.message)
        outcomes.append(result.value)
    return outcomes[-1]


async def _settle_interrupted(
    harness: AgentHarness, session_id: str, interrupted: Interrupted, settings: Settings
) -> None:
    open_on_main = [suspended for suspended in harness.suspended if suspended.lane == harness.name]
    if not open_on_main:
        return
    decision = _ask(open_on_main[0]) if interrupted == "ask" and at_terminal() else interrupted
    match decision:
        case "resume":
            result = await harness.resume()
            if isinstance(result, Err):
                raise Failure(result.error.message)
            if isinstance(result.value, RunSuspended):
                raise Failure(f"session {session_id} still waits for its provider's answer; try later", TRY_LATER)
        case "abort":
            aborted = await harness.abort()
            if isinstance(aborted, Err):
                raise Failure(aborted.error.message)
            await harness.wait_for_idle()
        case "ask":
            raise Failure(
                f"session {session_id} has an interrupted {suspended_text(open_on_main[0])}: "
                f"`{resume_command(settings, session_id)}` finishes it, or pass --interrupted resume or abort"
            )
        case _:
            assert_never(decision)


def _ask(suspended: SuspendedOperation) -> Literal["resume", "abort"]:
    note(f"This session has an interrupted {suspended_text(suspended)}.")
    sys.stderr.write("Finish it first? [Y/n] ")
    sys.stderr.flush()
    return "abort" if sys.stdin.readline().strip().lower() in ("n", "no") else "resume"


# Reporting -----------------------------------------------------------------------------------------------------------


def _report(settings: Settings, session_id: str, outcome: OperationOutcome, usage: JsonValue) -> int:
    """Print how it ended."""
    message = getattr(outcome, "final_message", None)
    answer = message.text if isinstance(message, AssistantMessage) and isinstance(outcome, RunCompleted) else None
    error = getattr(outcome, "error", None)
    if settings.json:
        report: dict[str, JsonValue] = {
            "session": session_id,
            "runId": outcome.run_id,
            "outcome": outcome.kind,
            "answer": answer,
            "error": None if error is None else {"code": error.code, "message": error.message},
            "usage": usage,
        }
        say(to_json(report))
    match outcome:
        case RunCompleted():
            if not settings.json:
                say(printable(answer or "").rstrip("\n"))
                if not settings.quiet:
                    note(f"session {session_id}")
            return 0
        case CompactionCompleted() | NavigationCompleted():
            note(f"the interrupted operation is complete; session {session_id}")
            return 0
        case RunSuspended():
            raise Failure(
                f"the provider answers later; `{resume_command(settings, session_id)}` asks for it", TRY_LATER
            )
        case RunFailed():
            raise Failure(f"the run failed: {outcome.error.code}: {outcome.error.message}; session {session_id}")
        case RunAborted():
            raise Failure(f"the run was aborted; session {session_id}")
        case CompactionEnded() | NavigationEnded():
            raise Failure(f"the operation ended {outcome.kind}; session {session_id}")
        case _:
            assert_never(outcome)
