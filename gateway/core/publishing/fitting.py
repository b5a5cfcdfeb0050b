"""
How many messages, from the first on, a bound has room for.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.log.disk_usage import stored_bytes


def first_larger(contents: Sequence[bytes], limit_bytes: int) -> int:
    return next((i for i, content in enumerate(contents) if len(content) > limit_bytes), len(contents))


def first_not_larger(contents: Sequence[bytes], start: int, limit_bytes: int) -> int:
    return next((i for i in range(start, len(contents)) if len(contents[i]) <= limit_bytes), len(contents))


def fitting(topic: str, sizes: Sequence[int], room_bytes: int) -> int:
    for count, size in enumerate(sizes):
        room_bytes -= stored_bytes(topic, (size,))
        if room_bytes < 0:
            return count
    return len(sizes)
