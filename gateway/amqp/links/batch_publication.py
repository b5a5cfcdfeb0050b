"""
Batches: several messages that came as one, published as one: all of them are in the log, next to each other, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from amqp_ext.codec import CodecError
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.publishing import Publishing, Staged


class BatchPublisher(Protocol):
    """A link that batches come in on."""

    def stage(self, content: bytes) -> Staged:
        """
        A message, or a batch, with the topic it goes to.

        Raises:
            Refused: It is no message, or may not be sent where it wants to go.
        """

    def bare_offset_of(self, content: bytes) -> int:
        """
        Where the bare message of a message begins.

        Raises:
            Refused: It is no message, or too much stands in front of it.
        """

    def accepted(self, deliveries: Any) -> None:
        """These deliveries are durable: tell the publisher."""

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """These deliveries were not taken."""


def publish_batch(
    publishing: Publishing,
    publisher: BatchPublisher,
    messages_of: Callable[[bytes], list[bytes]],
    content: bytes,
    delivery: Any,
    origin: str,
) -> None:
    """
    Publish what is in a batch; its delivery is accepted when all of it is durable.

    Args:
        publisher: Where it came in; what that is told of the delivery, it tells the peer.
        delivery: None where it came settled.
    """
    deliveries = [] if delivery is None else [delivery]
    try:
        topic = publisher.stage(content).topic
        staged = [
            Staged(topic, message, publisher.bare_offset_of(message)) for message in messages_of(content)
        ]
    except CodecError as error:
        publisher.not_stored(deliveries, Refused(ErrorCode.DECODE_ERROR, f"this is no batch: {error}"))
        return
    except Refused as refused:
        publisher.not_stored(deliveries, refused)
        return

    def then(error: Exception | None) -> None:
        if error is None:
            publisher.accepted(deliveries)
        else:
            why = f"the store could not write: {error}; nothing was stored"
            publisher.not_stored(deliveries, Refused(ErrorCode.INTERNAL, why))

    try:
        publishing.commit_transaction(staged, (), origin, then)
    except Refused as refused:
        whole = f"a batch is taken as a whole or not at all: {refused.text}"
        publisher.not_stored(deliveries, Refused(ErrorCode.RESOURCE_LIMIT, whole))
