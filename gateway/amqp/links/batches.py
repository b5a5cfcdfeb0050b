"""
Batches: several messages that came as one, published as one: all of them are in the log, next to each other, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from amqp_ext.codec import CodecError
from amqp_ext.message.sections import bare_offset
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.transaction import Staged, commit_transaction


class BatchedLink(Protocol):
    """A link that batches come in on, and what it tells its peer of them."""

    def stage(self, content: bytes) -> Staged:
        """
        A message as it is kept until its transaction commits.

        Raises:
            Refused: It is no message, or may not be sent where it wants to go.
        """

    def accepted(self, deliveries: list[Any]) -> None:
        """They are durable."""

    def not_stored(self, deliveries: list[Any], refused: Refused) -> None:
        """They are not, and why."""


def publish_batch(
    vpn: MessageVpn,
    link: BatchedLink,
    messages_of: Callable[[bytes], list[bytes]],
    content: bytes,
    delivery: Any,
    origin: str,
) -> None:
    """
    Publish what is in a batch; its delivery is accepted when all of it is durable.

    Args:
        link: Where it came in; what that is told of the delivery, it tells the peer.
        messages_of: Takes a batch apart; raises CodecError for what is none.
        delivery: None where it came settled.
    """
    deliveries = [] if delivery is None else [delivery]
    try:
        topic = link.stage(content).topic
        staged = [Staged(topic, message, bare_offset(message)) for message in messages_of(content)]
    except CodecError as error:
        link.not_stored(deliveries, Refused(ErrorCode.DECODE_ERROR, f"this is no batch: {error}"))
        return
    except Refused as refused:
        link.not_stored(deliveries, refused)
        return

    def then(error: Exception | None) -> None:
        if error is None:
            link.accepted(deliveries)
        else:
            why = f"the store could not write: {error}; nothing was stored"
            link.not_stored(deliveries, Refused(ErrorCode.INTERNAL, why))

    try:
        commit_transaction(vpn, staged, (), origin, then)
    except Refused as refused:
        whole = f"a batch is taken as a whole or not at all: {refused.text}"
        link.not_stored(deliveries, Refused(ErrorCode.RESOURCE_LIMIT, whole))
