"""
A flow: a consumer bound to an endpoint, what it can take, and what it has unsettled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from gateway.core.endpoint.ready_queue import Candidates
from gateway.core.endpoint.unsettled import Unsettled
from gateway.core.model import ID, Row, sizes_of

Sizes: TypeAlias = "Sequence[int] | None"
"""Of messages' contents, in bytes, where they are at hand."""

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
        self.unsettled = Unsettled()
        """Of what was handed out and not settled."""

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

    def take(self, ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """
        Messages are no longer its.

        Returns:
            Those of them that it had unsettled, and their content sizes in bytes.
        """
        return self.unsettled.take(list(ids))

    @property
    def is_hungry(self) -> bool:
        """It can take messages, and there may be some for it."""
        return self.demand > 0 and (self.candidates is None or bool(self.candidates))
