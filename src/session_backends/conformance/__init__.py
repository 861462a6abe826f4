"""The suite that every backend passes, for the backends of this package and of third parties.

With pytest, one class runs every case against a fresh store:

```python
from session_backends.conformance import BackendConformance

class TestPostgres(BackendConformance):
    def make_repo(self, directory):
        return PostgresSessionRepo(fresh_database())
```

Without pytest: `run_case(case, make_repo, directory)` for each of `CASES`. The random comparison of several backends
needs Hypothesis: `session_backends.conformance.machine.parity_machine`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from agent_harness.session.repo import SessionRepo

from .cases import CASES as CASES
from .kit import Case as Case
from .kit import Kit as Kit

__all__ = ["CASES", "BackendConformance", "Case", "Kit", "run_case"]


def run_case(case: Case, make_repo: Callable[[Path], SessionRepo], directory: Path) -> None:
    """Run one case in an event loop of its own; `directory` is empty and the case's.

    Raises:
        AssertionError: what the backend does otherwise.
    """
    store, spare = directory / "store", directory / "snapshot"
    store.mkdir(mode=0o700)
    spare.mkdir(mode=0o700)

    async def run() -> None:
        repo = make_repo(store)
        try:
            await case(Kit(repo=repo, directory=spare))
        finally:
            await repo.close()

    asyncio.run(run())


def _test(case: Case) -> Callable[["BackendConformance", Path], None]:
    def test(self: "BackendConformance", tmp_path: Path) -> None:
        run_case(case, self.make_repo, tmp_path)

    test.__name__ = test.__qualname__ = f"test_{case.__name__}"
    test.__doc__ = case.__doc__
    return test


class BackendConformance(ABC):
    """Derive from it and implement `make_repo`: pytest then finds one test for each case."""

    @abstractmethod
    def make_repo(self, directory: Path) -> SessionRepo:
        """A repository over an empty store; `directory` is empty, for backends that keep files."""


for _case in CASES:
    setattr(BackendConformance, f"test_{_case.__name__}", _test(_case))
