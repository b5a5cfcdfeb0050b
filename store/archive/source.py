"""
The replay log as the archiver reads it, from a gateway over AMQP or from a gateway's file; and ranges of ids.
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
    Ids ``first`` to ``last``, both included, of one generation of the log. Empty if last < first.

    A range names ids, not messages: ids of messages that do not match a topic pattern, or were never logged, are gaps.
    """

    first: int
    last: int
    generation: int | None
    taken_below: tuple[int, ...] = ()
    """For each retention rule that had removed messages from the log when this was made: the id below which it had."""

    def lost_since(self, taken_below: Sequence[int]) -> bool:
        """
        Whether retention rules have removed messages with these ids since.

        Args:
            taken_below: The present values of ``taken_below``. Either list may lack rules that removed messages before
                the log's beginning only, as long as the log reaches down to ``first``.
        """
        # Each value only grows: the sum stays the same if none has grown.
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
    """Tells again and again which ids a log has; for one thread. Keeps a connection open between two questions."""

    def extent(self) -> IdRange:
        """
        The ids that the log holds; last < first if there are none.

        Raises:
            LogUnavailable: The log is unavailable, also at a second try.
        """

    def close(self) -> None:
        """Close the connection or the file; the next question opens it again."""


class ArchivableLog(Protocol):
    """A log whose messages can be read bit for bit as they are stored or delivered."""

    def watch(self) -> LogWatch:
        """Start to watch which ids the log has."""

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """
        The logged messages of a range in order: batches with all columns, and the bytes of each message.

        Raises:
            DataLoss: The log no longer holds the range.
            LogUnavailable: The log became unavailable.
        """
