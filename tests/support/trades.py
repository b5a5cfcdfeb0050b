"""Messages with ids and properties, to be searched for, as bytes and as rows of the log."""

from __future__ import annotations

from typing import Any

from amqp_ext.codec import Symbol
from amqp_ext.message.sections import bare_offset
from gateway.core.model import Row
from tests.support.messages import APPLICATION_PROPERTIES, PROPERTIES, data, section

FIELDS = ("message_id", "user_id", "to", "subject", "reply_to", "correlation_id")
MORE_FIELDS = ("content_type", "content_encoding", "expiry", "creation_time", "group_id")


def trade(body: str | int = "", properties: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A message with these fields of the properties section, these application properties, and a text as body."""
    values = [fields.pop(name, None) for name in (*FIELDS, *MORE_FIELDS)]
    assert not fields, "there is no such field"
    raw = section(PROPERTIES, values) if any(value is not None for value in values) else b""
    if properties:
        raw += section(APPLICATION_PROPERTIES, properties)
    return raw + data(body)


HELD_ROUTE = 7
"""The route of messages that the log does not hold."""


def row(message_id: int, content: bytes, topic: str = "t", *, held: int | None = None) -> Row:
    """The same as it lies in the log."""
    return (
        message_id,
        1_000 + message_id,
        topic,
        bare_offset(content),
        HELD_ROUTE if held else 0,
        held,
        content,
    )


def annotated(content: bytes, **annotations: Any) -> bytes:
    """A message with message annotations in front."""
    return section(0x72, {Symbol(name): value for name, value in annotations.items()}) + content
