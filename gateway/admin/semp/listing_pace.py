"""
How quickly lists are made beside live traffic: one pace for all that are asked for together.

A page of a hundred queues takes the loop some milliseconds, and a client that lists ten thousand asks for one after the
other. After each page the gateway is left to others for a multiple of the time that its objects took; where nothing is
live, nobody waits, and a pause that was begun ends once live traffic has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

PAUSE: Final = 5
"""How many times as long as a page's objects took. To check them and write them takes about as long once more, so
lists have a quarter of the loop, and publishers keep more than half of their rate."""

LONGEST_TURN_S: Final = 0.05
"""Seconds; what took longer was interrupted, and nobody has to wait for that."""

WINDOW_S: Final = 0.02
"""Seconds without anything published or settled: live traffic has ended."""


class ListingPace:
    """
    Args:
        activity: Rises with what is published and settled (``gateway.vpn.runtime.Counters.activity``).
        seconds: A clock that only goes forward.
        sleep: Returns after so many seconds.
    """

    def __init__(
        self,
        activity: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._activity = activity
        self._seconds = seconds
        self._sleep = sleep
        self._seen = activity()
        self._free = 0.0
        """When the pauses of all pages so far are over."""

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        """One page is made in the block; then it is waited for others."""
        began = self._seconds()
        yield
        now = self._seconds()
        if not self._is_live():
            return
        free = self._free = max(self._free, now) + min(now - began, LONGEST_TURN_S) * PAUSE
        while (left := free - self._seconds()) > 0:
            await self._sleep(min(left, WINDOW_S))
            if left > WINDOW_S and not self._is_live():
                self._free = 0.0
                return

    def _is_live(self) -> bool:
        """Whether anything was published or settled since this was asked last."""
        before, self._seen = self._seen, self._activity()
        return self._seen != before
