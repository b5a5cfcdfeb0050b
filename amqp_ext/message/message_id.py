"""
A message-id as a person writes it: which ids a text stands for, and how they look on the wire.

AMQP has four types of message-id (1.0 section 3.2.11): ulong, uuid, binary and string. A text is compared with each
in that type's text form:

=======  ===================================================================================
string   as it is, letter by letter
ulong    decimal digits, without leading zeros
uuid     8-4-4-4-12 hexadecimal digits, in either case
binary   hexadecimal digits, two a byte, in either case
=======  ===================================================================================

So ``42`` finds the string ``42``, the number 42 and the one byte 0x42. JMS clients show the last three with a prefix
that says the type (``ID:AMQP_ULONG:``, ``ID:AMQP_UUID:``, ``ID:AMQP_BINARY:``; Qpid JMS, AmqpMessageIdHelper): with it,
a text stands for that type alone, or for a string that looks the same.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias
from uuid import UUID

MessageId: TypeAlias = "str | int | UUID | bytes"

JMS_TYPE_PREFIX: Final = "ID:AMQP_"
"""How every text of an id that is no string begins when a JMS client shows it."""

_MAX_ULONG: Final = (1 << 64) - 1
_ULONG: Final = re.compile(r"0|[1-9][0-9]{0,19}", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_BINARY: Final = re.compile(r"([0-9a-f]{2})+", re.ASCII | re.IGNORECASE)


def readings(text: str) -> frozenset[MessageId]:
    """Every message-id that ``text`` stands for: the string first of all, and other types where it has their form."""
    found: set[MessageId] = {text}
    prefix = next((p for p in ("ULONG:", "UUID:", "BINARY:") if text.startswith(JMS_TYPE_PREFIX + p)), None)
    rest = text if prefix is None else text[len(JMS_TYPE_PREFIX) + len(prefix) :]
    if prefix in (None, "ULONG:") and _ULONG.fullmatch(rest) and int(rest) <= _MAX_ULONG:
        found.add(int(rest))
    if prefix in (None, "UUID:") and _UUID.fullmatch(rest):
        found.add(UUID(rest))
    if prefix in (None, "BINARY:") and _BINARY.fullmatch(rest):
        found.add(bytes.fromhex(rest))
    return frozenset(found)


def text_of(value: MessageId) -> str:
    """The text that stands for ``value`` in its type alone; a string stands for itself."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{JMS_TYPE_PREFIX}ULONG:{int(value)}"
    if isinstance(value, UUID):
        return f"{JMS_TYPE_PREFIX}UUID:{value}"
    return f"{JMS_TYPE_PREFIX}BINARY:{value.hex().upper()}"


def traces(ids: frozenset[MessageId]) -> tuple[bytes, ...]:
    """Bytes of which at least one stands in every message that has one of these ids; none where that cannot be said."""
    found = [_trace(one) for one in ids]
    return tuple(found) if all(found) else ()


def _trace(one: MessageId) -> bytes:
    if isinstance(one, str):
        return one.encode()
    if isinstance(one, int):
        # Whatever its width, a number ends with its own digits; zero has an encoding without any.
        return one.to_bytes((one.bit_length() + 7) // 8, "big")
    return one.bytes if isinstance(one, UUID) else one
