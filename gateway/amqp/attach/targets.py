"""
Targets of links that a peer sends on: a queue, a topic, a dynamic node, the anonymous relay, the transaction
coordinator, or a request node of a dialect (which is a source, too: of its answers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from proton import UNDESCRIBED, Array, Data, Link, Terminus, symbol

from amqp_ext.addresses.address import AddressKind, parse_target
from amqp_ext.addresses.queue_names import queue_of_topic, queue_topic
from amqp_ext.addresses.texts import AddressError
from amqp_ext.topics import TopicSyntaxError
from amqp_ext.transactions import LOCAL_TRANSACTIONS, MULTIPLE_PER_SESSION, MULTIPLE_SESSIONS
from gateway.amqp.attach.client import Client, queue_at
from gateway.amqp.attach.request import AttachRequest, LinkSetup, ReadyLink, echo_termini, say_lifetime
from gateway.amqp.dialects.hooks import ServedNode
from gateway.amqp.links.coordinator import MAX_CONTROL_BYTES, CoordinatorLink
from gateway.amqp.links.publisher import Publisher
from gateway.amqp.links.requests import MAX_REQUEST_BYTES, AnswerLink, RequestLink
from gateway.amqp.nodes import NodeLease, OwnedTopic, make_queue, temporary_name
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys

RELAY_TOPICS: Final = 10_000
"""Addresses of the anonymous relay that are remembered for a user and a VPN; beyond, it starts over."""


class RelayTopics:
    """Topics that messages' ``to`` were found to mean for a user (``gateway.amqp.links.publisher.RelayAddresses``)."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known = client.relay_topics

    @property
    def known(self) -> Mapping[str, str]:
        """Topics of addresses that were found to be permitted."""
        return self._known

    def resolve(self, address: str) -> str:
        """
        The topic that an address publishes to, which is known from then on.

        Raises:
            Refused: It is no address to send to, or not one that the user may send to.
        """
        topic = topic_of_target(self._client, address, ())
        if len(self._known) >= RELAY_TOPICS:
            self._known.clear()
        self._known[address] = topic
        return topic


def topic_of_target(client: Client, address: str, capabilities: Sequence[str]) -> str:
    """
    The topic that a target address publishes to; a queue it names is made where that is allowed.

    Raises:
        Refused: It is no address to send to.
    """
    vpn = client.vpn
    try:
        own_topic = client.spoken.topic_of(address)
        if own_topic is not None:
            address = f"topic://{own_topic}"
        parsed = parse_target(address, capabilities)
        client.authorization.require_target(parsed)
        if parsed.kind is AddressKind.TOPIC:
            return _with_its_queue(client, vpn.publishing.check_topic(parsed.name))
    except (AddressError, TopicSyntaxError) as error:
        code = ErrorCode.NOT_ALLOWED if address.lower().startswith("log:") else ErrorCode.INVALID_FIELD
        raise Refused(code, str(error)) from error
    if parsed.kind is AddressKind.LOG:
        raise Refused(ErrorCode.NOT_ALLOWED, f"a log is read and never sent to; {address!r} is one")
    if parsed.kind is AddressKind.QUEUE:
        return queue_topic(queue_at(client, parsed).name)
    raise Refused(ErrorCode.NOT_IMPLEMENTED, f"nothing can be sent to {address!r}")


def _with_its_queue(client: Client, topic: str) -> str:
    """
    A topic that can be published to: where it is a queue's, that queue has to be there.

    Raises:
        Refused: NOT_FOUND.
    """
    queue = queue_of_topic(topic)
    if queue is not None and client.vpn.endpoints.find(queue) is None:
        raise Refused(
            ErrorCode.NOT_FOUND, f"there is no queue {queue!r}; what is sent to 'queue://{queue}' can make it"
        )
    return topic


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


class CoordinatorTarget(LinkSetup):
    """The coordinator as a target."""

    def __init__(self, client: Client, request: AttachRequest) -> None:
        self._client = client
        self._link = request.link
        self._outcomes = request.outcomes

    async def bind(self) -> ReadyLink:
        return CoordinatorLink(self._link, self._client.carrier, self._client.transactions, self._outcomes)

    def reply(self) -> None:
        link = self._link
        link.source.copy(link.remote_source)
        link.source.type = Terminus.SOURCE
        link.target.type = Terminus.COORDINATOR
        link.target.capabilities.put_object(
            # An array, as multiple values are (section 1.4): Qpid JMS takes no list.
            Array(
                cast("Any", UNDESCRIBED),
                Data.SYMBOL,
                *map(symbol, (LOCAL_TRANSACTIONS, MULTIPLE_PER_SESSION, MULTIPLE_SESSIONS)),
            )
        )
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = Link.RCV_FIRST
        link.max_message_size = MAX_CONTROL_BYTES

    def log_values(self) -> dict[str, Any]:
        return {log_keys.ADDRESS: "the coordinator"}


PAIRED: Final = symbol("paired")
"""Property of both links of a pair (HTTP over AMQP 1.0, link pairing)."""


class RequestNodeTerminus(LinkSetup):
    """
    A request node as a target, for requests, or as a source, for their answers.

    Args:
        served: The node, and who carries out what is asked of it.
    """

    def __init__(self, client: Client, request: AttachRequest, served: ServedNode) -> None:
        self._client = client
        self._request = request
        self._link = request.link
        self._served = served
        self._is_paired = False

    async def bind(self) -> ReadyLink:
        client, link = self._client, self._link
        paired = self._is_paired = self._request.properties.get(PAIRED) is True
        if self._request.publishes:
            served = self._served
            perform = partial(served.perform, client)
            return RequestLink(link, client.carrier, served.node, perform, client.spawn, paired=paired)
        return AnswerLink(link, client.carrier, paired=paired)

    def reply(self) -> None:
        link = self._link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = Link.RCV_FIRST
        if self._is_paired:
            link.properties = {PAIRED: True}
        if self._request.publishes:
            link.snd_settle_mode = link.remote_snd_settle_mode
            link.max_message_size = MAX_REQUEST_BYTES
        else:
            # An answer is told once: who does not get it asks again.
            link.snd_settle_mode = Link.SND_SETTLED

    def log_values(self) -> dict[str, Any]:
        return {log_keys.ADDRESS: str(self._request.address)}
