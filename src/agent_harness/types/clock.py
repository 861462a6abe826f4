"""Time comes in through constructors, storage timestamps included (decisions section 3)."""

import time
from typing import Protocol


class WallClock(Protocol):
    """Tells the time of day."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...


class SystemWallClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Unix milliseconds, from the operating system."""
        return time.time_ns() // 1_000_000
