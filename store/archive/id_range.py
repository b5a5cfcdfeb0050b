"""A range of message ids of a replay log: what is asked for, planned, read and archived."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class IdRange:
    """
    Ids ``first`` to ``last``, both included, of one generation of the log. Empty when last < first.

    A range names ids, not messages: a topic pattern, or a message that was never logged, leaves gaps.
    """

    first: int
    last: int
    generation: int | None

    def split(self, parts: int) -> list[IdRange]:
        """At most ``parts`` adjoining ranges of nearly equal width; an empty range stays one."""
        width = self.last - self.first + 1
        count = max(1, min(parts, width))
        edges = [self.first + width * part // count for part in range(count + 1)]
        return [IdRange(low, high - 1, self.generation) for low, high in pairwise(edges)]
