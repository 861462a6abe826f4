"""Ids: provisioned by the process that writes, unique per session."""

import re
from typing import Protocol

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""What a session id may be, by full match, before any file call (decisions section 5)."""


class IdGenerator(Protocol):
    """Gives ids that no other call has given. Sync by design: ids are allocated inside line jobs."""

    def next(self) -> str:
        """The next id; never empty."""
        ...


class Uuid7Ids:
    """UUIDv7: unique, and sorted by creation time."""

    def next(self) -> str:
        """A fresh UUIDv7 in its canonical 36-character form."""
        from uuid6 import uuid7

        return str(uuid7())


def is_session_id(value: str) -> bool:
    """Whether `value` may name a session, and so become part of a path."""
    return SESSION_ID.fullmatch(value) is not None
