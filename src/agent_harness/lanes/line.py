"""MutationLine: one FIFO per lane; every state-dependent decision commits inside one job (harness-v2 §15).

Jobs run in a task of the line's own, so a caller that is cancelled while its job runs changes nothing: the job goes
on. A call cancelled before its job has begun withdraws with nothing written (decisions section 3).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Job:
    run: Callable[[], Awaitable[Any]]  # each job has its own result type
    future: asyncio.Future[Any]
    started: bool = False


class MutationLine:
    """Runs jobs one at a time, in the order they were handed in."""

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closed: BaseException | None = None

    async def run(self, job: Callable[[], Awaitable[T]]) -> T:
        """Queue `job` and wait for it.

        A job is: check live state, at most one durable write, update live state. Nothing else.

        Raises:
            whatever the job raises; the line goes on with the next one.
        """
        if self._closed is not None:
            raise self._closed
        entry = _Job(job, asyncio.get_running_loop().create_future())
        self._jobs.append(entry)
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())
        try:
            result: T = await asyncio.shield(entry.future)
        except asyncio.CancelledError:
            if not entry.started and entry in self._jobs:
                self._jobs.remove(entry)
            elif not entry.future.done():
                entry.future.add_done_callback(retrieve)
            raise
        return result

    @property
    def idle(self) -> bool:
        """No job is running or waiting."""
        return self._worker is None

    async def _work(self) -> None:
        try:
            while self._jobs:
                job = self._jobs.popleft()
                job.started = True
                try:
                    result = await job.run()
                except asyncio.CancelledError:
                    job.future.cancel()
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise  # the loop is ending: the rest stays undone
                except BaseException as error:
                    if not job.future.done():
                        job.future.set_exception(error)
                    if not isinstance(error, Exception):
                        raise
                else:
                    if not job.future.done():
                        job.future.set_result(result)
        finally:
            self._worker = None
            for waiting in self._jobs:
                waiting.future.cancel()
            self._jobs.clear()

    def close(self, reason: BaseException) -> None:
        """Refuse new jobs and drop those that have not begun; a running one ends by itself."""
        self._closed = reason
        for job in self._jobs:
            if not job.future.done():
                job.future.set_exception(reason)
                job.future.add_done_callback(retrieve)
        self._jobs.clear()

    async def drain(self, timeout: float) -> None:
        """Wait, bounded, for the running job."""
        worker = self._worker
        if worker is not None and worker is not asyncio.current_task():
            await asyncio.wait([worker], timeout=timeout)


def retrieve(future: asyncio.Future[Any]) -> None:
    """For a result that perhaps nobody waits for: asyncio would log its exception as never retrieved."""
    if not future.cancelled():
        future.exception()
