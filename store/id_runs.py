"""
Ids as runs: consecutive ones are one statement, or one range, however many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

SHORTEST_RUN: Final = 8
"""Consecutive ids from which on a range statement is cheaper than naming each."""


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
