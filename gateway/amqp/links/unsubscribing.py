"""
A link without a source: closing it deletes the durable topic endpoint it is named after.
"""

from __future__ import annotations

from proton import Link

from gateway import log_keys
from gateway.amqp.engine.carrier import Carrier
from gateway.amqp.links.base_link import BaseLink
from gateway.core.endpoint.endpoint import Endpoint
from gateway.vpn.endpoints import Endpoints


class UnsubscribingLink(BaseLink):
    """
    A link by which a durable subscription is given up.

    Args:
        endpoint: The subscription's.
    """

    def __init__(self, link: Link, carrier: Carrier, endpoints: Endpoints, endpoint: Endpoint) -> None:
        super().__init__(link, carrier)
        self._endpoints = endpoints
        self._endpoint = endpoint

    def ready(self) -> None:
        """Nothing is sent on it."""

    def detached(self, *, closed: bool) -> None:
        if closed and self._endpoints.is_there(self._endpoint):
            self._endpoints.delete(self._endpoint)
            self._log.info("unsubscribed", **{log_keys.ENDPOINT: self._endpoint.name})

    def lost(self) -> None:
        """Nothing was asked for: only a close is."""
