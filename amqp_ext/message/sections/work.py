"""
What asking one message a question may cost: a count of steps, of some 100 ns each.

A message and a selector come from two strangers, and each of them alone looks harmless: what counts is the product. It
is counted in steps and not in time, so that a log read twice gives the same twice.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.codec import CodecError, skip

MOST_STEPS: Final = 50_000
"""For one evaluation: some 5 ms. A selector of 250 terms over usual properties takes a tenth of it at most."""

QUICK_BYTES: Final = 64
"""Bytes that are compared, copied or decoded as text in the time of one step."""

ITEM_STEPS: Final = 8
"""Building one value of a map or list."""

SMALL_BYTES: Final = 2_048
"""Of a section that is decoded without a look at what that costs."""

WIDE_FORM: Final = 0xD0
"""Format codes of lists and maps from here on have sizes of four bytes; those below have 255 bytes at most."""

NESTED_BYTE_STEPS: Final = 4
"""For each byte of a list, map or array in a section: each may be a value of its own."""


class TooMuchWork(CodecError):
    """A section is not decoded, because that would take too long."""


def check_decoding(content: bytes, offset: int, steps: int) -> int:
    """
    What decoding the map or list at ``offset`` takes, in steps; 0 for a small one.

    Args:
        steps: What is left to be spent.

    Raises:
        TooMuchWork: It is more than that.
        CodecError: What is in it is cut short.
    """
    if content[offset] < WIDE_FORM:
        return 0
    size = int.from_bytes(content[offset + 1 : offset + 5], "big")
    if size <= SMALL_BYTES:
        return 0
    count = int.from_bytes(content[offset + 5 : offset + 9], "big")
    needed = size // QUICK_BYTES + count * ITEM_STEPS
    position = offset + 9
    if needed <= steps:
        for _ in range(count):
            behind = skip(content, position)
            if content[position] == 0x00 or content[position] >= 0xC0:
                needed += (behind - position) * NESTED_BYTE_STEPS
            position = behind
    if needed > steps:
        raise TooMuchWork(offset, f"decoding {count} values in {size} bytes takes too long")
    return needed
