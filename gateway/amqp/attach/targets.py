"""
Where messages go: what the address of a target, or of a message to the anonymous relay, publishes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amqp_ext.addresses import AddressError, AddressKind, parse_target, queue_of_topic, queue_topic
from amqp_ext.codec import CodecError
from amqp_ext.message.sections import to_address
from amqp_ext.topics import TopicSyntaxError
from gateway.amqp.attach.request import kind_for
from gateway.core.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection


def address_in(content: bytes) -> str | CodecError | None:
    """Where a message of the relay wants to go, or why that cannot be read."""
    try:
        return to_address(content)
    except CodecError as error:
        return error


def topic_of_target(connection: Connection, address: str, capabilities: Sequence[str]) -> str:
    """
    The topic that a target address publishes to; a queue it names is made where that is allowed.

    Raises:
        Refused: It is no address to send to.
    """
    vpn = connection.vpn
    try:
        own_topic = connection.spoken.topic_of(address)
        if own_topic is not None:
            address = f"topic://{own_topic}"
        parsed = parse_target(address, capabilities)
        connection.access.require_target(parsed)
        if parsed.kind is AddressKind.TOPIC:
            return _with_its_queue(connection, vpn.check_topic(parsed.name))
    except (AddressError, TopicSyntaxError) as error:
        code = ErrorCode.NOT_ALLOWED if address.lower().startswith("log:") else ErrorCode.INVALID_FIELD
        raise Refused(code, str(error)) from error
    if parsed.kind is AddressKind.LOG:
        raise Refused(ErrorCode.NOT_ALLOWED, f"a log is read and never sent to; {address!r} is one")
    if parsed.kind is AddressKind.QUEUE:
        endpoint, effects = vpn.broker.queue_for(
            parsed.name,
            kind=kind_for(connection, parsed),
            exclusive=vpn.exclusivity_of(parsed.options),
            may_create=parsed.options.get("create") != "never",
        )
        vpn.commit(effects)
        return queue_topic(endpoint.name)
    raise Refused(ErrorCode.NOT_IMPLEMENTED, f"nothing can be sent to {address!r}")


def _with_its_queue(connection: Connection, topic: str) -> str:
    """
    A topic that can be published to: where it is a queue's, that queue has to be there.

    Raises:
        Refused: NOT_FOUND.
    """
    queue = queue_of_topic(topic)
    if queue is not None and connection.vpn.broker.find(queue) is None:
        raise Refused(
            ErrorCode.NOT_FOUND, f"there is no queue {queue!r}; what is sent to 'queue://{queue}' can make it"
        )
    return topic
