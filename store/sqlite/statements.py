"""
Few large statements for many values.

Every step of a statement drops and takes the interpreter's lock, so a thousand small statements beside a busy loop
wait a thousand times; a multi-row one waits once. Counts of values are powers of two, so that a handful of prepared
statements serves every batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Final, TypeVar

T = TypeVar("T")

LARGEST_INSERT: Final = 256
"""Rows of one insert: beyond this a statement gains nothing (measured from 50 to 1,000)."""

SHORTEST_RUN: Final = 8
"""Consecutive ids from which on a range statement is cheaper than naming each."""


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


def runs(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Rising ids as (first, last) of consecutive ones."""
    found: list[tuple[int, int]] = []
    first = last = -2
    for i in ids:
        if i != last + 1:
            if first >= 0:
                found.append((first, last))
            first = i
        last = i
    if first >= 0:
        found.append((first, last))
    return found


def runs_and_rest(ids: Collection[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Ids in any order as runs that are worth a range statement, and those that are named one by one."""
    long: list[tuple[int, int]] = []
    rest: list[int] = []
    for first, last in runs(sorted(ids)):
        if last - first >= SHORTEST_RUN:
            long.append((first, last))
        else:
            rest += range(first, last + 1)
    return long, rest
