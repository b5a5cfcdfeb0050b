"""
An event loop that runs only when the test says so, with a clock of its own: for tests that decide what happens when.

Nothing runs by itself, and nothing runs in parallel. An exception in a callback is raised from ``run``.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any


class StepLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self._now = 0.0
        self._problem: dict[str, Any] | None = None
        self._coroutines: list[Coroutine[Any, Any, Any]] = []

    # --- what the test calls --------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """In this context, this is the running loop, as code under test expects."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    @property
    def has_timers(self) -> bool:
        return bool(self._timers)

    def run(self) -> None:
        """Run callbacks, and those that they schedule, until only timers are left."""
        with self.running():
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if self._problem is not None:
                    problem, self._problem = self._problem, None
                    raise problem.get("exception") or AssertionError(problem["message"])

    def advance(self, seconds: float) -> None:
        """Let time pass, and run what is due meanwhile."""
        self._now += seconds
        while self._timers and self._timers[0].when() <= self._now:
            self._ready.append(heapq.heappop(self._timers))
        self.run()

    def close(self) -> None:
        """Drop everything that was begun, as in a crash."""
        self._ready.clear()
        self._timers.clear()
        for coroutine in self._coroutines:
            coroutine.close()

    # --- what the code under test calls ---------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self._now + delay, callback, args, self, context)
        heapq.heappush(self._timers, handle)
        return handle

    def time(self) -> float:
        return self._now

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by ``TimerHandle.cancel``: the timer is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        self._coroutines.append(coroutine)
        return asyncio.Task(coroutine, loop=self, **options)

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._problem = self._problem or context
