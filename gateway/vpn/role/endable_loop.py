"""
The event loop as one Message VPN sees it that may lose its store to another gateway: it can end, and the VPN with it.

What was deposed has timers, tasks and reports of its writer and readers under way, any of which would go on with state
that is not true any more. They all come through here, and none of them comes any more once it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakSet


class EndableLoop:
    """What a Message VPN uses of an event loop (``asyncio.AbstractEventLoop``)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._error: Exception | None = None
        """Of what has ended."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._futures: WeakSet[asyncio.Future[Any]] = WeakSet()

    def end(self, error: Exception) -> None:
        """
        Nothing that was scheduled here happens any more.

        Args:
            error: For whoever waits for something that will not come.
        """
        self._error = error
        for task in list(self._tasks):
            task.cancel()
        for future in list(self._futures):
            _fail(future, error)

    def _unless_ended(self, callback: Callable[..., object], *args: Any) -> None:
        if self._error is None:
            callback(*args)

    def time(self) -> float:
        return self._loop.time()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(self._unless_ended, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, self._unless_ended, callback, *args)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon_threadsafe(self._unless_ended, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._error is None:
            self._futures.add(future)
        else:
            _fail(future, self._error)
        return future

    def create_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._error is not None:
            task.cancel()
        return task

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Not ended with the rest: it is how a store is closed."""
        return self._loop.run_in_executor(executor, function, *args)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # asked for: that nobody waits for it is no mistake
