"""
How quickly the replay log grows: what it took over the last minutes, hours and days.

Kept are places on the way, each the time and what was taken until then: one a minute for an hour, one an hour for two
days, one a day for a month. However long it runs, that is some 140 of them.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

PERIODS_MS: Final = (10 * MINUTE_MS, HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS)
"""Over which rates are told."""

_RINGS: Final = ((MINUTE_MS, 61), (HOUR_MS, 49), (DAY_MS, 32))
"""From one place to the next at least, and how many are kept."""


class Taken(NamedTuple):
    """What the log had taken by a time; below 0 for what it took before this gateway counted."""

    time_ms: int
    messages: float
    size_bytes: float


class Rate(NamedTuple):
    """What the log takes a second."""

    period_ms: int
    """Over how long that was measured."""
    messages: float
    size_bytes: float


class LogGrowth:
    def __init__(self) -> None:
        self._rings: list[deque[Taken]] = [deque(maxlen=count) for _step, count in _RINGS]
        self._newest: Taken | None = None

    def note(self, taken: Taken) -> None:
        """What it has taken by now; times never go back, and numbers only rise."""
        self._newest = taken
        for (step_ms, _count), ring in zip(_RINGS, self._rings, strict=True):
            if not ring or taken.time_ms - ring[-1].time_ms >= step_ms:
                ring.append(taken)

    def rate(self, period_ms: int) -> Rate | None:
        """Over the last so many milliseconds, or a little more, or as long as is known; None when nothing is known."""
        newest = self._newest
        if newest is None:
            return None
        since = self._place_before(newest.time_ms - period_ms)
        measured_ms = newest.time_ms - since.time_ms
        if measured_ms <= 0:
            return None
        seconds = measured_ms / 1_000
        return Rate(
            measured_ms,
            (newest.messages - since.messages) / seconds,
            (newest.size_bytes - since.size_bytes) / seconds,
        )

    def rates(self) -> list[Rate]:
        """Over each of ``PERIODS_MS`` that is known, or else over what is."""
        found: list[Rate] = []
        for period_ms in PERIODS_MS:
            rate = self.rate(period_ms)
            if rate is None or (found and found[-1].period_ms == rate.period_ms):
                break
            found.append(rate)
            if rate.period_ms < period_ms:
                break
        return found

    def _place_before(self, time_ms: int) -> Taken:
        """The newest place at or before a time, or the oldest there is."""
        oldest: Taken | None = None
        for ring in self._rings:
            before = [place for place in ring if place.time_ms <= time_ms]
            if before:
                return before[-1]
            if oldest is None or ring[0].time_ms < oldest.time_ms:
                oldest = ring[0]
        assert oldest is not None  # whatever is noted is in a ring that was empty
        return oldest
