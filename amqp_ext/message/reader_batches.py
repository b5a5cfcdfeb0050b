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
from struct import error as StructError
from typing import Final

from amqp_ext.codec import CodecError

BATCHES: Final = "rewind:batches"

DATA_HEAD: Final = 0x005375B0
"""A data section, its size in the four bytes behind this: the only spelling that is used here."""
_HEAD: Final = Struct(">II")
_pack = _HEAD.pack
HEAD_SIZE: Final = _HEAD.size
"""Octets in front of each message of an envelope."""


def head_of(size: int) -> bytes:
    """What stands in front of a message of ``size`` octets."""
    return _pack(DATA_HEAD, size)


def batch_of(fronts: Iterable[bytes], rests: Iterable[bytes]) -> bytes:
    """The envelope for messages that are in two parts each, as many of the one as of the other."""
    parts: list[bytes] = []
    for front, rest in zip(fronts, rests, strict=True):
        parts += (head_of(len(front) + len(rest)), front, rest)
    return b"".join(parts)


def messages_of(envelope: bytes) -> Iterator[bytes]:
    """
    The messages in an envelope, in their order.

    Raises:
        CodecError: It is none.
    """
    start = 0
    for end in ends_of(envelope):
        yield envelope[start + HEAD_SIZE : end]
        start = end


def ends_of(envelope: bytes) -> list[int]:
    """
    Where each message of an envelope ends; the next one begins ``HEAD_SIZE`` octets behind that.

    Raises:
        CodecError: It is none.
    """
    ends: list[int] = []
    read, size, data, end = _HEAD.unpack_from, HEAD_SIZE, DATA_HEAD, len(envelope)
    append = ends.append
    start = position = 0
    try:
        while position < end:
            start = position
            found, length = read(envelope, position)
            if found != data:
                break
            position += size + length
            append(position)
    except StructError:
        pass  # it is cut short
    if position != end:
        raise CodecError(start, "a batch is data sections with sizes of four bytes, and nothing else")
    return ends
