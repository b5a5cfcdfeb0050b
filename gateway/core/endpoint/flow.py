"""
A flow: a consumer bound to an endpoint, with its demand and its unsettled messages. ``admit`` decides whether one more
may be bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat, takewhile
from operator import itemgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from gateway.core.endpoint.ready_queue import Candidates
from gateway.core.endpoint.settings import EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row, sizes_of

NOT_HELD: Final = -1
"""The size of a message that the consumer does not have."""

SLACK: Final = 512
"""Settled ids are forgotten when the noted ids exceed twice the unsettled ones by this number."""


class Unsettled(MutableMapping[int, int]):
    """
    The unsettled messages of a consumer: content sizes in bytes by id, in the order of delivery.

    Most messages are settled in the order of delivery, so they are stored in two lists and taken as slices. After one
    was settled out of order, they are stored in a dictionary until all of them are settled.

    The time of delivery is stored once for each turn: all messages that were handed out together. Where deliveries are
    locked for a time, each message also has its own time, which can be renewed.

    Invariants: an id is once in the lists or in the dictionary, and the lists or the dictionary are empty. If an id is
    in several turns, the newest turn counts. Locks are in the order of their times.
    """

    __slots__ = ("_by_id", "_ids", "_locks", "_newest_ms", "_noted", "_sizes", "_turns")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._sizes: list[int] = []
        self._by_id: dict[int, int] = {}
        self._turns: deque[tuple[int, Sequence[int]]] = deque()
        """(time of delivery in ms since the epoch, ids) of each turn with ids that may still be unsettled; the ids
        rise."""
        self._noted = 0
        """How many ids are in the turns."""
        self._newest_ms = 0
        self._locks: dict[int, int] | None = None
        """By id, since when the message is locked, in ms since the epoch; None without locks. A message whose outcome
        is not durable yet is unsettled, but not locked any more."""

    def hold(self, ids: Sequence[int], sizes: Iterable[int], now_ms: int) -> None:
        """
        Add messages that are handed out.

        Args:
            ids: Rising. The caller must not change the list afterwards.
            sizes: The content size of each.
            now_ms: Not earlier than in any call before.
        """
        if self._by_id:
            self._by_id.update(zip(ids, sizes, strict=True))
        else:
            self._ids += ids
            self._sizes += sizes
        self._came(ids, now_ms)

    def _came(self, ids: Sequence[int], now_ms: int) -> None:
        self._newest_ms = now_ms
        self._turns.append((now_ms, ids))
        self._noted += len(ids)
        if self._noted > 2 * len(self) + SLACK:
            self._forget_gone()
        if self._locks is not None:
            self._locks.update(dict.fromkeys(ids, now_ms))

    def _forget_gone(self) -> None:
        """Remove from the turns the ids that are not unsettled any more."""
        turns, oldest = self._turns, next(iter(self))
        while not _has(turns[0][1], oldest):
            self._noted -= len(turns.popleft()[1])
        if self._noted > 2 * len(self) + SLACK:
            left, here = set(self), deque[tuple[int, Sequence[int]]]()
            for came_ms, ids in reversed(turns):
                if found := [i for i in ids if i in left]:
                    left.difference_update(found)
                    here.appendleft((came_ms, found))
            self._turns, self._noted = here, len(self)

    def _gone(self, ids: Iterable[int]) -> None:
        if self._locks is not None:
            self.unlock(ids)
        if not self:
            self._turns.clear()
            self._noted = 0

    # --- since when -----------------------------------------------------------------------------------------------

    @property
    def oldest(self) -> tuple[int, int] | None:
        """The id that was handed out first, and when, in ms since the epoch; None without messages."""
        first = next(iter(self), None)
        if first is None:
            return None
        return next((first, came_ms) for came_ms, ids in reversed(self._turns) if _has(ids, first))

    @property
    def are_locked(self) -> bool:
        """Whether messages are locked for a time."""
        return self._locks is not None

    def lock(self, *, are_locked: bool) -> None:
        """Lock each message, since its delivery; or unlock all."""
        if not are_locked:
            self._locks = None
        elif self._locks is None:
            came = {i: came_ms for came_ms, ids in self._turns for i in ids}
            self._locks = dict(sorted(((i, came[i]) for i in self), key=itemgetter(1)))

    def renew(self, ids: Iterable[int], now_ms: int) -> None:
        """Renew the locks of these messages. Messages without a lock are ignored."""
        locks = self._locks
        if locks is not None:
            self._newest_ms = now_ms
            for i in ids:
                if locks.pop(i, None) is not None:
                    locks[i] = now_ms

    def unlock(self, ids: Iterable[int]) -> None:
        """The consumer has sent outcomes for these. They stay unsettled, unlocked, until the outcomes are durable."""
        if self._locks is not None:
            for i in ids:
                self._locks.pop(i, None)

    @property
    def oldest_lock_ms(self) -> int | None:
        """The time of the oldest lock (taken or renewed), in ms since the epoch; None without locks."""
        return next(iter(self._locks.values()), None) if self._locks else None

    def locked_since(self, time_ms: int, limit: int) -> list[int]:
        """At most ``limit`` ids whose locks were taken or renewed at ``time_ms`` or before, the oldest first."""
        found = takewhile(lambda lock: lock[1] <= time_ms, self._locks.items() if self._locks else ())
        return [i for i, _ in islice(found, limit)]

    # --- messages go ----------------------------------------------------------------------------------------------

    def take(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """
        Remove messages.

        Returns:
            The ids that were unsettled, and their sizes.
        """
        count = len(ids)
        if self._ids:
            if self._ids[:count] == ids:
                sizes = self._sizes[:count]
                del self._ids[:count], self._sizes[:count]
                self._gone(ids)
                return ids, sizes
            self._mix()
        by_id = self._by_id
        before = len(by_id)
        sizes = list(map(by_id.pop, ids, repeat(NOT_HELD)))
        if before - len(by_id) < count:
            ids = [i for i, size in zip(ids, sizes, strict=True) if size != NOT_HELD]
            sizes = [size for size in sizes if size != NOT_HELD]
        self._gone(ids)
        return ids, sizes

    def _mix(self) -> dict[int, int]:
        """Move all messages to the dictionary, until all are gone."""
        if self._ids:
            self._by_id = dict(zip(self._ids, self._sizes, strict=True))
            self._ids, self._sizes = [], []
        return self._by_id

    # --- as a mapping ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ids) or len(self._by_id)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids or self._by_id)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._mix()

    def __getitem__(self, message_id: int) -> int:
        return self._mix()[message_id]

    def __setitem__(self, message_id: int, size_bytes: int) -> None:
        is_new = message_id not in self._mix()
        self._by_id[message_id] = size_bytes
        if is_new:
            # A transaction gives the message back, and the consumer has had it meanwhile: the lock counts from the
            # newest time.
            self._came((message_id,), self._newest_ms)

    def __delitem__(self, message_id: int) -> None:
        del self._mix()[message_id]
        self._gone((message_id,))

    def clear(self) -> None:
        """Remove all messages."""
        gone = tuple(self)
        self._ids, self._sizes, self._by_id = [], [], {}
        self._gone(gone)


def _has(ids: Sequence[int], message_id: int) -> bool:
    """Whether rising ids contain this one."""
    place = bisect_left(ids, message_id)
    return place < len(ids) and ids[place] == message_id


Sizes: TypeAlias = "Sequence[int] | None"
"""Content sizes in bytes, if the caller has them."""

E = TypeVar("E")
"""What a flow is bound to: an endpoint."""


@dataclass(slots=True, eq=False)
class BoundFlow(Generic[E]):
    """
    A consumer bound to an endpoint. ``demand`` is how many messages its link can take now.

    A flow with a selector takes messages out of the middle of the queue. It has ``candidates``: ready ids that it has
    not looked at yet.
    """

    endpoint: E
    link: Any
    epoch: int | None = None
    """On an endpoint with exclusive=steal, a new consumer displaces a consumer of the same or a lower epoch."""
    matches: Callable[[Row], bool] | None = None
    """``selector``, without the messages in ``excluded``."""
    priority: int = 0
    """A flow gets messages before flows of lower priority, as long as it has demand."""
    selector: Callable[[Row], bool] | None = field(init=False)
    """The selector that the consumer asked for."""
    lock_timeout_ms: int | None = None
    """How long its unsettled messages are locked, in ms, if the consumer asked for it; None for the endpoint's
    setting."""
    passes_over: bool = False
    """The selector is the subscription's: messages that it does not match are not the endpoint's, and the cursor passes
    them."""
    excluded: set[int] = field(default_factory=set)
    candidates: Candidates | None = None
    demand: int = 0
    is_stalled: bool = False
    """Deliveries were taken back after a lock timeout, and the consumer has not yet shown that it knows. It gets no
    messages."""
    unsettled: Unsettled = field(default_factory=Unsettled)
    """The messages that were handed out and are not settled."""

    def __post_init__(self) -> None:
        self.selector = self.matches

    def exclude(self, ids: Iterable[int]) -> Callable[[Row], bool]:
        """
        Exclude messages that this consumer must not get again.

        Returns:
            The new condition for ``matches``.
        """
        excluded, selector = self.excluded, self.selector
        excluded.update(ids)
        if selector is None:
            return lambda row: row[ID] not in excluded
        return lambda row: row[ID] not in excluded and selector(row)

    def hold(self, ids: Sequence[int], rows: Sequence[Row], now_ms: int, sizes: Sizes = None) -> None:
        """
        Hand messages to the flow.

        Args:
            ids: The ids of ``rows``.
            sizes: The content sizes of ``rows``.
        """
        self.unsettled.hold(ids, sizes_of(rows) if sizes is None else sizes, now_ms)
        self.demand -= len(rows)

    def wants(self, row: Row) -> bool:
        """Whether the flow takes the message: it has no selector, or the selector matches."""
        return self.matches is None or self.matches(row)

    @property
    def is_hungry(self) -> bool:
        """Whether the flow has demand, and there may be messages for it."""
        return self.demand > 0 and (self.candidates is None or bool(self.candidates))


def admit(
    name: str, settings: EndpointSettings, bound: Mapping[BoundFlow[E], None], flow: BoundFlow[E]
) -> BoundFlow[E] | None:
    """
    Admit a consumer in addition to the bound ones.

    Args:
        name: The endpoint's name, for refusals.
        bound: The flows bound so far; on an exclusive endpoint the active one is first.

    Returns:
        The consumer that it displaces, if any.

    Raises:
        Refused: RESOURCE_LOCKED, the endpoint has its one consumer; STOLEN, a consumer of a higher epoch has it;
            RESOURCE_LIMIT, the endpoint has ``max_flows`` consumers.
    """
    displaced: BoundFlow[E] | None = None
    active = next(iter(bound), None)
    if active is not None and settings.exclusive is Exclusivity.REFUSE:
        raise Refused(
            ErrorCode.RESOURCE_LOCKED,
            f"{name!r} is exclusive and has a consumer; detach it first, or make the queue exclusive=wait",
        )
    if active is not None and settings.exclusive is Exclusivity.STEAL:
        if (flow.epoch or 0) < (active.epoch or 0):
            raise Refused(
                ErrorCode.STOLEN,
                f"{name!r} is held by a consumer of epoch {active.epoch}; attach with that or a higher one",
            )
        displaced = active
    if settings.max_flows and len(bound) - (displaced is not None) >= settings.max_flows:
        raise Refused(
            ErrorCode.RESOURCE_LIMIT,
            f"{name!r} has {len(bound)} consumers, as many as it may have (max_flows); detach one first, or "
            "raise the limit",
            **{"rewind:reason": "endpoint-flows", "rewind:endpoint": name},
        )
    return displaced
