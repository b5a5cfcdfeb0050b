"""
Few large statements for many values.

Every step of a statement releases the interpreter's lock and takes it again. While the loop is busy, a thousand small
statements wait for it a thousand times, one multi-row statement once. The numbers of values are powers of two, so that
a handful of prepared statements serves every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, TypeVar

T = TypeVar("T")

LARGEST_INSERT: Final = 256
"""Rows of one insert: more rows in a statement gain nothing (measured from 50 to 1,000)."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut into pieces whose lengths are powers of two, LARGEST_INSERT at most."""
    start, left, size = 0, len(items), LARGEST_INSERT
    while left:
        while size > left:
            size >>= 1
        yield items[start : start + size]
        start += size
        left -= size


@cache
def marks(count: int) -> str:
    """Placeholders for ``count`` values."""
    return ",".join("?" * count)


@cache
def row_marks(count: int, width: int) -> str:
    """Placeholders for ``count`` rows of ``width`` values each."""
    return ",".join([f"({marks(width)})"] * count)
