"""
A message's checksum: one integer in its row, by which a reader detects that the message is not what was written.

SQLite does not notice when a disk returns another byte than was written. So each row has a checksum. The upper bits
are the Adler-32 of the content (RFC 1950, section 9). The lower ``HEAD_BITS`` are the sum of id, arrival time, offset
of the bare message, route and the topic's Adler-32, modulo a prime number. Every change of a single byte is detected,
and nearly all other damage to a content.

Adler-32 costs the least of Python's checksums for contents of a few hundred bytes (measured: 107 ns for 280 bytes;
CRC-32 takes 151 ns). A page of messages is verified by the sum of its checksums (``are_sound``).

``held`` is not part of the checksum: it changes. ``rewind store check`` counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from zlib import adler32

HEAD_BITS: Final = 15
HEAD: Final = (1 << HEAD_BITS) - 1
"""The mask of a checksum's bits below the content's Adler-32."""

HEAD_MODULUS: Final = 32_507
"""A prime number, so that every change of one byte changes the remainder. It is more than 256 below ``HEAD``: the
heads of 256 consecutive ids are the first head plus 0 to 255."""

HELD_BYTES: Final = 5 * 1024
"""``zlib`` releases the interpreter's lock for longer inputs. To get it back, it waits for any thread that is busy in
Python: a thousand times for a thousand messages. Longer contents are therefore summed in pieces."""

KNOWN_TOPICS: Final = 4_096

NOT_AS_WRITTEN: Final = (
    "is not what was written: its checksum is wrong. Restore the file from a backup, or give the message up: trim "
    "the log past it, and purge the queues that have it"
)
"""What is wrong with a message, and what to do."""


def content_sum(content: bytes) -> int:
    """The Adler-32 of one content, 32 bits."""
    if len(content) <= HELD_BYTES:
        return adler32(content)
    view, total = memoryview(content), 1
    for start in range(0, len(content), HELD_BYTES):
        total = adler32(view[start : start + HELD_BYTES], total)
    return total


def content_sums(contents: Sequence[bytes], largest_bytes: int) -> list[int]:
    """
    The Adler-32 of each content.

    Args:
        largest_bytes: No content is longer.
    """
    return list(map(adler32 if largest_bytes <= HELD_BYTES else content_sum, contents))


@lru_cache(KNOWN_TOPICS)
def topic_sum(topic: str) -> int:
    """A topic's part of the head."""
    return adler32(topic.encode())


def head_of(message_id: int, time_ms: int, topic: str, bare: int, route: int) -> int:
    """The head of a message's checksum, below ``HEAD_MODULUS``."""
    return (message_id + time_ms + bare + route + topic_sum(topic)) % HEAD_MODULUS


def is_sound(
    message_id: int, time_ms: int, topic: str, bare: int, route: int, content: bytes, checksum: int
) -> bool:
    """Whether a row is what was written."""
    return (
        checksum >> HEAD_BITS == content_sum(content)
        and (checksum & HEAD) % HEAD_MODULUS == head_of(message_id, time_ms, topic, bare, route)
    )  # fmt: skip


def are_sound(columns: Sequence[Any], count: int, checksums: int, largest_bytes: int) -> bool:
    """
    Whether messages are what was written, by the sum of their checksums, which the engine computes in SQL.

    Args:
        columns: The columns of a ``Row``, each with a value for each message; at least one message. The ids may be a
            ``range``.
        count: How many messages there are.
        checksums: The sum of their checksums.
        largest_bytes: No content is longer.
    """
    ids, times, topics, bares, routes, _, contents = columns
    heads = checksums - (sum(content_sums(contents, largest_bytes)) << HEAD_BITS)
    if not 0 <= heads <= count * HEAD:
        return False
    numbers = (ids[0] + ids[-1]) * count // 2 if isinstance(ids, range) else sum(ids)
    first = topics[0]
    is_alike = topics.count(first) == count
    named = count * topic_sum(first) if is_alike else sum(map(topic_sum, topics))
    rest: int = heads - numbers - sum(times) - sum(bares) - sum(routes) - named
    return rest % HEAD_MODULUS == 0
