"""
What a Message VPN remembers of the last hour, in memory, for people: rates, and the depths of its endpoints.

No message causes work here: counters that only rise are read every five seconds (23 kB for each Message VPN), and
depths every minute, some endpoints in each turn of the loop. An endpoint takes 240 bytes, with overhead about 450, so
10,000 endpoints take 4.5 MB; one that was always empty takes nothing. A start begins anew.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from gateway.core.endpoint.endpoint import Endpoint
from gateway.vpn.runtime import Runtime, Service

RATE_SLOTS: Final = 720
"""Intervals that are kept: an hour of five seconds each."""

DEPTH_SLOTS: Final = 60
"""Intervals that are kept: an hour of minutes."""

AT_ONCE: Final = 500
"""Endpoints looked at in one turn of the loop: less than a millisecond."""

MOST_COUNT: Final = (1 << 32) - 1
"""The largest depth that is recorded; a deeper endpoint counts as this."""


class Sampler(Service, ABC):
    """Takes a sample at the end of each interval of so many seconds."""

    def __init__(self, runtime: Runtime, seconds: float) -> None:
        super().__init__(runtime)
        self._clock = runtime.clock
        self._seconds = seconds
        self._due = 0.0
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

    @abstractmethod
    def _take(self, ended: int) -> None:
        """``ended`` intervals have ended since the last call: more than one if the loop was blocked."""

    def _wait(self) -> None:
        self._after(max(self._due - self._clock.seconds(), 0.0), self._end)

    def _end(self) -> None:
        # A timer may be a little early.
        late = max(self._clock.seconds() - self._due, 0.0)
        ended = 1 + int(late / self._seconds)
        self._due += ended * self._seconds
        self.until_ms = self._clock.now_ms() - round((late % self._seconds) * 1_000)
        self._wait()
        self._take(ended)


class Rates(Sampler):
    """
    Args:
        counters: What is counted, by name; each only rises.
    """

    def __init__(self, counters: Mapping[str, Callable[[], int]], runtime: Runtime) -> None:
        super().__init__(runtime, runtime.tuning.rates_seconds)
        self._counters = counters
        self._before = {name: count() for name, count in counters.items()}
        self._slots = {name: array("Q") for name in counters}

    def counts(self, name: str) -> list[int]:
        """How many in each known interval of the last hour, the oldest first."""
        return self._slots[name].tolist()

    def _take(self, ended: int) -> None:
        for name, count in self._counters.items():
            now = count()
            since, self._before[name] = now - self._before[name], now
            slots = self._slots[name]
            # How the count is spread over these intervals is not known.
            kept = min(ended, RATE_SLOTS)
            slots.extend([since // ended] * (kept - 1))
            slots.append(since - since // ended * (ended - 1))
            del slots[:-RATE_SLOTS]


class Depths(Sampler):
    """
    Args:
        endpoints: All of them, by name.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], runtime: Runtime) -> None:
        super().__init__(runtime, runtime.tuning.depths_seconds)
        self._endpoints = endpoints
        self._kept: dict[str, array[int]] = {}
        """A ring for each endpoint that has messages, or had some."""
        self._slot = -1
        """The number of the last sample; each sample has the next place in the rings."""
        self._left: list[str] = []
        """The endpoints still to be looked at for this sample, in reverse."""
        self._turn: asyncio.Handle | None = None

    def start(self) -> None:
        """Begin with the present depths."""
        self._take(1)
        super().start()

    def close(self) -> None:
        """Look no more."""
        super().close()
        if self._turn is not None:
            self._turn.cancel()

    def counts(self, name: str) -> list[int]:
        """How many messages an endpoint had at the end of each known interval, the oldest first."""
        known = min(self._slot + 1, DEPTH_SLOTS)
        ring = self._kept.get(name)
        if ring is None:
            return [0] * known
        return [ring[slot % DEPTH_SLOTS] for slot in range(self._slot + 1 - known, self._slot + 1)]

    def _take(self, ended: int) -> None:
        for _ in range(min(ended, DEPTH_SLOTS)):
            self._slot += 1
            before, at = (self._slot - 1) % DEPTH_SLOTS, self._slot % DEPTH_SLOTS
            # Until an endpoint is looked at, its last depth counts.
            for ring in self._kept.values():
                ring[at] = ring[before]
        self._left = list(self._endpoints)
        for name in [name for name in self._kept if name not in self._endpoints]:
            del self._kept[name]
        if self._turn is not None:
            self._turn.cancel()
        self._look()

    def _look(self) -> None:
        at, kept, endpoints = self._slot % DEPTH_SLOTS, self._kept, self._endpoints
        for name in islice(reversed(self._left), AT_ONCE):
            endpoint = endpoints.get(name)
            count = 0 if endpoint is None else min(endpoint.depth, MOST_COUNT)
            ring = kept.get(name)
            if ring is None:
                if not count:
                    continue
                ring = kept[name] = array("I", bytes(4 * DEPTH_SLOTS))
            ring[at] = count
            if not count and not any(ring):
                del kept[name]
        del self._left[-AT_ONCE:]
        self._turn = self._loop.call_soon(self._look) if self._left else None
