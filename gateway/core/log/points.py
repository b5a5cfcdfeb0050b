"""
The named points of a Message VPN's log, by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.effects import DeletePoint, Effect, SavePoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.history import History
from gateway.core.log.point import Point
from gateway.core.names import check_name


class Points(dict[str, Point]):
    """Commands come from the broker."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def replace(self, points: Iterable[Point]) -> None:
        """These are all there are."""
        points = list(points)
        self.clear()
        self.update((point.name, point) for point in points)

    def check(self, name: str) -> None:
        """
        Whether a point of this name may be made.

        Raises:
            Refused: INVALID_FIELD for a bad name, ALREADY_EXISTS for one that is taken.
        """
        check_name("a point", name)
        if name in self:
            raise Refused(ErrorCode.ALREADY_EXISTS, f"a point named {name!r} exists already; delete it first")

    def create(self, name: str, position: int, time_ms: int, now_ms: int) -> tuple[Point, list[Effect]]:
        """
        Give a place in the log a name.

        Args:
            position: The first id behind it.
            time_ms: When that message arrived.

        Raises:
            Refused: As ``check`` has it.
        """
        self.check(name)
        point = Point(name, position, time_ms, now_ms)
        self[name] = point
        return point, [SavePoint(point)]

    def delete(self, name: str) -> tuple[Point, list[Effect]]:
        """
        The point goes; once that is committed, tell ``deleted``. Replays that began at it go on.

        Raises:
            Refused: NOT_FOUND, there is none of this name.
        """
        point = self.get(name)
        if point is None:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no point named {name!r}")
        return point, [DeletePoint(name)]

    def deleted(self, point: Point) -> None:
        """The point is gone, or came to nothing; another that has its name since stays."""
        if self.get(point.name) is point:
            del self[point.name]

    def is_trimmed(self, point: Point) -> bool:
        """Whether neither the log nor its archive reaches back to the point."""
        return point.position < self._history.first_id
