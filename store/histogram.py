"""How often a number lay in which range: one list that is added to from one thread and read from any."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts by upper bounds, which are inclusive, as Prometheus has them; what lies above all is counted last."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        """The sum of all that was added."""

    def add(self, value: float) -> None:
        """Count a number."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """For each bound, as text, how many numbers were at most as large; the last bound is ``+Inf``."""
        found: list[tuple[str, float]] = []
        count = 0
        for bound, more in zip([*map(str, self.bounds), "+Inf"], self._counts.copy(), strict=True):
            count += more
            found.append((bound, count))
        return found
