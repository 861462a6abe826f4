"""One HTTP exchange with a provider, owned by one task (decisions section 3 and 7).

An SDK's stream is opened, read and closed inside a single task, so that cancelling that task is enough to close the
socket at any point: while connecting, while waiting for the head, in the middle of text or of tool arguments.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TypeAlias

from ..abort_signal import AbortSignal

CLOSE_WAIT_S = 1.0
"""How long leaving an exchange waits for its connection to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The response head arrived."""

    status: int
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A decoded event of the stream: plain JSON."""

    data: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """Nothing more will come. `ended` says the server closed the stream in order, which proves nothing by itself.

    "timeout" is the total deadline; "aborted" the request's signal; "failed" carries what was raised.
    """

    why: Literal["ended", "aborted", "timeout", "idle", "failed"]
    error: Exception | None = field(default=None, repr=False)


Item: TypeAlias = Head | Event | Over
Source: TypeAlias = Callable[[], AsyncGenerator[Head | Event]]


class Exchange:
    """Runs `source` in its own task and hands its items out one by one; leaving the context closes the connection.

    `timeout_ms` bounds the whole exchange, from connecting to the last event. `keep` holds the task strongly in case
    its connection takes longer to close than leaving may wait.
    """

    def __init__(
        self, source: Source, signal: AbortSignal, timeout_ms: int | None, keep: set[asyncio.Task[None]]
    ) -> None:
        self._source = source
        self._signal = signal
        self._timeout_s = timeout_ms / 1000 if timeout_ms is not None else None
        self._keep = keep
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._forget: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._task = task = loop.create_task(self._pump(), name="provider-exchange")
        self._keep.add(task)
        task.add_done_callback(self._keep.discard)

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(self._items.put_nowait, Over(why="aborted"))
            except RuntimeError:
                pass  # the loop is closed: its tasks are gone too

        self._forget = self._signal.on_abort(wake)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forget is not None:
            self._forget()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_WAIT_S)

    async def next(self, wait_ms: int | None = None) -> Item:
        """The next item. An abort overtakes what has arrived; `wait_ms` without an item gives `Over("idle")`."""
        if self._signal.aborted:
            return Over(why="aborted")
        try:
            async with asyncio.timeout(wait_ms / 1000 if wait_ms is not None else None):
                item = await self._items.get()
        except TimeoutError:
            return Over(why="idle")
        return Over(why="aborted") if self._signal.aborted else item

    async def _pump(self) -> None:
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline, aclosing(self._source()) as items:
                async for item in items:
                    self._items.put_nowait(item)
            over = Over(why="ended")
        except asyncio.CancelledError:  # by whoever ends the loop's tasks: a consumer must not wait for ever
            self._items.put_nowait(Over(why="ended"))
            raise
        except Exception as error:  # whatever an SDK raises is an answer in-band, never a crash
            over = Over(why="timeout") if deadline.expired() else Over(why="failed", error=error)
        self._items.put_nowait(over)
