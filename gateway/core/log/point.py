"""
A named point of the replay log: a place between two messages that an administrator gave a name.

A point keeps no message alive: once the log was trimmed past it, it says so and is no start any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Point:
    """Times are ms since the epoch."""

    name: str
    position: int
    """The first id behind the point: where a replay from it starts."""
    time_ms: int
    """The moment it stands for: when it was made, or when the message at ``position`` arrived."""
    made_ms: int


class ListedPoint(NamedTuple):
    """A point as it is told to an administrator."""

    point: Point
    is_trimmed: bool
    """Messages behind it are no longer in the log."""
