"""
From values to encoded bytes, in their most compact form.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from amqp_ext.codec.types import (
    FIXED,
    FIXED_WIDTH,
    MAX_DEPTH,
    MAX_ZERO_WIDTH_ELEMENTS,
    Array,
    Byte,
    Char,
    CodecError,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    read_char,
)

_CODES: dict[type, int] = {
    type(None): 0x40, bool: 0x56, UByte: 0x50, UShort: 0x60, UInt: 0x70, ULong: 0x80, Byte: 0x51, Short: 0x61,
    Int: 0x71, Long: 0x81, int: 0x81, Timestamp: 0x83, Float: 0x72, float: 0x82, Char: 0x73, UUID: 0x98,
    Decimal32: 0x74, Decimal64: 0x84, Decimal128: 0x94, bytes: 0xB0, bytearray: 0xB0, memoryview: 0xB0,
    str: 0xB1, Symbol: 0xB3, list: 0xD0, tuple: 0xD0, dict: 0xD1, Array: 0xF0,
}  # fmt: skip
"""Python type to the code of its wide form. Subclasses (an IntEnum) are looked up along their MRO."""

_PACK = {code: struct.Struct(layout).pack for code, (layout, _) in FIXED.items()}

# Wide code to its one-byte form, for values in the range.
_SMALL = {
    0x70: (0x52, range(256)),
    0x80: (0x53, range(256)),
    0x71: (0x54, range(-128, 128)),
    0x81: (0x55, range(-128, 128)),
}


def encode(value: Any) -> bytes:
    """
    ``value`` in its most compact AMQP form.

    A plain int is a long, a plain float a double, a tuple a list. A descriptor is a symbol if it is text and
    a ulong if it is an integer.

    Raises:
        CodecError: The value, or one inside it, has no AMQP form or is out of range; ``offset`` is -1.
    """
    return _encode(value, 0)


def _encode(value: Any, depth: int) -> bytes:
    if depth >= MAX_DEPTH:
        raise CodecError(-1, f"values are nested deeper than {MAX_DEPTH}")
    if isinstance(value, Described):
        return b"\x00" + _encode_descriptor(value.descriptor) + _encode(value.value, depth + 1)
    code = _code_of(value)
    if code == 0x40:
        return b"\x40"
    if code == 0x56:
        return b"\x41" if value else b"\x42"
    if code in _SMALL:
        small, fitting = _SMALL[code]
        if value == 0 and code in (0x70, 0x80):
            return b"\x43" if code == 0x70 else b"\x44"
        if value in fitting:
            return bytes((small, value & 0xFF))
    if code < 0xA0:
        return bytes((code,)) + _payload(value, code, depth)
    if code == 0xD0 and not value:
        return b"\x45"
    payload = _payload(value, code, depth)
    # Compound payloads start with a size that counts a count: in the short form both shrink to one byte.
    if code < 0xC0:
        return bytes((code - 0x10,)) + payload[3:] if payload[:3] == b"\0\0\0" else bytes((code,)) + payload
    size, count = struct.unpack_from(">II", payload)
    if size - 3 < 256 and count < 256:
        return bytes((code - 0x10, size - 3, count)) + payload[8:]
    return bytes((code,)) + payload


def _encode_descriptor(descriptor: Any) -> bytes:
    if isinstance(descriptor, str):
        return _encode(Symbol(descriptor), 0)
    if isinstance(descriptor, int):
        return _encode(ULong(descriptor), 0)
    raise CodecError(-1, f"a descriptor must be a symbol or a ulong, not {type(descriptor).__name__}")


def _code_of(value: Any) -> int:
    for base in type(value).__mro__:
        if base in _CODES:
            return _CODES[base]
    raise CodecError(-1, f"{type(value).__name__} has no AMQP type")


def _payload(value: Any, code: int, depth: int) -> bytes:
    """``value`` as it follows the constructor ``code``, which is a wide one."""
    if code < 0xA0:
        return _fixed_payload(value, code) if code >= 0x50 else b""
    if code == 0xB0:
        return _sized(bytes(value))
    if code in (0xB1, 0xB3):
        charset = "utf-8" if code == 0xB1 else "ascii"
        try:
            return _sized(value.encode(charset))
        except UnicodeEncodeError:
            raise CodecError(-1, f"text is not valid {charset}: {value!r:.60}") from None
    if code == 0xF0:
        return _array_payload(value, depth)
    items = value if code == 0xD0 else [part for item in value.items() for part in item]
    return _counted(len(items), b"".join([_encode(item, depth + 1) for item in items]))


def _fixed_payload(value: Any, code: int) -> bytes:
    width = FIXED_WIDTH[code >> 4]
    if code in (0x74, 0x84, 0x94) and len(value) != width:
        raise CodecError(-1, f"{type(value).__name__} takes {width} bytes, not {len(value)}")
    try:
        if code == 0x73:
            value = ord(read_char(ord(value)))
        return _PACK[code](value.bytes if code == 0x98 else value)
    except (struct.error, OverflowError, ValueError, TypeError):
        raise CodecError(-1, f"{value!r:.60} is out of range for {type(value).__name__}") from None


def _array_payload(array: Array, depth: int) -> bytes:
    constructor = b""
    elements: list[Any] = list(array)
    while elements and isinstance(elements[0], Described):
        descriptor = elements[0].descriptor
        if not all(isinstance(each, Described) and each.descriptor == descriptor for each in elements):
            raise CodecError(-1, "the elements of an array must all have one descriptor")
        constructor += b"\x00" + _encode_descriptor(descriptor)
        elements = [element.value for element in elements]
        depth += 1
    codes = {_code_of(element) for element in elements} or {array.code or 0x40}
    if len(codes) != 1:
        raise CodecError(-1, "the elements of an array must all have one type")
    code = codes.pop()
    if depth + 1 >= MAX_DEPTH:
        raise CodecError(-1, f"values are nested deeper than {MAX_DEPTH}")
    if code == 0x40 and len(elements) > MAX_ZERO_WIDTH_ELEMENTS:
        raise CodecError(-1, f"an array of more than {MAX_ZERO_WIDTH_ELEMENTS} nulls")
    payloads = [_payload(element, code, depth + 1) for element in elements]
    return _counted(len(elements), constructor + bytes((code,)) + b"".join(payloads))


def _sized(raw: bytes) -> bytes:
    if len(raw) >= 1 << 32:
        raise CodecError(-1, f"{len(raw)} bytes do not fit in one AMQP value")
    return struct.pack(">I", len(raw)) + raw


def _counted(count: int, raw: bytes) -> bytes:
    return _sized(struct.pack(">I", count) + raw)
