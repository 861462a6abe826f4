"""A backend that another package registers, with no code of ours, is found by its scheme and passes the kit."""

import ast
import importlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from agent_harness.session.repo import SessionRepo
from session_backends import MemorySessionRepo, open_repo
from session_backends.conformance import BackendConformance
from session_backends.conformance.machine import parity_machine
from tests.support import third_party


@pytest.fixture(autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it: the package's metadata stands on the path."""
    site = tmp_path_factory.mktemp("site")
    package = site / "notebook_backend-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: notebook-backend\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[agent_harness.session_backends]\nnotebook = tests.support.third_party:from_url\n"
    )
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()


class TestThirdParty(BackendConformance):
    def make_repo(self, directory: Path) -> SessionRepo:
        repo = open_repo("notebook:")
        assert isinstance(repo, third_party.NotebookRepo)
        return repo


Parity = parity_machine({"memory": lambda _: MemorySessionRepo(), "notebook": lambda _: third_party.from_url("")})
TestThirdPartyParity = Parity.TestCase
TestThirdPartyParity.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_it_shares_no_code_with_the_backends_of_this_package() -> None:
    tree = ast.parse(Path(third_party.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name is None or name.startswith("session_backends")]
