"""
Where messages go: what the address of a target, or of a message to the anonymous relay, publishes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from amqp_ext.addresses.address import AddressKind, parse_target
from amqp_ext.addresses.queue_names import queue_of_topic, queue_topic
from amqp_ext.addresses.texts import AddressError
from amqp_ext.topics import TopicSyntaxError
from gateway.amqp.attach.addressed_queue import queue_at
from gateway.amqp.attach.client import Client
from gateway.core.errors import ErrorCode, Refused

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
