"""
The endpoint feeds of a Message VPN: one for each endpoint that messages are, or were, delivered from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.message_cache import MessageCache
from gateway.core.model import Row
from gateway.vpn.delivery.endpoint_feed import (
    BeingErased,
    BlockedReplays,
    DeadLetterOffice,
    EndpointFeed,
    FeedShared,
)
from gateway.vpn.delivery.selection_turns import SelectionTurns
from gateway.vpn.log_history import LogHistory
from gateway.vpn.role.lease import Lease
from gateway.vpn.runtime import Runtime
from gateway.vpn.settings import CurrentSettings
from gateway.vpn.telemetry.message_tracing import MessageTracing
from store.ports import Reader


class Feeds:
    def __init__(
        self,
        settings: CurrentSettings,
        reader: Reader,
        history: LogHistory,
        cache: MessageCache,
        runtime: Runtime,
        selection: SelectionTurns,
        lease: Lease | None,
        tracing: MessageTracing | None = None,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._history = history
        self._cache = cache
        self._runtime = runtime
        self._selection = selection
        self._lease = lease
        self._tracing = tracing
        self._shared: FeedShared | None = None
        self._feeds: dict[str, EndpointFeed] = {}

    def connect(self, erasing: BeingErased, dead_letters: DeadLetterOffice, replays: BlockedReplays) -> None:
        """Name those that feeds speak to and that are themselves made of feeds; once, before the first feed."""
        self._shared = FeedShared(
            self._reader,
            self._history,
            self._cache,
            self._runtime,
            erasing,
            dead_letters,
            replays,
            self._selection,
            self._lease,
            self._tracing,
        )

    def of(self, endpoint: Endpoint) -> EndpointFeed:
        """The endpoint's feed, made on first use."""
        feed = self._feeds.get(endpoint.name)
        if feed is None or feed.endpoint is not endpoint:
            assert self._shared is not None
            feed = self._feeds[endpoint.name] = EndpointFeed(
                endpoint, self._shared, self._settings.limits.read_page_rows
            )
        return feed

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        self._feeds.pop(endpoint.name, None)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more."""
        for feed in self._feeds.values():
            feed.erased(markers)

    def deliver(self, endpoint: Endpoint) -> None:
        """Something of the endpoint's changed: perhaps a consumer can be given more."""
        feed = self._feeds.get(endpoint.name)
        if feed is not None:
            feed.run()

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """Messages became ready on these endpoints (``CommitListener``)."""
        feeds = self._feeds
        for name in endpoints:
            feed = feeds.get(name)
            if feed is not None:
                feed.run()

    def not_committed(self) -> None:
        """What could not be written was never ready (``CommitListener``)."""
