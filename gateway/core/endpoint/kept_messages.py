"""
What a replay keeps on its endpoint: messages that lie there by routes, and that the log does not have.

They keep their ids, and with them their places among what the replay puts, their times, priorities and failed
deliveries. Nothing is copied: the endpoint's new cursor is not done with them, and the old one is, so that nothing of
theirs is let go of when it is dropped. Invariant: a message that was there before the replay is a matter of the
endpoint's cursor or of the replay's, and never of both. The replay's is done with what is kept: whoever still has that
as the log had it (the message cache, the archive, a page that was read before it was trimmed) does not bring it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.core.effects import CountAttempts, Effect, MoveCursor, OpenCursor, Publication
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import ID, ROUTE


class KeptMessage(NamedTuple):
    """A committed message that lies on an endpoint by a route."""

    message_id: int
    route: int
    """The number that it names."""
    size_bytes: int
    attempts: int = 0
    """Failed deliveries that the store has of it."""


class KeptMessages:
    """They are kept: from before their endpoint is emptied until they are there again."""

    def __init__(
        self, endpoint: Endpoint, committed: Sequence[KeptMessage], on_the_way: Iterable[Publication]
    ) -> None:
        """
        Args:
            committed: What is kept of what is committed; ids rise.
            on_the_way: Whatever the log does not take of what is not: those of the endpoint's are kept, too, and
                counted once they are committed.
        """
        backlog = endpoint.backlog
        part_of = {number: backlog.part_of(route) for route in backlog.routes for number in route.numbers}
        self._endpoint = endpoint
        self._committed = [one.message_id for one in committed]
        self._ids: dict[int, list[int]] = {}
        """Rising, by part."""
        self._counts: dict[int, tuple[int, int]] = {}
        for one in committed:
            part = part_of[one.route]
            self._ids.setdefault(part, []).append(one.message_id)
            messages, size = self._counts.get(part, (0, 0))
            self._counts[part] = messages + 1, size + one.size_bytes
        for publication in on_the_way:
            for row in publication.rows:
                on_way = part_of.get(row[ROUTE])
                # Else it was dropped already, when the endpoint was emptied while it was on its way.
                if on_way is not None and not backlog.parts[on_way].is_done(row[ID]):
                    self._ids.setdefault(on_way, []).append(row[ID])
        stored = {one.message_id: one.attempts for one in committed if one.attempts}
        known = [(i, endpoint.attempts.get(i, stored.get(i, 0))) for ids in self._ids.values() for i in ids]
        self._attempts = [(i, count) for i, count in known if count]

    @property
    def last_id(self) -> int:
        """The newest of them; 0 where there is none."""
        return max((ids[-1] for ids in self._ids.values()), default=0)

    def leave(self) -> list[Effect]:
        """The cursor that is about to be dropped is done with them; they are held as before."""
        number = self._endpoint.cursor_number
        return [
            MoveCursor(number, part, None, {i: i for i in ids}, None, 0, 0) for part, ids in self._ids.items()
        ]

    def enter(self, emptying: Sequence[Effect], newest_id: int) -> list[Effect]:
        """
        The endpoint was emptied, its replay has begun, and it has them.

        Args:
            emptying: The effects by which that was: the first opens its cursor.
            newest_id: The last committed one.

        Returns:
            The effects in the place of those.
        """
        if not self._ids:
            return list(emptying)
        endpoint, backlog = self._endpoint, self._endpoint.backlog
        assert backlog.is_awake, (
            "whoever was emptied counts for itself until all that was on its way has come"
        )
        opened, *others = emptying
        assert isinstance(opened, OpenCursor)
        lowest = min(ids[0] for ids in self._ids.values())
        effects: list[Effect] = [replace(opened, floor=min(lowest - 1, newest_id), given_out=opened.floor)]
        for part, cursor in backlog.parts.items():
            if part in self._ids:
                cursor.reopen(self._ids[part])
            cursor.count(*self._counts.get(part, (0, 0)))
            messages, size = cursor.saves(cursor.messages, cursor.size_bytes)
            ranges = cursor.change().ranges
            effects.append(
                MoveCursor(backlog.cursor_number, part, cursor.floor, ranges, newest_id, messages, size)
            )
        # Where the replay fails before it reads, they are read from the store.
        endpoint.ready.forget_all(backlog.parts)
        if self._attempts:
            endpoint.note_attempts(self._attempts)
            effects.append(CountAttempts(backlog.cursor_number, tuple(self._attempts)))
        # What is not committed may come to nothing, and its ids to others.
        return [*effects, *others, *backlog.put.leave_to_routes(self._committed)]
