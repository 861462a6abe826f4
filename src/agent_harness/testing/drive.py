"""Driving a harness action by action."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from ..lanes.surface import AgentLane
from ..types.actions import ActionInfo

T = TypeVar("T")


async def start(call: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Begin a call and return its task once the call has really begun.

    A coroutine starts at the next turn of the loop; without this, a test would look before the call was made.
    """
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    return task


async def drive_until(lane: AgentLane, stop: str | Callable[[ActionInfo], bool]) -> ActionInfo:
    """Release actions until the parked one is of kind `stop` (or `stop(action)` is true); it stays parked.

    Raises:
        AssertionError: the operation settled first.
    """

    def reached(parked: ActionInfo) -> bool:
        return stop(parked) if callable(stop) else parked.kind == stop

    action = await lane.peek_action()
    while action is not None and not reached(action):
        action = await lane.execute_action()
    assert action is not None, f"the operation settled before {stop!r}"
    return action
