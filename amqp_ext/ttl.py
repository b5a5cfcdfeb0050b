"""
How long a message lives: the header's ttl (AMQP 1.0 section 3.2.1), read at the cost of a look-up.

Headers repeat: most publishers send one or two different ones for all their messages, so what a header says is
remembered by its bytes.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.codec import CodecError
from amqp_ext.sections import read_header

REMEMBERED_HEADERS: Final = 1_024
"""Different headers that are remembered; beyond, it starts over."""

_SHORT_HEADER: Final = b"\x00\x53\x70\xc0"
_remembered: dict[bytes, int | None] = {}


def ttl_of(content: bytes) -> int | None:
    """The time to live of a message in ms; None when it lives for ever, or its header cannot be read."""
    if content[2] != 0x70:  # the section's code: no header in front, or one in a spelling nobody uses
        return None
    if content[:4] != _SHORT_HEADER:
        return _read(content)
    header = content[: content[4] + 5]
    try:
        return _remembered[header]
    except KeyError:
        if len(_remembered) >= REMEMBERED_HEADERS:
            _remembered.clear()
        ttl = _remembered[header] = _read(content)
        return ttl


def _read(content: bytes) -> int | None:
    try:
        return read_header(content).ttl_ms
    except CodecError:
        return None
