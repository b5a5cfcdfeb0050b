"""
What stands in the place of a message whose content was erased: its header, two annotations, and no body.

======================  =========  =============================================================
``x-opt-erased-time``   timestamp  when it was erased
``x-opt-erased-reason`` string     why, in the words of whoever erased it; may be empty
======================  =========  =============================================================

The header stays: how long a message lives and how urgent it is, is no content, and queues go by it. The body is the
AMQP value null (AMQP 1.0 section 3.2.8).
"""

from __future__ import annotations

from typing import Final

from amqp_ext import codec
from amqp_ext.codec import Symbol, Timestamp
from amqp_ext.message.sections import HEADER, split_front

ERASED_TIME: Final = "x-opt-erased-time"
ERASED_REASON: Final = "x-opt-erased-reason"

MOST_REASON: Final = 200
"""Characters of a reason."""

NO_BODY: Final = b"\x00\x53\x77\x40"
"""The body: an AMQP value, null."""


def erased(content: bytes, bare: int, time_ms: int, reason: str) -> tuple[bytes, int]:
    """
    A message's content once it is erased.

    Args:
        content: As received.
        bare: Where its bare message begins.
        time_ms: When it is erased, ms since the epoch.

    Returns:
        The content, and where its bare message begins.
    """
    front = b"".join(
        content[section.start : section.end]
        for section in split_front(content, bare)
        if section.code == HEADER
    )
    annotations = {Symbol(ERASED_TIME): Timestamp(time_ms), Symbol(ERASED_REASON): reason[:MOST_REASON]}
    front += b"\x00\x53\x72" + codec.encode(annotations)
    return front + NO_BODY, len(front)
