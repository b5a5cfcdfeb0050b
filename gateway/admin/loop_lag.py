"""How late the event loop comes to what is due: what all its users wait for beside their own work."""

import asyncio
from typing import Final

from store.histogram import Histogram

EVERY_SECONDS: Final = 0.1
"""Between two looks: ten a second cost nothing that can be measured."""

BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class LoopLag:
    """Looks on from the first scrape on; a gateway that nobody scrapes does not wake up for it."""

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0

    def watch(self) -> None:
        """Look on, if this is not done already."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._wait(self._loop)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + EVERY_SECONDS
        loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds.add(max(loop.time() - self._due, 0.0))
        self._wait(loop)
