"""Messages as bytes: made by hand, and taken apart again, so that every byte can be compared.

Nothing here uses the gateway's own way of cutting messages into sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp_ext import codec
from amqp_ext.codec import Described, ULong

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = 0x73, 0x74, 0x75, 0x76, 0x77, 0x78


def section(code: int, value: Any) -> bytes:
    """One section: a value described by the section's code."""
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


def content_of(raw: bytes) -> str:
    """The same as text."""
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
