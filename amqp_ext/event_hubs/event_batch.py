"""
Batches of Event Hubs' clients: one transfer of message-format 0x80013700, and an event in each of its data sections.

The events are whole messages and stay as they were encoded. What the envelope says of all of them, the partition key,
is said to those that do not say it themselves, as Event Hubs does.

Source: Microsoft, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide", message batches.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.codec import CodecError, Symbol
from amqp_ext.message import sections
from amqp_ext.message.annotations import annotated

PARTITION_KEY: Final = Symbol("x-opt-partition-key")


def events_of(content: bytes) -> list[bytes]:
    """
    The events of a batch, in their order.

    Raises:
        CodecError: It is no message whose body is data sections, or one of those holds no message.
    """
    body = sections.body(content)
    if body.kind != "data" or not body.parts:
        raise CodecError(
            0, f"the body of a batch is data sections, not {body.kind if body.parts else 'empty'}"
        )
    key = sections.message_annotations(content).get(PARTITION_KEY)
    return [_event(part, number, key) for number, part in enumerate(body.parts)]


def _event(content: bytes, number: int, key: object) -> bytes:
    try:
        sections.validate(content)
        if key is not None and PARTITION_KEY not in sections.message_annotations(content):
            content, _ = annotated(content, {PARTITION_KEY: key})
    except CodecError as error:
        raise CodecError(error.offset, f"event {number} of the batch: {error.reason}") from None
    return content
