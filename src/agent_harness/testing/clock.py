"""Time a test owns."""

import asyncio


class ManualClock:
    """Stands still until moved. With `auto_advance`, a sleep moves it and returns at once."""

    def __init__(self, now_ms: int = 1_700_000_000_000, *, auto_advance: bool = True) -> None:
        self._now_ms = now_ms
        self._auto_advance = auto_advance
        self._moved = asyncio.Event()
        self.slept_ms: list[int] = []

    def now_ms(self) -> int:
        """The time as it was last set."""
        return self._now_ms

    def advance(self, delta_ms: int) -> None:
        """Move forward; sleepers whose time has come wake up."""
        self._now_ms += delta_ms
        self._moved.set()
        self._moved = asyncio.Event()

    async def sleep(self, delay_ms: int) -> None:
        """Return once the clock was moved past `delay_ms` from now."""
        self.slept_ms.append(delay_ms)
        until = self._now_ms + delay_ms
        if self._auto_advance:
            self.advance(delay_ms)
            await asyncio.sleep(0)
            return
        while self._now_ms < until:
            await self._moved.wait()
