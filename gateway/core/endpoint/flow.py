"""
A flow: a consumer bound to an endpoint, what it can take, and what it has unsettled; whether one more may be bound, and
whose turn it is.
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
"""The size of a message that is not here."""

SLACK: Final = 512
"""Ids noted beyond twice as many as are here, until those that are gone are forgotten."""


class Unsettled(MutableMapping[int, int]):
    """
    What a consumer has unsettled: content sizes in bytes by id, in the order in which they came.

    Most are settled in the order in which they were handed out, so they lie in two lists and are taken as slices. Where
    they are not, they lie in a dictionary until all of them are gone.

    When they came is noted for all that came at once. Where deliveries are locked for a time, there is also a time for
    each, which can be renewed.

    Invariants: an id is in the lists or in the dictionary, once, and one of both is empty. Of several turns with an
    id the newest is the one that it is here by. Locks are in the order of their times.
    """

    __slots__ = ("_by_id", "_ids", "_locks", "_newest_ms", "_noted", "_sizes", "_turns")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._sizes: list[int] = []
        self._by_id: dict[int, int] = {}
        self._turns: deque[tuple[int, Sequence[int]]] = deque()
        """When, in ms since the epoch, ids came that may be here still; those of a turn rise."""
        self._noted = 0
        """Ids in the turns."""
        self._newest_ms = 0
        self._locks: dict[int, int] | None = None
        """Since when each is locked, in ms since the epoch; None where none is. What has an outcome that is not durable
        yet is here, and locked no more."""

    def hold(self, ids: Sequence[int], sizes: Iterable[int], now_ms: int) -> None:
        """
        These come, and are not here yet.

        Args:
            ids: Rising, and nobody's to change.
            sizes: Of each.
            now_ms: Not before any time that was given before.
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
        """Turns are of what is here."""
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
            for i in ids:
                self._locks.pop(i, None)
        if not self:
            self._turns.clear()
            self._noted = 0

    # --- since when -----------------------------------------------------------------------------------------------

    @property
    def oldest(self) -> tuple[int, int] | None:
        """Which has been here longest, and when it came, in ms since the epoch; None where nothing is here."""
        first = next(iter(self), None)
        if first is None:
            return None
        return next((first, came_ms) for came_ms, ids in reversed(self._turns) if _has(ids, first))

    @property
    def are_locked(self) -> bool:
        """Each is locked for a time."""
        return self._locks is not None

    def lock(self, *, are_locked: bool) -> None:
        """From now on each is locked, since it came; or none is."""
        if not are_locked:
            self._locks = None
        elif self._locks is None:
            came = {i: came_ms for came_ms, ids in self._turns for i in ids}
            self._locks = dict(sorted(((i, came[i]) for i in self), key=itemgetter(1)))

    def renew(self, ids: Iterable[int], now_ms: int) -> None:
        """The locks of those of these that have any begin anew."""
        locks = self._locks
        if locks is not None:
            self._newest_ms = now_ms
            for i in ids:
                if locks.pop(i, None) is not None:
                    locks[i] = now_ms

    def unlock(self, ids: Iterable[int]) -> None:
        """It is said what becomes of these: they stay until that is durable, however long it takes."""
        if self._locks is not None:
            for i in ids:
                self._locks.pop(i, None)

    @property
    def oldest_lock_ms(self) -> int | None:
        """Since when the lock is held that was taken, or renewed, first, in ms since the epoch; None without any."""
        return next(iter(self._locks.values()), None) if self._locks else None

    def locked_since(self, time_ms: int, limit: int) -> list[int]:
        """Those with locks that were taken, or renewed, then or before, at most so many: the oldest first."""
        found = takewhile(lambda lock: lock[1] <= time_ms, self._locks.items() if self._locks else ())
        return [i for i, _ in islice(found, limit)]

    # --- they go --------------------------------------------------------------------------------------------------

    def take(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """
        These go.

        Returns:
            Those of them that were here, and their sizes.
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
        """They are taken by id from now on, until all are gone."""
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
            # It was here before, and its consumer had it since: it is not locked for longer than from the newest on.
            self._came((message_id,), self._newest_ms)

    def __delitem__(self, message_id: int) -> None:
        del self._mix()[message_id]
        self._gone((message_id,))

    def clear(self) -> None:
        """Nothing is here any more."""
        gone = tuple(self)
        self._ids, self._sizes, self._by_id = [], [], {}
        self._gone(gone)


def _has(ids: Sequence[int], message_id: int) -> bool:
    """Whether this is one of rising ids."""
    place = bisect_left(ids, message_id)
    return place < len(ids) and ids[place] == message_id


Sizes: TypeAlias = "Sequence[int] | None"
"""Of messages' contents, in bytes, where they are at hand."""

E = TypeVar("E")
"""What it is bound to: an endpoint."""


@dataclass(slots=True, eq=False)
class BoundFlow(Generic[E]):
    """
    A consumer bound to an endpoint. ``demand`` is how many messages its link can take right now.

    One with a selector takes messages out of the middle: it has ``candidates``, ready ids it has not looked at yet.
    """

    endpoint: E
    link: Any
    epoch: int | None = None
    """Of two consumers of an endpoint that is exclusive=steal, the one with the higher or an equal one has it."""
    matches: Callable[[Row], bool] | None = None
    """``selector``, without what its consumer must not see again."""
    priority: int = 0
    """It is given messages before those of a lower one, while it can take any."""
    selector: Callable[[Row], bool] | None = field(init=False)
    """What its consumer asked for."""
    lock_timeout_ms: int | None = None
    """How long what it has unsettled is locked, in ms, where it says that itself; None leaves it to its endpoint."""
    passes_over: bool = False
    """What its selector does not match is not its endpoint's: the cursor passes that over."""
    excluded: set[int] = field(default_factory=set)
    candidates: Candidates | None = None
    demand: int = 0
    is_stalled: bool = False
    """Deliveries were taken back from it, and it has not said that it knows: it is given nothing more."""
    unsettled: Unsettled = field(default_factory=Unsettled)
    """Of what was handed out and not settled."""

    def __post_init__(self) -> None:
        self.selector = self.matches

    def exclude(self, ids: Iterable[int]) -> Callable[[Row], bool]:
        """
        Messages that this consumer must not be given again.

        Returns:
            What it wants from now on.
        """
        excluded, selector = self.excluded, self.selector
        excluded.update(ids)
        if selector is None:
            return lambda row: row[ID] not in excluded
        return lambda row: row[ID] not in excluded and selector(row)

    def hold(self, ids: Sequence[int], rows: Sequence[Row], now_ms: int, sizes: Sizes = None) -> None:
        """
        These are handed to it.

        Args:
            ids: Of ``rows``.
            sizes: Theirs.
        """
        self.unsettled.hold(ids, sizes_of(rows) if sizes is None else sizes, now_ms)
        self.demand -= len(rows)

    def wants(self, row: Row) -> bool:
        """Its selector matches, if it has one."""
        return self.matches is None or self.matches(row)

    @property
    def is_hungry(self) -> bool:
        """It can take messages, and there may be some for it."""
        return self.demand > 0 and (self.candidates is None or bool(self.candidates))


def admit(
    name: str, settings: EndpointSettings, bound: Mapping[BoundFlow[E], None], flow: BoundFlow[E]
) -> BoundFlow[E] | None:
    """
    Admit a consumer beside those that are bound, the active one of an exclusive endpoint first.

    Args:
        name: The endpoint's, for refusals.

    Returns:
        The consumer it displaces, if it takes the place of one.

    Raises:
        Refused: RESOURCE_LOCKED, the endpoint has its one consumer; STOLEN, one with a higher epoch has it;
            RESOURCE_LIMIT, it has as many as it takes.
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
            f"{name!r} has {len(bound)} consumers, as many as it takes (max_flows); "
            "detach one first, or raise the limit",
            **{"rewind:reason": "endpoint-flows", "rewind:endpoint": name},
        )
    return displaced
