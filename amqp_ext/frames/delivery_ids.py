"""
Delivery-ids of a session whose peer numbers deliveries per link, though AMQP 1.0 numbers them per session (section
2.7.5). This module translates between the peer's ids and the engine's, which are per session.

Two links of such a session may have unsettled deliveries with the same id. That is never ambiguous here: a transfer
names its link, and a disposition of the engine is passed on with the id that the peer used on the delivery's link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ID_MODULUS: Final = 2**32
_MOST_BEHIND: Final = 2**30


@dataclass(slots=True)
class _Link:
    number: int
    """The peer's id of the link's newest delivery."""
    own: int
    """The engine's id of that delivery."""
    unsettled: set[int] = field(default_factory=set)
    """The engine's ids of the link's unsettled deliveries."""


class SeparateIds:
    """
    The delivery-ids of one session, from the first delivery on whose id was not the session's next.

    Args:
        next_id: The engine's id of that delivery. For the deliveries before it, peer and engine have the same ids.

    Invariant: memory holds one entry for each link, and one for each unsettled delivery.
    """

    def __init__(self, next_id: int) -> None:
        self._next = self._since = next_id
        self._links: dict[int, _Link] = {}
        """The links that have begun a delivery here, by handle."""
        self._unsettled: dict[int, tuple[_Link, int]] = {}
        """By the engine's id: the link, and the peer's id."""

    def __len__(self) -> int:
        return len(self._unsettled)

    def begin(self, handle: int, number: int, *, is_settled: bool) -> int | None:
        """
        The peer begins a delivery with the id ``number``.

        Returns:
            None if the id is right; for the first delivery that is seen here on a link, every id is. Otherwise the id
            that was due, and the delivery has not begun.
        """
        link = self._links.get(handle)
        if link is None:
            link = self._links[handle] = _Link(number, self._next)
        elif number != (due := (link.number + 1) % ID_MODULUS):
            return due
        link.number, link.own = number, self._next
        if not is_settled:
            self._unsettled[link.own] = link, number
            link.unsettled.add(link.own)
        self._next = (self._next + 1) % ID_MODULUS
        if (self._next - self._since) % ID_MODULUS > _MOST_BEHIND:
            # Ids wrap around: a new id must never be taken for one from before the separation.
            self._since = (self._next - _MOST_BEHIND) % ID_MODULUS
        return None

    def newest(self, handle: int) -> tuple[int, int] | None:
        """The peer's and the engine's id of a link's newest delivery; None if the link has begun none here."""
        link = self._links.get(handle)
        return None if link is None else (link.number, link.own)

    def settle(self, own: int) -> int | None:
        """Settle a delivery by the engine's id. Returns the peer's id; None if the delivery's link is detached."""
        if (own - self._since) % ID_MODULUS >= ID_MODULUS // 2:
            return own
        link, number = self._unsettled.pop(own, (None, None))
        if link is not None:
            link.unsettled.discard(own)
        return number

    def settle_range(self, first: int, last: int) -> list[tuple[int, int]]:
        """Settle the engine's ids from ``first`` to ``last``. Returns the peer's ids as ranges."""
        ranges: list[tuple[int, int]] = []
        for step in range((last - first) % ID_MODULUS + 1):
            number = self.settle((first + step) % ID_MODULUS)
            if number is None:
                continue
            if ranges and number == (ranges[-1][1] + 1) % ID_MODULUS:
                ranges[-1] = ranges[-1][0], number
            else:
                ranges.append((number, number))
        return ranges

    def detach(self, handle: int) -> None:
        """The peer has detached a link: forget its deliveries."""
        link = self._links.pop(handle, None)
        for own in link.unsettled if link is not None else ():
            del self._unsettled[own]
