"""The ordered event bus (harness-v2 §10): passive, isolated listeners, each served in publication order.

A listener that throws is reported, one that hangs delays only itself; neither ever reaches a run.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from ..telemetry.attributes import EventHandlerStart, NoEnd
from ..telemetry.context import NOOP, TelemetryContext
from ..telemetry.schema import Span
from ..telemetry.spans import start_harness_span
from .catalog import EventType, HandlerError, HarnessEvent

Listener: TypeAlias = Callable[[HarnessEvent], Awaitable[None] | None]
FLUSH_SECONDS = 1.0
"""How long `close()` waits for listeners that are still working."""


@dataclass(eq=False, slots=True)
class Subscription:
    """One receiver with its own buffer: served through `listener`, or held until somebody takes."""

    accepts: Callable[[HarnessEvent], bool]
    listener: Listener | None = None  # None: hold
    limit: int | None = None  # most undelivered events; one more ends the subscription
    waiting: deque[HarnessEvent] = field(default_factory=deque[HarnessEvent])
    task: asyncio.Task[None] | None = None
    active: bool = True  # False once nothing more may be delivered
    overflowed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # an event arrived, or the end did
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # nothing more will arrive


class Events:
    """Live-only delivery: no snapshot, no replay."""

    def __init__(self, telemetry: TelemetryContext = NOOP) -> None:
        self._telemetry = telemetry
        self._subscriptions: list[Subscription] = []
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()  # also of listeners that unsubscribed while being served

    def on(self, type: EventType | None, listener: Listener) -> Callable[[], None]:
        """Call `listener` (sync or async) for every event of `type`, or for all with None.

        Returns the way to unregister it.

        Raises:
            ValueError: no such event type.
        """
        if type is not None and type not in get_args(EventType):
            raise ValueError(f"unknown event {type!r}; events are {', '.join(get_args(EventType))}")
        subscription = Subscription(lambda event: type is None or event.type == type, listener)
        self._subscriptions.append(subscription)
        return lambda: self.drop(subscription)

    def hold(self, accepts: Callable[[HarnessEvent], bool], limit: int | None = None) -> Subscription:
        """Buffer what `accepts` says from now on, until the subscription is served or taken from."""
        subscription = Subscription(accepts, limit=limit)
        if self._closed:
            self._end(subscription)
        else:
            self._subscriptions.append(subscription)
        return subscription

    def serve(self, subscription: Subscription, listener: Listener) -> None:
        """Deliver the buffer in order, then what follows."""
        subscription.listener = listener
        self._wake(subscription)

    def drop(self, subscription: Subscription) -> None:
        """End a subscription and forget its buffer."""
        subscription.active = False
        subscription.waiting.clear()
        self._end(subscription)

    def _end(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        subscription.ended.set()
        subscription.changed.set()

    def publish(self, event: HarnessEvent) -> None:
        """Queue `event` for every listener, in order. Never raises, never waits."""
        if self._closed:
            return
        for subscription in tuple(self._subscriptions):
            if not subscription.accepts(event):
                continue
            if subscription.limit is not None and len(subscription.waiting) >= subscription.limit:
                subscription.overflowed = True
                self.drop(subscription)
                continue
            subscription.waiting.append(event)
            subscription.changed.set()
            self._wake(subscription)

    def _wake(self, subscription: Subscription) -> None:
        if subscription.listener is None or subscription.task is not None or not subscription.waiting:
            return
        task = asyncio.get_running_loop().create_task(self._serve(subscription, subscription.listener))
        subscription.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, subscription: Subscription, listener: Listener) -> None:
        try:
            while subscription.waiting and subscription.active:
                event = subscription.waiting.popleft()
                try:
                    await self._deliver(event, listener)
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    self._failed(event, error)  # its own, not ours: the listener is served on
                except Exception as error:
                    self._failed(event, error)
        finally:
            subscription.task = None

    async def _deliver(self, event: HarnessEvent, listener: Listener) -> None:
        # At the root: by now the scope that told the event may be over, and a late listener is no part of it.
        async def work(_span: Span[NoEnd]) -> None:
            result = listener(event)
            if inspect.isawaitable(result):
                await result

        attributes: EventHandlerStart = {"pi.event.type": event.type, "pi.lane.name": getattr(event, "lane", None)}
        await start_harness_span(self._telemetry, "pi.harness.event_handler", attributes, work)

    def _failed(self, event: HarnessEvent, error: BaseException) -> None:
        if event.type == "handler_error":
            return  # a listener of handler_error that throws is not reported to itself
        lane = getattr(event, "lane", None)
        self.publish(HandlerError(lane=lane, kind="event", name=event.type, error=type(error).__name__))

    async def flush(self, timeout: float = FLUSH_SECONDS) -> None:
        """Wait, bounded, until every listener has seen what was published so far."""
        await self._ended(timeout, asyncio.current_task())

    async def close(self, caller: "asyncio.Task[object] | None" = None) -> None:
        """Deliver what is queued, bounded in time, then stop. `caller` may be a listener: it is not waited for."""
        await self._ended(FLUSH_SECONDS, caller)
        self._closed = True
        for subscription in tuple(self._subscriptions):
            self._end(subscription)
        for task in self._tasks:
            if task is not caller:
                task.cancel()
        await self._ended(FLUSH_SECONDS, caller)

    async def _ended(self, timeout: float, spared: "asyncio.Task[object] | None") -> None:
        tasks = [task for task in self._tasks if task is not spared]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
