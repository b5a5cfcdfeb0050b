"""
Work that takes time and is done for one connection: it ends with the connection, and a mistake in it costs no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """
    The work under way for one connection.

    Args:
        failed: Called in the ``except`` block of what the work raised.
        done: Called when some work is done, however it ended.
    """

    def __init__(self, failed: Callable[[Exception], None], done: Callable[[], None]) -> None:
        self._told: tuple[Callable[[Exception], None], Callable[[], None]] | None = (failed, done)
        """Who is told of mistakes, and of ends; None once the connection is gone."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work; it starts in the next turn of the loop, and never once the connection is gone."""
        if self._told is None:
            work.close()
            return
        task = self._loop.create_task(_guarded(work, self._told[0]))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._told is not None:
            self._told[1]()

    @property
    def count(self) -> int:
        """How many pieces of work are under way."""
        return len(self._tasks)

    def cancel(self) -> None:
        """The connection is gone: nobody waits for any of it, and none begins."""
        self._told = None
        for task in self._tasks:
            task.cancel()


async def _guarded(work: Coroutine[Any, Any, None], failed: Callable[[Exception], None]) -> None:
    try:
        await work
    except Exception as error:
        failed(error)
