"""
The ready queues of an endpoint that delivers by priority: one for each, and the highest that has something goes first.

Theory of operation. Messages of one priority are a ``ReadyQueue`` of their own, so each keeps the order of publishing,
its window and its paging; a message names a route that has its priority, and pages go by routes. What is handed out
comes from one queue at a time, in rising ids. A queue is passed over only when nothing of it is left in the store
either: while a page of it is on its way, lower ones wait.

Invariant: ``_noted`` has the priority of each id that is in no queue yet, or not now: what awaits a commit or a replay,
and what flows hold. All others are where their priority says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, repeat

from amqp_ext.message.priority import HIGHEST, LOWEST
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.ready_queue import SELECTOR_WINDOW, Candidates, ReadyQueue


class PriorityReadyQueues:
    __slots__ = ("_by_priority", "_noted", "_queues")

    def __init__(self, window: int, parts: Mapping[int, Cursor]) -> None:
        """
        Args:
            window: Ids of each priority kept in memory.
            parts: The endpoint's cursor, by priority.
        """
        self._by_priority = [
            ReadyQueue(window, parts[priority], priority=priority) for priority in range(LOWEST, HIGHEST + 1)
        ]
        self._queues = self._by_priority[::-1]
        """In the order of their turns."""
        self._noted: dict[int, int] = {}

    # --- as one queue ------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Messages wait in the store."""
        return any(queue.has_more for queue in self._queues)

    @property
    def ready(self) -> int:
        """How many ids are ready to be peeked at, about."""
        return next((queue.ready for queue in self._queues if queue.ready), 0)

    @property
    def oldest(self) -> list[int]:
        return list(chain.from_iterable(queue.oldest for queue in self._queues))

    @property
    def newest(self) -> list[int]:
        return list(chain.from_iterable(queue.newest for queue in self._queues))

    @property
    def given_back(self) -> list[int]:
        return list(chain.from_iterable(queue.given_back for queue in self._queues))

    @property
    def selectable(self) -> set[int] | None:
        """The ready ids in memory, while a flow with a selector is bound."""
        found = [queue.selectable for queue in self._queues if queue.selectable is not None]
        return set().union(*found) if found else None

    # --- messages come -----------------------------------------------------------------------------------------

    def note_priorities(self, ids: Sequence[int], priorities: Sequence[int]) -> None:
        """The priorities of messages that are to be added."""
        self._noted.update(zip(ids, priorities, strict=True))

    def has_enough(self, _ready: int) -> bool:
        """Whether more is of no use: what comes may be of a higher priority than all there is."""
        return False

    def add_committed(self, ids: Sequence[int]) -> None:
        """Messages of these ids (rising, newer than all before, noted) are durable."""
        self._sort(ids, ReadyQueue.add_committed)

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place among those of its priority."""
        self._sort(ids, ReadyQueue.give_back)

    def add_put(self, ids: Sequence[int], routed: Sequence[int]) -> None:
        """A replay has put these here (rising, noted); see ``ReadyQueue.add_put``."""
        among = set(routed)
        found: dict[int, list[int]] = {}
        for i in ids:
            found.setdefault(self._noted.pop(i), []).append(i)
        for priority, those in found.items():
            self._by_priority[priority].add_put(those, [i for i in those if i in among])

    def _sort(self, ids: Iterable[int], add: Callable[[ReadyQueue, list[int]], None]) -> None:
        found: dict[int, list[int]] = {}
        for i in ids:
            found.setdefault(self._noted.pop(i), []).append(i)
        for priority, those in found.items():
            add(self._by_priority[priority], those)

    def queue_to_read(self, page_rows: int, searching: Sequence[Candidates]) -> ReadyQueue | None:
        """
        The queue to be read from the store now: the highest that is not at its end, when its oldest ids run low. A flow
        with a selector may have looked at all that is known of it: then, within reason, more is read, or the next is.
        """
        for turn, queue in enumerate(self._queues):
            is_searching = any(not any(candidates.queues[: turn + 1]) for candidates in searching)
            if queue.has_more and len(queue.oldest) < (SELECTOR_WINDOW if is_searching else page_rows):
                return queue
            if not is_searching and (queue.has_more or queue.ready):
                return None
        return None

    def of(self, part: int) -> ReadyQueue:
        """The ready queue of one priority."""
        return self._by_priority[part]

    def forget_all(self, parts: Mapping[int, Cursor]) -> None:
        """Nothing of what was here is any more; another cursor begins."""
        self._noted.clear()
        for priority, cursor in parts.items():
            self._by_priority[priority].forget(cursor)

    def drop(self, ids: Collection[int]) -> None:
        """These are not here any more, whether they were ready or with flows."""
        for queue in self._queues:
            queue.drop(ids)
        for i in ids:
            self._noted.pop(i, None)

    def fall_asleep(self, put: Collection[int]) -> None:
        """Nobody consumes: most of what is ready need not be in memory."""
        for queue in self._queues:
            queue.fall_asleep(put)

    # --- messages go -------------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids, at most ``limit``: all of one priority, rising."""
        for queue in self._queues:
            ids = queue.peek(limit)
            if ids or queue.has_more:
                return ids
        return []

    def hand_out(self, ids: Sequence[int]) -> None:
        """Messages of one priority are handed to a flow: the next ones, as ``peek`` named them, or selected."""
        queue = next(queue for queue in self._queues if _holds(queue, ids[0]))
        assert queue.priority is not None
        queue.hand_out(ids)
        self._noted.update(zip(ids, repeat(queue.priority), strict=False))

    def by_part(self, ids: list[int]) -> dict[int, list[int]]:
        """
        Rising ids of messages that flows hold, or transactions, by the part of the cursor that they are in. What was
        dropped meanwhile is in none.
        """
        found: dict[int, list[int]] = {}
        for i in ids:
            priority = self._noted.get(i)
            if priority is not None:
                found.setdefault(priority, []).append(i)
        return found

    def settled(self, ids: Iterable[int]) -> None:
        """Messages that a flow held are gone for good."""
        for i in ids:
            self._noted.pop(i, None)

    # --- selectors ---------------------------------------------------------------------------------------------

    def search(self) -> Candidates:
        """A flow with a selector is to look at everything that is ready, and at what becomes so."""
        return Candidates([queue.open_search() for queue in self._queues])

    def candidates_of(self, candidates: Candidates, limit: int) -> list[int]:
        """
        The next ready ids that a flow with a selector has not looked at, at most ``limit``: of one priority, rising.
        None while more of a higher priority is to be read first.
        """
        for queue, search in zip(self._queues, candidates.queues, strict=True):
            assert queue.selectable is not None
            ids = candidates.next_of(search, queue.selectable, limit)
            if ids or (queue.has_more and len(queue.oldest) < SELECTOR_WINDOW):
                return ids
        return []

    def end_search(self, candidates: Candidates) -> None:
        """The flow is gone, or looks anew."""
        for queue, search in zip(self._queues, candidates.queues, strict=True):
            queue.close_search(search)

    def stop_searching(self) -> None:
        """No flow with a selector is left, perhaps."""
        for queue in self._queues:
            queue.stop_searching()


def _holds(queue: ReadyQueue, message: int) -> bool:
    """Whether a message that is to be taken is one of the queue's."""
    if queue.selectable is not None:
        return message in queue.selectable
    oldest, given_back = queue.oldest, queue.given_back
    return bool((given_back and given_back[0] == message) or (oldest and oldest[0] == message))
