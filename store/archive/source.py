"""
The replay log that is archived, as the archiver asks it: a gateway over AMQP, or a gateway's file; and ranges of its
ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class IdRange:
    """
    Ids ``first`` to ``last``, both included, of one generation of the log. Empty when last < first.

    A range names ids, not messages: a topic pattern, or a message that was never logged, leaves gaps.
    """

    first: int
    last: int
    generation: int | None
    taken_below: tuple[int, ...] = ()
    """For each rule of retention that took messages out between others by the time of this: below which id it did."""

    def lost_since(self, taken_below: Sequence[int]) -> bool:
        """
        Whether rules of retention took messages out of these ids since.

        Args:
            taken_below: The same as ``taken_below`` now. What a rule took out before the log's beginning may be left
                out of either, as long as the log reaches down to ``first``.
        """
        # Each only ever grows: their sum is the same where none has.
        return self._taken(taken_below) > self._taken(self.taken_below)

    def _taken(self, taken_below: Sequence[int]) -> int:
        return sum(min(max(below - self.first, 0), self.last - self.first + 1) for below in taken_below)

    def split(self, parts: int) -> list[IdRange]:
        """At most ``parts`` adjoining ranges of nearly equal width; an empty range stays one."""
        width = self.last - self.first + 1
        count = max(1, min(parts, width))
        edges = [self.first + width * part // count for part in range(count + 1)]
        return [IdRange(low, high - 1, self.generation, self.taken_below) for low, high in pairwise(edges)]


class LogWatch(Protocol):
    """Tells again and again where a log stands; for one thread. It keeps a connection open between two questions."""

    def extent(self) -> IdRange:
        """
        The ids the log holds; last < first when there are none.

        Raises:
            LogUnavailable: It is unavailable, also after one new try.
        """

    def close(self) -> None:
        """Let go of connection or file; the next question opens them anew."""


class ArchivableLog(Protocol):
    """A log whose messages can be had as they are stored or delivered, bit for bit."""

    def watch(self) -> LogWatch:
        """Begin to ask where it stands."""

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """
        The logged messages of a range in order: all columns, and each one's bytes.

        Raises:
            DataLoss: The log no longer holds the range.
            LogUnavailable: It went away.
        """
