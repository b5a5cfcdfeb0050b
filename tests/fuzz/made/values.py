"""Random AMQP values: of every type, nested, at the edges of their ranges, and sometimes encoded wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from amqp_ext.codec import (
    Array,
    Byte,
    Char,
    CodecError,
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
    encode,
)

EDGES = (
    *(0, 1, -1, 2, 7, 127, 128, 255, 256),
    *(2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64),
)


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


WORDS = (
    *words("a q x-opt-topic queue://q1 topic://a/b beginning live size é日本 &p:x && %2F never $cbs '"),
    *("", "\0", "a" * 300, "x" * 5_000),
)
_DEEPEST = 4


class Encoded(NamedTuple):
    """Bytes in the place of a value, valid or not."""

    content: bytes


_WRONG = """
    b1ffffffff a10561 a102fffe d000000004ffffffff 3f 00 c00001 c10403a1016140 f000000005ffffffff40
    e002ff54 d1ffffffff000000024040 73ffffffff 837fffffffffffffff c10100 80 a301ff
"""
WRONG = (*map(bytes.fromhex, words(_WRONG)), bytes(40), b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01" * 60)
"""Invalid encodings, or ones that announce more than follows."""


def octets(dice: Random, most: int = 40) -> bytes:
    """Random bytes."""
    return dice.randbytes(dice.randrange(most + 1))


def whole(dice: Random, bits: int, *, signed: bool = False) -> int:
    """An integer of this many bits, often at the edge of its range."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    chosen = dice.choice(EDGES) if dice.random() < 0.6 else dice.randint(low, high)
    return min(max(chosen, low), high)


def word(dice: Random) -> str:
    """A text, mostly a word that has a meaning somewhere in the product."""
    if dice.random() < 0.8:
        return dice.choice(WORDS)
    return "".join(
        chr(dice.choice((dice.randrange(32, 127), dice.randrange(1, 0xD7FF))))
        for _ in range(dice.randrange(12))
    )


def symbol(dice: Random) -> Symbol:
    """A symbol from an ASCII text."""
    return Symbol(word(dice).encode("ascii", "replace").decode())


def list_of(dice: Random, depth: int) -> list[Any]:
    return [value(dice, depth + 1) for _ in range(dice.randrange(4))]


def map_of(dice: Random, depth: int = 0, key: Callable[[Random], Any] | None = None) -> dict[Any, Any]:
    """A map whose keys are made by ``key``, or are of any type that can be a key."""
    make = key or (lambda dice: dice.choice((word, symbol, lambda dice: ULong(whole(dice, 64))))(dice))
    return {make(dice): value(dice, depth + 1) for _ in range(dice.randrange(4))}


def array_of(dice: Random) -> Array:
    kind = dice.choice((symbol, lambda dice: UInt(whole(dice, 32)), word, octets))
    return Array([kind(dice) for _ in range(dice.randrange(5))], 0xA3)


def _number_of(kind: Callable[[int], Any], bits: int, signed: bool, dice: Random) -> Any:
    return kind(whole(dice, bits, signed=signed))


_NUMBERS = (
    *((UByte, 8, False), (UShort, 16, False), (UInt, 32, False), (ULong, 64, False)),
    *((Byte, 8, True), (Short, 16, True), (Int, 32, True), (Long, 64, True), (Timestamp, 64, True)),
)
_SIMPLE: tuple[Callable[[Random], Any], ...] = (
    *(partial(_number_of, *number) for number in _NUMBERS),
    lambda dice: None,
    lambda dice: dice.random() < 0.5,
    lambda dice: Float(dice.choice((0.0, -0.0, 1.5, float("inf"), float("nan")))),
    lambda dice: dice.choice((0.0, 1e308, -1e308, float("-inf"), float("nan"), dice.random())),
    lambda dice: Char(chr(dice.choice((0, 65, 0xE9, 0x1F600)))),
    lambda dice: Decimal128(dice.randbytes(16)),
    lambda dice: UUID(bytes=dice.randbytes(16)),
    octets,
    *(word, symbol, word, symbol),
)


def value(dice: Random, depth: int = 0) -> Any:
    """Any AMQP value."""
    if depth >= _DEEPEST or dice.random() < 0.75:
        return dice.choice(_SIMPLE)(dice)
    which = dice.randrange(4)
    if which == 0:
        return list_of(dice, depth)
    if which == 1:
        return map_of(dice, depth)
    if which == 2:
        return array_of(dice)
    descriptor = symbol(dice) if dice.random() < 0.5 else ULong(dice.choice((0, 0x24, 0x28, 0x75, 2**63)))
    return Described(descriptor, value(dice, depth + 1))


def or_else(dice: Random, right: Any, chance: float = 0.05) -> Any:
    """``right``, or with this probability any value or null."""
    rolled = dice.random()
    if rolled >= chance:
        return right
    return None if rolled < chance / 3 else value(dice)


def or_wrong(dice: Random, right: Any, chance: float = 0.01) -> Any:
    """``right``, or with this probability bytes that are no value."""
    return Encoded(dice.choice(WRONG)) if dice.random() < chance else right


def put(content: Any) -> bytes:
    """``encode`` for values that may contain ``Encoded`` bytes; a value without an encoding becomes null."""
    if isinstance(content, Encoded):
        return content.content
    if isinstance(content, Described):
        return b"\x00" + put(content.descriptor) + put(content.value)
    if isinstance(content, list | tuple) and not isinstance(content, Array):
        return _counted(0xD0, len(content), b"".join(map(put, content)))
    if isinstance(content, dict):
        parts = [put(part) for item in content.items() for part in item]
        return _counted(0xD1, len(parts), b"".join(parts))
    try:
        return encode(content)
    except CodecError:
        return b"\x40"


def _counted(code: int, count: int, items: bytes) -> bytes:
    return struct.pack(">BII", code, len(items) + 4, count) + items


def changed(dice: Random, stream: bytes, most: int = 4) -> bytes:
    """A stream in which some bytes are changed, inserted, removed or cut off."""
    content = bytearray(stream)
    for _ in range(dice.randint(1, most)):
        at = dice.randrange(len(content) + 1)
        what = dice.randbytes(dice.randint(1, 9)) if dice.random() < 0.7 else dice.choice(WRONG)
        match dice.choice(("set", "set", "insert", "delete", "bit", "cut")):
            case "set":
                content[at : at + len(what)] = what
            case "insert":
                content[at:at] = what
            case "delete":
                del content[at : at + len(what)]
            case "bit":
                if at < len(content):
                    content[at] ^= 1 << dice.randrange(8)
            case "cut":
                if dice.random() < 0.3:
                    del content[at:]
    return bytes(content)
