"""
A cursor: which messages an endpoint has settled. The cursor advances past settled messages.

A cursor consists of a floor (the cursor has passed every id up to it) and disjoint ranges of ids above the floor that
it has passed, too. It may pass ids that were never the endpoint's, so a range reaches from one unsettled message to the
next. Settling in order moves the floor. A consumer that does not settle a message leaves one range after it, however
many later messages are settled. An endpoint has one cursor, or one for each priority if it delivers by priority. An
endpoint replay has its own cursor over the log.

``open`` has the ids of the endpoint's unsettled messages that are in memory: all of them from the floor up to the last
one in ``open``. Invariants: ranges rise, and touch neither each other nor the floor; no open id is in a range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class CursorChange(NamedTuple):
    """The changes of a cursor since the last call of ``change``, to be written to the store."""

    floor: int | None
    """None where the floor has not moved."""
    ranges: dict[int, int | None]
    """Last id of each range by its first id; None for a range that no longer exists."""


class Cursor:
    __slots__ = (
        "_changed",
        "_firsts",
        "_lasts",
        "_written_floor",
        "floor",
        "messages",
        "open",
        "saved_bytes",
        "saved_messages",
        "size_bytes",
    )

    def __init__(
        self,
        floor: int,
        ranges: Iterable[tuple[int, int]] = (),
        messages: int = 0,
        size_bytes: int = 0,
        saved_messages: int = 0,
        saved_bytes: int = 0,
    ) -> None:
        """
        Args:
            ranges: (first, last) of the ids passed above the floor, in any order; they may touch and overlap.
            messages: How many unsettled messages the endpoint has.
            size_bytes: The size of their content.
            saved_messages: How many unsettled messages the store has counted.
            saved_bytes: The size of their content in the store's count.
        """
        self.floor = floor
        self._written_floor = floor
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._changed: dict[int, int | None] = {}
        self.open: list[int] = []
        self.messages = messages
        self.size_bytes = size_bytes
        self.saved_messages = saved_messages
        """The store's count once all pending effects are written."""
        self.saved_bytes = saved_bytes
        written = dict(ranges)
        for first, last in written.items():
            self._changed.setdefault(first, None)
            self.add(first, last)
        self._changed = {first: last for first, last in self._changed.items() if written.get(first) != last}

    # --- what it has passed ------------------------------------------------------------------------------------------

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(first, last) of the ids passed above the floor, rising."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def is_done(self, message_id: int) -> bool:
        """Whether the cursor has passed an id: the message is settled, or never was the endpoint's."""
        if message_id <= self.floor:
            return True
        at = bisect_right(self._firsts, message_id) - 1
        return at >= 0 and message_id <= self._lasts[at]

    def has_done_after(self, message_id: int) -> bool:
        """Whether the cursor has passed anything from this id on."""
        return message_id <= (self._lasts[-1] if self._lasts else self.floor)

    def next_open(self, message_id: int) -> int:
        """The first id from this one on that the cursor has not passed."""
        message_id = max(message_id, self.floor + 1)
        at = bisect_right(self._firsts, message_id) - 1
        return self._lasts[at] + 1 if at >= 0 and message_id <= self._lasts[at] else message_id

    def next_range(self, message_id: int, shortest: int) -> int | None:
        """Where the next range of at least ``shortest`` ids begins after an id; None when there is none."""
        for at in range(bisect_right(self._firsts, message_id), len(self._firsts)):
            if self._lasts[at] - self._firsts[at] + 1 >= shortest:
                return self._firsts[at]
        return None

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(first, last) of the ids from ``first`` to ``last`` that the cursor has not passed, rising."""
        first = max(first, self.floor + 1)
        at = bisect_left(self._lasts, first)
        while first <= last:
            if at == len(self._firsts) or self._firsts[at] > last:
                yield first, last
                return
            if first < self._firsts[at]:
                yield first, self._firsts[at] - 1
            first = self._lasts[at] + 1
            at += 1

    # --- how it advances ---------------------------------------------------------------------------------------------

    def add(self, first: int, last: int) -> None:
        """Pass everything from ``first`` to ``last``: ranges that touch are joined, and the floor moves."""
        firsts, lasts = self._firsts, self._lasts
        if first <= self.floor + 1:
            if last <= self.floor:
                return
            self.floor = last
            gone = 0
            while gone < len(firsts) and firsts[gone] <= self.floor + 1:
                self._changed[firsts[gone]] = None
                self.floor = max(self.floor, lasts[gone])
                gone += 1
            del firsts[:gone], lasts[:gone]
            return
        start = bisect_left(lasts, first - 1)
        stop = start
        while stop < len(firsts) and firsts[stop] <= last + 1:
            first, last = min(first, firsts[stop]), max(last, lasts[stop])
            self._changed[firsts[stop]] = None
            stop += 1
        firsts[start:stop] = [first]
        lasts[start:stop] = [last]
        self._changed[first] = last

    def has_all(self, ids: list[int]) -> bool:
        """Whether these are open, rise, and no other open message is between them."""
        at = bisect_left(self.open, ids[0]) if ids else 0
        return self.open[at : at + len(ids)] == ids

    def is_open(self, message_id: int) -> bool:
        """Whether this message is unsettled, and in memory."""
        return self.has_all([message_id])

    def count(self, messages: int, size_bytes: int) -> None:
        """Add to the count of unsettled messages; negative for messages that are settled."""
        self.messages += messages
        self.size_bytes += size_bytes

    def load(self, ids: Iterable[int]) -> None:
        """These messages are now in memory. Their ids rise, and are higher than all in ``open``."""
        self.open += ids

    def unload(self, above: int) -> None:
        """Open messages above this id are no longer in memory."""
        del self.open[bisect_right(self.open, above) :]

    def settle(self, ids: Sequence[int], *, is_run: bool = False) -> None:
        """
        Advance past settled messages. The ids rise, and are in ``open``.

        Args:
            is_run: ``has_all`` is true for them.
        """
        for start, stop in ((0, len(ids)),) if is_run else self._runs(ids):
            count = stop - start
            at = bisect_left(self.open, ids[start])
            del self.open[at : at + count]
            # Ids between two open messages are settled, or not the endpoint's: the range covers them.
            first = self.open[at - 1] + 1 if at else self.floor + 1
            last = self.open[at] - 1 if at < len(self.open) else ids[stop - 1]
            self.add(first, last)

    def reopen(self, ids: Sequence[int]) -> None:
        """
        Move a cursor without ranges back: these ids (rising, at least one) are open again, all others still passed.
        """
        top, self.floor = self.floor, min(self.floor, ids[0] - 1)
        for at, message_id in enumerate(ids):
            last = ids[at + 1] - 1 if at + 1 < len(ids) else top
            if message_id < last:
                self.add(message_id + 1, last)

    def settled_elsewhere(self, ids: Sequence[int], firsts: Iterable[int]) -> None:
        """
        Like ``settle``, for messages whose ranges a transaction has written already.

        Args:
            firsts: The first ids of those ranges, as ``ranges_of`` returned them then. By now there could be fewer
                ranges, because messages between them are settled.
        """
        for first in firsts:
            self._changed.setdefault(first, None)
        self.settle(ids)

    def ranges_of(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """(first, last) of the ranges that these open messages (rising) become. No range has another open id."""
        return [(ids[start], ids[stop - 1]) for start, stop in self._runs(ids)]

    def _runs(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The start and stop places of runs of ids that are neighbours in ``open``."""
        still_open, count = self.open, len(ids)
        at = bisect_left(still_open, ids[0])
        if still_open[at : at + count] == ids:
            yield 0, count
            return
        start = 0
        while start < count:
            at = bisect_left(still_open, ids[start])
            stop = start + 1
            while stop < count and still_open[at + stop - start : at + stop - start + 1] == [ids[stop]]:
                stop += 1
            yield start, stop
            start = stop

    # --- what is written --------------------------------------------------------------------------------------------

    def change(self) -> CursorChange:
        """The changes since the last call."""
        floor = self.floor if self.floor != self._written_floor else None
        self._written_floor = self.floor
        ranges, self._changed = self._changed, {}
        return CursorChange(floor, ranges)

    def saves(self, messages: int, size_bytes: int) -> tuple[int, int]:
        """The change that brings the store's counts to these values."""
        change = messages - self.saved_messages, size_bytes - self.saved_bytes
        self.saved_messages, self.saved_bytes = messages, size_bytes
        return change
