"""A block of ready-made transfer frames, patched in place.

Every frame of a block has the same length, so one strided slice assignment writes one octet of a delivery id
into all of them: the cost of a message is a few nanoseconds, and the generator stays out of the way of what
it measures. The body starts with the message's number and its publish time, both 8 octets, big endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable

from tests.support.frames import TRANSFER

BLOCK = 256
"""Frames written at once: about 80 KiB with 256-octet bodies, a part of a loopback socket's buffer."""

STAMP = struct.Struct(">QQ")
"""The head of a body: message number, publish time in nanoseconds of the machine's monotonic clock."""

_DURABLE_HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"


def message_of(size: int) -> tuple[Callable[[int, int], bytes], int]:
    """What makes a durable message with a body of ``size`` octets out of its number and time stamp.

    Returns:
        That function, and where the bare message begins in what it makes.

    Raises:
        ValueError: The body has no room for both.
    """
    if size < STAMP.size:
        raise ValueError(
            f"a body of {size} octets has no room for its number and time stamp; use {STAMP.size} or more"
        )
    head = _DURABLE_HEADER + b"\x00\x53\x75\xb0" + struct.pack(">I", size)
    rest = bytes(0x61 + index % 26 for index in range(size - STAMP.size))
    pack = STAMP.pack
    return lambda number, stamp: head + pack(number, stamp) + rest, len(_DURABLE_HEADER)


class TransferBlock:
    """Up to ``BLOCK`` transfers of ``size``-octet bodies on handle 0, delivery ids counting up."""

    def __init__(self, size: int, *, settled: bool = False) -> None:
        """``size`` is the body's length in octets, at least 16."""
        # section 2.7.5: handle 0, delivery-id, delivery-tag (the id again), message-format 0, settled, more
        fields = (
            b"\x43"
            + b"\x70\0\0\0\0"
            + b"\xa0\x04\0\0\0\0"
            + b"\x43"
            + (b"\x41" if settled else b"\x42")
            + b"\x42"
        )
        performative = b"\x00\x53" + bytes([TRANSFER]) + b"\xc0" + bytes([len(fields) + 1, 6]) + fields
        message = message_of(size)[0](0, 0)
        self.stride = 8 + len(performative) + len(message)
        frame = struct.pack(">IBBH", self.stride, 2, 0, 0) + performative + message
        identity = 8 + performative.index(b"\x70\0\0\0\0") + 1
        tag = identity + 6
        self._number = self.stride - size
        self._planes = (identity, tag, self._number + 4)
        self._frames = bytearray(frame * BLOCK)
        self._view = memoryview(self._frames)

    def fill(self, first: int, count: int, now: int) -> memoryview:
        """Frames of deliveries ``first`` to ``first + count - 1``, stamped ``now`` ns; good until the next call."""
        frames, stride, stop = self._frames, self.stride, count * self.stride
        numbers = array("I", range(first, first + count))
        if sys.byteorder == "little":
            numbers.byteswap()
        octets = numbers.tobytes()
        for index in range(4):
            plane = octets[index::4]
            for start in self._planes:
                frames[start + index : stop : stride] = plane
        stamp = self._number + 8
        for index, octet in enumerate(now.to_bytes(8, "big")):
            frames[stamp + index : stop : stride] = bytes([octet]) * count
        return self._view[:stop]
