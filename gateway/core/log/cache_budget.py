"""
The bytes that the message caches of a gateway may hold together, however many Message VPNs it has.

Invariant: once a cache has taken something, all of them hold no more than the limit; what goes is the oldest of the
largest one, so that a busy Message VPN takes room from nobody who has less.
"""

from __future__ import annotations

from typing import Protocol


class BudgetedCache(Protocol):
    """A cache that gives back what it is asked for."""

    @property
    def size_bytes(self) -> int:
        """What it holds."""

    def shrink_by(self, size_bytes: int) -> int:
        """Give up its oldest, ``size_bytes`` or a few more, or all that it has; the bytes that were freed."""


class CacheBudget:
    """
    Args:
        limit_bytes: What all caches may hold together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._caches: dict[BudgetedCache, None] = {}

    @property
    def used_bytes(self) -> int:
        """What all caches hold."""
        return self._used_bytes

    def join(self, cache: BudgetedCache) -> None:
        """One more cache, with nothing in it."""
        self._caches[cache] = None

    def leave(self, cache: BudgetedCache) -> None:
        """A cache is gone, with all that it holds. Twice does no harm."""
        if cache in self._caches:
            del self._caches[cache]
            self._used_bytes -= cache.size_bytes

    def took(self, size_bytes: int) -> None:
        """A cache has taken so many bytes; it may have to give them up at once."""
        self._used_bytes += size_bytes
        if self._used_bytes > self._limit_bytes:
            self._make_room()

    def gave_back(self, size_bytes: int) -> None:
        """A cache has so many bytes less, of its own accord."""
        self._used_bytes -= size_bytes

    def _make_room(self) -> None:
        # An eighth more than needed goes, so that lists are moved once for many publications.
        target = self._limit_bytes - self._limit_bytes // 8
        while self._used_bytes > target:
            largest = max(self._caches, key=_size_of)
            self._used_bytes -= largest.shrink_by(self._used_bytes - target)


def _size_of(cache: BudgetedCache) -> int:
    return cache.size_bytes
