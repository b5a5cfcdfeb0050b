"""
A flow: a consumer bound to an endpoint, what it can take, and what it has unsettled; whether one more may be bound, and
whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, Generic, TypeAlias, TypeVar

from gateway.core.endpoint.ready_queue import Candidates
from gateway.core.endpoint.settings import EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row, sizes_of

NOT_HELD: Final = -1
"""The size of a message that is not here."""


class Unsettled(MutableMapping[int, int]):
    """
    What a consumer has unsettled: content sizes in bytes by id, in the order in which they came.

    Most are settled in the order in which they were handed out, so they lie in two lists and are taken as slices. Where
    they are not, they lie in a dictionary until all of them are gone.

    Invariant: an id is in the lists or in the dictionary, once, and one of both is empty.
    """

    __slots__ = ("_by_id", "_ids", "_sizes")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._sizes: list[int] = []
        self._by_id: dict[int, int] = {}

    def hold(self, ids: Sequence[int], sizes: Iterable[int]) -> None:
        """
        These come, and are not here yet.

        Args:
            sizes: Of each.
        """
        if self._by_id:
            self._by_id.update(zip(ids, sizes, strict=True))
        else:
            self._ids += ids
            self._sizes += sizes

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
                return ids, sizes
            self._mix()
        by_id = self._by_id
        before = len(by_id)
        sizes = list(map(by_id.pop, ids, repeat(NOT_HELD)))
        if before - len(by_id) < count:
            ids = [i for i, size in zip(ids, sizes, strict=True) if size != NOT_HELD]
            sizes = [size for size in sizes if size != NOT_HELD]
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
        self._mix()[message_id] = size_bytes

    def __delitem__(self, message_id: int) -> None:
        del self._mix()[message_id]

    def clear(self) -> None:
        """Nothing is here any more."""
        self._ids, self._sizes, self._by_id = [], [], {}


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
    passes_over: bool = False
    """What its selector does not match is not its endpoint's: the cursor passes that over."""
    excluded: set[int] = field(default_factory=set)
    candidates: Candidates | None = None
    demand: int = 0
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

    def hold(self, ids: Sequence[int], rows: Sequence[Row], sizes: Sizes = None) -> None:
        """
        These are handed to it.

        Args:
            ids: Of ``rows``.
            sizes: Theirs.
        """
        self.unsettled.hold(ids, sizes_of(rows) if sizes is None else sizes)
        self.demand -= len(rows)

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
