"""
Delivery locks: messages that a consumer has had unsettled for longer than it may are given to others.

If an endpoint has ``lock_timeout_ms``, or a consumer asked for a timeout of its own, each delivery is locked. The lock
lasts from the delivery, or from when its consumer last said that it works on it (state ``received``, AMQP 1.0 section
3.4.1). Locks that end shortly after one another are looked at together.

The consumer is told by the outcome ``released`` (section 2.6.12). It may be stuck, so it gets nothing more until it has
confirmed that for each delivery. Its later outcomes for these deliveries have no other effect. The release counts as no
failed delivery (RabbitMQ 4.3, "Consumer Timeouts": messages are returned, and their delivery-count stays).
"""

from __future__ import annotations

from typing import Final

from gateway.core.endpoint.endpoint import NEVER_MS, Endpoint
from gateway.logging import log_keys
from gateway.vpn.consumers import Consumers
from gateway.vpn.state import VpnService, VpnState

PAGE: Final = 2_000
"""Deliveries that are taken back in one turn of the loop."""

LEAST_SECONDS: Final = 0.02
"""From one look to the next: how late a lock ends, at most, on a gateway that is not busy."""

LONGEST_SECONDS: Final = 0.5
"""From one look to the next while anything is locked: a timeout may have been made shorter."""


class DeliveryLocks(VpnService):
    """Ends the locks of one Message VPN."""

    def __init__(self, state: VpnState, consumers: Consumers) -> None:
        super().__init__(state)
        self._consumers = consumers
        self._watched: dict[Endpoint, None] = {}
        """Endpoints that may have locked deliveries."""
        self._due_ms = NEVER_MS
        """When they are looked at, in ms since the epoch."""

    def locked(self, endpoint: Endpoint, until_ms: int) -> None:
        """An endpoint has a locked delivery, until a time in ms since the epoch or later."""
        self._watched[endpoint] = None
        if until_ms < self._due_ms:
            self._set_timer(until_ms)

    def _set_timer(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        seconds = (due_ms - self._now_ms()) / 1000
        self._after(min(max(seconds, LEAST_SECONDS), LONGEST_SECONDS), self._look)

    def _look(self) -> None:
        self._due_ms, left = NEVER_MS, PAGE
        due_ms = NEVER_MS
        for endpoint in list(self._watched):
            left -= self._end_locks(endpoint, left)
            end_ms = endpoint.next_lock_end_ms
            if end_ms is None:
                del self._watched[endpoint]
            else:
                due_ms = min(due_ms, end_ms)
        if due_ms < self._due_ms:
            self._set_timer(due_ms)

    def _end_locks(self, endpoint: Endpoint, limit: int) -> int:
        """Take back the deliveries whose locks have ended; how many those were."""
        now_ms, count = self._now_ms(), 0
        for flow in (*endpoint.flows, *endpoint.suspended):
            ids = endpoint.overdue(flow, now_ms, limit - count)
            if not ids:
                continue
            count += len(ids)
            if not flow.is_stalled:
                client = flow.link.client
                self._runtime.log.warning(
                    "deliveries_taken_back",
                    **{
                        log_keys.ENDPOINT: endpoint.name,
                        log_keys.USER: client.user,
                        log_keys.PEER: client.peer,
                        log_keys.CONTAINER: client.peer_container,
                        log_keys.MESSAGES: len(ids),
                    },
                )
            self._consumers.take_back(flow, ids)
        if endpoint.pass_stalled():
            self._consumers.turn_passed(endpoint)
        return count
