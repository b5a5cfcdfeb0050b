"""
An attach whose target messages are sent to: a queue, a topic, a dynamic node, or the anonymous relay.
"""

from __future__ import annotations

from typing import Any

from proton import Link

from amqp_ext.addresses.queue_names import queue_of_topic, queue_topic
from gateway import log_keys
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.reply import echo_termini, say_lifetime
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.attach.targets import RelayTopics, topic_of_target
from gateway.amqp.links.publisher import Publisher
from gateway.amqp.nodes.lease import NodeLease
from gateway.amqp.nodes.temporary import OwnedTopic, make_queue, temporary_name
from gateway.core.errors import ErrorCode, Refused


class PublisherTarget(LinkSetup):
    """A target that a peer sends to."""

    def __init__(self, client: Client, request: AttachRequest) -> None:
        self._client = client
        self._request = request
        self._address = request.address
        self._topic: str | None = None
        self._lease: NodeLease | None = None

    async def prepare(self) -> None:
        client, request = self._client, self._request
        _ = request.outcomes
        if request.has_no_terminus:
            # Nothing may be sent to it (AMQP 1.0 section 2.7.3), and answered with none it were neither taken nor
            # refused.
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
            # What was made for it, or is being made, is durable before the reply.
            await client.vpn.committer.committed()

    async def _make_node(self) -> None:
        client, lifetime = self._client, self._request.lifetime
        if "temporary-topic" in self._request.capabilities:
            # Endpoints come with those who subscribe.
            self._topic = temporary_name("TTMP")
            self._address = f"topic://{self._topic}"
            self._lease = OwnedTopic(client.owner, self._topic)
            return
        lease = make_queue(client.owner, client.vpn.endpoints, lifetime)
        if self._request.is_for_jms:
            client.owner.registry.keep_private(lease.endpoint.name)
        self._lease = lease
        self._address = client.spoken.address_of(lease.endpoint.name)
        self._topic = queue_topic(lease.endpoint.name)
        await client.vpn.committer.committed()

    async def bind(self) -> ReadyLink:
        client = self._client
        return Publisher(
            self._request.link,
            client.carrier,
            publishing=client.vpn.publishing,
            endpoints=client.vpn.endpoints,
            origin=client.origin,
            limits=client.limits,
            topic=self._topic,
            lease=self._lease,
            relay=RelayTopics(client),
            transactions=client.transactions,
            batches=client.batches,
            outcomes=self._request.outcomes,
            goes_with_queue=not client.spoken.targets_are_exchanges,
        )

    def reply(self) -> None:
        link = self._request.link
        echo_termini(link)
        if self._request.is_dynamic and self._address is not None and self._lease is not None:
            link.target.address = self._address
            say_lifetime(link.target, self._lease.lifetime)
        link.snd_settle_mode = link.remote_snd_settle_mode
        # We settle with the outcome: a receiver in mode second would wait for a settlement nobody needs.
        link.rcv_settle_mode = Link.RCV_FIRST
        link.max_message_size = self._largest_message()

    def _largest_message(self) -> int:
        """Bytes of the largest message it takes: the gateway's limit, or its queue's where that is smaller."""
        largest = self._client.limits.max_message_bytes
        name = queue_of_topic(self._topic) if self._topic is not None else None
        queue = self._client.vpn.endpoints.find(name) if name is not None else None
        return largest if queue is None else min(largest, queue.settings.max_message_bytes or largest)

    def log_values(self) -> dict[str, Any]:
        return {log_keys.TOPIC: self._topic, log_keys.ADDRESS: self._address}

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
