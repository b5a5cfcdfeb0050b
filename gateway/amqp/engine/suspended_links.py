"""
Suspended links: their peer has detached them and not closed them, and they still stand for something (AMQP 1.0
section 2.6.3). Deliveries that are unsettled on them can be settled until their session ends.
"""

from __future__ import annotations

from typing import Any

from proton import Link, Session

from gateway.amqp.engine.attached_link import AttachedLink, Sending
from gateway.amqp.engine.loops import Loops


class SuspendedLinks:
    """
    Those of one connection.

    Args:
        outgoing: Links whose events are taken one by one, by handle.
    """

    def __init__(self, outgoing: dict[Any, Sending], loops: Loops) -> None:
        self._loops = loops
        self._outgoing = outgoing
        self._links: dict[Link, tuple[AttachedLink, tuple[bool, str]]] = {}
        """With their directions and names."""
        self._named: dict[tuple[bool, str], Link] = {}
        """The last that was suspended of each direction and name."""

    def __contains__(self, link: Link) -> bool:
        return link in self._links

    def __getitem__(self, link: Link) -> AttachedLink:
        return self._links[link][0]

    def add(self, attached: AttachedLink, name: str) -> None:
        """It is suspended: what its peer says of deliveries still goes to it."""
        link = attached.link
        key = (link.is_receiver, name)
        self._links[link] = (attached, key)
        self._named[key] = link
        if attached.outgoing is not None:
            self._outgoing[self._loops.handle_of(link._impl)] = attached.outgoing

    def take(self, link: Link) -> AttachedLink | None:
        """It is suspended no more: whoever takes it ends it. None where it is not suspended."""
        found = self._links.pop(link, None)
        if found is None:
            return None
        attached, key = found
        self._outgoing.pop(self._loops.handle_of(link._impl), None)
        if self._named.get(key) == link:
            del self._named[key]
        return attached

    def named(self, name: str, *, is_receiver: bool) -> Link | None:
        """The one of this direction and name, on whichever session (section 2.6.1); None where there is none."""
        return self._named.get((is_receiver, name))

    def of(self, session: Session) -> list[Link]:
        """Those of a session."""
        return [link for link in self._links if link.session == session]

    def all(self) -> list[Link]:
        """All of them."""
        return list(self._links)
