"""Events of the in-memory loop on their way out: an ordered sink, and an iterator that may be left at any time."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from inspect import isawaitable
from types import TracebackType
from typing import Self, TypeAlias

from ..abort_signal import AbortSignal
from ..types.messages import AgentMessage
from .agent_events import AgentEvent, AgentEventSink
from .tools import CANCEL_GRACE_SECONDS

AgentRun: TypeAlias = Callable[[AgentEventSink, AbortSignal], Coroutine[object, object, tuple[AgentMessage, ...]]]


class OrderedSink:
    """Hands events to one sink, sync or async, each after the one before it is done with.

    `push` never raises: it is called from inside of a provider's stream, where an error of the sink would be taken for
    one of the transport. The error comes out of the next `send` or `flush`.
    """

    def __init__(self, emit: AgentEventSink) -> None:
        self._emit = emit
        self._waiting: deque[AgentEvent] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def push(self, event: AgentEvent) -> None:
        """Queue an event; a sync sink has seen it on return."""
        if self._error is None:
            self._waiting.append(event)
            if self._serving is None:
                self._deliver()

    async def send(self, event: AgentEvent) -> None:
        """Deliver an event, and wait until the sink is done with it."""
        self.push(event)
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything is delivered.

        Raises:
            whatever the sink raised.
        """
        while self._serving is not None:
            await asyncio.wait([self._serving])
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Deliver nothing more."""
        self._waiting.clear()
        if self._serving is not None:
            self._serving.cancel()

    def _deliver(self) -> None:
        while self._waiting:
            try:
                result = self._emit(self._waiting.popleft())
            except Exception as error:
                self._fail(error)
                return
            if isawaitable(result):
                self._serving = asyncio.get_running_loop().create_task(self._finish(result))
                return

    async def _finish(self, result: Awaitable[None]) -> None:
        try:
            await result
        except Exception as error:
            self._fail(error)
        finally:
            self._serving = None
        self._deliver()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._waiting.clear()


class AgentEventStream:
    """The events of one loop as an async iterator; `result()` gives the messages it added.

    The loop starts with the first event asked for, or with `result()`. Leaving the iteration early (`break`, an
    exception, `aclose()`, the end of an `async with`) aborts it: its request is closed, its tools are cancelled, and
    what does not stop within `grace_seconds` is cancelled from outside.
    """

    def __init__(
        self, run: AgentRun, signal: AbortSignal | None = None, *, grace_seconds: float = CANCEL_GRACE_SECONDS
    ) -> None:
        self._run = run
        self._signal = AbortSignal()  # its own: leaving the stream must not abort what else hangs on the caller's
        self._outer = signal
        self._events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        self._task: asyncio.Task[tuple[AgentMessage, ...]] | None = None
        self._closed = False
        self._grace_seconds = grace_seconds

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        return self._iterate()

    async def _iterate(self) -> AsyncGenerator[AgentEvent]:
        task = self._started()
        try:
            while (event := await self._events.get()) is not None:
                yield event
            self._events.put_nowait(None)  # a second iteration ends at once
            if not task.cancelled():
                task.result()
        finally:
            await self.aclose()

    async def result(self) -> tuple[AgentMessage, ...]:
        """The messages the loop added, prompts included, once it is over; also without iterating.

        Raises:
            RuntimeError: the stream was left before the loop could end in an orderly way.
            whatever a callback raised.
        """
        task = self._started()
        await asyncio.wait([task])
        if task.cancelled():
            raise RuntimeError("the loop was cancelled before its end")
        return task.result()

    async def aclose(self) -> None:
        """Abort the loop if it runs, and wait, bounded, until it has stopped. Idempotent."""
        self._closed = True
        task = self._task
        if task is None or task.done():
            return
        self._signal.abort()
        try:
            await asyncio.wait([task], timeout=self._grace_seconds)
        finally:
            task.cancel()
        if not task.done():
            await asyncio.wait([task], timeout=self._grace_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _started(self) -> asyncio.Task[tuple[AgentMessage, ...]]:
        if self._task is None:
            if self._closed:
                raise RuntimeError("the stream was closed before it began")
            self._task = asyncio.get_running_loop().create_task(self._drive())
            self._task.add_done_callback(self._over)
        return self._task

    async def _drive(self) -> tuple[AgentMessage, ...]:
        forget = self._outer.on_abort(self._signal.abort) if self._outer is not None else _nothing
        try:
            return await self._run(self._events.put_nowait, self._signal)
        finally:
            forget()

    def _over(self, task: asyncio.Task[tuple[AgentMessage, ...]]) -> None:
        self._events.put_nowait(None)
        if not task.cancelled():
            task.exception()  # an error nobody asks for is no warning: the consumer left


def _nothing() -> None:
    pass
