"""
Order by key on an endpoint with several consumers: which consumer gets the messages of which key.

A key has a ``Lane``: a message group (``Groups``), or one of a fixed number of partitions (``Partitions``). A lane
belongs to one consumer as long as the consumer is bound. When the consumer goes, or the lane moves, another consumer
gets messages of the lane only after those of the first one are settled or ready again. So messages of one key are
delivered in order, to whichever consumer: by id, or by priority and id where the endpoint delivers by priority.

Ready messages are sorted in order (``ByKey.candidates``), as long as some consumer has demand: each waits in the
``Share`` of the consumer that has its lane. A message that no consumer may get yet is put aside, and is sorted again
once that has changed. The memory is bounded: by the ready ids in memory and by the consumers' unsettled messages. A
group without open messages is remembered with its consumer: at most ``MOST_IDLE`` groups, each as a number however long
its name is.

Invariant: an id of a lane is in ``_lane_of`` while it is open: it waits in a share, or is handed out. ``Lane.open``
counts these.
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
"""The most idle groups whose consumers are remembered: some 10 MB. A message of a forgotten group goes to any consumer
with demand, still in order."""

SORTED_ROWS: Final = 2_048
"""The most messages that are sorted in one step, which takes some milliseconds and serves all consumers."""

RUN: Final = 256
"""The most messages in a row, of new lanes or of none, that go to one consumer before the next: neighbours in the queue
are then handed out, and settled, together."""

FORGOTTEN_AT_ONCE: Final = 1_024
"""How many idle groups beyond ``MOST_IDLE`` are forgotten together, because it takes time to find the oldest of
many."""

_TURN: Final = 56
"""A message's place is its id, with the number of its queue (0 is the highest priority) from this bit on."""
_ID: Final = (1 << _TURN) - 1
NO_LAST: Final = 1 << 2 * _TURN
"""A place after all others."""


class Lane:
    """The messages of one key. A lane belongs to one consumer at a time, or waits for its next consumer."""

    __slots__ = ("after", "last", "number", "open", "share")

    def __init__(self, number: int) -> None:
        self.number = number
        self.share: Share | None = None
        """The share of its consumer; None while it has no consumer, or moves and still has open messages."""
        self.open = 0
        """How many of its messages wait in a share or are handed out."""
        self.after: list[int] | None = None
        """Places of its messages that wait for another consumer: those after its last message, or not wanted by its
        consumer."""
        self.last = NO_LAST
        """The place of the message that ends its group, if the consumer is to get that: later messages are for another
        consumer."""

    def put_aside(self, place: int) -> None:
        """Put a message aside until the lane has another consumer."""
        if self.after is None:
            self.after = [place]
        else:
            self.after.append(place)


class Partition(Lane):
    """One of a fixed number of lanes."""

    __slots__ = ("target",)

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.target: Share | None = None
        """The share that it is to belong to."""


class Share(Candidates):
    """
    The lanes of one consumer, and its messages that wait. It serves as the candidates of the flow; those not sorted yet
    count as candidates, too.
    """

    __slots__ = ("by_key", "flow", "lanes", "spare", "waiting")

    def __init__(self, by_key: ByKey, flow: BoundFlow[Any], candidates: Candidates) -> None:
        self.by_key = by_key
        self.flow = flow
        self._queues = by_key.queues
        self.searches = candidates.searches
        self.lanes: dict[Lane, None] = {}
        self.waiting: list[int] = []
        """Places of the messages that the consumer is to get, rising."""
        self.spare = 0
        """How many more messages the consumer can take; valid while messages are sorted."""

    def __bool__(self) -> bool:
        return (
            bool(self.waiting and self.waiting[0] < self._held_at(self.waiting[0] >> _TURN))
            or super().__bool__()
        )

    def _held_at(self, turn: int) -> int:
        """From this place on, messages of a queue are not handed out: they wait for a redelivery (strict order)."""
        if turn and any(queue.is_held_up for queue in self._queues[:turn]):
            return 0
        return min(self._queues[turn].held_at, _ID) | turn << _TURN

    @property
    def is_behind(self) -> bool:
        """Whether unsorted messages come before all that wait here, or none wait."""
        return not self.waiting or self._unsorted_from < self.waiting[0]

    @property
    def _unsorted_from(self) -> int:
        """The place of the first unsorted message."""
        for turn, search in enumerate(self.searches):
            if search:
                return search[0] | turn << _TURN
        return NO_LAST

    def take(self, limit: int) -> list[int]:
        """
        The next of its messages that are still ready, at most ``limit``: of one priority, rising. All come before the
        first unsorted message, and before messages that wait for a redelivery.
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
        """These of the last taken ids are to be taken again."""
        self.waiting[:0] = [i | self.turn << _TURN for i in ids]

    def close(self) -> None:
        """The consumer is unbound."""
        self.by_key.leave(self)


class Sorted(NamedTuple):
    """The result of ``ByKey.sort``."""

    looked_at: int
    """How many messages were sorted."""
    later: list[int]
    """Messages that no consumer can take now."""
    passed: list[Row]
    """Messages that are not the endpoint's, by the selector of its subscription."""


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
        """The ready messages that are not sorted; None without consumers."""
        self._lane_of: dict[int, Lane] = {}
        self._unwanted: list[int] = []
        """Places of messages that no consumer's selector matches."""
        self._turns = 0
        self._has_news = False
        self._room_aside = SELECTOR_WINDOW
        """How many more messages are put aside before those are removed that are not ready any more."""

    # --- consumers come and go ------------------------------------------------------------------------------------

    def join(self, flow: BoundFlow[Any]) -> None:
        """Give a consumer its share."""
        if self.candidates is None:
            self.candidates = Candidates(self.queues)
        flow.candidates = self.shares[flow] = Share(self, flow, self.candidates)
        self._offer(self._unwanted)
        self._unwanted = []
        self._changed()

    def leave(self, share: Share) -> None:
        """Remove the share of a consumer. Its unsettled messages are ready again, or it keeps them."""
        if self.shares.pop(share.flow, None) is None:
            return
        share.flow.candidates = None
        lanes = list(share.lanes)
        for lane in lanes:
            self._take_from(share, lane)
        idle = [lane for lane in lanes if not lane.open]
        self.close([place & _ID for place in share.waiting])
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
        """Forget all messages; every lane stays with its consumer."""
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
        """The lanes of a consumer."""
        share = self.shares.get(flow)
        return share.lanes if share is not None else ()

    # --- messages -------------------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether messages are to be sorted again since the last call: a consumer may have waited for them."""
        found, self._has_news = self._has_news, False
        return found

    def room(self) -> int:
        """How many messages to sort: about as many as consumers can take."""
        demand = sum(flow.demand for flow in self.shares if flow.demand > 0)
        return min(max(demand, RUN), SORTED_ROWS)

    def sort(self, taker: Share, rows: Sequence[Row], is_over: Callable[[], bool]) -> Sorted:
        """
        Sort messages into the shares of their consumers, as long as some consumer can take one more.

        Args:
            taker: The share of a consumer with demand. All messages before those that wait in it are sorted.
            rows: The next of the candidates, in order.
            is_over: Whether selectors have taken too long, and sorting is to stop.
        """
        assert self.candidates is not None
        turn = self.candidates.turn << _TURN
        lane_of, lane_for = self._lane_of, self._lane
        hungry, is_selecting, left = self._hungry()
        # If there are not enough messages for all, divide them among the consumers.
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
                        lane = share = None  # its consumer asked that another one gets it
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
                        # While consumers have few groups, they get new ones one by one.
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
        """Remove messages that were put aside and have left the endpoint since, for example because they expired."""
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

    def close(self, ids: Iterable[int]) -> None:
        """Messages are settled or ready again: they are not open any more."""
        take = self._lane_of.pop
        for i in ids:
            lane = take(i, None)
            if lane is not None:
                lane.open -= 1
                if not lane.open:
                    self._rest(lane)

    def _hungry(self) -> tuple[list[deque[Share]], bool, int]:
        """The shares with demand, in turns, by falling priority; whether a consumer selects; the sum of demand."""
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
        Choose the share for a message whose lane has no consumer; None where no consumer wants it.

        Args:
            row: The message, if a consumer has a selector.
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
        """These messages are to be sorted again, if they are still ready."""
        if self.candidates is not None:
            by_turn: dict[int, list[int]] = {}
            for place in places:
                by_turn.setdefault(place >> _TURN, []).append(place & _ID)
            for turn, ids in by_turn.items():
                self.candidates.offer(turn, ids)
                self._has_news = True

    def _offer_after(self, lane: Lane) -> None:
        """Sort again the messages that waited until the lane had no open messages."""
        after, lane.after = lane.after, None
        if after:
            self._offer(after)

    @staticmethod
    def _take_from(share: Share, lane: Lane) -> None:
        """Take a lane away from a share."""
        del share.lanes[lane]
        lane.share = None
        lane.last = NO_LAST

    # --- what a lane is -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def lanes(self) -> Collection[Lane]:
        """All known lanes."""

    @abstractmethod
    def _lane(self, row: Row) -> tuple[Lane | None, bool]:
        """A message's lane (None if any consumer may get it), and whether the message ends its group."""

    @abstractmethod
    def _woken(self, lane: Lane) -> None:
        """The lane gets its first open message."""

    @abstractmethod
    def _rest(self, lane: Lane) -> None:
        """The lane has no open messages any more."""

    @abstractmethod
    def _changed(self) -> None:
        """Consumers have joined or left."""


class Groups(ByKey):
    """
    A group belongs to the consumer that gets its first message, as long as that is bound (Artemis, "Message Grouping").
    Any consumer may get a message without a group. A message with group-sequence -1 ends its group: the next message of
    that name goes to the next consumer, once the group has no open messages.
    """

    def __init__(self, ready: ReadyQueue | PriorityReadyQueues) -> None:
        super().__init__(ready)
        self._groups: dict[int, Lane] = {}
        """By the hash of the name. Names with the same hash are one group."""
        self._idle: dict[Lane, None] = {}
        """Groups without open messages, the longest idle first."""

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
        """Groups stay with their consumers."""


class Partitions(ByKey):
    """
    A fixed number of lanes, divided evenly among the consumers of the highest priority whenever one comes or goes; as
    few lanes as possible move. A message's key decides its lane, or its id if it has no key: the lane is the same in
    every replay.

    Args:
        key_of: Reads a message's key from its content and the offset of the bare message.
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
        """Does nothing: partitions always exist."""

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
        """Move partitions to their targets: their waiting messages are sorted again."""
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
            self.close([place & _ID for place in goes])
            self._offer(goes)
        for lane in lanes:
            if not lane.open:
                self._rest(lane)


def by_key_of(settings: EndpointSettings, ready: ReadyQueue | PriorityReadyQueues) -> ByKey | None:
    """Order by key for an endpoint with these settings; None where any consumer may get any message."""
    if settings.partitions:
        return Partitions(ready, settings.partitions, property_reader(settings.partition_key or GROUP_ID))
    return Groups(ready) if settings.message_groups else None
