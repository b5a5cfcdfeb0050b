"""
Batches of a log reader: where it asked for them, a delivery brings several messages, each whole, in a data section of
its own. The envelope is an ordinary message whose body is data sections (AMQP 1.0 section 3.2.6), as in the batches
that Event Hubs' clients send.

A reader asks with the link property ``rewind:batches`` (true) on an attach with snd-settle-mode ``settled``; it is
granted where the answer has the property, too. What a delivery costs, engines and loops, is then shared by many
messages: for those who read millions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from amqp_ext.codec import CodecError

BATCHES: Final = "rewind:batches"

_DATA: Final = b"\x00\x53\x75\xb0"
"""A data section, its size in four bytes: the only spelling that is used here."""
_HEAD: Final = Struct(">4sI")
_pack = _HEAD.pack


def batch_of(fronts: Iterable[bytes], rests: Iterable[bytes]) -> bytes:
    """The envelope for messages that are in two parts each, as many of the one as of the other."""
    parts: list[bytes] = []
    for front, rest in zip(fronts, rests, strict=True):
        parts += (_pack(_DATA, len(front) + len(rest)), front, rest)
    return b"".join(parts)


def messages_of(envelope: bytes) -> Iterator[bytes]:
    """
    The messages in an envelope, in their order.

    Raises:
        CodecError: It is none; what came before the mistake was given.
    """
    position, end, size = 0, len(envelope), _HEAD.size
    while position < end:
        start = position + size
        behind = start + int.from_bytes(envelope[position + 4 : start], "big")
        if envelope[position : position + 4] != _DATA or behind > end:
            raise CodecError(position, "a batch is data sections with sizes of four bytes, and nothing else")
        yield envelope[start:behind]
        position = behind
