"""
Padding: performatives with every field they can have, as the Python client of Event Hubs needs them.

Trailing fields that are null may be left out of a performative (AMQP 1.0 section 1.4), and engines do so. That client
takes fields by their number all the same, and dies. ``Padder`` puts the nulls back.

Invariant: what the peer understands is the same with and without this.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.event_hubs.frame_cutter import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    FLOW,
    HEADER_BYTES,
    OPEN,
    TRANSFER,
    FrameCutter,
)

FIELDS: Final = {OPEN: 10, BEGIN: 8, ATTACH: 14, FLOW: 11, TRANSFER: 11, DISPOSITION: 6, DETACH: 3}
"""Fields that a performative has when none is left out (AMQP 1.0 section 2.7)."""

PADDING_BYTES: Final = 32
"""More than padding adds to any frame: a null for each field, and three bytes for each of the list's sizes."""


class Padder:
    """Fills up the performatives of all frames that go out on one connection."""

    def __init__(self) -> None:
        # What the engine writes are frames, however large the peer lets them be.
        self._cutter = FrameCutter(0xFFFF_FFFF)

    def pad(self, data: bytes) -> bytes:
        """What is to be written now; a frame that is not whole yet is kept for the next time."""
        return b"".join(map(padded, self._cutter.cut(data)))


def padded(frame: bytes) -> bytes:
    """
    A frame whose performative has all its fields.

    Args:
        frame: One whole frame as an engine writes it: its performative's descriptor a smallulong. Any other, such as a
            heartbeat or a frame of SASL, comes back as it is.
    """
    start = frame[4] * 4 if len(frame) > HEADER_BYTES else 0
    if start < HEADER_BYTES or frame[5] != 0 or frame[start : start + 2] != b"\x00\x53":
        return frame
    fields = FIELDS.get(frame[start + 2], 0)
    form = frame[start + 3]
    if form == 0xC0:
        size, count, first = frame[start + 4] - 1, frame[start + 5], start + 6
    elif form == 0xD0:
        size = int.from_bytes(frame[start + 4 : start + 8], "big") - 4
        count, first = int.from_bytes(frame[start + 8 : start + 12], "big"), start + 12
    elif form == 0x45:
        size, count, first = 0, 0, start + 4
    else:
        return frame
    if count >= fields:
        return frame
    behind = first + size
    items = frame[first:behind] + b"\x40" * (fields - count)
    if len(items) < 0xFF:
        head = bytes((0xC0, len(items) + 1, fields))
    else:
        head = b"\xd0" + (len(items) + 4).to_bytes(4, "big") + fields.to_bytes(4, "big")
    body = frame[4 : start + 3] + head + items + frame[behind:]
    return (4 + len(body)).to_bytes(4, "big") + body
