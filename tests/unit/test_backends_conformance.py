"""Every backend of this package passes the kit that third parties run."""

from pathlib import Path

from agent_harness.session.repo import SessionRepo
from session_backends import JsonlSessionRepo, MemorySessionRepo, SqliteSessionRepo
from session_backends.conformance import BackendConformance
from session_backends.faults import Faults, FaultyRepo


class TestMemory(BackendConformance):
    def make_repo(self, directory: Path) -> SessionRepo:
        return MemorySessionRepo()


class TestJsonl(BackendConformance):
    def make_repo(self, directory: Path) -> SessionRepo:
        return JsonlSessionRepo(directory)


class TestJsonlPower(BackendConformance):
    def make_repo(self, directory: Path) -> SessionRepo:
        return JsonlSessionRepo(directory, durability="power")


class TestSqlite(BackendConformance):
    def make_repo(self, directory: Path) -> SessionRepo:
        return SqliteSessionRepo(directory / "sessions.db")


class TestFaultyWithoutFaults(BackendConformance):
    """The fault wrapper changes nothing as long as no fault is due."""

    def make_repo(self, directory: Path) -> SessionRepo:
        return FaultyRepo(MemorySessionRepo(), Faults())
