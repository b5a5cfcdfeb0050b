"""
What a connection waits for next, and no longer than so many seconds: its open, a heartbeat, the answer to our close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """One at a time: what is set takes the place of what was."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, passed: Callable[[], None]) -> None:
        """Call ``passed`` then, unless something else is set, or nothing, before."""
        self.clear()
        self._timer = self._loop.call_later(seconds, passed)

    def clear(self) -> None:
        """There is nothing to wait for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
