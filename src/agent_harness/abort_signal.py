"""AbortSignal: tells running effects that their result is no longer wanted. Thread-safe to read and to fire."""

import asyncio
import threading
from collections.abc import Callable


class AbortSignal:
    """Fires once. Callbacks run in the thread that aborts, in registration order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aborted = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def aborted(self) -> bool:
        """Whether cancellation was requested."""
        return self._aborted

    def abort(self) -> None:
        """Request cancellation. Idempotent."""
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` on abort, at once if already aborted; returns the way to unregister it."""
        with self._lock:
            if not self._aborted:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    async def wait(self) -> None:
        """Return once aborted."""
        loop = asyncio.get_running_loop()
        fired = asyncio.Event()
        unregister = self.on_abort(lambda: _set_from_any_thread(loop, fired))
        try:
            await fired.wait()
        finally:
            unregister()


def _set_from_any_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more
