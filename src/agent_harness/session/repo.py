"""SessionRepo: where sessions are created, found, opened, forked and deleted (harness-v2 §13, §17)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self, TypeAlias

from ..types.json import JsonValue
from .session import Session
from .storage import SessionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFork:
    """Copy one path, root to fork point. `entry_id` defaults to main's leaf; "before" leaves the entry itself out."""

    scope: Literal["branch"] = "branch"
    entry_id: str | None = None
    position: Literal["before", "at"] = "at"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFork:
    """Copy all entries of every branch, and every lane's pointer."""

    scope: Literal["tree"] = "tree"


ForkOptions: TypeAlias = BranchFork | TreeFork


class SessionRepo(Protocol):
    """A store of sessions. Writing opens take the writer claim and hold it until the session is closed."""

    async def create(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """Create a session and open it for writing.

        Raises:
            InvalidSessionId, SessionExists: nothing was written.
        """
        ...

    async def open(
        self, id_or_path: str, *, read_only: bool = False, wait: float = 0.0, strict: bool = False
    ) -> Session:
        """Open a session. `wait` is how many seconds to wait for another writer to go away.

        A read-only open never takes the claim and never modifies anything. `strict` refuses old files with damage
        that is otherwise skipped and reported in `diagnostics`.

        Raises:
            SessionNotFound: there is no such session.
            SessionLocked: another writer holds it; the message names the owner.
            CorruptSession, UnsupportedFormat: what is there cannot be read; it is left as it is.
            InvalidSessionId: the text is no session id.
        """
        ...

    async def list(self, *, cwd: str | None = None) -> list[SessionMetadata]:
        """Sessions, newest first; never opens or claims one, and leaves out what is no session."""
        ...

    async def delete(self, session_id: str) -> None:
        """Delete a session that nobody is writing.

        Raises:
            SessionNotFound, SessionLocked, InvalidSessionId: nothing was deleted.
        """
        ...

    async def fork(
        self,
        source: Session | str,
        options: ForkOptions | None = None,
        *,
        id: str | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """Copy entries into a new idle session and open it for writing. The source is untouched.

        Raises:
            SessionNotFound, UnknownEntry, InvalidSessionId, SessionExists: nothing was written.
        """
        ...

    async def snapshot(self, directory: Path) -> Self:
        """A new repository with the committed data and without claims; `directory` is empty and the caller's.

        Safe while sessions are open and being written: crash copies are taken with it (decisions section 5).
        """
        ...

    async def close(self) -> None:
        """Release what the repository holds; sessions it opened are closed by their owners."""
        ...
