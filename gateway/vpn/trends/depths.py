"""
How many messages lay on each endpoint in the last hour, minute by minute.

Nothing is done for a message: depths are read, some endpoints a turn of the loop. What is kept of an endpoint is 240
bytes, with what holds them some 450, and nothing of one that was empty all the while: 4.5 MB for 10,000 endpoints.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from itertools import islice
from typing import Final

from gateway.core.endpoint.endpoint import Endpoint
from gateway.vpn.runtime import Runtime
from gateway.vpn.trends.sampler import Sampler

SLOTS: Final = 60
"""Intervals that are kept: an hour of minutes."""

AT_ONCE: Final = 500
"""Endpoints that are looked at in one turn of the loop: less than a millisecond."""

MOST_COUNT: Final = (1 << 32) - 1
"""Messages that are told; a deeper endpoint is as deep."""


class Depths:
    """
    Args:
        endpoints: All of them, by name.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], runtime: Runtime) -> None:
        self._endpoints = endpoints
        self._loop = runtime.loop
        self._kept: dict[str, array[int]] = {}
        """A ring for each endpoint that is not empty, or was not."""
        self._slot = -1
        """The last that was taken; each is the next one's place in the ring."""
        self._left: list[str] = []
        """Of the endpoints to be looked at for it, in reverse."""
        self._turn: asyncio.Handle | None = None
        self.sampler = Sampler(runtime, runtime.tuning.depths_seconds, self._take)

    def start(self) -> None:
        """Begin with what lies there now."""
        self._take(1)
        self.sampler.start()

    def close(self) -> None:
        """Look no more."""
        self.sampler.close()
        if self._turn is not None:
            self._turn.cancel()

    def counts(self, name: str) -> list[int]:
        """How many messages lay there at the end of each interval, the oldest first; of as many as are known."""
        known = min(self._slot + 1, SLOTS)
        ring = self._kept.get(name)
        if ring is None:
            return [0] * known
        return [ring[slot % SLOTS] for slot in range(self._slot + 1 - known, self._slot + 1)]

    def _take(self, ended: int) -> None:
        for _ in range(min(ended, SLOTS)):
            self._slot += 1
            before, at = (self._slot - 1) % SLOTS, self._slot % SLOTS
            # Until it is looked at, an endpoint is as deep as it was.
            for ring in self._kept.values():
                ring[at] = ring[before]
        self._left = list(self._endpoints)
        for name in [name for name in self._kept if name not in self._endpoints]:
            del self._kept[name]
        if self._turn is not None:
            self._turn.cancel()
        self._look()

    def _look(self) -> None:
        at, kept, endpoints = self._slot % SLOTS, self._kept, self._endpoints
        for name in islice(reversed(self._left), AT_ONCE):
            endpoint = endpoints.get(name)
            count = 0 if endpoint is None else min(endpoint.depth, MOST_COUNT)
            ring = kept.get(name)
            if ring is None:
                if not count:
                    continue
                ring = kept[name] = array("I", bytes(4 * SLOTS))
            ring[at] = count
            if not count and not any(ring):
                del kept[name]
        del self._left[-AT_ONCE:]
        self._turn = self._loop.call_soon(self._look) if self._left else None
