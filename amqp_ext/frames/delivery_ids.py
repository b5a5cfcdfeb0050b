"""
Delivery-ids of a session whose peer counts them apart for each of its links, and not over all of them (AMQP 1.0
section 2.7.5): which id the engine, which counts them over all links, has for what the peer calls by another.

Two links of such a session may have the same id unsettled. Nobody here has to guess which is meant: a transfer names
its link, and what the engine says of a delivery is said again with the id that came on that delivery's link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ID_MODULUS: Final = 2**32
_MOST_BEHIND: Final = 2**30


@dataclass(slots=True)
class _Link:
    number: int
    """What the peer calls its newest delivery."""
    own: int
    """What the engine calls that."""
    unsettled: set[int] = field(default_factory=set)
    """What the engine calls those that are to be settled."""


class SeparateIds:
    """
    The delivery-ids of one session, from the first delivery whose id was not the next.

    Args:
        next_id: The engine's for that one. Of deliveries before it peer and engine have the same.

    Invariant: what is held is an entry for each link, and one for each delivery that is to be settled.
    """

    def __init__(self, next_id: int) -> None:
        self._next = self._since = next_id
        self._links: dict[int, _Link] = {}
        """By handle."""
        self._unsettled: dict[int, tuple[_Link, int]] = {}
        """By the engine's id, the link and the peer's."""

    def __len__(self) -> int:
        return len(self._unsettled)

    def begin(self, handle: int, number: int, *, is_settled: bool) -> int | None:
        """
        The peer begins a delivery, and gives it a number.

        Returns:
            The number that was due, where it is another one; the delivery has not begun then. None where it is right,
            as any is for the first that is known of its link.
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
            # Ids come round: a new one is never to be taken for one from before.
            self._since = (self._next - _MOST_BEHIND) % ID_MODULUS
        return None

    def newest(self, handle: int) -> tuple[int, int] | None:
        """What the peer calls the newest delivery of a link, and what the engine does; None for one from before."""
        link = self._links.get(handle)
        return None if link is None else (link.number, link.own)

    def settle(self, own: int) -> int | None:
        """A delivery is settled, by the engine's id: the peer's for it; None where its link is gone."""
        if (own - self._since) % ID_MODULUS >= ID_MODULUS // 2:
            return own
        link, number = self._unsettled.pop(own, (None, None))
        if link is not None:
            link.unsettled.discard(own)
        return number

    def settle_range(self, first: int, last: int) -> list[tuple[int, int]]:
        """The same of several, from the first to the last, as ranges of the peer's ids."""
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
        """The peer has detached a link: nothing is said of its deliveries any more."""
        link = self._links.pop(handle, None)
        for own in link.unsettled if link is not None else ():
            del self._unsettled[own]
