"""
How urgent a message is: the header's priority (AMQP 1.0 section 3.2.1), read at the cost of a look-up.

There are ten priorities here, as JMS has them: 0 to 9, and all above count as 9, which section 3.2.1 allows ("a node
which supports fewer than 256 priorities"). As with ``ttl``, what a header says is remembered by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from amqp_ext.codec import CodecError
from amqp_ext.sections import read_header

LOWEST: Final = 0
DEFAULT: Final = 4
"""Where there is no header, or it says nothing of it, or cannot be read."""
HIGHEST: Final = 9

REMEMBERED_HEADERS: Final = 1_024
"""Different headers that are remembered; beyond, it starts over."""

_SHORT_HEADER: Final = b"\x00\x53\x70\xc0"
_remembered: dict[bytes, int] = {}


def priority_of(content: bytes) -> int:
    """The priority of a message that has something in front of its bare message; that alone need be given."""
    if content[2:3] != b"\x70":  # the section's code: no header in front, or one in a spelling nobody uses
        return DEFAULT
    if content[:4] != _SHORT_HEADER:
        return _read(content)
    header = content[: content[4] + 5]
    try:
        return _remembered[header]
    except KeyError:
        if len(_remembered) >= REMEMBERED_HEADERS:
            _remembered.clear()
        priority = _remembered[header] = _read(content)
        return priority


def priorities_of(contents: Iterable[bytes], bares: Iterable[int]) -> list[int]:
    """The priorities of messages as received, with the offsets of their bare messages: at 0 there is no header."""
    return [priority_of(content) if bare else DEFAULT for content, bare in zip(contents, bares, strict=False)]


def _read(content: bytes) -> int:
    try:
        return min(max(read_header(content).priority, LOWEST), HIGHEST)
    except CodecError:
        return DEFAULT
