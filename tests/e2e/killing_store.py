"""A storage backend that kills its own process: `killing:K:MICROSECONDS:URL` wraps the store at URL.

It is a third party's backend, found through the entry-point group like any other, so that the command line under test
is the one that ships. The K-th write is durable; SIGKILL follows after the delay, at once if that is 0.
"""

import os
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agent_harness.session.repo import SessionRepo
from session_backends import open_repo
from session_backends.faults import Faults, FaultyRepo

T = TypeVar("T")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True, kw_only=True)
class Killing(Faults):
    """Kills instead of failing."""

    delay_s: float = 0.0

    async def run(self, write: Callable[[bool], Awaitable[T]]) -> T:
        hit = self.hits()
        result = await write(True)
        if hit and self.delay_s == 0:
            _kill()
        if hit:
            threading.Timer(self.delay_s, _kill).start()
        return result


def from_url(rest: str, **options: Any) -> SessionRepo:
    k, microseconds, url = rest.split(":", 2)
    return FaultyRepo(open_repo(url, **options), Killing(at=int(k), delay_s=int(microseconds) / 1e6))
