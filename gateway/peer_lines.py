"""
How many log lines of one kind the connections of one address may cause together: who connects again and again, and is
refused each time, has as many lines as one who stays.

What is held back is counted, for a metric and for the next line of its kind; where none comes, ``untold`` says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.line_rate import LineRate
from gateway.log_lines import COUNTS

BURST: Final = 200
"""Lines of one kind at once: as many clients that come again after a restart are seen one by one."""

PER_SECOND: Final = 5.0
"""Lines of one kind after those."""

MOST_ADDRESSES: Final = 1_024
"""Addresses that are remembered; with one more, the one that was quiet the longest is forgotten."""

QUIET_SECONDS: Final = 10.0
"""Without a line for so long, an address is forgotten, and what was held back is told. Its next burst is said whole
only then when it would have been anyway."""


class PeerLines:
    """
    Args:
        seconds: A clock that only goes forward.
    """

    def __init__(
        self, seconds: Callable[[], float], burst: float = BURST, per_second: float = PER_SECOND
    ) -> None:
        self._seconds = seconds
        self._burst = burst
        self._per_second = per_second
        self._quiet_seconds = max(QUIET_SECONDS, burst / per_second)
        self._rates: OrderedDict[str, tuple[LineRate, float]] = OrderedDict()
        """By address, and since when it is quiet; that which is the longest comes first."""
        self._forgotten = 0

    def admit(self, address: str, kind: str, held_back: int = 0) -> int | None:
        """
        One more line of this kind.

        Args:
            held_back: Lines that it stands for, as they were left out before.

        Returns:
            How many were held back since the last one; None if this one is to be held back, too.
        """
        rate, _ = self._rates.pop(address, (None, 0.0))
        if rate is None:
            rate = LineRate(self._seconds, self._burst, self._per_second)
            if len(self._rates) >= MOST_ADDRESSES:
                _, (oldest, _) = self._rates.popitem(last=False)
                self._forgotten += oldest.held_back
        self._rates[address] = rate, self._seconds()
        found = rate.admit(kind, held_back)
        if found is None:
            COUNTS.held_back += 1
        return found

    def untold(self, *, all_of_them: bool = False) -> list[tuple[str, int]]:
        """
        Addresses from which nothing more comes, with how many lines of theirs were left out that no later line has
        told of; the address is empty for those that were forgotten before.

        Args:
            all_of_them: Of every address: nothing more is said.
        """
        found = [("", self._forgotten)]
        self._forgotten = 0
        until = self._seconds() - self._quiet_seconds
        while self._rates:
            address = next(iter(self._rates))
            rate, since = self._rates[address]
            if since > until and not all_of_them:
                break
            del self._rates[address]
            found.append((address, rate.held_back))
        return [(address, count) for address, count in found if count]
