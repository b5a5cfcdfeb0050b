"""
Format codes: what the byte in front of every value says of it (AMQP 1.0 part 1, section 1.2).

Its upper half says how wide the value behind it is: 4 none, 5 to 9 one to sixteen bytes, A and B a size and so many
bytes, C and D the same with a count in front, E and F an array. Sizes take one byte in A, C, E and four in B, D, F.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from amqp_ext.codec.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
)

MAX_DEPTH = 32
"""Nested lists, maps, arrays and descriptors. Real messages use four or five; each level costs stack."""

MAX_ZERO_WIDTH_ELEMENTS = 16
"""Elements of an array whose values take no bytes (null, true, list0). Nothing in the buffer backs their
count: nine bytes could ask for four billion of them. Nobody sends such arrays."""


def _boolean(octet: int) -> bool:
    if octet > 1:
        raise ValueError(f"a boolean must be 0x00 or 0x01, not {octet:#04x}")
    return octet == 1


def read_char(code_point: int) -> Char:
    """
    The character of a code point.

    Raises:
        ValueError: It is a surrogate, or beyond Unicode.
    """
    if 0xD800 <= code_point <= 0xDFFF or code_point > 0x10FFFF:
        raise ValueError(f"{code_point:#x} is not a Unicode character")
    return Char(chr(code_point))


EMPTY: dict[int, Callable[[], Any]] = {
    0x40: lambda: None,
    0x41: lambda: True,
    0x42: lambda: False,
    0x43: lambda: UInt(0),
    0x44: lambda: ULong(0),
    0x45: list,
}

FIXED: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0x50: (">B", UByte),
    0x51: (">b", Byte),
    0x52: (">B", UInt),
    0x53: (">B", ULong),
    0x54: (">b", Int),
    0x55: (">b", Long),
    0x56: (">B", _boolean),
    0x60: (">H", UShort),
    0x61: (">h", Short),
    0x70: (">I", UInt),
    0x71: (">i", Int),
    0x72: (">f", Float),
    0x73: (">I", read_char),
    0x74: (">4s", Decimal32),
    0x80: (">Q", ULong),
    0x81: (">q", Long),
    0x82: (">d", float),
    0x83: (">q", Timestamp),
    0x84: (">8s", Decimal64),
    0x94: (">16s", Decimal128),
    0x98: (">16s", lambda raw: UUID(bytes=raw)),
}

VARIABLE: dict[int, Callable[[Any], Any]] = {
    0xA0: bytes,
    0xA1: lambda raw: str(raw, "utf-8"),
    0xA3: lambda raw: Symbol(raw, "ascii"),
}

WIDE = {
    0x41: 0x56, 0x42: 0x56, 0x43: 0x70, 0x52: 0x70, 0x44: 0x80, 0x53: 0x80, 0x54: 0x71, 0x55: 0x81,
    0x45: 0xD0, 0xA0: 0xB0, 0xA1: 0xB1, 0xA3: 0xB3, 0xC0: 0xD0, 0xC1: 0xD1, 0xE0: 0xF0,
}  # fmt: skip
"""The compact codes, and the wide one that stands for the same type in an array."""

FIXED_WIDTH = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""Upper half of a format code to the number of bytes of a fixed-width value."""
