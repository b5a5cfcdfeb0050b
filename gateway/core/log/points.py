"""
The named points of a Message VPN's log, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.effects import DeletePoint, Effect, SavePoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.point import Point, check_point_name

if TYPE_CHECKING:
    from gateway.core.broker import Broker


class Points(dict[str, Point]):
    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def check(self, name: str) -> None:
        """
        Whether a point of this name may be made.

        Raises:
            Refused: INVALID_FIELD for a bad name, ALREADY_EXISTS for one that is taken, REPLAY_DISABLED.
        """
        check_point_name(name)
        self._broker.policy.check_reads("there are no points in it")
        if name in self:
            raise Refused(ErrorCode.ALREADY_EXISTS, f"a point named {name!r} exists already; delete it first")

    def create(
        self, name: str, position: int | None, time_ms: int | None, now_ms: int
    ) -> tuple[Point, list[Effect]]:
        """
        Give a place in the log a name.

        Args:
            position: The first id behind it; None for now: before everything that is published from here on.
            time_ms: When that message arrived; None for now.

        Raises:
            Refused: As ``check`` has it.
        """
        self.check(name)
        point = Point(
            name,
            self._broker.next_id if position is None else position,
            now_ms if time_ms is None else time_ms,
            now_ms,
        )
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
        """Whether the log no longer reaches back to the point."""
        return point.position < self._broker.log.first_id
