"""
A message's checksum: one integer kept beside it, by which a reader sees that the message is not what was written.

A disk that gives back another byte than it was given breaks no rule of SQLite's. So each row has a checksum: in its
upper bits Adler-32 of the content (RFC 1950, section 9), in the lower ``HEAD_BITS`` the rest of what identifies the
message, by a prime number: id, arrival time, where the bare message begins, route and topic. Any single byte that
changes is seen, wherever it is, and nearly all else that happens to a content.

Adler-32 because it costs the least of what Python has for contents of some hundred bytes (107 ns for 280 bytes where
CRC-32 takes 151, measured), and because that of many contents together can be told from theirs: a reader that has a
page of them in one buffer goes over it once.

``held`` is not in it: it changes, and ``rewind store check`` counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from zlib import adler32

HEAD_BITS: Final = 15
HEAD: Final = (1 << HEAD_BITS) - 1
"""The bits of a checksum that are not of the content."""

HEAD_MODULUS: Final = 32_507
"""A prime number, so that no change of one byte is lost in it, and so far below ``HEAD`` that those of a run of 256
consecutive ids can be had by counting up."""

HELD_BYTES: Final = 5 * 1024
"""``zlib`` gives up the interpreter's lock for more than this, and has to win it back: beside a thread that is busy in
Python, for each of a thousand messages. Longer ones are taken in pieces."""

KNOWN_TOPICS: Final = 4_096

NOT_AS_WRITTEN: Final = (
    "is not what was written: its checksum is wrong. Restore the file from a backup, or do without the message: trim "
    "the log past it, and purge the queues that have it"
)
"""What is wrong with a message, and what to do."""


def content_sum(content: bytes) -> int:
    """Of one content, 32 bits."""
    if len(content) <= HELD_BYTES:
        return adler32(content)
    view, total = memoryview(content), 1
    for start in range(0, len(content), HELD_BYTES):
        total = adler32(view[start : start + HELD_BYTES], total)
    return total


def content_sums(contents: Sequence[bytes], largest_bytes: int) -> list[int]:
    """
    Of many.

    Args:
        largest_bytes: None of them is longer.
    """
    return list(map(adler32 if largest_bytes <= HELD_BYTES else content_sum, contents))


@lru_cache(KNOWN_TOPICS)
def topic_sum(topic: str) -> int:
    """A topic's part of the head."""
    return adler32(topic.encode())


def head_of(message_id: int, time_ms: int, topic: str, bare: int, route: int) -> int:
    """Of what identifies a message, below ``HEAD_MODULUS``."""
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
    Whether messages are what was written, by the sum of their checksums, which an engine makes by itself.

    Args:
        columns: Those of a ``Row``, each with a value for each of the messages, of which there is one at least. The
            ids may be a ``range``.
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
