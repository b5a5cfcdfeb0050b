"""AMQP 1.0 frames as the load generator and its null peer write and read them.

Only what is needed once a link is decoded into values; what is needed once a message (transfer, disposition)
is recognised by its bytes. Invariant: a frame that the quick path does not recognise is decoded in full,
never guessed at.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from amqp_ext.codec import Described, ULong, decode, encode

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
SOURCE, TARGET = 0x28, 0x29
ACCEPTED = 0x24

AMQP_FRAME, SASL_FRAME = 0, 1
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

CODE_OFFSET = 10
"""Where a frame with an 8-byte header keeps the code of its performative: header, 0x00, 0x53, code."""

_HEADER = struct.Struct(">IBBH")
_UINT = struct.Struct(">I")
_ACCEPTED_TAILS = tuple(
    bytes([settled]) + b"\x00\x53" + bytes([ACCEPTED]) + empty_list
    for settled in (0x41, 0x42)
    for empty_list in (b"\x45", b"\xc0\x01\x00")
)


class Frame(NamedTuple):
    """A decoded frame: the performative's code, its fields, and what follows it."""

    code: int
    fields: list[Any]
    payload: bytes

    def field(self, index: int, default: Any = None) -> Any:
        """The field at `index`; `default` where it is null or a trailing field that was left out."""
        value = self.fields[index] if index < len(self.fields) else None
        return default if value is None else value


def frame(code: int, fields: list[Any], payload: bytes = b"", kind: int = AMQP_FRAME) -> bytes:
    """One frame on channel 0 (AMQP 1.0 section 2.3)."""
    body = encode(Described(ULong(code), fields)) + payload
    return _HEADER.pack(_HEADER.size + len(body), 2, kind, 0) + body


def parse(buffer: bytearray | bytes, start: int, stop: int) -> Frame | None:
    """Decode the frame in `buffer[start:stop]`; None for an empty frame (a heartbeat, section 2.4.5)."""
    offset = start + 4 * buffer[start + 4]
    if offset >= stop:
        return None
    body = bytes(buffer[offset:stop])
    performative, end = decode(body)
    return Frame(int(performative.descriptor), performative.value, body[end:])


def disposition(first: int, last: int, *, receiver: bool = True) -> bytes:
    """A settled disposition `accepted` for deliveries `first` to `last`, inclusive (section 2.7.6)."""
    role = b"\x41" if receiver else b"\x42"
    fields = role + b"\x70" + _UINT.pack(first) + b"\x70" + _UINT.pack(last) + _ACCEPTED_TAILS[0]
    body = b"\x00\x53" + bytes([DISPOSITION]) + b"\xc0" + bytes([len(fields) + 1, 5]) + fields
    return _HEADER.pack(_HEADER.size + len(body), 2, AMQP_FRAME, 0) + body


def accepted_range(buffer: bytearray, start: int, stop: int) -> tuple[int, int] | None:
    """First and last delivery id of a plain `accepted` disposition; None where it must be decoded in full.

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
