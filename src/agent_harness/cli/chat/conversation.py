"""One loop that takes what comes - lines, Ctrl-C, the end of a run - one at a time."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import TypeAlias, assert_never

from ...errors import HarnessClosed, HarnessFault, SessionLocked
from ...outcomes import LaneBusy, OperationOutcome, Rejected, RunAborted, RunFailed, RunSuspended
from ...result import Err, Ok, Result
from ..failure import INTERRUPTED, REFUSED, Failure, explain
from ..models import Chosen, check_reachable, choose_model
from ..output import one_line
from ..rendering import message_text
from ..running import Interrupted
from ..sessions import metadata_line
from ..settings import Settings, check_prompt, resume_command, suspended_text
from .commands import Command, UnknownCommand, help_text, parse
from .console import Console
from .history import Memory
from .inputs import Deaf, EndOfInput, Input, Line, Settled, Signal
from .sessions import interrupted_session, newest_sessions
from .talk import Talk, new_talk, open_talk
from .view import View

Work: TypeAlias = Callable[[], Coroutine[object, object, Result[OperationOutcome | None, Rejected]]]
Answer: TypeAlias = Callable[[bool], Awaitable[None]]

GIVE_UP_S = 2.0
"""How long a run may take to notice that its harness is closed."""


class Conversation:
    """At most one session is open, and at most one operation runs in it."""

    def __init__(
        self,
        settings: Settings,
        chosen: Chosen | None,
        *,
        console: Console,
        view: View,
        memory: Memory | None,
        interrupted: Interrupted,
    ) -> None:
        self._settings = settings
        self._chosen = chosen  # for the next session of its own; None: a session was named, and brings its model
        self._console = console
        self._view = view
        self._memory = memory
        self._interrupted: Interrupted = interrupted
        self._inbox: asyncio.Queue[Input] = asyncio.Queue()
        self._talk: Talk | None = None
        self._work: asyncio.Task[Result[OperationOutcome | None, Rejected]] | None = None
        self._abort: asyncio.Task[None] | None = None  # set from the first Ctrl-C to the end of the work
        self._question: Answer | None = None
        self._waiting: list[str] = []  # said, and neither heard nor refused yet
        self._listed: list[str] = []  # session ids as `/sessions` numbered them
        self._warned = False
        self._ending = False  # the input is over
        self._failed = False  # the newest run
        self._exit: int | None = None

    async def run(self, session_id: str | None) -> int:
        """Begin, with a session or without, and go on until the end; returns the exit code."""
        kept = False
        try:
            with self._listening():
                self._console.start(self._inbox.put_nowait)
                await self._begin(session_id)
                while self._exit is None:
                    self._console.ask(self._prompt())
                    await self._take(await self._inbox.get())
        finally:
            self._console.stop()
            kept = await self._close()
        if kept and self._talk is not None:
            command = resume_command(self._settings, self._talk.session.id)
            told = f"interrupted; the run is kept, `{command}` goes on with it"
            if self._exit:
                raise Failure(told, self._exit)
            self._view.note(told)
        return self._exit

    @contextmanager
    def _listening(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        with suppress(RuntimeError, ValueError):  # not in the main thread: whoever runs us handles signals
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._inbox.put_nowait, Signal(number))
            loop.add_signal_handler(signal.SIGCONT, self._console.resumed)
        try:
            yield
        finally:
            with suppress(RuntimeError, ValueError):
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
                    loop.remove_signal_handler(number)

    async def _close(self) -> bool:
        """Whether something was running; it is resumable now."""
        work, talk = self._work, self._talk
        if talk is not None:
            await talk.close()
        for task in (work, self._abort):
            if task is None:
                continue
            await asyncio.wait([task], timeout=GIVE_UP_S)
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # it ended with its harness
        return work is not None

    # What comes ---------------------------------------------------------------

    def _prompt(self) -> str | None:
        if self._question is not None:
            return "[Y/n] "
        return None if self._work is not None or self._ending else "> "

    async def _take(self, given: Input) -> None:
        try:
            match given:
                case Line(text=text):
                    await self._line(text.strip())
                case EndOfInput():
                    self._end()
                case Signal(number=number):
                    self._signalled(number)
                case Settled():
                    await self._settled()
                case Deaf():
                    self._exit = 0
                    raise BrokenPipeError
                case _:
                    assert_never(given)
        except (HarnessFault, HarnessClosed, BrokenPipeError):
            raise
        except Exception as error:
            failure = explain(error)
            if failure is None:
                raise
            self._view.note(f"! {one_line(str(failure))}")

    async def _line(self, text: str) -> None:
        self._warned = False
        if self._question is not None:
            answer, self._question = self._question, None
            await answer(text.lower() not in ("n", "no"))
            return
        if not text:
            return
        command = parse(text)
        if command is None:
            check_prompt(text)
        if self._memory is not None and (warning := self._memory.add(text)):
            self._view.note(f"warning: {warning}")
        match command:
            case Command():
                await self._command(command)
            case UnknownCommand(name=name):
                raise Failure(f"no command {name}; /help lists them")
            case None:
                await self._say(text)

    def _end(self) -> None:
        self._ending = True
        if self._work is None or self._question is not None:
            self._leave(0)
        elif self._console.interactive:
            self._view.note("leaving when the agent is done; Ctrl-C stops it")

    def _leave(self, code: int) -> None:
        failed = self._failed and not self._console.interactive
        self._exit = code or (REFUSED if failed else 0)

    def _signalled(self, number: int) -> None:
        if number != signal.SIGINT:
            self._exit = 128 + number
        elif self._work is not None:
            self._console.discard()
            if self._abort is not None:
                self._exit = INTERRUPTED
            else:
                self._view.note("stopping; Ctrl-C again leaves at once, and the run can be resumed")
                self._stop_work()
        elif self._question is None and self._console.discard():
            pass
        elif self._warned or self._question is not None or not self._console.interactive:
            self._exit = INTERRUPTED
        else:
            self._warned = True
            self._view.note("Ctrl-C again or Ctrl-D leaves")

    # The agent's work ---------------------------------------------------------

    async def _say(self, text: str) -> None:
        if self._work is not None:
            if self._abort is not None or not await self._steered(text):
                self._waiting.append(text)
                self._view.note("(said when this is over)")
            return
        if self._talk is None:
            assert self._chosen is not None, "only an open session brings its own"
            self._talk = await new_talk(self._settings, self._chosen, text, self._view.event)
            self._view.opened(self._talk.session, None, ())
        harness = self._talk.harness
        self._start(lambda: harness.prompt(text))

    async def _steered(self, text: str) -> bool:
        talk = self._open_talk()
        return isinstance(await talk.harness.steer(text), Ok)

    def _start(self, work: Work) -> None:
        assert self._work is None
        self._work = asyncio.get_running_loop().create_task(work())
        self._work.add_done_callback(lambda _: self._inbox.put_nowait(Settled()))

    def _stop_work(self) -> None:
        talk = self._open_talk()

        async def abort() -> None:
            result = await talk.harness.abort()
            if isinstance(result, Ok):
                for message in (*result.value.steer, *result.value.follow_up):
                    self._view.note(f"not said: {message_text(message)}")

        self._abort = asyncio.get_running_loop().create_task(abort())

    async def _settled(self) -> None:
        work, abort, talk = self._work, self._abort, self._open_talk()
        assert work is not None
        if abort is not None:
            await asyncio.wait([abort])
        self._work = self._abort = None
        await talk.harness.events.flush()
        if self._report(work.result()):
            self._view.status(await talk.status())
        if self._waiting:
            text, self._waiting = "\n\n".join(self._waiting), []
            await self._say(text)
        elif self._ending:
            self._leave(0)

    def _report(self, result: Result[OperationOutcome | None, Rejected]) -> bool:
        """Whether something was done."""
        self._failed = True
        match result:
            case Err(error=LaneBusy() as error):
                self._view.note(f"! {one_line(error.message)}; /resume goes on with it, /abort gives it up")
            case Err(error=error):
                self._view.note(f"! {one_line(error.message)}")
            case Ok(value=RunFailed(error=error)):
                self._view.note(f"! the run failed: {one_line(f'{error.code}: {error.message}')}")
            case Ok(value=RunAborted()):
                self._view.note("stopped")
            case Ok(value=RunSuspended()):
                self._view.note("the provider answers later; /resume asks for it")
            case Ok(value=outcome):
                self._failed = outcome is not None and outcome.kind == "failed"
        return isinstance(result, Ok)

    # Sessions -----------------------------------------------------------------

    async def _begin(self, session_id: str | None) -> None:
        if self._memory is not None and self._memory.warning:
            self._view.note(f"warning: {self._memory.warning}")
        if self._console.interactive:
            self._view.note("/help lists the commands")
        if session_id is not None:
            await self._open(session_id)
            return
        found = await interrupted_session(self._settings)
        if found is None:
            return

        async def take_up(yes: bool) -> None:
            if yes:
                await self._open(found, asked=True)

        if self._interrupted == "resume":
            await take_up(True)
        elif self._console.interactive:
            self._view.note(f"Session {found} has an unfinished run. Go on with it?")
            self._question = take_up
        else:
            command = resume_command(self._settings, found)
            self._view.note(f"session {found} has an unfinished run; `{command}` goes on with it")

    async def _open(self, session_id: str, *, asked: bool = False) -> None:
        """Go on with another session; the present one stays until that is open."""
        wanted = self._chosen if self._settings.model is not None else None
        try:
            talk = await open_talk(self._settings, session_id, wanted, self._view.event)
        except SessionLocked as error:
            if not asked:
                raise
            raise Failure(f"{error}; this is a new session") from None
        before, self._talk = self._talk, talk
        if before is not None:
            await before.close()
        self._chosen = self._chosen or talk.models.newest
        self._view.opened(talk.session, talk.suspended, await talk.newest())
        if talk.suspended is None:
            return
        what = suspended_text(talk.suspended)

        async def finish(yes: bool) -> None:
            if yes:
                self._start(talk.harness.resume)
            else:
                self._view.note("left as it is; /resume goes on with it, /abort gives it up")

        if asked or self._interrupted == "resume":
            await finish(True)
        elif self._interrupted == "abort":
            self._start(lambda: _give_up(talk))
        elif self._console.interactive:
            self._view.note(f"This session has an interrupted {what}. Finish it?")
            self._question = finish
        else:
            self._view.note(f"an interrupted {what}: /resume goes on with it, /abort gives it up")

    def _open_talk(self) -> Talk:
        if self._talk is None:
            raise Failure("there is no session yet: say something, or pick one of /sessions")
        return self._talk

    def _idle_talk(self) -> Talk:
        self._need_idle()
        return self._open_talk()

    def _need_idle(self) -> None:
        if self._work is not None:
            raise Failure("the agent is working; Ctrl-C stops it")

    # Commands -----------------------------------------------------------------

    async def _command(self, command: Command) -> None:
        match command.name:
            case "help":
                self._view.note(help_text())
            case "model":
                await self._model(command.rest)
            case "sessions":
                found = await newest_sessions(self._settings)
                self._listed = [one.id for one in found]
                lines = [f"{number:>3}  {metadata_line(one)}" for number, one in enumerate(found, 1)]
                self._view.note("\n".join(lines) or "there are no sessions yet")
            case "session":
                await self._switch(command.rest)
            case "new":
                self._need_idle()
                if self._talk is not None:
                    talk, self._talk = self._talk, None
                    await talk.close()
                self._view.note("the next line begins a new session")
            case "status":
                self._view.status(await self._open_talk().status())
            case "compact":
                harness = self._idle_talk().harness
                self._start(lambda: harness.compact(command.rest or None))
            case "resume":
                self._start(self._idle_talk().harness.resume)
            case "abort":
                talk = self._open_talk()
                if self._work is None:
                    self._start(lambda: _give_up(talk))
                elif self._abort is None:
                    self._stop_work()
            case "quit":
                if self._work is not None and not self._console.interactive:
                    self._end()  # who writes into a pipe does not see that the agent still works
                else:
                    self._leave(0)
            case _:
                assert_never(command.name)

    async def _model(self, name: str) -> None:
        talk = self._talk
        if not name:
            shown = (await talk.status()).model if talk is not None else str(self._chosen and self._chosen.model)
            self._view.note(f"model {shown}")
            return
        before = talk.models.newest if talk is not None else self._chosen
        same_server = before is not None and before.given is not None and name.startswith(f"{before.model.provider}/")
        given, api = (before.given, before.api) if before is not None and same_server else (None, None)
        chosen = choose_model(name, given, self._settings.folder, api)
        await check_reachable(chosen.server)
        if talk is not None:
            await talk.use(chosen)
        self._chosen = chosen
        self._view.note(f"model {chosen.model} from the next request on")

    async def _switch(self, given: str) -> None:
        self._need_idle()
        if not given:
            raise Failure("which session? /sessions lists them")
        number = int(given) if given.isdecimal() and len(given) < 4 else 0
        session_id = self._listed[number - 1] if 0 < number <= len(self._listed) else given
        if self._talk is not None and self._talk.session.id == session_id:
            raise Failure("this session is open already")
        await self._open(session_id)


async def _give_up(talk: Talk) -> Result[None, Rejected]:
    """Abort what is interrupted, and wait until that is done."""
    aborted = await talk.harness.abort()
    if isinstance(aborted, Err):
        return aborted
    await talk.harness.wait_for_idle()
    return Ok(None)
