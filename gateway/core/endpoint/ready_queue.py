"""
A lane: the ready references of an endpoint, in order, of which only a window is in memory.

What lies in it is, in order: messages given back by a consumer (``returned``), then ``front``, the oldest ready ids
known here, then what only the store knows, then ``recent``, the newest committed ids. Only a window of ids is in
memory, however deep the lane is; the rest is paged in from the store as the front is consumed. An ordinary endpoint
has one lane; one that delivers by priority has one for each (``priority_lanes``).

Invariants: a committed reference that no flow holds is in exactly one of returned, front, recent, or the store beyond
``horizon``; ids leave in rising order but for returned ones, which keep their place.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice

from gateway.core.model import Row

SELECTOR_WINDOW = 100_000
"""Ready ids kept in memory in search of what a selector wants: about 10 MB. What lies deeper is seen once others have
taken what is in front of it."""

SLACK = 256
"""Ids in a front that are gone, whatever else is in it: below this nobody clears them away."""


class Candidates:
    """Ready ids that a flow with a selector has not looked at yet, lane by lane in the order they are looked at."""

    __slots__ = ("_last", "lanes")

    def __init__(self, lanes: Sequence[deque[int]]) -> None:
        self.lanes = lanes
        self._last = lanes[0]

    def __bool__(self) -> bool:
        return any(self.lanes)

    def next_of(self, lane: deque[int], members: set[int], limit: int) -> list[int]:
        """The next ids of one lane that are still ready, at most ``limit``, rising."""
        self._last = lane
        found: set[int] = set()
        while lane and len(found) < limit:
            i = lane.popleft()
            if i in members:
                found.add(i)
        return sorted(found)

    def put_back(self, ids: Sequence[int]) -> None:
        """Of the ids that were given last, these are to be looked at again."""
        self._last.extendleft(reversed(ids))


@dataclass(slots=True)
class Lane:
    window: int
    beyond: int = 0
    """The newest committed id that only the store knows; nothing is out there when ``horizon`` has reached it."""
    horizon: int = 0
    """Every committed reference up to this id is, or was, in memory."""
    priority: int | None = None
    """Of the messages in it; None where the endpoint does not look at them."""
    front: deque[int] = field(default_factory=deque)
    recent: deque[int] = field(default_factory=deque)
    returned: list[int] = field(default_factory=list)
    members: set[int] | None = None
    """The ready ids in memory, while a flow with a selector is bound: others in ``front`` are gone."""
    searches: list[deque[int]] = field(default_factory=list)
    """What each flow with a selector has yet to look at, rising."""

    # --- references come ------------------------------------------------------------------------------------

    def note(self, ids: Sequence[int], priorities: Sequence[int]) -> None:
        """Nobody looks at priorities here."""

    @property
    def has_more(self) -> bool:
        """Older references than ``recent`` wait in the store."""
        return self.horizon < self.beyond

    @property
    def ready(self) -> int:
        """How many ids are ready to be peeked at, about."""
        return len(self.front) + len(self.returned)

    def add_committed(self, ids: Sequence[int]) -> None:
        """References of these ids (rising, newer than all before) are durable."""
        if self.horizon >= self.beyond and not self.recent and self._fits(len(ids), self.window):
            self._append(ids)
            self.horizon = ids[-1]
            return
        recent = self.recent
        recent.extend(ids)
        excess = len(recent) - self.window
        if excess > 0:
            # The store has them: they come back by pages.
            for _ in range(excess - 1):
                recent.popleft()
            self.beyond = recent.popleft()

    def short_lane(self, page_rows: int, searching: Sequence[Candidates]) -> Lane | None:
        """
        The lane whose front runs low while older references wait in the store, if there is one.

        Args:
            searching: Of the flows with selectors that can take messages.
        """
        if self.horizon >= self.beyond:
            return None
        if self.members is None:
            return self if len(self.front) < page_rows else None
        # What no selector wants stays in front: look past it, within reason.
        is_searching = not all(searching)
        return self if len(self.front) < (SELECTOR_WINDOW if is_searching else page_rows) else None

    def add_page(self, ids: Sequence[int], end: int = sys.maxsize) -> None:
        """
        References read from the store, rising, all those after ``horizon`` as far as the page went; none means that
        the store has no more below ``end``. What was put there while the page was read may lie behind that.
        """
        # What is newer than ``beyond`` is in memory, or we will be told of it: the store may be ahead of us.
        known = bisect_right(ids, self.beyond)
        self._append(ids[:known])
        self.horizon = ids[-1] if ids and known == len(ids) else min(self.beyond, end - 1)
        self._join()

    def _join(self) -> None:
        """Once all older references are in memory, the newest are simply the end of the front."""
        if self.horizon >= self.beyond and self.recent and self._fits(len(self.recent), 2 * self.window):
            self._append(self.recent)
            self.horizon = max(self.horizon, self.recent[-1])
            self.recent.clear()

    def _fits(self, count: int, window: int) -> bool:
        """Flows with a selector look at nothing else: what none of them wants must not keep the newest out."""
        most = window if self.members is None else max(window, SELECTOR_WINDOW)
        return len(self.front) + count <= most

    def _append(self, ids: Iterable[int]) -> None:
        self.front.extend(ids)
        if self.members is not None:
            self._offer(ids)

    def _offer(self, ids: Iterable[int]) -> None:
        """Ids that became ready: flows with a selector have yet to look at them."""
        assert self.members is not None
        self.members.update(ids)
        for search in self.searches:
            search.extend(ids)

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place in the order."""
        back = list(ids)
        self.returned += back
        self.returned.sort()
        if self.members is not None:
            self.members.update(back)
            back.sort()
            for search in self.searches:
                _merge(search, back)

    def place(self, message_id: int) -> None:
        """A reference became durable that may belong among older ones; no page was read since it was ordered."""
        if message_id <= self.horizon or not (self.has_more or self.recent):
            self.give_back([message_id])
        elif message_id > self.beyond:
            insort(self.recent, message_id)
        # Else it is one of those that the store alone knows, and comes with its page.

    def forget(self, newest: int) -> None:
        """What is known is void: all of it is read from the store anew, where ``newest`` is the last that can be."""
        self.horizon, self.beyond = 0, newest
        self.front.clear()
        self.recent.clear()
        self.returned.clear()
        if self.members is not None:
            self.members.clear()
        for search in self.searches:
            search.clear()

    # --- references go --------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids in order, at most ``limit``. Returned ones come on their own, when it is their turn."""
        if self.members is not None:
            return self._peek_members(limit)
        if self.returned:
            if not self.front:
                return self.returned[:limit]
            # A returned message may belong behind others that were never handed out (two consumers).
            before = bisect_left(self.returned, self.front[0])
            if before:
                return self.returned[: min(before, limit)]
            boundary = self.returned[0]
            return [i for i in islice(self.front, limit) if i < boundary]
        if self.horizon >= self.beyond:
            self._join()
        return list(islice(self.front, limit))

    def _peek_members(self, limit: int) -> list[int]:
        if self.horizon >= self.beyond:
            self._join()
        members = self.members
        assert members is not None
        # One that was taken out of the middle and came back is in both, and no more than once among the ready.
        ready = (i for i, _ in groupby(heapq.merge(self.returned, self.front)))
        return list(islice((i for i in ready if i in members), limit))

    def take(self, rows: Sequence[Row]) -> None:
        """Messages are handed to a flow: the next ones, as ``peek`` named them, or selected."""
        if self.members is not None:
            self._take_members([row[0] for row in rows])
        elif self.returned and self.returned[0] == rows[0][0]:
            del self.returned[: len(rows)]
        else:
            popleft = self.front.popleft
            for _ in rows:
                popleft()

    def _take_members(self, ids: Sequence[int]) -> None:
        members = self.members
        assert members is not None
        members.difference_update(ids)
        if self.returned:
            self.returned = [i for i in self.returned if i in members]
        while self.front and self.front[0] not in members:
            self.front.popleft()
        if len(self.front) > 2 * len(members) + SLACK:
            self.front = deque(i for i in self.front if i in members)

    def settled(self, ids: Iterable[int]) -> None:
        """Nothing is known here of what flows hold."""

    # --- selectors --------------------------------------------------------------------------------------------

    def search(self) -> Candidates:
        """A flow with a selector is to look at everything that is ready, and at what becomes so."""
        return Candidates((self.open_search(),))

    def open_search(self) -> deque[int]:
        if self.members is None:
            self.members = {*self.front, *self.returned}
            self._join()
        search = deque(sorted(self.members))
        self.searches.append(search)
        return search

    def candidates_of(self, candidates: Candidates, limit: int) -> list[int]:
        """The next ready ids that a flow with a selector has not looked at, at most ``limit``, rising."""
        assert self.members is not None
        return candidates.next_of(candidates.lanes[0], self.members, limit)

    def end_search(self, candidates: Candidates) -> None:
        """The flow is gone, or looks anew."""
        self.close_search(candidates.lanes[0])

    def close_search(self, search: deque[int]) -> None:
        # By identity: one deque may hold what another does.
        self.searches = [other for other in self.searches if other is not search]

    def stop_searching(self) -> None:
        """No flow with a selector is left: the front is what it says again."""
        members = self.members
        if members is not None and not self.searches:
            members.difference_update(self.returned)
            self.front = deque(i for i in self.front if i in members)
            self.members = None


def _merge(search: deque[int], back: Sequence[int]) -> None:
    """Rising ids into others. Mostly what comes back is older than all that was not looked at."""
    if not back:
        return
    if not search or back[0] > search[-1]:
        search.extend(back)
    elif back[-1] < search[0]:
        search.extendleft(reversed(back))
    else:
        merged = sorted((*search, *back))
        search.clear()
        search.extend(merged)
