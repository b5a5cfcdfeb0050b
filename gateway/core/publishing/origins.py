"""
Who published what, for consumers that do not want what their own connection sent (the no-local filter).

An origin is a client's container-id (JMS: its client identifier), or stands for the connection of one that has none.
Nothing is kept while nobody asks: from the first connection with such a consumer to the last, each publication leaves
one entry, or lengthens the one before. Ids that are not known here are nobody's: history is not local.

The endpoint of a topic subscription needs none of this: what its subscriber's own container publishes is not put on
it in the first place (``EndpointSettings.no_local``).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

MAX_RANGES: Final = 65_536
"""Runs of ids of one origin that are remembered, some 10 MB; beyond, the older half is forgotten."""


class Origins:
    def __init__(self) -> None:
        self.watchers: dict[Any, None] = {}
        """Who asked; while there is nobody, publications need not be told of."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._origins: list[str] = []

    def watch(self, watcher: Any) -> None:
        """Remember origins from now on, until ``forget`` is told of the last watcher."""
        self.watchers[watcher] = None

    def forget(self, watcher: Any) -> None:
        """It is gone, whether it had asked or not."""
        self.watchers.pop(watcher, None)
        if not self.watchers:
            self._starts.clear()
            self._stops.clear()
            self._origins.clear()

    def add(self, first: int, stop: int, origin: str) -> None:
        """Messages with ids from ``first`` below ``stop``, above all before, came from ``origin``."""
        if self._stops and self._stops[-1] == first and self._origins[-1] == origin:
            self._stops[-1] = stop
            return
        if len(self._starts) >= MAX_RANGES:
            for kept in (self._starts, self._stops, self._origins):
                del kept[: MAX_RANGES // 2]
        self._starts.append(first)
        self._stops.append(stop)
        self._origins.append(origin)

    def of(self, message_id: int) -> str:
        """Where a message came from; empty when that is not known."""
        index = bisect_right(self._starts, message_id) - 1
        return self._origins[index] if index >= 0 and message_id < self._stops[index] else ""
