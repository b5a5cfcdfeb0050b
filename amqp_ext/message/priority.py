"""
How urgent a message is: the header's priority (AMQP 1.0 section 3.2.1).

There are ten priorities here, as JMS has them: 0 to 9, and all above count as 9, which section 3.2.1 allows ("a node
which supports fewer than 256 priorities").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from amqp_ext.message.header_field import header_field

LOWEST: Final = 0
DEFAULT: Final = 4
"""Where there is no header, or it says nothing of it, or cannot be read."""
HIGHEST: Final = 9

priority_of: Final[Callable[[bytes], int]] = header_field(
    lambda header: min(max(header.priority, LOWEST), HIGHEST), DEFAULT
)
"""The priority of a message that has something in front of its bare message; that alone need be given."""


def priorities_of(contents: Iterable[bytes], bares: Iterable[int]) -> list[int]:
    """The priorities of messages as received, with the offsets of their bare messages: at 0 there is no header."""
    return [priority_of(content) if bare else DEFAULT for content, bare in zip(contents, bares, strict=False)]
