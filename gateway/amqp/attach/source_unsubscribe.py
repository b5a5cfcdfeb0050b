"""
An attach without a source: by closing the link, a durable subscription of its name is given up.
"""

from __future__ import annotations

from proton import Terminus

from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.links.unsubscribing import UnsubscribingLink, give_up
from gateway.amqp.nodes.subscriptions import Subscription, kept_endpoint
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused


class UnsubscribeSource(LinkSetup):
    """
    A link that gives a subscription up.

    Args:
        subscription: As the link's name and capabilities say which.
    """

    def __init__(self, client: Client, request: AttachRequest, subscription: Subscription) -> None:
        self._client = client
        self._request = request
        self._subscription = subscription
        self._endpoint: Endpoint

    async def prepare(self) -> None:
        client = self._client
        found = self._endpoint = kept_endpoint(client.vpn.endpoints, self._subscription)
        client.authorization.require_deletion(found)
        if found.flows:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED,
                f"the subscription {self._subscription.link_name!r} has a consumer; close that first",
            )

    async def bind(self) -> ReadyLink:
        return UnsubscribingLink(
            self._request.link, self._client.carrier, self._client.vpn.endpoints, self._endpoint
        )

    def closed_early(self) -> None:
        give_up(self._client.vpn.endpoints, self._endpoint, self._client.log)

    def reply(self) -> None:
        link = self._request.link
        source = link.source
        source.address = next(iter(self._endpoint.subscriptions), "")
        source.durability = Terminus.DELIVERIES
        source.expiry_policy = Terminus.EXPIRE_NEVER
        link.target.copy(link.remote_target)

    def log_values(self) -> None:
        return None
