"""
Where a job publishes: the topic that an address of this Message VPN means, and whether it still leads anywhere.
"""

from __future__ import annotations

import re
from typing import Final

from amqp_ext.addresses.address import AddressKind, parse_target
from amqp_ext.addresses.queue_names import queue_of_topic, queue_topic
from amqp_ext.addresses.texts import AddressError
from amqp_ext.topics import TopicSyntaxError
from gateway.core.broker import Broker
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.endpoints import Endpoints
from gateway.vpn.publishing import Publishing

_HOST: Final = re.compile(r"amqps?://", re.IGNORECASE)


def topic_of(address: str, endpoints: Endpoints, publishing: Publishing) -> str:
    """
    The topic that an address publishes to; a queue that it names is made where that is allowed.

    Raises:
        Refused: INVALID_FIELD, NOT_ALLOWED, NOT_FOUND: nothing can be sent there, or there is no such queue.
    """
    check_no_host(address)
    try:
        parsed = parse_target(address)
        if parsed.kind is AddressKind.TOPIC:
            topic = publishing.check_topic(parsed.name)
            check_leads_somewhere(topic, endpoints)
            return topic
    except (AddressError, TopicSyntaxError) as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
    if parsed.kind is not AddressKind.QUEUE:
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"nothing can be sent to {address[:80]!r}; name a queue or a topic"
        )
    kind = parsed.options.get("kind")
    queue = endpoints.queue_for(
        parsed.name,
        kind=None if kind is None else EndpointKind(kind),
        may_create=parsed.options.get("create") != "never",
    )
    return queue_topic(queue.name)


def check_no_host(address: str) -> None:
    """
    That an address names no host: where that is, the configuration alone says.

    Raises:
        Refused: INVALID_FIELD.
    """
    if _HOST.match(address.lstrip()):
        raise Refused(
            ErrorCode.INVALID_FIELD,
            f"a job publishes to an address of its own Message VPN, such as queue://orders; {address[:80]!r} names "
            "another host, which is for the configuration to name (replay_target)",
        )


def check_leads_somewhere(topic: str, endpoints: Endpoints | Broker) -> None:
    """
    That the queue is there, where a topic is a queue's: published all the same, messages would be in the log alone.

    Raises:
        Refused: NOT_FOUND.
    """
    queue = queue_of_topic(topic)
    if queue is not None and endpoints.find(queue) is None:
        raise Refused(ErrorCode.NOT_FOUND, f"there is no queue {queue!r}")
