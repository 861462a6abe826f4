"""One random history gives the same answers, refusals and log in every backend."""

from hypothesis import HealthCheck, settings

from session_backends import JsonlSessionRepo, MemorySessionRepo, SqliteSessionRepo
from session_backends.conformance.machine import parity_machine

Parity = parity_machine(
    {
        "memory": lambda directory: MemorySessionRepo(),
        "jsonl": JsonlSessionRepo,
        "sqlite": lambda directory: SqliteSessionRepo(directory / "sessions.db"),
    }
)
TestParity = Parity.TestCase
TestParity.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
