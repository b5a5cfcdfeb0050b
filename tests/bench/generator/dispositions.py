"""Acceptances read by their bytes: what the load generator does once a message instead of decoding a disposition.

Invariant: a frame that is not recognised is decoded in full, never guessed at.
"""

from __future__ import annotations

import struct

from amqp_ext.codec import Described
from tests.support.frames import ACCEPTED, Frame

CODE_OFFSET = 10
"""Where a frame with an 8-byte header keeps the code of its performative: header, 0x00, 0x53, code."""

_UINT = struct.Struct(">I")
_ACCEPTED_TAILS = tuple(
    bytes([settled]) + b"\x00\x53" + bytes([ACCEPTED]) + empty_list
    for settled in (0x41, 0x42)
    for empty_list in (b"\x45", b"\xc0\x01\x00")
)


def acceptance(disposition: Frame) -> tuple[int, int] | None:
    """First and last delivery id of a decoded disposition (section 2.7.6) if it says ``accepted``; else None."""
    state = disposition.field(4)
    if not isinstance(state, Described) or state.descriptor != ACCEPTED:
        return None
    first = int(disposition.field(1))
    return first, int(disposition.field(2, first))


def accepted_range(buffer: bytearray, start: int, stop: int) -> tuple[int, int] | None:
    """First and last delivery id of a plain ``accepted`` disposition; None where it must be decoded in full.

    Brokers that answer every message with a frame of its own are why this exists: a full decode would be the
    larger part of the generator's time then.
    """
    at = start + CODE_OFFSET + 1
    if buffer[start + 4] != 2 or buffer[at] != 0xC0:
        return None
    at += 4  # list8: constructor, size, count; then the role, one octet
    bounds = [0, 0]
    for which in (0, 1):
        constructor = buffer[at]
        if constructor == 0x52:
            bounds[which] = buffer[at + 1]
            at += 2
        elif constructor == 0x70:
            bounds[which] = _UINT.unpack_from(buffer, at + 1)[0]
            at += 5
        elif constructor == 0x43:
            at += 1
        elif constructor == 0x40 and which:
            bounds[1] = bounds[0]
            at += 1
        else:
            return None
    return (bounds[0], bounds[1]) if buffer[at:stop] in _ACCEPTED_TAILS else None
