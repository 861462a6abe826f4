"""A provider's stream in a task of its own, so that no abort and no close waits for a provider that does not listen.

The provider's callbacks (`on_payload`, `on_response`) run in the task that asked all the same: hooks belong to it, and
the gate knows a nested hook by its task (harness-v2 §15).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from ..abort_signal import AbortSignal
from ..providers.base import AssistantMessageEvent

A = TypeVar("A")
T = TypeVar("T")

GRACE_S: Final = 2.0
"""How long a provider may take to end its stream by itself after an abort. It closes its connection in that time."""
LET_GO_S: Final = 2.0
"""How long leaving a stream waits for it to close."""


class NoAnswer(Exception):
    """The provider was given up: it did not react to the abort in time."""


class Abandoned:
    """What was left running because it did not end when it was told to. Held until it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # whatever they return is wanted by nobody

    def __len__(self) -> int:
        return len(self._tasks)

    def hold(self, task: "asyncio.Task[Any]") -> None:
        """Keep a task that was cancelled and may take its time."""
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def close(self) -> None:
        """Cancel once more what is left, and wait for a bounded time."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LET_GO_S)

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody asks for it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A callback that the provider waits for."""

    run: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Over:
    error: BaseException | None


_Item: TypeAlias = AssistantMessageEvent | _Asked | _Over


class ProviderStream:
    """The events of one `Provider.stream`, as an async context manager and iterator.

    `begin` starts it. Iterating raises what the provider raised, and `NoAnswer` once an abort found it deaf. Leaving
    cancels what still runs; a stream that does not close is handed to `abandoned`.
    """

    def __init__(self, signal: AbortSignal, abandoned: Abandoned) -> None:
        self._signal = signal
        self._abandoned = abandoned
        self._items: deque[_Item] = deque()
        self._arrived = asyncio.Event()
        self._asked: set[asyncio.Future[Any]] = set()  # answers to callbacks, of whatever type
        self._deadline: float | None = None
        self._left = False
        self._task: asyncio.Task[None] | None = None

    def in_caller(self, callback: Callable[[A], Awaitable[T]]) -> Callable[[A], Awaitable[T]]:
        """`callback` for the provider: it runs in the task that iterates, and the provider waits for its result."""

        async def relay(value: A) -> T:
            if self._left:
                raise NoAnswer
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._asked.add(future)
            future.add_done_callback(self._asked.discard)

            async def run() -> None:
                try:
                    result = await callback(value)
                except Exception as error:
                    if not future.done():
                        future.set_exception(error)
                    return
                if not future.done():
                    future.set_result(result)

            self._put(_Asked(run=run))
            return await future

        return relay

    def begin(self, stream: Callable[[], AsyncIterator[AssistantMessageEvent]]) -> None:
        """Start the provider."""
        self._task = asyncio.get_running_loop().create_task(self._pump(stream), name="provider-stream")

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        self._forget = self._signal.on_abort(wake)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        self._forget()
        for future in list(self._asked):
            future.cancel()
        if self._task is not None and not self._task.done():
            await let_go(self._task, self._abandoned, wait=kind is not NoAnswer)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AssistantMessageEvent:
        while True:
            item = await self._next()
            if isinstance(item, _Asked):
                await item.run()
            elif isinstance(item, _Over):
                if item.error is not None:
                    raise item.error
                raise StopAsyncIteration
            else:
                return item

    async def _next(self) -> _Item:
        loop = asyncio.get_running_loop()
        while True:
            if self._deadline is None and self._signal.aborted:
                self._deadline = loop.time() + GRACE_S
            ended = bool(self._items) and isinstance(self._items[-1], _Over)
            late = self._deadline is not None and loop.time() >= self._deadline
            if late and not ended:
                raise NoAnswer
            if self._items:
                return self._items.popleft()
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(self._deadline):
                    await self._arrived.wait()
            except TimeoutError:
                pass  # looked at above

    def _put(self, item: _Item) -> None:
        self._items.append(item)
        self._arrived.set()

    async def _pump(self, begin: Callable[[], AsyncIterator[AssistantMessageEvent]]) -> None:
        failure: BaseException | None = None
        try:
            stream = begin()
            try:
                async for event in stream:
                    self._put(event)
            finally:
                closing = getattr(stream, "aclose", None)
                if closing is not None:
                    await closing()
        except asyncio.CancelledError as error:
            failure = error
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        except Exception as error:
            failure = error
        finally:
            self._put(_Over(error=failure))


async def ask_provider(
    work: Coroutine[Any, Any, T], signal: AbortSignal, abandoned: Abandoned, *, limit_s: float | None = None
) -> T:
    """One call of a provider that is no stream. After an abort it has `GRACE_S` left, and `limit_s` in any case.

    Raises:
        NoAnswer: it did not end in time, or cancelled itself.
        whatever it raises.
    """
    task = asyncio.get_running_loop().create_task(work, name="provider-call")
    aborted = asyncio.ensure_future(signal.wait())
    given_up = False
    try:
        await asyncio.wait({task, aborted}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and signal.aborted:
            await asyncio.wait({task}, timeout=GRACE_S)
        if task.done() and not task.cancelled():
            return task.result()
        given_up = True
        raise NoAnswer
    finally:
        aborted.cancel()
        if not task.done():
            await let_go(task, abandoned, wait=not given_up)


async def let_go(task: "asyncio.Task[Any]", abandoned: Abandoned, *, wait: bool) -> None:
    """Cancel what is not needed any more; unless it was given up, wait a bounded time for it to clean up."""
    abandoned.hold(task)
    task.cancel()
    if wait:
        await asyncio.wait({task}, timeout=LET_GO_S)
