"""
The ready queues of an endpoint: its ready messages, in order, of which only a window is in memory.

What lies in a ready queue is, in order: messages given back by a consumer (``given_back``), then ``oldest``, the oldest
ready ids known here, then what only the store knows, then ``newest``, the newest committed ids. Only a window of ids is
in memory, however deep the queue is; the rest is paged in from the store, by the endpoint's routes, as the oldest are
consumed. What a replay puts here is in ``oldest`` as well, but in no page: it came out of the log.

Invariants: a committed message that no flow holds is in exactly one of ``given_back``, ``oldest``, ``newest``, or the
store behind ``read_up_to``; ids leave in rising order but for those given back, which keep their place. What came by
routes and is, or was, in ``oldest`` is open at the cursor until it is settled.

An ordinary endpoint has one ready queue; one that delivers by priority has one for each, and the highest that has
something goes first (``PriorityReadyQueues``). Messages of one priority keep the order of publishing, their window and
their paging; a message names a route that has its priority, and pages go by routes. What is handed out comes from one
queue at a time, in rising ids. A queue is passed over only when nothing of it is left in the store either: while a page
of it is on its way, lower ones wait.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, repeat

from amqp_ext.message.fields import HIGHEST, LOWEST
from gateway.core.endpoint.cursor import Cursor
from gateway.core.model import WHOLE

SELECTOR_WINDOW = 100_000
"""Ready ids kept in memory in search of what a selector wants: about 10 MB. What lies deeper is seen once others have
taken what is in front of it."""

ASLEEP_WINDOW = 256
"""Ready ids that stay in memory of an endpoint that nobody consumes from."""

SHORT_RANGE = 4_096
"""Ids of a range that pages read across rather than leave out: the messages in it are few."""

SLACK = 256
"""Ids among the oldest that are gone, whatever else is there: below this nobody clears them away."""


class Candidates:
    """Ready ids that a flow with a selector has not looked at yet, queue by queue in the order of their turns."""

    __slots__ = ("_queues", "searches", "turn")

    def __init__(self, queues: Sequence[ReadyQueue]) -> None:
        """The flow is to look at everything that is ready, and at what becomes so."""
        self._queues = queues
        self.searches = [queue.open_search() for queue in queues]
        self.turn = 0
        """Which of the queues those are of that were given last."""

    def __bool__(self) -> bool:
        for queue, search in zip(self._queues, self.searches, strict=True):
            if search and search[0] < queue.held_at:
                return True
            if queue.is_held_up:
                return False
        return False

    def take(self, limit: int) -> list[int]:
        """
        The next ids that are still ready, at most ``limit``: of one priority, rising. None while more of a higher
        priority is to be read first.
        """
        for turn, (queue, search) in enumerate(zip(self._queues, self.searches, strict=True)):
            self.turn, selectable = turn, queue.selectable
            assert selectable is not None
            found: set[int] = set()
            held_at = queue.held_at
            while search and len(found) < limit and search[0] < held_at:
                i = search.popleft()
                if i in selectable:
                    found.add(i)
            if found or queue.is_held_up or (queue.has_more and len(queue.oldest) < SELECTOR_WINDOW):
                return sorted(found)
        return []

    @property
    def left(self) -> int:
        """How many ids of the queue that those are of that were given last are to be looked at, at most."""
        return len(self.searches[self.turn])

    def close(self) -> None:
        """The flow is gone, or looks anew."""
        for queue, search in zip(self._queues, self.searches, strict=True):
            queue.close_search(search)

    def put_back(self, ids: Sequence[int]) -> None:
        """Of the ids that were given last, these are to be looked at again."""
        self.searches[self.turn].extendleft(reversed(ids))

    def offer(self, turn: int, ids: Iterable[int]) -> None:
        """These of one of the queues were given, and are to be looked at again if they are still ready."""
        selectable = self._queues[turn].selectable
        assert selectable is not None
        _merge(self.searches[turn], sorted(i for i in ids if i in selectable))


@dataclass(slots=True)
class ReadyQueue:
    window: int
    cursor: Cursor
    stored_up_to: int = 0
    """The newest committed id that only the store knows; nothing is out there when ``read_up_to`` has reached it."""
    read_up_to: int = -1
    """Every committed message up to this id is, or was, in memory."""
    part: int = WHOLE
    """The part of the endpoint's cursor that its messages are in: their priority, where the endpoint looks at it."""
    oldest: list[int] = field(default_factory=list)
    newest: deque[int] = field(default_factory=deque)
    given_back: list[int] = field(default_factory=list)
    selectable: set[int] | None = None
    """The ready ids in memory, while a flow with a selector is bound: others in ``oldest`` are gone."""
    searches: list[deque[int]] = field(default_factory=list)
    """What each flow with a selector has yet to look at, rising."""
    held_at: int = sys.maxsize
    """What is ready from this id on is not to be given out: it waits for a message before it."""

    def __post_init__(self) -> None:
        if self.read_up_to < 0:
            self.read_up_to = self.cursor.floor

    # --- messages come --------------------------------------------------------------------------------------

    def note_priorities(self, ids: Sequence[int], priorities: Sequence[int]) -> None:
        """Nobody looks at priorities here."""

    @property
    def queues(self) -> Sequence[ReadyQueue]:
        """Those that a flow with a selector looks at."""
        return (self,)

    @property
    def has_more(self) -> bool:
        """Older messages than ``newest`` wait in the store."""
        return self.read_up_to < self.stored_up_to

    @property
    def is_held_up(self) -> bool:
        """What is behind it waits, too."""
        return self.held_at != sys.maxsize

    @property
    def _known_up_to(self) -> int:
        """What is behind messages that only the store has waits for these: of those given back, it is references."""
        return self.read_up_to if self.has_more or self.newest else sys.maxsize

    @property
    def ready(self) -> int:
        """How many ids are ready to be peeked at, about."""
        return len(self.oldest) + len(self.given_back)

    def has_enough(self, ready: int) -> bool:
        """Whether it is of no use to put more here while so many are ready: nobody chooses among them."""
        return len(self.oldest) >= ready and self.selectable is None

    def add_committed(self, ids: Sequence[int]) -> None:
        """Messages of these ids (rising, newer than all before), which came by routes, are durable."""
        if self.read_up_to >= self.stored_up_to and not self.newest and self._fits(len(ids), self.window):
            self.cursor.load(ids)
            self._append(ids)
            self.read_up_to = ids[-1]
            return
        newest = self.newest
        newest.extend(ids)
        excess = len(newest) - self.window
        if excess > 0:
            # The store has them: they come back by pages.
            for _ in range(excess - 1):
                newest.popleft()
            self.stored_up_to = newest.popleft()

    def add_put(self, ids: Sequence[int], routed: Sequence[int]) -> None:
        """
        A replay has put these here (rising, behind all that is ready).

        Args:
            routed: Those of them that came by routes: the log had not taken them.
        """
        if routed:
            self.cursor.load(routed)
        self._append(ids)

    def stored(self, newest_id: int) -> None:
        """The store has messages up to this id that nobody was told of."""
        if newest_id > (self.newest[-1] if self.newest else self.read_up_to):
            # They come behind the newest: these come back with them, by pages.
            self.newest.clear()
            self.stored_up_to = max(self.stored_up_to, newest_id)

    def read_from(self, position: int, newest_id: int) -> None:
        """What came by routes is ready from ``position`` on: everything before was put here, or is not wanted."""
        self.read_up_to = max(self.read_up_to, position - 1)
        self.stored(newest_id)

    def next_page(self, end: int) -> tuple[int, int]:
        """Which ids to read from the store: above the first, below the second; no long ranges of settled ones."""
        after = self.cursor.next_open(self.read_up_to + 1) - 1
        until = self.cursor.next_range(after, SHORT_RANGE)
        return after, max(min(end, end if until is None else until), after + 1)

    def queue_to_read(self, page_rows: int, searching: Sequence[Candidates]) -> ReadyQueue | None:
        """
        The queue to be read from the store: its oldest ids in memory run low while older messages wait in the store,
        if there is one.

        Args:
            searching: Of the flows with selectors that can take messages.
        """
        if self.read_up_to >= self.stored_up_to:
            return None
        if self.selectable is None:
            return self if len(self.oldest) < page_rows else None
        # What no selector wants stays among the oldest: look past it, within reason.
        is_searching = not all(searching)
        return self if len(self.selectable) < (SELECTOR_WINDOW if is_searching else page_rows) else None

    def add_page(self, ids: Sequence[int], position: int) -> None:
        """
        Messages read from the store, rising: all those after ``read_up_to`` below ``position``.
        """
        cursor, stored_up_to = self.cursor, self.stored_up_to
        # What is newer than ``stored_up_to`` is in memory, or we will be told of it: the store may be ahead of us.
        if ids and (ids[-1] > stored_up_to or cursor.has_done_after(ids[0])):
            is_done = cursor.is_done
            ids = [i for i in ids if i <= stored_up_to and not is_done(i)]
        self._read(ids, min(stored_up_to, position - 1))
        self._join()

    def _join(self) -> None:
        """Once all older messages are in memory, the newest are simply the end of ``oldest``."""
        if (
            self.read_up_to >= self.stored_up_to
            and self.newest
            and self._fits(len(self.newest), 2 * self.window)
        ):
            ids = list(self.newest)
            self.newest.clear()
            self._read(ids, ids[-1])

    def _read(self, ids: Sequence[int], up_to: int) -> None:
        """The next messages that came by routes, all up to an id: what waited for them is ready with them."""
        before = self.read_up_to
        self.read_up_to = max(before, up_to)
        self.cursor.load(ids)
        self.oldest += ids
        if self.selectable is not None:
            back = self.given_back
            waited = back[bisect_right(back, before) : bisect_right(back, self._known_up_to)]
            self._offer(sorted({*ids, *waited}) if waited else ids)

    def _fits(self, count: int, window: int) -> bool:
        """Flows with a selector look at nothing else: what none of them wants must not keep the newest out."""
        most = window if self.selectable is None else max(window, SELECTOR_WINDOW)
        return len(self.oldest) + count <= most

    def _append(self, ids: Sequence[int]) -> None:
        self.oldest += ids
        if self.selectable is not None:
            self._offer(ids)

    def _offer(self, ids: Sequence[int]) -> None:
        """Ids that became ready: flows with a selector have yet to look at them."""
        assert self.selectable is not None
        self.selectable.update(ids)
        for search in self.searches:
            search.extend(ids)

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place in the order."""
        back = list(ids)
        self.given_back += back
        self.given_back.sort()
        if self.selectable is not None:
            back.sort()
            del back[bisect_right(back, self._known_up_to) :]
            self.selectable.update(back)
            for search in self.searches:
                _merge(search, back)

    def of(self, part: int) -> ReadyQueue:
        """The one there is."""
        return self

    def forget_all(self, parts: Mapping[int, Cursor]) -> None:
        """See ``forget``."""
        self.forget(parts[WHOLE])

    def forget(self, cursor: Cursor) -> None:
        """Nothing of what was here is any more; another cursor begins."""
        self.cursor = cursor
        self.read_up_to = self.stored_up_to = cursor.floor
        self.oldest.clear()
        self.newest.clear()
        self.given_back.clear()
        self.held_at = sys.maxsize
        if self.selectable is not None:
            self.selectable.clear()
        for search in self.searches:
            search.clear()

    def drop(self, ids: Collection[int]) -> None:
        """These are not here any more, if they were ready."""
        gone = set(ids)
        self.oldest = [i for i in self.oldest if i not in gone]
        self.given_back = [i for i in self.given_back if i not in gone]
        if self.selectable is not None:
            self.selectable -= gone

    def fall_asleep(self, put: Collection[int]) -> None:
        """
        Nobody consumes: most of what is ready need not be in memory.

        Args:
            put: Ids that did not come by routes: the store would not give them by pages.
        """
        in_memory = len(self.oldest) + len(self.given_back)
        routed = (
            in_memory - sum(1 for i in (*self.oldest, *self.given_back) if i in put) if put else in_memory
        )
        if routed != len(self.cursor.open):
            return  # A transaction, or a dead letter, has some of them.
        if self.newest:
            self.stored_up_to = max(self.stored_up_to, self.newest[-1])
            self.newest.clear()
        ready = [i for i in sorted({*self.oldest, *self.given_back}) if i not in put]
        if len(ready) > ASLEEP_WINDOW:
            last = ready[ASLEEP_WINDOW - 1]
            self.stored_up_to = max(self.stored_up_to, self.read_up_to)
            self.read_up_to = last
            self.cursor.unload(last)
            self.given_back = [i for i in self.given_back if i <= last or i in put]
            self.given_back += [i for i in self.oldest if i > last and i in put]
            self.given_back.sort()
            self.oldest = [i for i in self.oldest if i <= last]

    # --- messages go ----------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids in order, at most ``limit``. Returned ones come on their own, when it is their turn."""
        ids = self._peek(limit)
        if ids and ids[-1] >= self.held_at:
            del ids[bisect_left(ids, self.held_at) :]
        return ids

    def _peek(self, limit: int) -> list[int]:
        if self.selectable is not None:
            return self._peek_selectable(limit)
        if self.read_up_to >= self.stored_up_to:
            self._join()
        if self.given_back:
            if not self.oldest:
                known = bisect_right(self.given_back, self._known_up_to)
                return self.given_back[: min(known, limit)]
            # A message that was given back may belong behind others that were never handed out (two consumers).
            before = bisect_left(self.given_back, self.oldest[0])
            if before:
                return self.given_back[: min(before, limit)]
            boundary = self.given_back[0]
            return [i for i in self.oldest[:limit] if i < boundary]
        return self.oldest[:limit]

    def _peek_selectable(self, limit: int) -> list[int]:
        if self.read_up_to >= self.stored_up_to:
            self._join()
        selectable = self.selectable
        assert selectable is not None
        # One that was taken out of the middle and came back is in both, and no more than once among the ready.
        ready = (i for i, _ in groupby(heapq.merge(self.given_back, self.oldest)))
        return list(islice((i for i in ready if i in selectable), limit))

    def hand_out(self, ids: Sequence[int]) -> None:
        """Messages are handed to a flow: the next ones, as ``peek`` named them, or selected."""
        if self.selectable is not None:
            self._hand_out_selectable(ids)
        elif self.given_back and self.given_back[0] == ids[0]:
            del self.given_back[: len(ids)]
        else:
            del self.oldest[: len(ids)]

    def _hand_out_selectable(self, ids: Sequence[int]) -> None:
        selectable = self.selectable
        assert selectable is not None
        selectable.difference_update(ids)
        if self.given_back:
            handed_out = set(ids)
            self.given_back = [i for i in self.given_back if i not in handed_out]
        oldest = self.oldest
        del oldest[: next((at for at, i in enumerate(oldest) if i in selectable), len(oldest))]
        if len(oldest) > 2 * len(selectable) + SLACK:
            self.oldest = [i for i in oldest if i in selectable]

    def by_part(self, ids: list[int]) -> dict[int, list[int]]:
        """Rising ids of messages that flows hold, by the part of the cursor that they are in."""
        return {WHOLE: ids}

    def settled(self, ids: Iterable[int]) -> None:
        """Nothing is known here of what flows hold."""

    # --- selectors --------------------------------------------------------------------------------------------

    def open_search(self) -> deque[int]:
        if self.selectable is None:
            known = bisect_right(self.given_back, self._known_up_to)
            self.selectable = {*self.oldest, *self.given_back[:known]}
            self._join()
        search = deque(sorted(self.selectable))
        self.searches.append(search)
        return search

    def close_search(self, search: deque[int]) -> None:
        # By identity: one deque may hold what another does.
        self.searches = [other for other in self.searches if other is not search]

    def stop_searching(self) -> None:
        """No flow with a selector is left: ``oldest`` is what it says again."""
        selectable = self.selectable
        if selectable is not None and not self.searches:
            selectable.difference_update(self.given_back)
            self.oldest = [i for i in self.oldest if i in selectable]
            self.selectable = None


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


class PriorityReadyQueues:
    __slots__ = ("_by_priority", "_noted", "queues")

    def __init__(self, window: int, parts: Mapping[int, Cursor]) -> None:
        """
        Args:
            window: Ids of each priority kept in memory.
            parts: The endpoint's cursor, by priority.
        """
        self._by_priority = [
            ReadyQueue(window, parts[priority], part=priority) for priority in range(LOWEST, HIGHEST + 1)
        ]
        self.queues = self._by_priority[::-1]
        """In the order of their turns."""
        self._noted: dict[int, int] = {}

    # --- as one queue ------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Messages wait in the store."""
        return any(queue.has_more for queue in self.queues)

    @property
    def ready(self) -> int:
        """How many ids are ready to be peeked at, about."""
        return next((queue.ready for queue in self.queues if queue.ready), 0)

    @property
    def selectable(self) -> set[int] | None:
        """The ready ids in memory, while a flow with a selector is bound."""
        found = [queue.selectable for queue in self.queues if queue.selectable is not None]
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
        for priority, those in self._sorted(ids):
            self._by_priority[priority].add_committed(those)

    def give_back(self, ids: Iterable[int]) -> None:
        """Messages handed out that come back ready; each keeps its place among those of its priority."""
        for priority, those in self._sorted(ids):
            self._by_priority[priority].give_back(those)

    def add_put(self, ids: Sequence[int], routed: Sequence[int]) -> None:
        """A replay has put these here (rising, noted); see ``ReadyQueue.add_put``."""
        among = set(routed)
        for priority, those in self._sorted(ids):
            self._by_priority[priority].add_put(those, [i for i in those if i in among])

    def _sorted(self, ids: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
        """Noted ids by priority; they go into their queues."""
        found: dict[int, list[int]] = {}
        for i in ids:
            found.setdefault(self._noted.pop(i), []).append(i)
        return found.items()

    def queue_to_read(self, page_rows: int, searching: Sequence[Candidates]) -> ReadyQueue | None:
        """
        The queue to be read from the store now: the highest that is not at its end, when its oldest ids run low. A flow
        with a selector may have looked at all that is known of it: then, within reason, more is read, or the next is.
        """
        for turn, queue in enumerate(self.queues):
            is_searching = any(not any(candidates.searches[: turn + 1]) for candidates in searching)
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
        for queue in self.queues:
            queue.drop(ids)
        for i in ids:
            self._noted.pop(i, None)

    def fall_asleep(self, put: Collection[int]) -> None:
        """Nobody consumes: most of what is ready need not be in memory."""
        for queue in self.queues:
            queue.fall_asleep(put)

    # --- messages go -------------------------------------------------------------------------------------------

    def peek(self, limit: int) -> list[int]:
        """The next ready ids, at most ``limit``: all of one priority, rising."""
        for queue in self.queues:
            ids = queue.peek(limit)
            if ids or queue.has_more or queue.is_held_up:
                return ids
        return []

    def hand_out(self, ids: Sequence[int]) -> None:
        """Messages of one priority are handed to a flow: the next ones, as ``peek`` named them, or selected."""
        queue = next(queue for queue in self.queues if _holds(queue, ids[0]))
        queue.hand_out(ids)
        self._noted.update(zip(ids, repeat(queue.part), strict=False))

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

    def stop_searching(self) -> None:
        """No flow with a selector is left, perhaps."""
        for queue in self.queues:
            queue.stop_searching()


def _holds(queue: ReadyQueue, message: int) -> bool:
    """Whether a message that is to be taken is one of the queue's."""
    if queue.selectable is not None:
        return message in queue.selectable
    oldest, given_back = queue.oldest, queue.given_back
    return bool((given_back and given_back[0] == message) or (oldest and oldest[0] == message))
