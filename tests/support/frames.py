"""AMQP 1.0 frames as bytes and as values, for tests that write and read them one by one, and for the load generator.

They write wrong frames, too, exactly as asked: no engine corrects them on the way.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong, UShort, decode, encode

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME = range(0x40, 0x45)
SOURCE, TARGET = 0x28, 0x29
ACCEPTED = 0x24

AMQP_FRAME, SASL_FRAME = 0, 1
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

WINDOW = 2**31 - 1
"""A session window that is never the limit."""

_HEADER = struct.Struct(">IBBH")
_UINT = struct.Struct(">I")
_SETTLED_AS_ACCEPTED = b"\x41\x00\x53" + bytes([ACCEPTED]) + b"\x45"


class Frame(NamedTuple):
    """A decoded frame: the performative's code, its fields, and what follows it."""

    code: int
    fields: list[Any]
    payload: bytes

    def field(self, index: int, default: Any = None) -> Any:
        """The field at ``index``; ``default`` where it is null or a trailing field that was left out."""
        value = self.fields[index] if index < len(self.fields) else None
        return default if value is None else value


def framed(
    body: bytes,
    *,
    kind: int = AMQP_FRAME,
    channel: int = 0,
    extended: bytes = b"",
    offset: int | None = None,
    size: int | None = None,
) -> bytes:
    """A body after a frame header (AMQP 1.0 section 2.3.1), whose fields are right unless others are given."""
    behind = extended + body
    length = _HEADER.size + len(behind) if size is None else size
    words = 2 + len(extended) // 4 if offset is None else offset
    return _HEADER.pack(length, words, kind, channel) + behind


def frame(
    code: int, fields: list[Any], payload: bytes = b"", *, kind: int = AMQP_FRAME, channel: int = 0
) -> bytes:
    """A performative's frame."""
    return framed(encode(Described(ULong(code), fields)) + payload, kind=kind, channel=channel)


def parse(buffer: bytearray | bytes, start: int, stop: int) -> Frame | None:
    """Decode the frame in ``buffer[start:stop]``; None for an empty frame (a heartbeat, section 2.4.5)."""
    offset = start + 4 * buffer[start + 4]
    if offset >= stop:
        return None
    body = bytes(buffer[offset:stop])
    performative, end = decode(body)
    return Frame(int(performative.descriptor), performative.value, body[end:])


def disposition(first: int, last: int, *, receiver: bool = True) -> bytes:
    """A settled disposition ``accepted`` for deliveries ``first`` to ``last``, inclusive (section 2.7.6)."""
    role = b"\x41" if receiver else b"\x42"
    fields = role + b"\x70" + _UINT.pack(first) + b"\x70" + _UINT.pack(last) + _SETTLED_AS_ACCEPTED
    body = b"\x00\x53" + bytes([DISPOSITION]) + b"\xc0" + bytes([len(fields) + 1, 5]) + fields
    return _HEADER.pack(_HEADER.size + len(body), 2, AMQP_FRAME, 0) + body


def open_frame(
    *,
    container: str = "peer",
    hostname: str | None = None,
    idle_ms: int | None = None,
) -> bytes:
    """Open; without a heartbeat unless ``idle_ms`` asks for one."""
    idle = None if idle_ms is None else UInt(idle_ms)
    return frame(OPEN, [container, hostname, UInt(65_536), UShort(255), idle])


def begin_frame(answered: int | None = None, *, channel: int = 0) -> bytes:
    """
    Begin with windows that are never the limit; it answers the peer's begin on channel ``answered`` if that is given.
    """
    remote = None if answered is None else UShort(answered)
    return frame(BEGIN, [remote, UInt(0), UInt(WINDOW), UInt(WINDOW)], channel=channel)


def attach_frame(
    handle: int,
    *,
    receiver: bool,
    address: str | None,
    name: str | None = None,
    filters: dict[Any, Any] | None = None,
    expiry: Symbol | None = None,
    settled: bool = False,
) -> bytes:
    """Attach as receiver or as sender; the address of our own terminus is ``peer``."""
    source = [address, None, expiry, *[None] * 4, filters] if receiver else ["peer"]
    target = ["peer"] if receiver else [address]
    return frame(
        ATTACH,
        [
            name or f"link-{handle}",
            UInt(handle),
            receiver,
            UByte(1 if settled else 0),
            UByte(0),
            Described(ULong(SOURCE), source),
            Described(ULong(TARGET), target),
            None,
            None,
            None if receiver else UInt(0),
        ],
    )


def flow_frame(handle: int, count: int, credit: int, *, next_incoming: int = 0) -> bytes:
    """Flow that grants a link credit after ``count`` deliveries."""
    session = [UInt(next_incoming), UInt(WINDOW), UInt(0), UInt(WINDOW)]
    return frame(FLOW, [*session, UInt(handle), UInt(count), UInt(credit)])


def transfer_frame(
    handle: int, number: int, payload: bytes, *, settled: bool = False, more: bool = False
) -> bytes:
    """A transfer whose delivery tag is the delivery's number."""
    fields = [UInt(handle), UInt(number), number.to_bytes(4, "big"), UInt(0), settled, more]
    return frame(TRANSFER, fields, payload)


def anonymous_start() -> bytes:
    """The SASL frames that a client sends before its open frame if it waits for no answer."""
    init = frame(SASL_INIT, [Symbol("ANONYMOUS"), b"test"], kind=SASL_FRAME)
    return SASL_HEADER + init + AMQP_HEADER


def error_of(received: Frame) -> tuple[str, str]:
    """Condition and description of the error in a detach, end or close."""
    error = received.field(2 if received.code == DETACH else 0)
    assert received.code in (DETACH, END, CLOSE), received
    assert error is not None, f"no error in {received}"
    condition, description, *_ = [*error.value, None, None]
    return str(condition), str(description or "")
