"""
How many log lines of one kind one peer may cause: so many at once, and then some a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BURST: Final = 20
"""Lines of one kind at once: a client with many links, each refused, is still seen whole."""

PER_SECOND: Final = 1.0
"""Lines of one kind after those."""


class LineRate:
    """
    Args:
        seconds: A clock that only goes forward.
        burst: Lines of one kind at once.
        per_second: Lines of one kind after those.
    """

    def __init__(
        self, seconds: Callable[[], float], burst: float = BURST, per_second: float = PER_SECOND
    ) -> None:
        self._seconds = seconds
        self._burst = burst
        self._per_second = per_second
        self._kinds: dict[str, tuple[float, float, int]] = {}
        """By kind: what may still be said, as of when; and how many lines were held back since one was said."""

    def admit(self, kind: str, carried: int = 0) -> int | None:
        """
        One more line of this kind.

        Args:
            carried: Lines that it stands for, as they were left out before.

        Returns:
            How many were held back since the last one; None if this one is to be held back, too.
        """
        now = self._seconds()
        left, as_of, held_back = self._kinds.get(kind, (self._burst, now, 0))
        left = min(left + (now - as_of) * self._per_second, self._burst)
        held_back += carried
        if left < 1:
            self._kinds[kind] = left, now, held_back + 1
            return None
        self._kinds[kind] = left - 1, now, 0
        return held_back

    @property
    def held_back(self) -> int:
        """Lines of all kinds that were held back and nobody has been told of."""
        return sum(held_back for _, _, held_back in self._kinds.values())
