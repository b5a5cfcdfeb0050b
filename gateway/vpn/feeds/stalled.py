"""
Feeds whose links take nothing just now, with the pages that were read for them: one bound for readers of the log and
browsers together, which know nothing of each other.

Pages are kept for a short time, only if the accounts of the connections have room, and are entered there. A feed that
continues later reads again: links that take nothing hold nothing, however many there are.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from gateway.ledger import Account, Kind
from gateway.vpn.runtime import Runtime

STALLED_SECONDS: Final = 0.25
"""How long a page is kept for a link that takes nothing: most go on within milliseconds."""

STALLED_BYTES: Final = 128 * 1024 * 1024
"""The most that is kept for all such links of a Message VPN together, however short their stalls are."""


class PagedFeed(Protocol):
    """A feed that reads pages for a link."""

    @property
    def account(self) -> Account:
        """The account of its link's connection."""

    def let_go(self) -> None:
        """Drop what was read: it is read again when the link takes more."""


class StalledFeeds:
    """Those of one Message VPN."""

    def __init__(self, runtime: Runtime) -> None:
        self._seconds = runtime.clock.seconds
        self._loop = runtime.loop
        self._held: dict[PagedFeed, tuple[float, int]] = {}
        """By feed: until when its pages are kept, and their bytes. The feed that has stalled the longest is first."""
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, feed: PagedFeed) -> bool:
        return feed in self._held

    def add(self, feed: PagedFeed, size_bytes: int) -> None:
        """The feed's link takes nothing; so much was read for it and not taken."""
        if not feed.account.has_room(size_bytes):
            feed.let_go()
            return
        feed.account.hold(Kind.PAGES, size_bytes)
        self._held[feed] = self._seconds() + STALLED_SECONDS, size_bytes
        self._held_bytes += size_bytes
        while self._held_bytes > STALLED_BYTES:
            next(iter(self._held)).let_go()
        if self._timer is None and self._held:
            self._timer = self._loop.call_later(STALLED_SECONDS, self._look)

    def remove(self, feed: PagedFeed) -> None:
        """The feed continues, or has dropped its pages."""
        _, size_bytes = self._held.pop(feed, (0.0, 0))
        if size_bytes:
            feed.account.hold(Kind.PAGES, -size_bytes)
            self._held_bytes -= size_bytes

    def _look(self) -> None:
        self._timer = None
        now = self._seconds()
        for feed, (until, _) in list(self._held.items()):
            if until > now:
                self._timer = self._loop.call_later(until - now, self._look)
                return
            feed.let_go()
