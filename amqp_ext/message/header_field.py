"""
A field of the header, read at the cost of a look-up.

Headers repeat: most publishers send one or two different ones for all their messages, so what a header says is
remembered by its bytes. ``ttl`` and ``priority`` are read like this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from amqp_ext.codec import CodecError
from amqp_ext.message.sections import Header, read_header

T = TypeVar("T")

REMEMBERED_HEADERS: Final = 1_024
"""Different headers that are remembered, for each field; beyond, it starts over."""

_SHORT_HEADER: Final = b"\x00\x53\x70\xc0"
_CODE: Final = b"\x70"


def header_field(
    get: Callable[[Header], T], default: T, remembered: dict[bytes, T] | None = None
) -> Callable[[bytes], T]:
    """
    A reader of one field, of messages that have something in front of their bare message; that alone need be given.

    Args:
        default: What it says where there is no header, or none that can be read.
        remembered: The memo, by the header's bytes; one of its own if not given.
    """
    memo: dict[bytes, T] = {} if remembered is None else remembered

    def read(content: bytes) -> T:
        try:
            return get(read_header(content))
        except CodecError:
            return default

    def field_of(content: bytes) -> T:
        start = content[:4]
        if start != _SHORT_HEADER:
            # No header in front, or one in a spelling nobody uses; or a long one.
            return read(content) if start[2:3] == _CODE else default
        header = content[: content[4] + 5]
        try:
            return memo[header]
        except KeyError:
            if len(memo) >= REMEMBERED_HEADERS:
                memo.clear()
            value = memo[header] = read(content)
            return value

    return field_of
