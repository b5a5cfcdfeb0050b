"""
From encoded bytes to values.

Invariant: whatever the bytes, ``decode`` and ``skip`` return or raise ``CodecError``, in memory bounded by the size of
the buffer. Every declared size and count is compared with the bytes really there before anything is built.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from amqp_ext.codec.types import (
    EMPTY,
    FIXED,
    FIXED_WIDTH,
    MAX_DEPTH,
    MAX_ZERO_WIDTH_ELEMENTS,
    VARIABLE,
    WIDE,
    Array,
    Buffer,
    CodecError,
    Described,
)

_DESCRIPTOR_CODES = frozenset({0x44, 0x53, 0x80, 0xA3, 0xB3})

# buffer, offset just behind the constructor, end of what may be read, depth -> value, next offset
_Reader = Callable[[Buffer, int, int, int], tuple[Any, int]]


def decode(buffer: Buffer, offset: int = 0) -> tuple[Any, int]:
    """
    The value at ``offset``, and the offset behind it.

    Maps become dicts. Keys that a dict cannot tell apart (the symbol ``a`` and the string ``a``) are refused like
    equal keys, which section 1.6.23 forbids; so is a list or a map as a key.

    Raises:
        CodecError: The bytes are not one whole, valid AMQP value.
    """
    return _decode(buffer, offset, len(buffer), 0)


def skip(buffer: Buffer, offset: int) -> int:
    """
    The offset behind the value at ``offset``, without building it or looking inside lists, maps and arrays.

    Raises:
        CodecError: The value is cut short, or its constructor is not AMQP.
    """
    end = len(buffer)
    for _ in range(MAX_DEPTH):
        code = _code(buffer, offset, end)
        if code != 0x00:
            return _behind(buffer, offset, end, code)
        offset = _behind_descriptor(buffer, offset + 1, end)
    raise CodecError(offset, f"more than {MAX_DEPTH} descriptors in front of one value")


def _code(buffer: Buffer, offset: int, end: int) -> int:
    if not 0 <= offset < end:
        raise CodecError(offset, "a value should start here, but the buffer ends")
    return buffer[offset]


def _behind(buffer: Buffer, offset: int, end: int, code: int) -> int:
    if code not in _READERS:
        raise CodecError(offset, f"{code:#04x} is not an AMQP format code")
    width = FIXED_WIDTH.get(code >> 4)
    if width is not None:
        behind = offset + 1 + width
        if behind > end:
            raise CodecError(offset, f"a value of {width} bytes is cut short: {end - offset - 1} are left")
        return behind
    size, start = _size(buffer, offset + 1, end, 4 if code & 0x10 else 1)
    return start + size


def _behind_descriptor(buffer: Buffer, offset: int, end: int) -> int:
    code = _code(buffer, offset, end)
    if code not in _DESCRIPTOR_CODES:
        raise CodecError(offset, f"a descriptor must be a symbol or a ulong, not format code {code:#04x}")
    return _behind(buffer, offset, end, code)


def _size(buffer: Buffer, offset: int, end: int, width: int) -> tuple[int, int]:
    """Read a size of ``width`` bytes; the size and the offset behind it, certain that so many bytes follow."""
    start = offset + width
    if start > end:
        raise CodecError(offset, "the size is cut short")
    size = int.from_bytes(buffer[offset:start], "big")
    if size > end - start:
        raise CodecError(offset, f"a size of {size} bytes is declared, but only {end - start} are left")
    return size, start


def _decode(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
    code = _code(buffer, offset, end)
    if depth >= MAX_DEPTH:
        raise CodecError(offset, f"values are nested deeper than {MAX_DEPTH}")
    if code == 0x00:
        behind = _behind_descriptor(buffer, offset + 1, end)
        descriptor, _ = _decode(buffer, offset + 1, behind, depth + 1)
        value, behind = _decode(buffer, behind, end, depth + 1)
        return Described(descriptor, value), behind
    reader = _READERS.get(code)
    if reader is None:
        raise CodecError(offset, f"{code:#04x} is not an AMQP format code")
    return reader(buffer, offset + 1, end, depth)


def _empty_reader(build: Callable[[], Any]) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        return build(), offset

    return read


def _fixed_reader(layout: str, build: Callable[[Any], Any]) -> _Reader:
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        if offset + width > end:
            raise CodecError(offset, f"a value of {width} bytes is cut short: {end - offset} are left")
        try:
            return build(unpack(buffer, offset)[0]), offset + width
        except ValueError as error:
            raise CodecError(offset, str(error)) from None

    return read


def _variable_reader(width: int, build: Callable[[Any], Any]) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        size, start = _size(buffer, offset, end, width)
        behind = start + size
        try:
            return build(buffer[start:behind]), behind
        except UnicodeDecodeError as error:
            raise CodecError(start + error.start, f"text is not valid {error.encoding}") from None

    return read


def _frame(buffer: Buffer, offset: int, end: int, width: int) -> tuple[int, int, int]:
    """A list, map or array: its count, the offset behind the count, the offset behind the whole."""
    size, start = _size(buffer, offset, end, width)
    if size < width:
        raise CodecError(offset, f"a size of {size} bytes leaves no room for the {width} of the count")
    count = int.from_bytes(buffer[start : start + width], "big")
    return count, start + width, start + size


def _items(buffer: Buffer, offset: int, end: int, width: int, depth: int) -> tuple[list[Any], int]:
    count, position, behind = _frame(buffer, offset, end, width)
    if count > behind - position:
        raise CodecError(offset, f"{count} items are declared in {behind - position} bytes")
    items = []
    for _ in range(count):
        item, position = _decode(buffer, position, behind, depth + 1)
        items.append(item)
    _check_used_up(position, behind)
    return items, behind


def _check_used_up(position: int, behind: int) -> None:
    if position != behind:
        raise CodecError(position, f"{behind - position} bytes are left over behind the last item")


def _list_reader(width: int) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        return _items(buffer, offset, end, width, depth)

    return read


def _map_reader(width: int) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        items, behind = _items(buffer, offset, end, width, depth)
        if len(items) % 2:
            raise CodecError(offset, f"a map of {len(items)} items has a key without a value")
        keys = items[::2]
        try:
            mapping = dict(zip(keys, items[1::2], strict=True))
        except TypeError:
            raise CodecError(offset, "a map has a list or a map as a key") from None
        if len(mapping) != len(keys):
            raise CodecError(offset, "a map has two equal keys")
        return mapping, behind

    return read


def _array_reader(width: int) -> _Reader:
    def read(buffer: Buffer, offset: int, end: int, depth: int) -> tuple[Any, int]:
        count, position, behind = _frame(buffer, offset, end, width)
        descriptors: list[Any] = []
        while (code := _code(buffer, position, behind)) == 0x00:
            if depth + len(descriptors) >= MAX_DEPTH:
                raise CodecError(position, f"values are nested deeper than {MAX_DEPTH}")
            start, position = position + 1, _behind_descriptor(buffer, position + 1, behind)
            descriptors.append(_decode(buffer, start, position, depth + 1)[0])
        reader = _READERS.get(code)
        if reader is None:
            raise CodecError(position, f"{code:#04x} is not an AMQP format code")
        position += 1
        room = MAX_ZERO_WIDTH_ELEMENTS if code in EMPTY else behind - position
        if count > room:
            raise CodecError(offset, f"{count} array elements are declared, at most {room} are possible here")
        depth += len(descriptors) + 1
        if depth >= MAX_DEPTH:
            raise CodecError(position, f"values are nested deeper than {MAX_DEPTH}")
        array = Array(code=WIDE.get(code, code))
        for _ in range(count):
            element, position = reader(buffer, position, behind, depth)
            for descriptor in reversed(descriptors):
                element = Described(descriptor, element)
            array.append(element)
        _check_used_up(position, behind)
        return array, behind

    return read


_READERS: dict[int, _Reader] = {
    **{code: _empty_reader(build) for code, build in EMPTY.items()},
    **{code: _fixed_reader(layout, build) for code, (layout, build) in FIXED.items()},
    **{code: _variable_reader(1, build) for code, build in VARIABLE.items()},
    **{code + 0x10: _variable_reader(4, build) for code, build in VARIABLE.items()},
    0xC0: _list_reader(1),
    0xD0: _list_reader(4),
    0xC1: _map_reader(1),
    0xD1: _map_reader(4),
    0xE0: _array_reader(1),
    0xF0: _array_reader(4),
}
