"""
A flow: a consumer bound to an endpoint, what it can take, and what it has unsettled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

from gateway.core.endpoint.ready_queue import Candidates
from gateway.core.model import CONTENT, ID, Row

NOT_HELD: Final = -1
"""The size of a message that is not among the unsettled."""

E = TypeVar("E")
"""What it is bound to: an endpoint."""


class BoundFlow(Generic[E]):
    """
    A consumer bound to an endpoint. ``demand`` is how many messages its link can take right now.

    One with a selector takes messages out of the middle: it has ``candidates``, ready ids it has not looked at yet.
    """

    __slots__ = (
        "candidates",
        "demand",
        "endpoint",
        "epoch",
        "excluded",
        "link",
        "matches",
        "priority",
        "selector",
        "unsettled",
    )

    def __init__(
        self,
        endpoint: E,
        link: Any,
        epoch: int | None = None,
        matches: Callable[[Row], bool] | None = None,
        priority: int = 0,
    ) -> None:
        self.priority = priority
        """It is given messages before those of a lower one, while it can take any."""
        self.selector = matches
        """What its consumer asked for; ``matches`` also leaves out what it must not see again."""
        self.matches = matches
        self.excluded: set[int] = set()
        self.candidates: Candidates | None = None
        self.endpoint = endpoint
        self.link = link
        self.epoch = epoch
        self.demand = 0
        self.unsettled: dict[int, int] = {}
        """id -> content size in bytes, of what was handed out and not settled."""

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

    def hold(self, rows: Sequence[Row]) -> None:
        """These are handed to it."""
        ids, sizes = [row[ID] for row in rows], [len(row[CONTENT]) for row in rows]
        self.unsettled.update(zip(ids, sizes, strict=True))
        self.demand -= len(rows)

    def take(self, ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """
        Messages are no longer its.

        Returns:
            Those of them that it had unsettled, and their content sizes in bytes.
        """
        unsettled, taken = self.unsettled, list(ids)
        before = len(unsettled)
        sizes = list(map(unsettled.pop, taken, repeat(NOT_HELD)))
        if before - len(unsettled) < len(taken):
            taken = [i for i, size in zip(taken, sizes, strict=True) if size != NOT_HELD]
            sizes = [size for size in sizes if size != NOT_HELD]
        return taken, sizes

    @property
    def is_hungry(self) -> bool:
        """It can take messages, and there may be some for it."""
        return self.demand > 0 and (self.candidates is None or bool(self.candidates))
