"""Watches: a snapshot, and every event after it, exactly once and in order (harness-v2 §9, A-13)."""

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from ..errors import WatchOverflow
from .bus import Events, Listener, Subscription
from .catalog import HarnessEvent
from .snapshot import LaneSnapshot, SessionSnapshot

S = TypeVar("S")


class _Watch(Generic[S]):
    """Buffers from the moment of its snapshot. Consume it one way: `start(listener)`, or `async for event in watch`.

    Without `max_buffer` a watch that is never consumed buffers without bound; `unsubscribe()` drops it, and so does
    leaving it as an async context manager.

    Raises:
        ValueError: `max_buffer` is below 1.
    """

    def __init__(
        self, events: Events, accepts: Callable[[HarnessEvent], bool], snapshot: S, max_buffer: int | None
    ) -> None:
        if max_buffer is not None and max_buffer < 1:
            raise ValueError(f"max_buffer is the most undelivered events, at least 1, not {max_buffer}")
        self._events = events
        self._max_buffer = max_buffer
        self._subscription: Subscription = events.hold(accepts, max_buffer)
        self._started = False
        self.snapshot: S = snapshot
        """The state at the moment of the watch; events begin right behind it."""

    @property
    def overflow(self) -> WatchOverflow | None:
        """Why the watch ended, if it was `max_buffer`."""
        if not self._subscription.overflowed:
            return None
        return WatchOverflow(f"more than {self._max_buffer} events were undelivered; watch again for a fresh snapshot")

    def start(self, listener: Listener) -> None:
        """Call `listener` (sync or async) with every buffered event in order, then with each new one.

        A listener that raises is reported as `handler_error`; one that hangs delays only this watch.

        Raises:
            RuntimeError: started twice.
            WatchOverflow: the buffer overflowed before; nothing is delivered.
        """
        if self._started:
            raise RuntimeError("this watch has a listener; watch again for another one")
        self._raise_overflow()
        self._started = True
        self._events.serve(self._subscription, listener)

    def unsubscribe(self) -> None:
        """End the watch and drop its buffer. Idempotent; the listener is not called again."""
        self._events.drop(self._subscription)

    async def wait_ended(self) -> None:
        """Return once nothing more will arrive: unsubscribed, or the harness was closed.

        Raises:
            WatchOverflow: it ended because its consumer fell more than `max_buffer` events behind.
        """
        await self._subscription.ended.wait()
        self._raise_overflow()

    def _raise_overflow(self) -> None:
        overflow = self.overflow
        if overflow is not None:
            raise overflow

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> HarnessEvent:
        """The next event; the iteration ends when the harness is closed or the watch unsubscribed.

        Raises:
            WatchOverflow: see `wait_ended`.
        """
        if self._started:
            raise RuntimeError("this watch delivers to its listener")
        subscription = self._subscription
        while True:
            self._raise_overflow()
            if subscription.waiting:
                return subscription.waiting.popleft()
            if subscription.ended.is_set():
                raise StopAsyncIteration
            subscription.changed.clear()
            await subscription.changed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()


class LaneWatch(_Watch[LaneSnapshot]):
    """One lane: its transcript and state, then its own events and the harness-global ones.

    `reduce_lane_snapshot` carries the snapshot along.
    """


class SessionWatch(_Watch[SessionSnapshot]):
    """The whole session: the inventory of lanes without transcripts, then the unfiltered event stream."""
