"""
How much lies on endpoints, as far as the store knows it: what messages were put on is counted once in a while.
"""

from __future__ import annotations

from typing import Final

from gateway.core.effects import CountedUpTo, Effect
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import LogState
from gateway.core.publishing.routes import Route

UNCOUNTED_IDS: Final = 100_000
"""Ids that a start may have to look at in vain, where nothing came to any endpoint."""


class BacklogCounts:
    """Invariant: what the store is told of an endpoint by others speaks of the last committed id, too."""

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._grown: dict[Route, None] = {}
        """Routes that messages came by since everything was counted."""
        self._uncounted: list[Endpoint] = []
        """Endpoints of which the store knew less, when this began, than was there."""
        self._counted_id = 0

    def grew(self, route: Route) -> None:
        """Messages came by a route."""
        self._grown[route] = None

    def found_uncounted(self, endpoint: Endpoint) -> None:
        """A start found more on an endpoint than the store had counted."""
        self._uncounted.append(endpoint)

    def effects(self) -> list[Effect]:
        """
        Have the store know how much lies on endpoints to which messages came since the last time, so that a start has
        little to count; nothing where that is known.
        """
        newest_id = self._log.next_id - 1
        grown: dict[Endpoint, None] = dict.fromkeys(self._uncounted)
        self._uncounted.clear()
        for route in self._grown:
            grown.update(dict.fromkeys(route.current().endpoints))
        self._grown.clear()
        effects: list[Effect] = []
        for endpoint in grown:
            effects += endpoint.backlog.count_effects(newest_id)
        if newest_id > self._counted_id and (effects or newest_id - self._counted_id > UNCOUNTED_IDS):
            self._counted_id = newest_id
            effects.append(CountedUpTo(newest_id))
        return effects
