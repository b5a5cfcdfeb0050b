"""
Few large statements for many values.

Every step of a statement drops and takes the interpreter's lock, so a thousand small statements beside a busy loop
wait a thousand times; a multi-row one waits once. Counts of values are powers of two, so that a handful of prepared
statements serves every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, TypeVar

T = TypeVar("T")

LARGEST_INSERT: Final = 256
"""Rows of one insert: beyond this a statement gains nothing (measured from 50 to 1,000)."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut into pieces whose lengths are powers of two, at most LARGEST_INSERT."""
    start, left, size = 0, len(items), LARGEST_INSERT
    while left:
        while size > left:
            size >>= 1
        yield items[start : start + size]
        start += size
        left -= size


@cache
def marks(count: int) -> str:
    """Places for so many values."""
    return ",".join("?" * count)


@cache
def row_marks(count: int, width: int) -> str:
    """Places for so many rows of so many values each."""
    return ",".join([f"({marks(width)})"] * count)
