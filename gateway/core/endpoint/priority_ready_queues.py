"""
The lanes of an endpoint that delivers by priority: one for each, and the highest that has something goes first.

Theory of operation. Messages of one priority are a ``Lane`` of their own, so each keeps the order of publishing, its
window and its paging; the store keeps the priority beside the reference, and pages by it. What is handed out comes
from one lane at a time, in rising ids. A lane is passed over only when nothing of it is left in the store either: while
a page of it is on its way, lower ones wait.

Invariant: ``_noted`` has the priority of each id that is in no lane yet, or not now: what awaits a commit or a replay,
and what flows hold. All others are where their priority says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

from amqp_ext.message.priority import HIGHEST, LOWEST
from gateway.core.endpoint.ready_queue import SELECTOR_WINDOW, Candidates, Lane
from gateway.core.model import Row


class PriorityLanes:
    __slots__ = ("_by_priority", "_lanes", "_noted")

    def __init__(self, window: int, beyond: int) -> None:
        """
        Args:
            window: Ids of each priority kept in memory.
            beyond: The newest id that the store knows, whatever its priority.
        """
        self._by_priority = [
            Lane(window, beyond, priority=priority) for priority in range(LOWEST, HIGHEST + 1)
        ]
        self._lanes = self._by_priority[::-1]
        """In the order of their turns."""
        self._noted: dict[int, int] = {}

    # --- as one lane -------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """References wait in the store."""
        return any(lane.has_more for lane in self._lanes)

    @property
    def ready(self) -> int:
        """How many ids are ready to be peeked at, about."""
        return next((lane.ready for lane in self._lanes if lane.ready), 0)

    @property
    def front(self) -> list[int]:
        return list(chain.from_iterable(lane.front for lane in self._lanes))

    @property
    def recent(self) -> list[int]:
        return list(chain.from_iterable(lane.recent for lane in self._lanes))

    @property
    def returned(self) -> list[int]:
        return list(chain.from_iterable(lane.returned for lane in self._lanes))

    @property
    def members(self) -> set[int] | None:
        """The ready ids in memory, while a flow with a selector is bound."""
        found = [lane.members for lane in self._lanes if lane.members is not None]
        return set().union(*found) if found else None

    # --- references come ---------------------------------------------------------------------------------------

    def note(self, ids: Sequence[int], priorities: Sequence[int]) -> None:
        """The priorities of messages that are to be added."""
        self._noted.update(zip(ids, priorities, strict=True))

    def add_committed(self, ids: Sequence[int]) -> None:
        """References of these ids (rising, newer than all before, noted) are durable."""
        self._sort(ids, Lane.add_committed)

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place among those of its priority."""
        self._sort(ids, Lane.give_back)

    def place(self, message_id: int) -> None:
        """A reference became durable (noted) that may belong among older ones of its priority."""
        self._by_priority[self._noted.pop(message_id)].place(message_id)

    def _sort(self, ids: Iterable[int], add: Callable[[Lane, list[int]], None]) -> None:
        found: dict[int, list[int]] = {}
        for i in ids:
            found.setdefault(self._noted.pop(i), []).append(i)
        for priority, those in found.items():
            add(self._by_priority[priority], those)

    def short_lane(self, page_rows: int, searching: Sequence[Candidates]) -> Lane | None:
        """
        The lane to be read from the store now: the highest that is not at its end, when its front runs low. A flow with
        a selector may have looked at all that is known of it: then, within reason, more is read, or the next is.
        """
        for turn, lane in enumerate(self._lanes):
            is_searching = any(not any(candidates.lanes[: turn + 1]) for candidates in searching)
            if lane.has_more and len(lane.front) < (SELECTOR_WINDOW if is_searching else page_rows):
                return lane
            if not is_searching and (lane.has_more or lane.ready):
                return None
        return None

    def forget(self, newest: int) -> None:
        """What is known is void: all of it is read from the store anew, where ``newest`` is the last that can be."""
        self._noted.clear()
        for lane in self._lanes:
            lane.forget(newest)

    # --- references go -----------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids, at most ``limit``: all of one priority, rising."""
        for lane in self._lanes:
            ids = lane.peek(limit)
            if ids or lane.has_more:
                return ids
        return []

    def take(self, rows: Sequence[Row]) -> None:
        """Messages of one priority are handed to a flow: the next ones, as ``peek`` named them, or selected."""
        first = rows[0][0]
        lane = next(lane for lane in self._lanes if _holds(lane, first))
        assert lane.priority is not None
        lane.take(rows)
        self._noted.update(zip((row[0] for row in rows), repeat(lane.priority), strict=False))

    def settled(self, ids: Iterable[int]) -> None:
        """Messages that a flow held are gone for good."""
        for i in ids:
            self._noted.pop(i, None)

    # --- selectors ---------------------------------------------------------------------------------------------

    def search(self) -> Candidates:
        """A flow with a selector is to look at everything that is ready, and at what becomes so."""
        return Candidates([lane.open_search() for lane in self._lanes])

    def candidates_of(self, candidates: Candidates, limit: int) -> list[int]:
        """
        The next ready ids that a flow with a selector has not looked at, at most ``limit``: of one priority, rising.
        None while more of a higher priority is to be read first.
        """
        for lane, search in zip(self._lanes, candidates.lanes, strict=True):
            assert lane.members is not None
            ids = candidates.next_of(search, lane.members, limit)
            if ids or (lane.has_more and len(lane.front) < SELECTOR_WINDOW):
                return ids
        return []

    def end_search(self, candidates: Candidates) -> None:
        """The flow is gone, or looks anew."""
        for lane, search in zip(self._lanes, candidates.lanes, strict=True):
            lane.close_search(search)

    def stop_searching(self) -> None:
        """No flow with a selector is left, perhaps."""
        for lane in self._lanes:
            lane.stop_searching()


def _holds(lane: Lane, message: int) -> bool:
    """Whether a message that is to be taken is one of the lane's."""
    if lane.members is not None:
        return message in lane.members
    front: Sequence[int] | deque[int] = lane.front
    return bool((lane.returned and lane.returned[0] == message) or (front and front[0] == message))
