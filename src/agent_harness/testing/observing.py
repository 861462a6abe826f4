"""Watching every session and every request of a test, whoever opens them."""

from collections.abc import Generator
from contextlib import contextmanager

from ..session.observing import OBSERVER
from ..session.observing import ObservedRequest as ObservedRequest
from ..session.observing import Observer as Observer


@contextmanager
def observe(observer: Observer) -> Generator[None]:
    """Let `observer` watch the sessions that are opened inside, in this context and in tasks started from it."""
    token = OBSERVER.set(observer)
    try:
        yield
    finally:
        OBSERVER.reset(token)
