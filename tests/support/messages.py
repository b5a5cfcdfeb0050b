"""Messages as bytes: encoded by hand, and taken apart so that every byte can be compared; and messages for searches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp_ext import codec
from amqp_ext.codec import Described, Symbol, ULong
from amqp_ext.message.fields import HEAD_SIZE, ends_of
from amqp_ext.message.sections import bare_offset
from gateway.core.model import Row

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = 0x73, 0x74, 0x75, 0x76, 0x77, 0x78


def section(code: int, value: Any) -> bytes:
    """A message section: a value described by the section's code."""
    return codec.encode(Described(ULong(code), value))


def data(content: bytes | str | int) -> bytes:
    """A message that is one data section and nothing else."""
    raw = content if isinstance(content, bytes) else str(content).encode()
    return section(DATA, raw)


def message_to(to: str, content: bytes | str | int) -> bytes:
    """A message for the anonymous relay: properties with ``to``, and a data section."""
    return section(PROPERTIES, [None, None, to]) + data(content)


def body_of(raw: bytes) -> bytes:
    """The last data section of a message; empty where it has none."""
    body = b""
    position = 0
    while position < len(raw):
        described, position = codec.decode(raw, position)
        if described.descriptor == DATA:
            body = described.value
    return body


def messages_of(envelope: bytes) -> list[bytes]:
    """The messages in the envelope of a batch, in their order."""
    ends = ends_of(envelope)
    return [envelope[start + HEAD_SIZE : end] for start, end in zip([0, *ends], ends, strict=False)]


def content_of(raw: bytes) -> str:
    """The last data section as text."""
    return body_of(raw).decode()


def take_apart(raw: bytes) -> tuple[list[Any] | None, Mapping[str, Any] | None, bytes]:
    """Header, message annotations, and all that follows them, bit for bit; delivery annotations are dropped."""
    header: list[Any] | None = None
    annotations: Mapping[str, Any] | None = None
    position = 0
    last = 0
    while position < len(raw):
        described, end = codec.decode(raw, position)
        if not isinstance(described.descriptor, int) or described.descriptor > MESSAGE_ANNOTATIONS:
            break
        assert described.descriptor > last, "sections are in order, and none is there twice"
        last = described.descriptor
        if described.descriptor == HEADER:
            header = described.value
        elif described.descriptor == MESSAGE_ANNOTATIONS:
            annotations = described.value
        position = end
    return header, annotations, raw[position:]


FIELDS = ("message_id", "user_id", "to", "subject", "reply_to", "correlation_id")
MORE_FIELDS = ("content_type", "content_encoding", "expiry", "creation_time", "group_id")


def trade(body: str | int = "", properties: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A message with these fields of the properties section, these application properties, and a text body."""
    values = [fields.pop(name, None) for name in (*FIELDS, *MORE_FIELDS)]
    assert not fields, "there is no such field"
    raw = section(PROPERTIES, values) if any(value is not None for value in values) else b""
    if properties:
        raw += section(APPLICATION_PROPERTIES, properties)
    return raw + data(body)


def selectable(number: int, **more: object) -> bytes:
    """A message with the application property `n`; its text is the same number."""
    return section(APPLICATION_PROPERTIES, {"n": number, **more}) + data(number)


HELD_ROUTE = 7
"""A route whose messages the log does not hold."""


def row(message_id: int, content: bytes, topic: str = "t", *, held: int | None = None) -> Row:
    """A message as a row of the store."""
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
