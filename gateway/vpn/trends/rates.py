"""
What a Message VPN has done in the last hour, in intervals of five seconds: counters that only rise, read at their ends.

Nothing is done for a message. It is kept in memory alone: a start begins anew. 23 kB for each Message VPN.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Final

from gateway.vpn.runtime import Runtime
from gateway.vpn.trends.sampler import Sampler

SLOTS: Final = 720
"""Intervals that are kept: an hour of five seconds each."""


class Rates:
    """
    Args:
        counters: What is counted, by name; each only rises.
    """

    def __init__(self, counters: Mapping[str, Callable[[], int]], runtime: Runtime) -> None:
        self._counters = counters
        self._before = {name: count() for name, count in counters.items()}
        self._slots = {name: array("Q") for name in counters}
        self.sampler = Sampler(runtime, runtime.tuning.rates_seconds, self._take)

    def counts(self, name: str) -> list[int]:
        """How many in each interval, the oldest first: of as much of the last hour as is known."""
        return self._slots[name].tolist()

    def _take(self, ended: int) -> None:
        for name, count in self._counters.items():
            now = count()
            since, self._before[name] = now - self._before[name], now
            slots = self._slots[name]
            # Nobody knows when in them it was.
            kept = min(ended, SLOTS)
            slots.extend([since // ended] * (kept - 1))
            slots.append(since - since // ended * (ended - 1))
            del slots[:-SLOTS]
