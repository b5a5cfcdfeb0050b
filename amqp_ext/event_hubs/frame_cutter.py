"""
Frames on one connection, cut from bytes that come in any pieces (AMQP 1.0 sections 2.2 and 2.3).

Invariant: nothing is lost or changed. Bytes that are no frames are handed on as they are, for the engine to say what is
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17

PROTOCOL_HEADER: Final = b"AMQP"
"""What a protocol header begins with; it is as long as a frame's header."""

HEADER_BYTES: Final = 8
"""Bytes of a frame's header."""


class FrameCutter:
    """
    Bytes in any pieces, cut into whole frames and protocol headers.

    Args:
        largest_bytes: Of a frame; what says that it is larger is taken for no frame.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._largest = largest_bytes
        self._rest = b""
        self._is_blind = False
        """What came was no frame: all is handed on from there."""

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now; what is no frame comes as it is."""
        rest = self._rest + data if self._rest else data
        start, end = 0, len(rest)
        while not self._is_blind and end - start >= HEADER_BYTES:
            size = int.from_bytes(rest[start : start + 4], "big")
            if rest.startswith(PROTOCOL_HEADER, start):
                size = HEADER_BYTES
            elif not HEADER_BYTES <= size <= self._largest:
                self._is_blind = True
                break
            if end - start < size:
                break
            yield rest[start : start + size]
            start += size
        if self._is_blind:
            self._rest = b""
            if start < end:
                yield rest[start:]
        else:
            self._rest = rest[start:]
