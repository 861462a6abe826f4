"""Waiting for a writer claim that somebody else holds."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from agent_harness.errors import SessionLocked

POLL_S = 0.02

T = TypeVar("T")


async def until_free(claim: Callable[[], T], wait: float) -> T:
    """Try `claim` until it stops raising `SessionLocked`, for at most `wait` seconds; at least once.

    Raises:
        SessionLocked: the last refusal.
    """
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        try:
            return claim()
        except SessionLocked:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise
        await asyncio.sleep(min(POLL_S, left))
