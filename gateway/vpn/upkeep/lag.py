"""
How far consumers are behind: when the oldest message on an endpoint arrived.

Only the store knows that for most endpoints. It is asked every few seconds, with a short read for each endpoint that
has changed since; for other endpoints the answer stays. So what is known here is some seconds old.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.vpn.feeds.browse_feed import EndpointListing
from gateway.vpn.state import VpnService, VpnState
from store.errors import ReadFailed

LOOK_SECONDS: Final = 5.0
"""From the end of one look to the next: about how old an answer may be."""

READS: Final = 100
"""Endpoints that one look asks for: with very many endpoints, the others wait for later looks."""

TURN_ENDPOINTS: Final = 500
"""Endpoints compared in one turn of the loop: well below a millisecond."""


class _Oldest(NamedTuple):
    key: tuple[int, int, int]
    """The endpoint's cursor number, and how many messages left it and were put there. If it changes, ask again."""
    time_ms: int
    look: int
    """The number of the look that asked for it."""


class Lag(VpnService):
    """Keeps, for the endpoints of one Message VPN, when their oldest messages arrived."""

    def __init__(self, state: VpnState, listing: EndpointListing) -> None:
        super().__init__(state)
        self._listing = listing
        self._oldest: dict[Endpoint, _Oldest] = {}
        self._looks = 0

    def start(self) -> None:
        """Look, again and again."""
        self._begin(self._watch)

    def lag_ms(self, endpoint: Endpoint) -> int | None:
        """
        How long ago the oldest message on an endpoint arrived, in ms, by the last look; 0 if the endpoint has no
        message, None if the time is not known yet.
        """
        if not endpoint.depth:
            return 0
        found = self._oldest.get(endpoint)
        if found is None or found.key[0] != endpoint.cursor_number:
            return None
        return max(self._now_ms() - found.time_ms, 0)

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Ask for the times that are not known or outdated, of a limited number of endpoints."""
        left, endpoints = READS, self._broker.endpoints
        before, self._oldest = self._oldest, {}
        self._oldest.update(
            (e, found) for e, found in before.items() if endpoints.get(e.name) is e and e.depth
        )
        self._looks += 1
        # Endpoints whose times are not known come first, then those that were asked for the longest time ago.
        waiting = sorted(
            (e for e in endpoints.values() if e.depth and e.kind is not EndpointKind.STREAM),
            key=lambda e: found.look if (found := self._oldest.get(e)) else 0,
        )
        for count, endpoint in enumerate(waiting, 1):
            if count % TURN_ENDPOINTS == 0:
                await asyncio.sleep(0)
            key = (endpoint.cursor_number, endpoint.settled, endpoint.backlog.put.messages)
            known = self._oldest.pop(endpoint, None)
            if known is None or known.key != key:
                if not left:
                    if known is not None:
                        self._oldest[endpoint] = known
                    continue
                left -= 1
                time_ms: int | None = None
                with suppress(ReadFailed):
                    time_ms = await self._listing.oldest_ms(endpoint)
                known = None if time_ms is None else _Oldest(key, time_ms, self._looks)
            if known is not None:
                self._oldest[endpoint] = known
