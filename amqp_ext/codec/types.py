"""
The Python types that stand for AMQP's (AMQP 1.0 part 1, section 1.6).

Where a plain Python type would do for several of AMQP's, a subclass of it says which one is meant: a value that was
decoded is encoded as the type that it came as. ``None``, ``bool``, ``bytes``, ``str``, ``list``, ``dict`` and
``uuid.UUID`` are null, boolean, binary, string, list, map and uuid.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

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
