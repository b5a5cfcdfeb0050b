"""
The ready queues of an endpoint: the ids of its ready messages, in order. Only a window of them is in memory.

A ready queue has, in order: ``given_back``, the messages that consumers returned; ``oldest``, the oldest ready ids in
memory; the ids that only the store has; and ``newest``, the newest committed ids. However deep the queue is, the memory
it takes is bounded: as the oldest are consumed, the endpoint's routes are read from the store, page by page. Messages
of a replay are also in ``oldest``, but in no page: they came from the log.

Invariants: a committed message that no flow holds is in exactly one of ``given_back``, ``oldest``, ``newest``, or the
store after ``read_up_to``. Ids leave in rising order, except for returned ones, which keep their place. A routed
message that is or was in ``oldest`` is in the cursor's ``open`` until it is settled.

An ordinary endpoint has one ready queue. An endpoint that delivers by priority has one for each priority, and the
highest queue with messages goes first (``PriorityReadyQueues``). Each of these queues has its own window and its own
pages, and keeps the order of publishing: a message names a route of its priority, and pages are read by route. Messages
are handed out from one queue at a time, in rising ids. Lower queues wait until a higher queue has no messages in the
store either, so also while a page of it is being read.
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
"""The most ready ids in memory while a selector searches: about 10 MB. A selector sees deeper messages only after other
consumers have taken those in front of them."""

ASLEEP_WINDOW = 256
"""How many ready ids stay in memory for an endpoint without consumers."""

SHORT_RANGE = 4_096
"""A range of settled ids shorter than this is read as part of a page rather than left out: it has few messages."""

SLACK = 256
"""So many taken ids may stay in ``oldest`` before they are removed."""


class Candidates:
    """Ready ids that a flow with a selector has not looked at yet, by queue, in the order of the queues' turns."""

    __slots__ = ("_queues", "searches", "turn")

    def __init__(self, queues: Sequence[ReadyQueue]) -> None:
        """The flow is to look at all ready messages, and at those that become ready."""
        self._queues = queues
        self.searches = [queue.open_search() for queue in queues]
        self.turn = 0
        """The place of the queue that the last returned ids came from."""

    def __bool__(self) -> bool:
        for queue, search in zip(self._queues, self.searches, strict=True):
            if search and search[0] < queue.held_at:
                return True
            if queue.is_held_up:
                return False
        return False

    def take(self, limit: int) -> list[int]:
        """
        The next ids that are still ready, at most ``limit``: of one priority, rising. Empty while messages of a higher
        priority are to be read first.
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
        """How many ids of the last taken queue are to be looked at, at most."""
        return len(self.searches[self.turn])

    def close(self) -> None:
        """The flow is unbound, or begins a new search."""
        for queue, search in zip(self._queues, self.searches, strict=True):
            queue.close_search(search)

    def put_back(self, ids: Sequence[int]) -> None:
        """These of the last taken ids are to be looked at again."""
        self.searches[self.turn].extendleft(reversed(ids))

    def offer(self, turn: int, ids: Iterable[int]) -> None:
        """These taken ids of one queue are to be looked at again, if they are still ready."""
        selectable = self._queues[turn].selectable
        assert selectable is not None
        _merge(self.searches[turn], sorted(i for i in ids if i in selectable))


@dataclass(slots=True)
class ReadyQueue:
    window: int
    cursor: Cursor
    stored_up_to: int = 0
    """The newest id that only the store has. If ``read_up_to`` has reached it, the store has no more."""
    read_up_to: int = -1
    """Every committed message up to this id is or was in memory."""
    part: int = WHOLE
    """The part of the endpoint's cursor: the messages' priority, if the endpoint delivers by priority."""
    oldest: list[int] = field(default_factory=list)
    newest: deque[int] = field(default_factory=deque)
    given_back: list[int] = field(default_factory=list)
    selectable: set[int] | None = None
    """The ready ids in memory, while a flow with a selector is bound. Other ids in ``oldest`` are taken already."""
    searches: list[deque[int]] = field(default_factory=list)
    """For each flow with a selector, the ids that it has yet to look at, rising."""
    held_at: int = sys.maxsize
    """Ready messages from this id on are not handed out: they wait for an earlier message (strict order)."""

    def __post_init__(self) -> None:
        if self.read_up_to < 0:
            self.read_up_to = self.cursor.floor

    # --- messages come --------------------------------------------------------------------------------------

    def note_priorities(self, ids: Sequence[int], priorities: Sequence[int]) -> None:
        """Does nothing: a single queue has no priorities."""

    @property
    def queues(self) -> Sequence[ReadyQueue]:
        """The queues that a flow with a selector looks at."""
        return (self,)

    @property
    def has_more(self) -> bool:
        """Whether the store has messages that are older than ``newest`` and not read."""
        return self.read_up_to < self.stored_up_to

    @property
    def is_held_up(self) -> bool:
        """Whether messages wait for an earlier one; lower queues then wait, too."""
        return self.held_at != sys.maxsize

    @property
    def _known_up_to(self) -> int:
        """Returned messages above this id have references, and wait until the store's messages before them are read."""
        return self.read_up_to if self.has_more or self.newest else sys.maxsize

    @property
    def ready(self) -> int:
        """About how many ids are ready in memory."""
        return len(self.oldest) + len(self.given_back)

    def has_enough(self, ready: int) -> bool:
        """Whether a replay need not put more here: this many are ready, and no selector chooses among them."""
        return len(self.oldest) >= ready and self.selectable is None

    def add_committed(self, ids: Sequence[int]) -> None:
        """Add durable messages that came by routes (rising ids, newer than all before)."""
        if self.read_up_to >= self.stored_up_to and not self.newest and self._fits(len(ids), self.window):
            self.cursor.load(ids)
            self._append(ids)
            self.read_up_to = ids[-1]
            return
        newest = self.newest
        newest.extend(ids)
        excess = len(newest) - self.window
        if excess > 0:
            # The store has them: pages will bring them back.
            for _ in range(excess - 1):
                newest.popleft()
            self.stored_up_to = newest.popleft()

    def add_put(self, ids: Sequence[int], routed: Sequence[int]) -> None:
        """
        Add messages of a replay (rising ids, after all that are ready).

        Args:
            routed: Those that came by routes, because the log did not take them.
        """
        if routed:
            self.cursor.load(routed)
        self._append(ids)

    def stored(self, newest_id: int) -> None:
        """The store has messages up to this id that were not added here."""
        if newest_id > (self.newest[-1] if self.newest else self.read_up_to):
            # They come after ``newest``, so pages will bring back both.
            self.newest.clear()
            self.stored_up_to = max(self.stored_up_to, newest_id)

    def read_from(self, position: int, newest_id: int) -> None:
        """Routed messages are ready from ``position`` on. A replay has put those before it, or they are not wanted."""
        self.read_up_to = max(self.read_up_to, position - 1)
        self.stored(newest_id)

    def next_page(self, end: int) -> tuple[int, int]:
        """Which ids to read from the store: above the first, below the second. Long settled ranges are left out."""
        after = self.cursor.next_open(self.read_up_to + 1) - 1
        until = self.cursor.next_range(after, SHORT_RANGE)
        return after, max(min(end, end if until is None else until), after + 1)

    def queue_to_read(self, page_rows: int, searching: Sequence[Candidates]) -> ReadyQueue | None:
        """
        The queue to read from the store, or None: its ids in memory run low while the store has more.

        Args:
            searching: The candidates of flows with a selector and with demand.
        """
        if self.read_up_to >= self.stored_up_to:
            return None
        if self.selectable is None:
            return self if len(self.oldest) < page_rows else None
        # Messages that no selector wants stay in ``oldest``: look past them, up to ``SELECTOR_WINDOW``.
        is_searching = not all(searching)
        return self if len(self.selectable) < (SELECTOR_WINDOW if is_searching else page_rows) else None

    def add_page(self, ids: Sequence[int], position: int) -> None:
        """Add messages read from the store, rising: all from after ``read_up_to`` to below ``position``."""
        cursor, stored_up_to = self.cursor, self.stored_up_to
        # Messages after ``stored_up_to`` are in memory, or will be added: the store may be ahead of this queue.
        if ids and (ids[-1] > stored_up_to or cursor.has_done_after(ids[0])):
            is_done = cursor.is_done
            ids = [i for i in ids if i <= stored_up_to and not is_done(i)]
        self._read(ids, min(stored_up_to, position - 1))
        self._join()

    def _join(self) -> None:
        """Once all older messages are in memory, append ``newest`` to ``oldest``."""
        if (
            self.read_up_to >= self.stored_up_to
            and self.newest
            and self._fits(len(self.newest), 2 * self.window)
        ):
            ids = list(self.newest)
            self.newest.clear()
            self._read(ids, ids[-1])

    def _read(self, ids: Sequence[int], up_to: int) -> None:
        """Add the next routed messages, up to an id. References that waited for them become ready, too."""
        before = self.read_up_to
        self.read_up_to = max(before, up_to)
        self.cursor.load(ids)
        self.oldest += ids
        if self.selectable is not None:
            back = self.given_back
            waited = back[bisect_right(back, before) : bisect_right(back, self._known_up_to)]
            self._offer(sorted({*ids, *waited}) if waited else ids)

    def _fits(self, count: int, window: int) -> bool:
        """Flows with a selector only see ``oldest``: messages that none of them wants must not keep ``newest`` out."""
        most = window if self.selectable is None else max(window, SELECTOR_WINDOW)
        return len(self.oldest) + count <= most

    def _append(self, ids: Sequence[int]) -> None:
        self.oldest += ids
        if self.selectable is not None:
            self._offer(ids)

    def _offer(self, ids: Sequence[int]) -> None:
        """Add ids that became ready to the searches of flows with a selector."""
        assert self.selectable is not None
        self.selectable.update(ids)
        for search in self.searches:
            search.extend(ids)

    def give_back(self, ids: Iterable[int]) -> None:
        """Make handed-out messages ready again; each keeps its place in the order."""
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
        """This queue: there is only one."""
        return self

    def forget_all(self, parts: Mapping[int, Cursor]) -> None:
        """Forget all messages; a new cursor begins."""
        self.cursor = parts[self.part]
        self.read_up_to = self.stored_up_to = self.cursor.floor
        self.oldest.clear()
        self.newest.clear()
        self.given_back.clear()
        self.held_at = sys.maxsize
        if self.selectable is not None:
            self.selectable.clear()
        for search in self.searches:
            search.clear()

    def drop(self, ids: Collection[int]) -> None:
        """Remove these messages if they are ready."""
        gone = set(ids)
        self.oldest = [i for i in self.oldest if i not in gone]
        self.given_back = [i for i in self.given_back if i not in gone]
        if self.selectable is not None:
            self.selectable -= gone

    def fall_asleep(self, put: Collection[int]) -> None:
        """
        The endpoint has no consumers: keep only ``ASLEEP_WINDOW`` ready ids in memory.

        Args:
            put: Ids that did not come by routes: no page would bring them back.
        """
        in_memory = len(self.oldest) + len(self.given_back)
        routed = (
            in_memory - sum(1 for i in (*self.oldest, *self.given_back) if i in put) if put else in_memory
        )
        if routed != len(self.cursor.open):
            return  # a transaction, or a move to the dead message queue, has some of them
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
        """At most ``limit`` next ready ids in order: without selectors, all of ``given_back`` or all of ``oldest``."""
        if self.newest:
            self._join()
        ids = self._peek(limit)
        if ids and ids[-1] >= self.held_at:
            del ids[bisect_left(ids, self.held_at) :]
        return ids

    def _peek(self, limit: int) -> list[int]:
        selectable = self.selectable
        if selectable is not None:
            # A message that was taken out of the middle and returned is in both lists, but is ready only once.
            ready = (i for i, _ in groupby(heapq.merge(self.given_back, self.oldest)))
            return list(islice((i for i in ready if i in selectable), limit))
        if self.given_back:
            if not self.oldest:
                known = bisect_right(self.given_back, self._known_up_to)
                return self.given_back[: min(known, limit)]
            # A returned message may belong after messages that were never handed out (with two consumers).
            before = bisect_left(self.given_back, self.oldest[0])
            if before:
                return self.given_back[: min(before, limit)]
            boundary = self.given_back[0]
            return [i for i in self.oldest[:limit] if i < boundary]
        return self.oldest[:limit]

    def hand_out(self, ids: Sequence[int]) -> None:
        """Remove messages that are handed to a flow: the next ones, as ``peek`` returned them, or selected ones."""
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
        """Sort rising ids of messages that flows hold by the part of the cursor."""
        return {WHOLE: ids}

    def settled(self, ids: Iterable[int]) -> None:
        """Does nothing: a single queue keeps no record of messages that flows hold."""

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
        # Compare by identity: two searches may have equal ids.
        self.searches = [other for other in self.searches if other is not search]

    def stop_searching(self) -> None:
        """If no flow with a selector is left, ``oldest`` again has only ready ids."""
        selectable = self.selectable
        if selectable is not None and not self.searches:
            selectable.difference_update(self.given_back)
            self.oldest = [i for i in self.oldest if i in selectable]
            self.selectable = None


def _merge(search: deque[int], back: Sequence[int]) -> None:
    """Merge rising ids into a search. Returned messages are mostly older than all ids in it."""
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
            window: How many ids of each priority are kept in memory.
            parts: The endpoint's cursor, by priority.
        """
        self._by_priority = [
            ReadyQueue(window, parts[priority], part=priority) for priority in range(LOWEST, HIGHEST + 1)
        ]
        self.queues = self._by_priority[::-1]
        """The queues by falling priority."""
        self._noted: dict[int, int] = {}

    # --- as one queue ------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether the store has messages that are not read."""
        return any(queue.has_more for queue in self.queues)

    @property
    def ready(self) -> int:
        """About how many ids are ready in memory, of the first queue that has any."""
        return next((queue.ready for queue in self.queues if queue.ready), 0)

    @property
    def selectable(self) -> set[int] | None:
        """The ready ids in memory, while a flow with a selector is bound."""
        found = [queue.selectable for queue in self.queues if queue.selectable is not None]
        return set().union(*found) if found else None

    # --- messages come -----------------------------------------------------------------------------------------

    def note_priorities(self, ids: Sequence[int], priorities: Sequence[int]) -> None:
        """Remember the priorities of messages that are about to be added."""
        self._noted.update(zip(ids, priorities, strict=True))

    def has_enough(self, _ready: int) -> bool:
        """Always False: the next messages may have a higher priority than all ready ones."""
        return False

    def add_committed(self, ids: Sequence[int]) -> None:
        """Add durable messages (rising ids, newer than all before; their priorities are noted)."""
        for priority, those in self._sorted(ids):
            self._by_priority[priority].add_committed(those)

    def give_back(self, ids: Iterable[int]) -> None:
        """Make handed-out messages ready again; each keeps its place within its priority."""
        for priority, those in self._sorted(ids):
            self._by_priority[priority].give_back(those)

    def add_put(self, ids: Sequence[int], routed: Sequence[int]) -> None:
        """Add messages of a replay (rising; their priorities are noted); see ``ReadyQueue.add_put``."""
        among = set(routed)
        for priority, those in self._sorted(ids):
            self._by_priority[priority].add_put(those, [i for i in those if i in among])

    def _sorted(self, ids: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
        """Take ids out of the noted ones, by priority."""
        found: dict[int, list[int]] = {}
        for i in ids:
            found.setdefault(self._noted.pop(i), []).append(i)
        return found.items()

    def queue_to_read(self, page_rows: int, searching: Sequence[Candidates]) -> ReadyQueue | None:
        """
        The queue to read from the store: the highest with messages in the store, when its ids in memory run low. If a
        flow with a selector has looked at all of these ids, more is read up to ``SELECTOR_WINDOW``, and then the next
        queue.
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
        """Forget all messages; a new cursor begins."""
        self._noted.clear()
        for queue in self.queues:
            queue.forget_all(parts)

    def drop(self, ids: Collection[int]) -> None:
        """Remove these messages, whether they are ready or with flows."""
        for queue in self.queues:
            queue.drop(ids)
        for i in ids:
            self._noted.pop(i, None)

    def fall_asleep(self, put: Collection[int]) -> None:
        """See ``ReadyQueue.fall_asleep``."""
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
        """Remove messages of one priority that are handed to a flow: the next ones of ``peek``, or selected ones."""
        queue = next(queue for queue in self.queues if _holds(queue, ids[0]))
        queue.hand_out(ids)
        self._noted.update(zip(ids, repeat(queue.part), strict=False))

    def by_part(self, ids: list[int]) -> dict[int, list[int]]:
        """
        Sort rising ids of messages that flows or transactions hold by the part of the cursor. Messages that were
        dropped meanwhile are left out.
        """
        found: dict[int, list[int]] = {}
        for i in ids:
            priority = self._noted.get(i)
            if priority is not None:
                found.setdefault(priority, []).append(i)
        return found

    def settled(self, ids: Iterable[int]) -> None:
        """Forget settled messages."""
        for i in ids:
            self._noted.pop(i, None)

    # --- selectors ---------------------------------------------------------------------------------------------

    def stop_searching(self) -> None:
        """See ``ReadyQueue.stop_searching``."""
        for queue in self.queues:
            queue.stop_searching()


def _holds(queue: ReadyQueue, message: int) -> bool:
    """Whether a message that is to be handed out is in this queue."""
    if queue.selectable is not None:
        return message in queue.selectable
    oldest, given_back = queue.oldest, queue.given_back
    return bool((given_back and given_back[0] == message) or (oldest and oldest[0] == message))
