"""Databases that a test left open: closed behind it, or a suite of thousands holds a thread and a beat for each."""

from collections.abc import Iterator
from contextlib import contextmanager

from session_backends.sqlite.database import _REGISTRY

CLOSE_S = 10.0


@contextmanager
def closed_behind() -> Iterator[None]:
    """Close what is opened inside and not closed by then. A test that crashes its harness need not care."""
    before = set(_REGISTRY.open.values())
    yield
    left = {key: database for key, database in _REGISTRY.open.items() if database not in before}
    for database in left.values():
        database.begin_close()
    for key, database in left.items():
        if database.is_ours():
            assert database.ended.wait(CLOSE_S), f"the threads of {database.path} do not end"
        del _REGISTRY.open[key]  # its inode may become another file's
