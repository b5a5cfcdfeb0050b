"""
A link without a source: closing it deletes the durable topic endpoint it is named after.
"""

from __future__ import annotations

from proton import Link

from gateway import log_keys
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.carrier import Carrier
from gateway.amqp.links.base_link import BaseLink
from gateway.core.endpoint.endpoint import Endpoint
from gateway.vpn.endpoints import Endpoints


def give_up(endpoints: Endpoints, endpoint: Endpoint, log: ConnectionLog) -> None:
    """Delete a subscription's endpoint, if it is there."""
    if endpoints.is_there(endpoint):
        endpoints.delete(endpoint)
        log.info("unsubscribed", **{log_keys.ENDPOINT: endpoint.name})


class UnsubscribingLink(BaseLink):
    """
    A link by which a durable subscription is given up.

    Args:
        endpoint: The subscription's.
    """

    kind = "unsubscribe"

    def __init__(self, link: Link, carrier: Carrier, endpoints: Endpoints, endpoint: Endpoint) -> None:
        super().__init__(link, carrier)
        self._endpoints = endpoints
        self._endpoint = endpoint

    def ready(self) -> None:
        """Nothing is sent on it."""

    def detached(self, *, closed: bool) -> None:
        if closed:
            give_up(self._endpoints, self._endpoint, self._log)

    def lost(self) -> None:
        """Nothing was asked for: only a close is."""
