"""Which sessions a conversation can go on with."""

from ...session.storage import SessionMetadata
from ..failure import Failure
from ..settings import Settings
from ..store import find_interrupted, open_store

LISTED = 20
"""How many sessions `/sessions` shows."""


async def newest_sessions(settings: Settings) -> list[SessionMetadata]:
    """The newest sessions of the store; none where there is no store yet."""
    if settings.store.path is not None and not settings.store.path.exists():
        return []
    async with open_store(settings.store, must_exist=True) as repo:
        return (await repo.list())[:LISTED]


async def newest_session(settings: Settings) -> str:
    """The newest session of this folder.

    Raises:
        Failure: there is none.
    """
    async with open_store(settings.store, must_exist=True) as repo:
        for found in await repo.list(cwd=str(settings.folder)):
            return found.id
    raise Failure(f"no session of {settings.folder} in {settings.store.shown}")


async def interrupted_session(settings: Settings) -> str | None:
    """The newest session with something unfinished, None when there is none."""
    if settings.store.path is None or not settings.store.path.exists():
        return None
    async with open_store(settings.store, must_exist=True) as repo:
        found = await find_interrupted(repo)
    return None if found is None else found.id
