"""
Targets, to which a peer sends: a queue, a topic, a dynamic node, the anonymous relay, or the transaction coordinator.
"""

from __future__ import annotations

from typing import Any

from proton import Terminus

from amqp_ext.addresses.address import queue_of_topic, queue_topic
from amqp_ext.transactions import LOCAL_TRANSACTIONS, MULTIPLE_PER_SESSION, MULTIPLE_SESSIONS
from gateway.amqp.attach.attach import AttachRequest, LinkSetup, reply_to_sender, say_lifetime, symbols
from gateway.amqp.client import Client
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.links.coordinator import MAX_CONTROL_BYTES, CoordinatorLink
from gateway.amqp.links.publisher import Publisher, topic_of_target
from gateway.amqp.nodes import Lease, OwnedTopic, make_queue, temporary_name
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys


async def target_setup(client: Client, request: AttachRequest) -> LinkSetup:
    """The setup of a link that the peer sends on."""
    return (CoordinatorTarget if request.is_for_coordinator else PublisherTarget)(client, request)


class PublisherTarget(LinkSetup):
    """A target that a peer sends to."""

    def __init__(self, client: Client, request: AttachRequest) -> None:
        super().__init__(client, request)
        self._address = request.address
        self._topic: str | None = None
        self._lease: Lease | None = None

    async def prepare(self) -> None:
        client, request = self._client, self._request
        _ = request.outcomes
        if request.terminus.type == Terminus.UNSPECIFIED:
            # The target is null, or of a kind that the engine does not know. Nothing may be sent to it (AMQP 1.0
            # section 2.7.3), and a reply with a null target would neither accept nor refuse the link.
            raise Refused(
                ErrorCode.INVALID_FIELD,
                "a link to send on needs a target, its descriptor a number; one without an address is the anonymous "
                "relay",
            )
        if request.is_dynamic:
            await self._make_node()
        elif self._address:
            self._topic = topic_of_target(client, self._address, request.capabilities)
            self._lease = client.owner.registry.lease_on(queue_of_topic(self._topic))
            # A queue that was made for it, or is being made, is durable before the reply.
            await client.vpn.committer.committed()

    async def _make_node(self) -> None:
        client, lifetime = self._client, self._request.lifetime
        if "temporary-topic" in self._request.capabilities:
            # The links that subscribe to it make endpoints.
            self._topic = temporary_name("TTMP")
            self._address = f"topic://{self._topic}"
            self._lease = OwnedTopic(client.owner, self._topic)
            return
        lease = self._lease = make_queue(client.owner, lifetime, is_private=self._request.is_for_jms)
        self._address = client.spoken.address_of(lease.endpoint.name)
        self._topic = queue_topic(lease.endpoint.name)
        await client.vpn.committer.committed()

    async def bind(self) -> AttachedLink:
        outcomes = self._request.outcomes
        return Publisher(self._link, self._client, topic=self._topic, lease=self._lease, outcomes=outcomes)

    def reply(self) -> None:
        link = self._link
        reply_to_sender(link, self._largest_message())
        if self._request.is_dynamic and self._address is not None and self._lease is not None:
            link.target.address = self._address
            say_lifetime(link.target, self._lease.lifetime)

    def _largest_message(self) -> int:
        """Bytes of the largest message it takes: the gateway's limit, or its queue's where that is smaller."""
        largest = self._client.limits.max_message_bytes
        name = queue_of_topic(self._topic) if self._topic is not None else None
        queue = self._client.vpn.endpoints.by_name.get(name) if name is not None else None
        return largest if queue is None else min(largest, queue.settings.max_message_bytes or largest)

    def log_values(self) -> dict[str, Any]:
        return {log_keys.TOPIC: self._topic, log_keys.ADDRESS: self._address}

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()


class CoordinatorTarget(LinkSetup):
    """The coordinator as a target."""

    async def bind(self) -> AttachedLink:
        return CoordinatorLink(self._link, self._client, self._request.outcomes)

    def reply(self) -> None:
        reply_to_sender(self._link, MAX_CONTROL_BYTES)
        capabilities = self._link.target.capabilities
        capabilities.clear()
        capabilities.put_object(symbols((LOCAL_TRANSACTIONS, MULTIPLE_PER_SESSION, MULTIPLE_SESSIONS)))

    def log_values(self) -> dict[str, Any]:
        return {log_keys.ADDRESS: "the coordinator"}
