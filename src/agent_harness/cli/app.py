"""The commands and their options. Parsing alone happens here; each command is a coroutine that runs after it."""

import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

import typer

from .failure import INTERRUPTED, USAGE, Failure, error_line, explain
from .output import drop_stdout, note
from .variables import MODEL_VARIABLE, STORE_VARIABLE, TRACE_VARIABLE

if TYPE_CHECKING:
    from .settings import Settings
    from .store import Store

Command: TypeAlias = Callable[[], Coroutine[Any, Any, int]]  # what the coroutine is sent is asyncio's own affair

app = typer.Typer(
    name="agent-harness",
    help="A durable runtime for AI agents: runs survive kill -9, finished work is never repeated.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
sessions = typer.Typer(help="Look at the sessions of a store.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(sessions, name="sessions")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line.")]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar=STORE_VARIABLE,
        metavar="URL",
        help="sqlite:FILE, jsonl:FOLDER or another backend; default: .agent-harness/sessions.db in the folder.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--directory", "-C", help="The working folder; default: the session's own, else the current one."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PROVIDER/ID",
        help=f"openai/gpt-5, local:FILE.gguf, scripted:FILE ...; default: the session's own, else ${MODEL_VARIABLE}.",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="A server of your own; it speaks Chat Completions, or see --api."),
]
Api = Annotated[
    Literal["openai-chat", "openai-responses", "anthropic-messages", "google-gemini"] | None,
    typer.Option("--api", help="How the server is spoken to; default: as the catalog says of the provider."),
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="Replaces the system prompt.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id.")]


@app.command()
def demo(
    json: Json = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's folder and say where it is.")] = False,
) -> Command:
    """Watch an agent be killed inside a tool and resumed by another process."""
    from .demo import demo as command

    return lambda: command(json=json, keep=keep)


@app.command()
def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to do; - reads it from stdin.")],
    *,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api: Api = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Go on with this session.")] = None,
    interrupted: Annotated[
        Literal["ask", "resume", "abort"], typer.Option(help="What to do with the session's interrupted run.")
    ] = "ask",
    store: StoreUrl = None,
    directory: Folder = None,
    system: System = None,
    json: Json = False,
    quiet: Quiet = False,
) -> Command:
    """Give an agent a task in the working folder; its answer is printed when it is done."""
    from .running import run as command

    async def work() -> int:
        settings = _settings(directory, store, model, base_url, system, api=api, json=json, quiet=quiet)
        text = sys.stdin.read() if prompt == "-" else prompt
        return await command(settings, text, session, interrupted)

    return work


@app.command()
def chat(
    *,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api: Api = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Go on with this session.")] = None,
    newest: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the newest session of the folder.")
    ] = False,
    interrupted: Annotated[
        Literal["ask", "resume", "abort"], typer.Option(help="What to do with the session's interrupted run.")
    ] = "ask",
    store: StoreUrl = None,
    directory: Folder = None,
    system: System = None,
    json: Annotated[bool, typer.Option("--json", help="Print every event as JSON, one per line.")] = False,
) -> Command:
    """Talk with an agent that works in the folder; a line typed while it works steers it."""
    from .chat import chat as command

    async def work() -> int:
        settings = _settings(directory, store, model, base_url, system, api=api, json=json, quiet=True)
        return await command(settings, session, newest=newest, interrupted=interrupted)

    return work


@app.command()
def resume(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="A session's id; default: the newest interrupted one.")
    ] = None,
    *,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api: Api = None,
    store: StoreUrl = None,
    directory: Folder = None,
    system: System = None,
    json: Json = False,
    quiet: Quiet = False,
) -> Command:
    """Finish an interrupted run from its last safe point."""
    from .running import resume as command

    async def work() -> int:
        return await command(
            _settings(directory, store, model, base_url, system, api=api, json=json, quiet=quiet), session
        )

    return work


@sessions.command("list")
def list_sessions(store: StoreUrl = None, directory: Folder = None, json: Json = False) -> Command:
    """One line per session, newest first."""
    from .sessions import list_sessions as command

    return lambda: command(_store(store, directory), json=json)


@sessions.command("log")
def log(session: SessionId, store: StoreUrl = None, directory: Folder = None, json: Json = False) -> Command:
    """One line per durable write, oldest first."""
    from .sessions import log as command

    return lambda: command(_store(store, directory), session, json=json)


@sessions.command("show")
def show(
    session: SessionId,
    *,
    lane: Annotated[str, typer.Option(metavar="NAME", help="Whose conversation to show.")] = "main",
    full: Annotated[bool, typer.Option("--full", help="Tool results whole, and what the model thought.")] = False,
    store: StoreUrl = None,
    directory: Folder = None,
    json: Json = False,
) -> Command:
    """What a session has open and cost, and what was said in it."""
    from .sessions import show as command

    return lambda: command(_store(store, directory), session, lane, full=full, json=json)


@sessions.command("fork")
def fork(
    session: SessionId,
    at: Annotated[
        str | None, typer.Option(metavar="ENTRY", help="The last entry to copy; default: the newest.")
    ] = None,
    store: StoreUrl = None,
    directory: Folder = None,
    json: Json = False,
) -> Command:
    """Copy a session's conversation into a new session and print its id."""
    from .sessions import fork as command

    return lambda: command(_store(store, directory), session, at, json=json)


@sessions.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A session file (*.jsonl) of format 3 or 4.")],
    store: StoreUrl = None,
    directory: Folder = None,
    json: Json = False,
) -> Command:
    """Copy a session file into the store and print the new session's id."""
    from .sessions import import_file as command

    return lambda: command(_store(store, directory), file, json=json)


@sessions.command("repair")
def repair(
    session: Annotated[str, typer.Argument(metavar="SESSION|FILE", help="A session's id, or a session file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where a file's good beginning goes.")
    ] = None,
    store: StoreUrl = None,
    directory: Folder = None,
    json: Json = False,
) -> Command:
    """Save what can be saved of a damaged session; a damaged file stays as it is."""
    from .upkeep import repair as command

    return lambda: command(_store(store, directory), session, output, json=json)


@app.command()
def doctor(store: StoreUrl = None, directory: Folder = None, json: Json = False) -> Command:
    """Look for what may endanger the sessions of a store; changes nothing."""
    from .upkeep import doctor as command

    return lambda: command(_store(store, directory), json=json)


@sessions.command("verify")
def verify(session: SessionId, store: StoreUrl = None, directory: Folder = None, json: Json = False) -> Command:
    """Check a session's whole log against the validity rules."""
    from .sessions import verify as command

    return lambda: command(_store(store, directory), session, json=json)


def _store(url: str | None, directory: Path | None) -> "Store":
    from .store import find_store

    return find_store(url, _folder(directory))


def _folder(directory: Path | None) -> Path:
    folder = Path(os.path.realpath(directory or Path()))
    if not folder.is_dir():
        raise Failure(f"{directory} is not a folder")
    return folder


def _settings(
    directory: Path | None,
    store: str | None,
    model: str | None,
    base_url: str | None,
    system: str | None,
    *,
    api: str | None,
    json: bool,
    quiet: bool,
) -> "Settings":
    from .settings import Settings
    from .store import find_store

    folder = _folder(directory)
    return Settings(
        folder=folder,
        folder_given=directory is not None,
        store=find_store(store, folder),
        model=model,
        base_url=base_url,
        api=api,
        system_prompt=system,
        json=json,
        quiet=quiet,
    )


def execute(arguments: Sequence[str]) -> int:
    """Parse and run; every expected failure is one line on stderr and an exit code."""
    try:
        parsed: object = app(args=list(arguments), prog_name="agent-harness", standalone_mode=False)
        if not callable(parsed):
            return parsed if isinstance(parsed, int) else 0
        import asyncio

        code = asyncio.run(cast("Command", parsed)())
        sys.stdout.flush()
        return code
    except typer.TyperException as error:
        note(error_line(error.format_message()))
        return USAGE
    except BrokenPipeError:
        drop_stdout()  # the reader has what it wanted
        return 0
    except (KeyboardInterrupt, typer.Abort):
        note(error_line("interrupted"))
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACE_VARIABLE):
            raise
        failure = explain(error) or Failure(
            f"unexpected {type(error).__name__}: {error}; {TRACE_VARIABLE}=1 shows more"
        )
        note(error_line(str(failure)))
        return failure.exit_code
