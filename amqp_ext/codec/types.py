"""
The Python types that stand for AMQP's (AMQP 1.0 part 1, section 1.6), and the format codes in front of every encoded
value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from uuid import UUID

Buffer = bytes | bytearray | memoryview


class CodecError(ValueError):
    """
    Bytes that are not AMQP 1.0, or a value that has no AMQP form.

    Attributes:
        offset: Where in the buffer it went wrong, in bytes from 0; -1 when encoding.
        reason: A sentence without the place.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} (at byte {offset})" if offset >= 0 else reason)
        self.offset = offset
        self.reason = reason


class Symbol(str):
    """symbol: a name from a constrained domain, ASCII. Equals the ``str`` of the same text."""

    __slots__ = ()


class Char(str):
    """char: one Unicode character."""

    __slots__ = ()


class Timestamp(int):
    """timestamp: milliseconds since the Unix epoch, signed 64 bits."""

    __slots__ = ()


class UByte(int):
    """ubyte: 8 bits, unsigned."""

    __slots__ = ()


class UShort(int):
    """ushort: 16 bits, unsigned."""

    __slots__ = ()


class UInt(int):
    """uint: 32 bits, unsigned."""

    __slots__ = ()


class ULong(int):
    """ulong: 64 bits, unsigned."""

    __slots__ = ()


class Byte(int):
    """byte: 8 bits, signed."""

    __slots__ = ()


class Short(int):
    """short: 16 bits, signed."""

    __slots__ = ()


class Int(int):
    """int: 32 bits, signed."""

    __slots__ = ()


class Long(int):
    """long: 64 bits, signed. A plain ``int`` is encoded as one, too."""

    __slots__ = ()


class Float(float):
    """float: IEEE 754 binary32. A plain ``float`` is a double."""

    __slots__ = ()


class Decimal32(bytes):
    """decimal32: the four bytes as they came; we carry decimals, we do not compute with them."""

    __slots__ = ()


class Decimal64(bytes):
    """decimal64: the eight bytes as they came."""

    __slots__ = ()


class Decimal128(bytes):
    """decimal128: the sixteen bytes as they came."""

    __slots__ = ()


class Described(NamedTuple):
    """A described type (section 1.3): a value with a descriptor that says what it means."""

    descriptor: Any
    """A Symbol, or an int (ulong)."""

    value: Any


class Array(list[Any]):
    """
    array: a list whose elements all have one type (``Described`` elements: one descriptor, too).

    Attributes:
        code: The elements' format code. It is needed only where there is no element to tell the type by.
    """

    __slots__ = ("code",)

    def __init__(self, items: Iterable[Any] = (), code: int | None = None) -> None:
        super().__init__(items)
        self.code = code


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
