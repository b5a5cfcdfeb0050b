"""
Removes expired messages from the heads of endpoints where no consumer asks for them, and deletes unused subscriptions.

A message is checked when it is about to be delivered; the sweep is for messages that no consumer takes. Once a second
it looks at the head of each endpoint: the message that would be delivered next. If only the store knows which one that
is, it reads this one message. A head that expires later, or never, is remembered and only costs a comparison from then
on. The sweep leaves these messages, which expire when they are about to be delivered or reach the head:

- messages behind one that lives longer (RabbitMQ's queues do the same);
- messages that are unsettled at a consumer;
- on an endpoint without ``max_ttl_ms``: messages whose ids are in memory, because there was a consumer, but whose
  contents are not. They are not read only to see whether they have a ttl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from amqp_ext.message.fields import ttl_of
from gateway.core.endpoint.endpoint import NEVER_MS, Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.model import BARE, CONTENT, ID, Row
from gateway.logging import log_keys
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.runtime import HOUR_MS
from gateway.vpn.state import VpnService, VpnState

READ_SECONDS: Final = 0.02
"""Until an endpoint whose head is being read from disk is looked at again."""

TURN_ENDPOINTS: Final = 200
"""Endpoints looked at in one turn of the loop: well below a millisecond if none has changed."""

TURN_ROWS: Final = 256
"""Messages removed in one turn of the loop."""

LOOK_SECONDS: Final = 60.0
"""From one look to the next."""


class _Head(NamedTuple):
    key: tuple[int, int, int]
    """The endpoint's cursor number and longest ttl, and the message's id. If one of them differs, so does the head."""
    expires_ms: int


class Expiry(VpnService):
    def __init__(self, state: VpnState, feeds: Feeds) -> None:
        super().__init__(state)
        self._feeds = feeds
        self._heads: dict[str, _Head] = {}
        self._left: list[str] = []
        """Endpoints still to be looked at in this sweep."""
        self._reading: dict[str, int] = {}
        """Endpoints whose head was being read, and their depths then: without progress, the next sweep looks again."""
        self._again: list[str] = []

    def start(self) -> None:
        """Sweep, again and again."""
        self._after(self._runtime.tuning.expiry_sweep_seconds, self._sweep)

    def _sweep(self) -> None:
        endpoints = self._broker.endpoints
        self._left = list(endpoints)
        self._reading.clear()
        if len(self._heads) > len(endpoints):
            self._heads = {name: head for name, head in self._heads.items() if name in endpoints}
        self._turn()

    def _turn(self) -> None:
        left, broker = self._left, self._broker
        for _ in range(min(TURN_ENDPOINTS, len(left))):
            name = left.pop()
            endpoint = broker.endpoints.get(name)
            if endpoint is None or not endpoint.depth:
                continue
            try:
                may_be_more = self._look(endpoint)
            except Exception as error:
                self._runtime.report("expiry_failed", error)
                continue
            if may_be_more:
                left.append(name)
                break
        if left:
            self._timer = self._loop.call_soon(self._turn)
        elif self._again:
            self._left, self._again = self._again, left
            self._after(READ_SECONDS, self._turn)
        else:
            self.start()

    def _look(self, endpoint: Endpoint) -> bool:
        """Remove expired messages from the head; whether more may be removed immediately."""
        name = endpoint.name
        now_ms = self._runtime.clock.now_ms()
        endpoint.catch_up()
        ids = endpoint.ready.peek(1)
        feed = self._feeds.of(endpoint)
        known = self._heads.get(name)
        if not ids:
            # One message is enough to know the head. If the last head had expired, many after it may have, too.
            is_due = known is not None and known.expires_ms < now_ms
            if feed.read_head(TURN_ROWS if is_due else 1):
                self._look_again(endpoint)
            return False
        key = (endpoint.cursor_number, endpoint.settings.max_ttl_ms, ids[0])
        if known is not None and known.key == key and now_ms <= known.expires_ms:
            return False
        is_timed = endpoint.settings.max_ttl_ms or (known is not None and known.expires_ms != NEVER_MS)
        if not is_timed and not _has_ttl(feed.head(ids[0])):
            self._heads[name] = _Head(key, NEVER_MS)
            is_replaying = endpoint.replay is not None and endpoint.replay.is_reading
            if not endpoint.flows and not feed.is_reading and not is_replaying:
                # What was read to know the head is not needed soon. A replay needs this feed and what it has put.
                self._feeds.forget(endpoint)
            return False
        is_due = known is not None and known.expires_ms < now_ms
        may_be_more, row = feed.remove_dead_head(TURN_ROWS if is_due else 1, may_read=bool(is_timed))
        if row is not None:
            self._heads[name] = _Head((*key[:2], row[ID]), endpoint.expires_ms(row, feed.ttl_of))
        elif may_be_more:
            self._heads[name] = _Head(key, 0)
        elif feed.is_reading:
            self._look_again(endpoint)
        return may_be_more

    def _look_again(self, endpoint: Endpoint) -> None:
        """The endpoint's head is being read: look again in this sweep, if there was progress since the last time."""
        if self._reading.get(endpoint.name) != endpoint.depth:
            self._reading[endpoint.name] = endpoint.depth
            self._again.append(endpoint.name)


def _has_ttl(row: Row | None) -> bool:
    """Whether a message is in memory and has a ttl in its header."""
    return row is not None and bool(row[BARE]) and ttl_of(row[CONTENT]) is not None


class UnusedSubscriptions(VpnService):
    """
    Deletes topic endpoints that have had no consumer for as long as the settings say (``subscription_expiry_hours``).
    Their clients are gone, and what is published for them piles up.

    Args:
        delete: Deletes an endpoint with its messages.
    """

    def __init__(self, state: VpnState, delete: Callable[[Endpoint], None]) -> None:
        super().__init__(state)
        self._delete = delete
        self._unused_since: dict[Endpoint, float] = {}

    def start(self) -> None:
        """Look now, and again and again."""
        self._every(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        hours = self._settings.vpn.subscription_expiry_hours
        if not hours:
            self._unused_since.clear()
            return
        now = self._runtime.clock.seconds()
        before, self._unused_since = self._unused_since, {}
        for endpoint in list(self._broker.endpoints.values()):
            if not _can_be_unused(endpoint) or endpoint.flows or endpoint.waiting_flows:
                continue
            since = self._unused_since[endpoint] = before.get(endpoint, now)
            if now - since >= hours * HOUR_MS / 1_000:
                del self._unused_since[endpoint]
                self._runtime.log.info("subscription_expired", **{log_keys.ENDPOINT: endpoint.name})
                self._delete(endpoint)


def _can_be_unused(endpoint: Endpoint) -> bool:
    settings = endpoint.settings
    return endpoint.kind is EndpointKind.TOPIC_ENDPOINT and not settings.temporary and not settings.declared
