"""
Order by key on an endpoint with several consumers: which of them has the messages of which key.

A key has a ``Lane``: a message group (``Groups``), or one of a fixed number of partitions (``Partitions``). A lane is
one consumer's as long as that is there. When it goes, or the lane moves, what it has of the lane is settled, or ready
again in its place, before anybody else is given a message of the lane. So messages of one key are handed out in order,
whoever has them: by id, or by priority and id where the endpoint delivers by priority.

Ready messages are looked at in order (``ByKey.candidates``), as long as somebody can take more, and sorted: each waits
at the ``Share`` of the consumer whose lane it is in. What nobody may have yet waits aside, and is looked at again once
that has changed. What waits, or is handed out, is bounded as the ready queue in memory and the consumers' unsettled
messages are; a group of which nothing is here is remembered with its consumer, ``MOST_IDLE`` of them at most, and as a
number however long its name.

Invariant: an id is in ``_lane_of`` while it waits at a share, or is handed out; ``Lane.open`` counts those of a lane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

from amqp_ext.message.keys import GROUP_ID, Key, group_of, property_reader
from gateway.core.endpoint.flow import BoundFlow
from gateway.core.endpoint.ready_queue import SELECTOR_WINDOW, Candidates, PriorityReadyQueues, ReadyQueue
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import BARE, CONTENT, ID, Row

MOST_IDLE: Final = 32_768
"""Groups of which nothing is unsettled whose consumers are remembered: some 10 MB. A message of one that was forgotten
goes to whoever can take it, in order all the same."""

SORTED_ROWS: Final = 2_048
"""Messages that are looked at in one go, at most: some milliseconds, shared by all consumers."""

RUN: Final = 256
"""Messages that a consumer is given in a row of what nobody has yet, where there are many for each: what lies together
is handed out together, and settled."""

FORGOTTEN_AT_ONCE: Final = 1_024
"""Idle groups beyond ``MOST_IDLE`` until the oldest are forgotten: to look for the first of many takes a while."""

_TURN: Final = 56
"""A message's place is its id, with the turn of its priority above this bit."""
_ID: Final = (1 << _TURN) - 1
NO_LAST: Final = 1 << 2 * _TURN
"""A place behind all others."""


class Lane:
    """What has one key: it is one consumer's at a time, or waits for its next one."""

    __slots__ = ("after", "last", "number", "open", "share")

    def __init__(self, number: int) -> None:
        self.number = number
        self.share: Share | None = None
        """Whose it is; None while it is nobody's, or is to be another's and something is open."""
        self.open = 0
        """Messages of it that wait at a share, or are handed out."""
        self.after: list[int] | None = None
        """Places of those that wait until it is another's: what is behind its last message, or its consumer does not
        want."""
        self.last = NO_LAST
        """The place of its last message, where its consumer is to have that: what follows is for another one."""

    def put_aside(self, place: int) -> None:
        """A message waits until it is another's."""
        if self.after is None:
            self.after = [place]
        else:
            self.after.append(place)


class Partition(Lane):
    """One of a fixed number."""

    __slots__ = ("target",)

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.target: Share | None = None
        """Whose it is to be."""


class Share(Candidates):
    """What of an endpoint's messages is one consumer's: as its candidates, they are its own, or not sorted yet."""

    __slots__ = ("by_key", "flow", "lanes", "spare", "waiting")

    def __init__(self, by_key: ByKey, flow: BoundFlow[Any], candidates: Candidates) -> None:
        self.by_key = by_key
        self.flow = flow
        self._queues = by_key.queues
        self.searches = candidates.searches
        self.lanes: dict[Lane, None] = {}
        self.waiting: list[int] = []
        """Places of what it is to be given, rising."""
        self.spare = 0
        """How many more it can take, while messages are sorted."""

    def __bool__(self) -> bool:
        return (
            bool(self.waiting and self.waiting[0] < self._held_at(self.waiting[0] >> _TURN))
            or super().__bool__()
        )

    def _held_at(self, turn: int) -> int:
        """The place from which on nothing of a priority is to be given: it waits for what is to be tried again."""
        if turn and any(queue.is_held_up for queue in self._queues[:turn]):
            return 0
        return min(self._queues[turn].held_at, _ID) | turn << _TURN

    @property
    def is_behind(self) -> bool:
        """What is not sorted comes before what waits here, or nothing waits."""
        return not self.waiting or self._unsorted_from < self.waiting[0]

    @property
    def _unsorted_from(self) -> int:
        """The place of the first that is not sorted."""
        for turn, search in enumerate(self.searches):
            if search:
                return search[0] | turn << _TURN
        return NO_LAST

    def take(self, limit: int) -> list[int]:
        """
        The next of its messages that are still ready, at most ``limit``: of one priority, rising, none of them behind
        what is not sorted, or is to be tried again first.
        """
        while not self.is_behind:
            turn = self.waiting[0] >> _TURN
            end = min(self._held_at(turn), self._unsorted_from)
            places = self.waiting[: min(limit, bisect_left(self.waiting, end))]
            if not places:
                break
            del self.waiting[: len(places)]
            selectable = self._queues[turn].selectable
            assert selectable is not None
            found = [i for i in [place & _ID for place in places] if i in selectable]
            if found:
                self.turn = turn
                return found
        return []

    def put_back(self, ids: Sequence[int]) -> None:
        """Of the ids that were given last, these are to be given again."""
        self.waiting[:0] = [i | self.turn << _TURN for i in ids]

    def close(self) -> None:
        """Its consumer is gone."""
        self.by_key.leave(self)


class Sorted(NamedTuple):
    """What became of messages that were looked at."""

    looked_at: int
    """How many were."""
    later: list[int]
    """Those that nobody can take now."""
    passed: list[Row]
    """Those that are not the endpoint's, by the selector of its subscription."""


class ByKey(ABC):
    """
    Args:
        ready: The endpoint's ready messages.
    """

    def __init__(self, ready: ReadyQueue | PriorityReadyQueues) -> None:
        self._ready = ready
        self.queues: Sequence[ReadyQueue] = ready.queues
        self.shares: dict[BoundFlow[Any], Share] = {}
        self.candidates: Candidates | None = None
        """What is ready and not sorted; none while there is no consumer."""
        self._lane_of: dict[int, Lane] = {}
        self._unwanted: list[int] = []
        """Places of what no consumer's selector matches."""
        self._turns = 0
        self._has_news = False
        self._room_aside = SELECTOR_WINDOW
        """How many more are put aside before those are looked for that are not here any more."""

    # --- consumers come and go ------------------------------------------------------------------------------------

    def join(self, flow: BoundFlow[Any]) -> None:
        """A consumer is to have its share."""
        if self.candidates is None:
            self.candidates = Candidates(self.queues)
        flow.candidates = self.shares[flow] = Share(self, flow, self.candidates)
        self._offer(self._unwanted)
        self._unwanted = []
        self._changed()

    def leave(self, share: Share) -> None:
        """A consumer is gone, and has given back what it had, or keeps it."""
        if self.shares.pop(share.flow, None) is None:
            return
        share.flow.candidates = None
        lanes = list(share.lanes)
        for lane in lanes:
            self._take_from(share, lane)
        idle = [lane for lane in lanes if not lane.open]
        self.let_go([place & _ID for place in share.waiting])
        self._offer(share.waiting)
        for lane in idle:
            self._rest(lane)
        self._changed()
        if not self.shares and self.candidates is not None:
            self.candidates.close()
            self.candidates = None
            self._ready.stop_searching()
            self._unwanted = []
            for lane in self.lanes:
                lane.after = None

    def forget_all(self) -> None:
        """Nothing of what was here is any more; every lane stays with its consumer."""
        self._lane_of.clear()
        self._unwanted = []
        for share in self.shares.values():
            share.waiting = []
        for lane in list(self.lanes):
            lane.after = None
            if lane.open:
                lane.open = 0
                self._rest(lane)

    def lanes_of(self, flow: BoundFlow[Any]) -> Collection[Lane]:
        """Those of a consumer."""
        share = self.shares.get(flow)
        return share.lanes if share is not None else ()

    # --- messages -------------------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether something is to be looked at again since this was asked last: a consumer may have waited for it."""
        found, self._has_news = self._has_news, False
        return found

    def room(self) -> int:
        """How many messages are to be looked at: as many as consumers can take, about."""
        demand = sum(flow.demand for flow in self.shares if flow.demand > 0)
        return min(max(demand, RUN), SORTED_ROWS)

    def sort(self, taker: Share, rows: Sequence[Row], is_over: Callable[[], bool]) -> Sorted:
        """
        Messages go to the shares of those who are to have them, as long as somebody can take one more.

        Args:
            taker: The share of one who can take more: all that comes before what waits there is sorted.
            rows: The next of the candidates, in order.
            is_over: Whether selectors took long enough.
        """
        assert self.candidates is not None
        turn = self.candidates.turn << _TURN
        lane_of, lane_for = self._lane_of, self._lane
        hungry, is_selecting, left = self._hungry()
        # What there is, is shared out, where that is not enough for all.
        run = RUN
        if not self.queues[self.candidates.turn].has_more:
            run = min(run, -(-(len(rows) + self.candidates.left) // max(sum(map(len, hungry)), 1)))
        in_row: Share | None = None
        most = given = 0
        before = taker.waiting[0] if taker.waiting else 0
        later: list[int] = []
        passed: list[Row] = []
        count = 0
        for row in rows:
            i = row[ID]
            place = i | turn
            if (left <= 0 and place > before) or (is_selecting and count and is_over()):
                break
            count += 1
            lane, is_last = lane_for(row)
            share: Share | None = None
            if lane is not None:
                share = lane.share
                if place > lane.last or (share is None and lane.open):
                    lane.put_aside(place)
                    later.append(i)
                    continue
                if share is not None and is_selecting and not share.flow.wants(row):
                    if i in share.flow.excluded:
                        lane = share = None  # Its consumer asked that another has this one.
                    elif share.flow.passes_over:
                        passed.append(row)
                        continue
                    else:
                        lane.put_aside(place)
                        later.append(i)
                        continue
            if share is None:
                given += 1
                if in_row is None or given > most or in_row.spare <= 0 or is_selecting:
                    in_row, given = self._choose(hungry, taker, row if is_selecting else None), 1
                    if in_row is not None:
                        # Few groups are shared out one by one.
                        most = run if lane is None else min(run, len(in_row.lanes))
                share = in_row
                if share is None:
                    if any(
                        each.flow.passes_over and i not in each.flow.excluded for each in self.shares.values()
                    ):
                        passed.append(row)
                    else:
                        self._unwanted.append(place)
                        later.append(i)
                    continue
                if lane is not None:
                    lane.share = share
                    share.lanes[lane] = None
            if lane is not None:
                if not lane.open:
                    self._woken(lane)
                lane.open += 1
                lane_of[i] = lane
                if is_last:
                    lane.last = place
            share.spare -= 1
            if share.spare < 0:
                later.append(i)
            else:
                left -= 1
            waiting = share.waiting
            if not waiting or waiting[-1] < place:
                waiting.append(place)
            else:
                at = bisect_left(waiting, place)
                if waiting[at] != place:
                    waiting.insert(at, place)
        if len(later) > self._room_aside:
            self._forget_stale()
        else:
            self._room_aside -= len(later)
        return Sorted(count, later, passed)

    def _forget_stale(self) -> None:
        """Much was put aside: what has left the endpoint since, as the expired does, is not kept."""
        self._unwanted, count = self._still_ready(self._unwanted), 0
        for lane in list(self.lanes):
            if lane.after:
                lane.after = self._still_ready(lane.after)
                count += len(lane.after)
                if not (lane.after or lane.open):
                    self._rest(lane)
        self._room_aside = max(SELECTOR_WINDOW, count + len(self._unwanted))

    def _still_ready(self, places: Iterable[int]) -> list[int]:
        ready = [queue.selectable or () for queue in self.queues]
        return [place for place in places if place & _ID in ready[place >> _TURN]]

    def let_go(self, ids: Iterable[int]) -> None:
        """Messages are consumers' no more: they are settled, or ready again."""
        take = self._lane_of.pop
        for i in ids:
            lane = take(i, None)
            if lane is not None:
                lane.open -= 1
                if not lane.open:
                    self._rest(lane)

    def _hungry(self) -> tuple[list[deque[Share]], bool, int]:
        """Who can take more, in turns, by falling priority; whether anybody selects; and how much they can take."""
        is_selecting, left = False, 0
        by_priority: dict[int, deque[Share]] = {}
        for share in self.shares.values():
            flow = share.flow
            is_selecting |= flow.matches is not None
            share.spare = flow.demand - len(share.waiting)
            if share.spare > 0:
                left += share.spare
                by_priority.setdefault(flow.priority, deque()).append(share)
        self._turns += 1
        for equal in by_priority.values():
            equal.rotate(-(self._turns % len(equal)))
        return [by_priority[priority] for priority in sorted(by_priority, reverse=True)], is_selecting, left

    def _choose(self, hungry: list[deque[Share]], taker: Share, row: Row | None) -> Share | None:
        """
        Who is to have a message that is nobody's yet; None where no consumer wants it.

        Args:
            row: The message, where somebody selects.
        """
        for equal in hungry:
            for _ in range(len(equal)):
                share = equal.popleft()
                if share.spare > 0:
                    equal.append(share)
                    if row is None or share.flow.wants(row):
                        return share
        others = (taker, *self.shares.values())
        return next((share for share in others if row is None or share.flow.wants(row)), None)

    def _offer(self, places: Iterable[int]) -> None:
        """These are to be looked at, again; those of them that are still ready."""
        if self.candidates is not None:
            by_turn: dict[int, list[int]] = {}
            for place in places:
                by_turn.setdefault(place >> _TURN, []).append(place & _ID)
            for turn, ids in by_turn.items():
                self.candidates.offer(turn, ids)
                self._has_news = True

    def _offer_after(self, lane: Lane) -> None:
        """What waited until nothing of a lane was open."""
        after, lane.after = lane.after, None
        if after:
            self._offer(after)

    @staticmethod
    def _take_from(share: Share, lane: Lane) -> None:
        """A lane is not a share's any more."""
        del share.lanes[lane]
        lane.share = None
        lane.last = NO_LAST

    # --- what a lane is -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def lanes(self) -> Collection[Lane]:
        """Those that are known."""

    @abstractmethod
    def _lane(self, row: Row) -> tuple[Lane | None, bool]:
        """A message's lane, none for one that anybody may have, and whether it is the last there."""

    @abstractmethod
    def _woken(self, lane: Lane) -> None:
        """Something of it is open, its first."""

    @abstractmethod
    def _rest(self, lane: Lane) -> None:
        """Nothing of it is open any more."""

    @abstractmethod
    def _changed(self) -> None:
        """Consumers came or went."""


class Groups(ByKey):
    """
    A group is the consumer's that is given its first message, as long as it is there (Artemis, "Message Grouping"). A
    message without a group is anybody's. One with group-sequence -1 ends its group: the next of that name goes to
    whoever is next, once nothing of the group is unsettled.
    """

    def __init__(self, ready: ReadyQueue | PriorityReadyQueues) -> None:
        super().__init__(ready)
        self._groups: dict[int, Lane] = {}
        """By the hash of the name: those that share one are one group."""
        self._idle: dict[Lane, None] = {}
        """Those of which nothing is open, the one that has been for the longest first."""

    @property
    def lanes(self) -> Collection[Lane]:
        return self._groups.values()

    def _lane(self, row: Row) -> tuple[Lane | None, bool]:
        group, is_last = group_of(row[CONTENT], row[BARE])
        if group is None:
            return None, False
        number = hash(group)
        return self._groups.get(number) or Lane(number), is_last

    def _woken(self, lane: Lane) -> None:
        self._groups[lane.number] = lane
        self._idle.pop(lane, None)

    def _rest(self, lane: Lane) -> None:
        idle = self._idle
        if lane.share is None or lane.last != NO_LAST:
            self._forget(lane)
        elif not lane.after:
            idle[lane] = None
            if len(idle) >= MOST_IDLE + FORGOTTEN_AT_ONCE:
                for oldest in list(islice(idle, FORGOTTEN_AT_ONCE)):
                    self._forget(oldest)

    def _forget(self, lane: Lane) -> None:
        if lane.share is not None:
            self._take_from(lane.share, lane)
        del self._groups[lane.number]
        self._idle.pop(lane, None)
        self._offer_after(lane)

    def _changed(self) -> None:
        """Groups stay where they are."""


class Partitions(ByKey):
    """
    A fixed number of lanes, shared out evenly among the consumers of the highest priority whenever one comes or goes;
    as few move as can be. A message's is told by its key, and by its id where it has none: the same in every replay.

    Args:
        key_of: Reads a message's.
    """

    def __init__(
        self, ready: ReadyQueue | PriorityReadyQueues, count: int, key_of: Callable[[bytes, int], Key]
    ) -> None:
        super().__init__(ready)
        self._lanes = [Partition(number) for number in range(count)]
        self._key_of = key_of

    @property
    def lanes(self) -> Collection[Partition]:
        return self._lanes

    def _lane(self, row: Row) -> tuple[Partition | None, bool]:
        key = self._key_of(row[CONTENT], row[BARE])
        number = row[ID] if key is None else crc32(key)
        return self._lanes[number % len(self._lanes)], False

    def _woken(self, lane: Lane) -> None:
        """It is there all the time."""

    def _rest(self, lane: Lane) -> None:
        assert isinstance(lane, Partition)
        if lane.share is None and lane.target is not None:
            lane.share = lane.target
            lane.target.lanes[lane] = None
            self._offer_after(lane)

    def leave(self, share: Share) -> None:
        for lane in self._lanes:
            if lane.target is share:
                lane.target = None
        super().leave(share)

    def _changed(self) -> None:
        highest = max((flow.priority for flow in self.shares), default=0)
        takers: dict[Share | None, list[Partition]] = {
            share: [] for flow, share in self.shares.items() if flow.priority == highest
        }
        free: list[Partition] = []
        for lane in self._lanes:
            takers.get(lane.target, free).append(lane)
        by_count = sorted(takers.items(), key=lambda taker: -len(taker[1]))
        least, more = divmod(len(self._lanes), max(len(takers), 1))
        for at, (_, kept) in enumerate(by_count):
            most = least + (at < more)
            free += kept[most:]
            del kept[most:]
        for lane in free:
            lane.target = None
        for at, (share, kept) in enumerate(by_count):
            for _ in range(least + (at < more) - len(kept)):
                free.pop().target = share
        self._move([lane for lane in self._lanes if lane.share is not lane.target])

    def _move(self, lanes: Collection[Partition]) -> None:
        """These have another target than they are at: what waits there is looked at again."""
        left = {lane.share: None for lane in lanes if lane.share is not None}
        for lane in lanes:
            if lane.share is not None:
                self._take_from(lane.share, lane)
        lane_of = self._lane_of
        for share in left:
            stays = [
                place
                for place in share.waiting
                if (known := lane_of.get(place & _ID)) is None or known.share is share
            ]
            goes = set(share.waiting).difference(stays)
            share.waiting = stays
            self.let_go([place & _ID for place in goes])
            self._offer(goes)
        for lane in lanes:
            if not lane.open:
                self._rest(lane)


def by_key_of(settings: EndpointSettings, ready: ReadyQueue | PriorityReadyQueues) -> ByKey | None:
    """How an endpoint with these settings shares messages among consumers by their keys; None where it does not."""
    if settings.partitions:
        return Partitions(ready, settings.partitions, property_reader(settings.partition_key or GROUP_ID))
    return Groups(ready) if settings.message_groups else None
