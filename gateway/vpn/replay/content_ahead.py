"""
How much content a replay keeps ahead of its endpoint's consumers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gateway.core.model import CONTENT, Row

ROW_BYTES: Final = 200
"""What a message takes beside its content, about."""


def held_bytes(row: Row) -> int:
    """What a message takes while it is held."""
    return len(row[CONTENT]) + ROW_BYTES


class Kept(Protocol):
    """What is kept until it is handed out."""

    def __len__(self) -> int:
        """Messages."""

    @property
    def size_bytes(self) -> int:
        """Their content; each is looked at."""


class ContentAhead:
    """
    Nothing is counted as messages are handed out: what was kept is added up, and looked at anew where that is too much.

    Args:
        most_bytes: Of which there may be so much now.
    """

    __slots__ = ("_kept", "_looked_at", "_most_bytes", "_size_bytes")

    def __init__(self, kept: Kept, most_bytes: Callable[[], int]) -> None:
        self._kept = kept
        self._most_bytes = most_bytes
        self._size_bytes = 0
        """At most so much is kept."""
        self._looked_at = 0
        """Messages that were kept at the last look, which found too much; 0: it did not."""

    def added(self, messages: int, size_bytes: int) -> None:
        """So many are kept, too, with so much content."""
        self._size_bytes += size_bytes + messages * ROW_BYTES

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be kept for now."""
        most = self._most_bytes()
        if self._size_bytes < most:
            return False
        count = len(self._kept)
        if self._looked_at and self._looked_at * 3 < count * 4:
            return True  # too few have gone since to look again
        self._size_bytes = self._kept.size_bytes + count * ROW_BYTES
        self._looked_at = count if self._size_bytes >= most else 0
        return self._looked_at > 0
