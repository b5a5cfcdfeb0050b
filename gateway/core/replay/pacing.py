"""
How fast a replay runs: at most so many messages a second, or at a multiple of the pace they were published at.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.model import TIME_MS, Row


class Pacer:
    """
    Args:
        speed: Factor of the original pace, 1.0 being that; None to leave it out.
        rate: Messages a second at most; None for no bound.
    """

    def __init__(self, speed: float | None, rate: float | None) -> None:
        self._speed = speed
        self._interval_ms = None if rate is None else 1_000 / rate
        self._began: tuple[int, int] | None = None
        self._free_ms = 0.0

    def due(self, rows: Sequence[Row], now_ms: int) -> int:
        """How many of ``rows``, from the first on, may go now; they are taken to go."""
        for count, row in enumerate(rows):
            if self.due_ms(row, now_ms) > now_ms:
                return count
            if self._interval_ms is not None:
                # A late timer is made up for, a pause is not: a consumer that was slow gets no burst.
                is_late = now_ms - self._free_ms < self._interval_ms
                self._free_ms = (self._free_ms if is_late else now_ms) + self._interval_ms
        return len(rows)

    def due_ms(self, row: Row, now_ms: int) -> float:
        """When a message may go, in ms since the epoch."""
        due = 0.0
        if self._speed is not None:
            if self._began is None:
                self._began = (row[TIME_MS], now_ms)
            first_ms, started_ms = self._began
            due = started_ms + (row[TIME_MS] - first_ms) / self._speed
        return max(due, self._free_ms)
