"""Fixtures shared by all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_harness.session.repo import SessionRepo
from agent_harness.testing import observe
from tests.support.backends import BACKENDS, make_repo
from tests.support.databases import closed_behind
from tests.support.discretion import listening
from tests.support.laws import Laws


@pytest.fixture(autouse=True)
def laws() -> Iterator[Laws]:
    """Watches every session and every request of the test, and fails it for a law that was broken."""
    watching = Laws()
    with observe(watching), listening(watching.discretion.tell):
        yield watching
    assert watching.broken == []
    assert watching.discretion.leaks() == []


@pytest.fixture(autouse=True)
def _databases() -> Iterator[None]:
    """No database outlives its test."""
    with closed_behind():
        yield


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend in turn."""
    return str(request.param)


@pytest.fixture
def repo(backend: str, tmp_path: Path) -> SessionRepo:
    """An empty repository of each backend."""
    return make_repo(backend, tmp_path)
