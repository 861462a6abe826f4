"""The harness's clock: the time of day, and waiting (decisions section 3)."""

import asyncio
from typing import Protocol

from .types.clock import SystemWallClock, WallClock


class Clock(WallClock, Protocol):
    """Time as the harness sees it; tests inject one that they move by hand."""

    async def sleep(self, delay_ms: int) -> None:
        """Return after `delay_ms` milliseconds of this clock."""
        ...


class SystemClock(SystemWallClock):
    """The machine's time."""

    async def sleep(self, delay_ms: int) -> None:
        """Wait in real time."""
        await asyncio.sleep(delay_ms / 1000)
