"""Where the sessions of a project are kept, and finding them without making anything."""

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from session_backends import open_repo
from session_backends.urls import UnknownScheme

from ..errors import SessionNotFound
from ..session.repo import SessionRepo
from ..session.session import Session
from ..session.storage import SessionMetadata
from .failure import Failure

FOLDER = ".agent-harness"
_FILE = "sessions.db"
_SCANNED = 50
"""How many of the newest sessions are looked at for an interrupted run."""


@dataclass(frozen=True, slots=True)
class Store:
    """A store's address. `path` is the file or folder behind it, None where there is none to look at."""

    url: str
    path: Path | None
    is_default: bool = False

    @property
    def shown(self) -> str:
        """How messages name it."""
        return str(self.path) if self.path is not None else self.url

    def option(self) -> str:
        """What a command line needs to name this store again."""
        return "" if self.is_default else f" --store {shlex.quote(self.url)}"


def find_store(url: str | None, folder: Path) -> Store:
    """The store of `url`, by default the project's own in `folder`."""
    if url is None:
        path = folder / FOLDER / _FILE
        return Store(f"sqlite:{path}", path, is_default=True)
    scheme, _, rest = url.partition(":")
    if scheme in ("sqlite", "jsonl") and rest:
        return Store(f"{scheme}:{folder / Path(rest).expanduser()}", folder / Path(rest).expanduser())
    return Store(url, None)


@asynccontextmanager
async def open_store(store: Store, *, must_exist: bool) -> AsyncGenerator[SessionRepo]:
    """The repository at `store`.

    Raises:
        Failure: no backend of this name, or `must_exist` and there is none; nothing was made.
    """
    if must_exist and store.path is not None and not store.path.exists():
        raise Failure(f"no sessions yet: {store.shown} does not exist")
    if store.path is not None and store.url.startswith("jsonl:") and store.path.exists() and not store.path.is_dir():
        raise Failure(f"{store.shown} is not a folder")
    try:
        repo = open_repo(store.url)
    except (UnknownScheme, ValueError) as error:
        raise Failure(str(error)) from None
    try:
        yield repo
    finally:
        await repo.close()


def prepare_default(store: Store) -> None:
    """Make the folder of a store that nobody named."""
    if not store.is_default or store.path is None:
        return
    prepare_folder(store.path.parent)


def prepare_folder(folder: Path) -> None:
    """Make a project's own folder, private and out of version control."""
    folder.mkdir(mode=0o700, exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


async def open_session(repo: SessionRepo, session_id: str, store: Store, *, read_only: bool = False) -> Session:
    """A session of `repo`.

    Raises:
        Failure: there is none of this id.
        SessionLocked: another process is writing it.
    """
    try:
        return await repo.open(session_id, read_only=read_only)
    except SessionNotFound:
        raise Failure(f"no session {session_id!r} in {store.shown}; see `agent-harness sessions list`") from None


async def is_interrupted(session: Session) -> bool:
    """Whether any lane has an operation that was started and not finished."""
    for pointer in await session.get_lanes():
        if await session.find_open_operations(pointer.lane, limit=1):
            return True
    return False


async def find_interrupted(repo: SessionRepo) -> SessionMetadata | None:
    """The newest session with an unfinished operation, None when there is none among the newest."""
    for found in (await repo.list())[:_SCANNED]:
        try:
            async with await repo.open(found.path or found.id, read_only=True) as session:
                if await is_interrupted(session):
                    return found
        except Exception:  # noqa: S112 - a damaged session must not hide the others (case 5)
            continue
    return None
