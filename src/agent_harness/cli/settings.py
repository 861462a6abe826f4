"""What the commands that run a model share: what was asked for on the command line, and what a session remembers."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ..outcomes import SuspendedOperation
from ..session.repo import SessionRepo
from ..session.session import Session
from ..types.json import JsonValue, check_text
from .failure import Failure
from .models import Chosen
from .output import one_line
from .rendering import message_text
from .store import Store
from .variables import MODEL_VARIABLE

SYSTEM_PROMPT = """You work on the files of the folder {folder} with the tools you are given. Paths are relative to it.
Look before you change something, keep to what was asked, and end with a short answer that says what you did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `run`, `resume` and `chat` share."""

    folder: Path
    folder_given: bool  # by the command line; else an existing session's own folder is used
    store: Store
    model: str | None
    base_url: str | None
    api: str | None
    system_prompt: str | None
    json: bool
    quiet: bool

    @property
    def instructions(self) -> str:
        """The system prompt."""
        return self.system_prompt or SYSTEM_PROMPT.format(folder=self.folder)


async def create_session(repo: SessionRepo, settings: Settings, chosen: Chosen, prompt: str) -> Session:
    """A new session that remembers its folder, model and system prompt, named by its first prompt."""
    header: dict[str, JsonValue] = {"model": chosen.name}
    if chosen.given is not None:
        header["baseUrl"] = chosen.given
    if chosen.api is not None:
        header["api"] = chosen.api
    if settings.system_prompt is not None:
        header["systemPrompt"] = settings.system_prompt
    session = await repo.create(cwd=str(settings.folder), metadata=header)
    try:
        await session.set_name(one_line(prompt, 80))
    except BaseException:
        await session.close()
        raise
    return session


def check_prompt(prompt: str) -> None:
    """Refuse what no model can be asked.

    Raises:
        Failure.
    """
    if not prompt.strip():
        raise Failure("the prompt is empty")
    try:
        check_text(prompt)
    except ValueError:
        raise Failure("the prompt is not valid Unicode text") from None


def as_before(settings: Settings, session: Session) -> Settings:
    """What was not given now is as the session was made with: its folder, model and system prompt.

    Raises:
        Failure: its folder is gone.
    """
    stored = session.metadata.metadata

    def kept(key: str) -> str | None:
        value = stored.get(key)
        return value if isinstance(value, str) else None

    folder = settings.folder
    if not settings.folder_given and session.metadata.cwd is not None:
        folder = Path(session.metadata.cwd)
        if not folder.is_dir():
            raise Failure(f"the folder of session {session.id} is gone: {folder}; pass --directory")
    own_model = settings.model is None and kept("model") is not None
    return replace(
        settings,
        folder=folder,
        model=kept("model") if own_model else settings.model or os.environ.get(MODEL_VARIABLE),
        base_url=settings.base_url or (kept("baseUrl") if own_model else None),
        api=settings.api or (kept("api") if own_model else None),
        system_prompt=settings.system_prompt if settings.system_prompt is not None else kept("systemPrompt"),
    )


def resume_command(settings: Settings, session_id: str) -> str:
    """What to type to go on."""
    return f"agent-harness resume {session_id}{settings.store.option()}"


def suspended_text(suspended: SuspendedOperation) -> str:
    """`run (user: Fix the bug.)`."""
    prompt = "; ".join(message_text(message) for message in suspended.prompt)
    return one_line(f"{suspended.kind} ({prompt})" if prompt else suspended.kind, 120)


def at_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()
