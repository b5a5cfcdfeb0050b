"""
The newest committed messages of a Message VPN, in memory. The caches of all Message VPNs share one byte budget.

Ids are consecutive, so a message is found by subtraction and a run of messages is a slice. Consumers and log readers
that keep up get their messages from here; those that fall behind read pages from the store. Invariant: the message
cache ends with the last committed id, or the last id whose commit failed, and begins no earlier than its budget allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from gateway.core.model import CONTENT, ID, Row, with_content

ROW_OVERHEAD_BYTES = 220
"""The memory that CPython needs for a row in addition to its content (tuple, two ints, bytes header). It is counted so
that the budget also holds for tiny messages."""


class MessageCache:
    """
    Args:
        budget: Shared with the caches of other Message VPNs; ``close`` leaves it.
        next_id: One past the last committed id.
    """

    def __init__(self, budget: CacheBudget, next_id: int) -> None:
        self._budget = budget
        self._rows: list[Row] = []
        self._runs: deque[tuple[int, int]] = deque()
        self.size_bytes = 0
        """The memory of all contents and rows."""
        self.first_id = next_id
        """The oldest cached id; equal to ``next_id`` when the cache is empty."""
        self.next_id = next_id
        """One past the last id that was committed or whose commit failed."""
        budget.join(self)

    def __len__(self) -> int:
        return len(self._rows)

    def extend(self, rows: list[Row], content_bytes: int) -> None:
        """Add newly committed rows; ``content_bytes`` is the sum of their contents."""
        self._rows += rows
        self.next_id = rows[-1][ID] + 1
        size = content_bytes + ROW_OVERHEAD_BYTES * len(rows)
        self._runs.append((len(rows), size))
        self.size_bytes += size
        self._budget.took(size)

    def skip(self, next_id: int) -> None:
        """Ids below ``next_id`` were given out, and their commit failed."""
        self._rows.clear()
        self._runs.clear()
        size, self.size_bytes = self.size_bytes, 0
        self._budget.gave_back(size)
        self.first_id = self.next_id = next_id

    def erased(self, markers: Mapping[int, Row]) -> None:
        """Replace the contents of these messages by the markers."""
        change = 0
        for message_id, marker in markers.items():
            place = message_id - self.first_id
            if 0 <= place < len(self._rows):
                row = self._rows[place]
                self._rows[place] = with_content(row, marker)
                change += len(marker[CONTENT]) - len(row[CONTENT])
        if change:
            # The change is added to the newest run, so that the sizes of the other runs stay nearly correct.
            count, size = self._runs[-1]
            self._runs[-1] = (count, size + change)
            self.size_bytes += change
            self._budget.took(change)

    def close(self) -> None:
        """Leave the budget. The cache is not used any more."""
        self._budget.leave(self)

    def shrink_by(self, size_bytes: int) -> int:
        """Drop the oldest publications, of ``size_bytes`` or a little more. Return the freed bytes."""
        return self._give_up(lambda dropped, freed: freed < size_bytes)

    def drop_below(self, message_id: int) -> None:
        """Drop the publications whose ids are all below this one."""
        first_id, runs = self.first_id, self._runs
        freed = self._give_up(lambda dropped, freed: first_id + dropped + runs[0][0] <= message_id)
        self._budget.gave_back(freed)

    def _give_up(self, goes: Callable[[int, int], bool]) -> int:
        """Drop the oldest publications while ``goes`` is true for the messages and bytes dropped so far."""
        dropped = freed = 0
        while self._runs and goes(dropped, freed):
            count, size = self._runs.popleft()
            dropped += count
            freed += size
        del self._rows[:dropped]
        self.first_id += dropped
        self.size_bytes -= freed
        return freed

    def since(self, first_id: int, limit: int) -> Sequence[Row]:
        """At most ``limit`` rows from ``first_id`` on; it must be held (``first_id >= self.first_id``)."""
        start = first_id - self.first_id
        return self._rows[start : start + limit]

    def pick(self, ids: Sequence[int]) -> list[Row]:
        """The rows of ``ids`` (rising), as far as they are held without a break from the first on."""
        first = self.first_id
        if ids[0] < first:
            return []
        rows = self._rows
        count = len(ids)
        if ids[-1] - ids[0] == count - 1:
            return rows[ids[0] - first : ids[0] - first + count]
        return [rows[i - first] for i in ids]


class CacheBudget:
    """
    The byte budget that all message caches of a gateway share, however many Message VPNs it has.

    Invariant: after a cache has grown, all caches together hold no more than the limit. The oldest messages of the
    largest cache are dropped first, so that a busy Message VPN takes no room from a smaller cache.

    Args:
        limit_bytes: The most bytes of all caches together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        """The bytes of all caches."""
        self._caches: dict[MessageCache, None] = {}

    def join(self, cache: MessageCache) -> None:
        """Add an empty cache."""
        self._caches[cache] = None

    def leave(self, cache: MessageCache) -> None:
        """Remove a cache and its bytes. A second call does nothing."""
        if cache in self._caches:
            del self._caches[cache]
            self.used_bytes -= cache.size_bytes

    def took(self, size_bytes: int) -> None:
        """A cache has grown by ``size_bytes``. It may have to drop messages immediately."""
        self.used_bytes += size_bytes
        if self.used_bytes > self._limit_bytes:
            self._make_room()

    def gave_back(self, size_bytes: int) -> None:
        """A cache has dropped ``size_bytes`` by itself."""
        self.used_bytes -= size_bytes

    def _make_room(self) -> None:
        # Drop an eighth more than needed, so that lists are moved once for many publications.
        target = self._limit_bytes - self._limit_bytes // 8
        while self.used_bytes > target:
            largest = max(self._caches, key=lambda cache: cache.size_bytes)
            self.used_bytes -= largest.shrink_by(self.used_bytes - target)
