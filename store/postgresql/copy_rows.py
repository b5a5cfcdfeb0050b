"""
Messages as PostgreSQL's binary COPY takes them ("COPY", "Binary Format" in its documentation), made in bulk.

A row is its number of columns, and then each column's length and value, all big-endian. What is between checksum and
content is the same for all messages of a topic, mostly, and is made once for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import Final

from gateway.core.model import BARE, CONTENT, ID, ROUTE, TIME_MS, TOPIC, Row
from store.checksum import HEAD_BITS, HEAD_MODULUS, content_sums, topic_sum
from store.postgresql.database import stored_text

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The signature, no flags, and no extension."""

TRAILER: Final = b"\xff\xff"

KINDS: Final = 4_096
"""Of messages, by topic, route and where the bare message begins, whose part of a row is remembered."""

_FRONT: Final = Struct(">hiqiqiq")
"""How many columns there are, and then ``id``, ``time`` and ``checksum``."""

_NUMBERS: Final = Struct(">iqii")
"""``route`` and ``bare``."""

_HELD: Final = Struct(">ii")
_LENGTH: Final = Struct(">i")


def copied(rows: Sequence[Row], largest_bytes: int) -> bytes:
    """
    Messages as rows of ``message``, or of ``held_message``: all of them logged, or none.

    Args:
        largest_bytes: No content is longer.

    Returns:
        What COPY takes for the columns ``schema.MESSAGE_COLUMNS``, or ``HELD_COLUMNS``.
    """
    ids, times, topics, bares, routes, helds, contents = zip(*rows, strict=True)
    kinds = list(map(_kind, topics, bares, routes, helds))
    sums = content_sums(contents, largest_bytes)
    checks = [
        (total << HEAD_BITS) + (message_id + time + head) % HEAD_MODULUS
        for total, message_id, time, (head, _) in zip(sums, ids, times, kinds, strict=True)
    ]
    eight = repeat(8)
    columns = 7 if helds[0] is None else 8
    fronts = map(_FRONT.pack, repeat(columns), eight, ids, eight, times, eight, checks)
    middles = [middle for _, middle in kinds]
    lengths = map(_LENGTH.pack, map(len, contents))
    return b"".join(
        [HEADER, *chain.from_iterable(zip(fronts, middles, lengths, contents, strict=False)), TRAILER]
    )


def checksums(rows: Sequence[Row], largest_bytes: int) -> list[int]:
    """
    Of messages, in their order.

    Args:
        largest_bytes: No content is longer.
    """
    sums = content_sums([row[CONTENT] for row in rows], largest_bytes)
    return [
        (total << HEAD_BITS)
        + (row[ID] + row[TIME_MS] + _head(row[TOPIC], row[BARE], row[ROUTE])) % HEAD_MODULUS
        for total, row in zip(sums, rows, strict=True)
    ]


def _head(topic: str, bare: int, route: int) -> int:
    """What a kind of message adds to the head of a checksum (``checksum.head_of``)."""
    return bare + route + topic_sum(topic)


@lru_cache(KINDS)
def _kind(topic: str, bare: int, route: int, held: int | None) -> tuple[int, bytes]:
    """What a kind of message adds to the head of a checksum, and its columns between checksum and content."""
    text = stored_text(topic).encode()
    numbers = _NUMBERS.pack(8, route, 4, bare)
    if held is not None:
        numbers += _HELD.pack(4, held)
    return _head(topic, bare, route), numbers + _LENGTH.pack(len(text)) + text
