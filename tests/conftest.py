"""Fixtures shared by all tests."""

from pathlib import Path

import pytest

from agent_harness.session.repo import SessionRepo
from tests.support.backends import BACKENDS, make_repo


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend in turn."""
    return str(request.param)


@pytest.fixture
def repo(backend: str, tmp_path: Path) -> SessionRepo:
    """An empty repository of each backend."""
    return make_repo(backend, tmp_path)
