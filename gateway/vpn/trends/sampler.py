"""A clock for what is sampled: tells, interval by interval, that one is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.vpn.runtime import Runtime


class Sampler:
    """
    Args:
        seconds: An interval's.
        take: Is told how many intervals have ended since the last time: more than one where the loop was kept.
    """

    def __init__(self, runtime: Runtime, seconds: float, take: Callable[[int], None]) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._seconds = seconds
        self._take = take
        self._due = 0.0
        self._timer: asyncio.Handle | None = None
        self.until_ms = runtime.clock.now_ms()
        """When the last interval ended, ms since the epoch."""

    @property
    def interval_ms(self) -> int:
        """How long an interval is."""
        return round(self._seconds * 1_000)

    def start(self) -> None:
        """An interval begins."""
        self.until_ms = self._clock.now_ms()
        self._due = self._clock.seconds() + self._seconds
        self._wait()

    def close(self) -> None:
        """Tell no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(max(self._due - self._clock.seconds(), 0.0), self._end)

    def _end(self) -> None:
        # A timer may be a little early.
        late = max(self._clock.seconds() - self._due, 0.0)
        ended = 1 + int(late / self._seconds)
        self._due += ended * self._seconds
        self.until_ms = self._clock.now_ms() - round((late % self._seconds) * 1_000)
        self._wait()
        self._take(ended)
