"""
How fast a replay runs: at most so many messages a second, or at a multiple of the pace they were published at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.model import TIME_MS, Row

CATCH_UP_MS: Final = 100
"""So much of what a late timer, a commit or a busy machine held up is made up for; the rest of a pause is not, so that
a consumer that was slow gets no burst."""

SHORTEST_WAIT_MS: Final = 5
"""What is due within it goes together: a timer, and a commit, for each message are slower than a high rate."""


class Pacer:
    """
    Args:
        speed: Factor of the original pace, 1.0 being that; None to leave it out.
        rate: Messages a second at most; None for no bound.
        catch_up_ms: What is made up for, in milliseconds.
    """

    def __init__(self, speed: float | None, rate: float | None, catch_up_ms: float = CATCH_UP_MS) -> None:
        self._speed = speed
        self._interval_ms = None if rate is None else 1_000 / rate
        self._catch_up_ms = catch_up_ms
        self._began: tuple[int, int] | None = None
        self._free_ms = 0.0

    def due(self, rows: Sequence[Row], now_ms: int) -> int:
        """How many of ``rows``, from the first on, may go now; they are taken to go."""
        self._forget_pause(now_ms)
        for count, row in enumerate(rows):
            if self.due_ms(row, now_ms) > now_ms:
                return count
            if self._interval_ms is not None:
                self._free_ms += self._interval_ms
        return len(rows)

    def wait_s(self, row: Row, now_ms: int) -> float:
        """After how many seconds to ask again, for a message that is not due now."""
        return max(self.due_ms(row, now_ms) - now_ms, SHORTEST_WAIT_MS) / 1_000

    def due_ms(self, row: Row, now_ms: int) -> float:
        """When a message may go, in ms since the epoch."""
        due = 0.0
        if self._speed is not None:
            if self._began is None:
                self._began = (row[TIME_MS], now_ms)
            first_ms, started_ms = self._began
            due = started_ms + (row[TIME_MS] - first_ms) / self._speed
        return max(due, self._free_ms)

    def _forget_pause(self, now_ms: int) -> None:
        interval_ms = self._interval_ms
        if interval_ms is None or now_ms - self._free_ms < interval_ms:
            return
        made_up_ms = max(self._catch_up_ms - interval_ms, 0.0) if self._free_ms else 0.0
        self._free_ms = max(self._free_ms, now_ms - made_up_ms)
