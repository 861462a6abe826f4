"""The three backends, by name, for tests that run on all of them."""

from pathlib import Path

from agent_harness.session.repo import SessionRepo
from agent_harness.testing import DeterministicIds, ManualClock
from session_backends import JsonlSessionRepo, MemorySessionRepo
from session_backends.sqlite.repo import SqliteSessionRepo

BACKENDS = ("memory", "jsonl", "sqlite")


def make_repo(backend: str, directory: Path) -> SessionRepo:
    """An empty repository in `directory`, with a clock that stands still and ids a test can predict."""
    clock, ids = ManualClock(), DeterministicIds()
    match backend:
        case "memory":
            return MemorySessionRepo(clock=clock, id_generator=ids)
        case "jsonl":
            return JsonlSessionRepo(directory, clock=clock, id_generator=ids)
        case "sqlite":
            return SqliteSessionRepo(directory / "sessions.db", clock=clock, id_generator=ids)
        case _:
            raise ValueError(backend)
