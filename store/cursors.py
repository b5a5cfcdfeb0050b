"""
Cursors of endpoints as a store keeps them, whichever engine has it: the moves of a transaction gathered so that
each part of a cursor is written once, the ten parts of a queue that delivers by priority, and ids as runs.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from amqp_ext.message.fields import DEFAULT, HIGHEST, LOWEST, priority_of
from gateway.core.effects import MoveCursor
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import WHOLE, RouteDefinition


class PartMoves:
    """What the moves of one part of a cursor come to."""

    __slots__ = ("attempts", "counted_id", "done", "floor", "messages", "ranges", "references", "size_bytes")

    def __init__(self) -> None:
        self.floor: int | None = None
        self.counted_id: int | None = None
        self.messages = 0
        self.size_bytes = 0
        self.ranges: dict[int, int | None] = {}
        self.done: list[int] = []
        self.attempts: list[int] = []
        self.references: list[int] = []


class GatheredMoves:
    """What is to be written of cursors, by cursor and part; an adapter writes it."""

    def __init__(self) -> None:
        self._moves: dict[tuple[int, int], PartMoves] = {}

    def add(self, effect: MoveCursor) -> None:
        """Take up a move."""
        key = (effect.cursor, effect.part)
        moves = self._moves.get(key)
        if moves is None:
            moves = self._moves[key] = PartMoves()
        if effect.floor is not None:
            moves.floor = effect.floor
        if effect.counted_id is not None:
            moves.counted_id = effect.counted_id
        moves.messages += effect.messages
        moves.size_bytes += effect.size_bytes
        if effect.ranges:
            moves.ranges.update(effect.ranges)
        moves.done += effect.done
        if effect.attempts:
            moves.attempts += effect.attempts
        if effect.references:
            moves.references += effect.references


PRIORITIES: Final = range(LOWEST, HIGHEST + 1)


class QueuedMessage(NamedTuple):
    """A message of a route that has the queue."""

    id: int
    route: int
    priority: int | None
    """Of its route."""
    size_bytes: int
    bare: int
    front: bytes
    """What is before its bare message."""


class CursorPart:
    """What an endpoint is done with, by one part of its cursor."""

    def __init__(self, floor: int, ranges: list[tuple[int, int]]) -> None:
        self.floor = floor
        self.ranges = ranges
        self._firsts = [first for first, _ in ranges]

    def is_done(self, message_id: int) -> bool:
        """Whether the endpoint is done with it."""
        k = bisect_right(self._firsts, message_id)
        return message_id <= self.floor or (k > 0 and message_id <= self.ranges[k - 1][1])


class QueueTables(Protocol):
    """A store's tables, inside a transaction."""

    def endpoints(self) -> Sequence[tuple[int, int, str, str]]:
        """(number, cursor, name, settings) of all, by number."""

    def messages(self, endpoint: int) -> Iterable[QueuedMessage]:
        """What is there of what was put on an endpoint, whether it is done with it or not, by id."""

    def parts(self, cursor: int) -> dict[int, CursorPart]:
        """Of a cursor, by part; ranges rise."""

    def routes(self) -> Sequence[RouteDefinition]:
        """All there are."""

    def add_route(self, route: RouteDefinition) -> None: ...

    def move_messages(self, moved: Sequence[tuple[int, int]]) -> None:
        """
        Put messages on other routes: (route, message id). Checksums are changed by as much, rather than made anew: one
        that was wrong stays so.
        """

    def replace_cursor(
        self, cursor: int, parts: Mapping[int, CursorPart], counts: Mapping[int, Sequence[int]]
    ) -> None:
        """A cursor's rows made anew, with (messages, bytes) by part: all there is was counted."""

    def save_settings(self, endpoint: int, settings: str) -> None: ...


def apply_priorities(tables: QueueTables, queues: Mapping[str, bool]) -> None:
    """
    Bring stored endpoints to what is declared, inside the caller's transaction. One that changes takes some seconds for
    each million messages on its routes.

    Args:
        queues: Whether each one delivers by priority; the others stay as they are.
    """
    for number, cursor, name, text in tables.endpoints():
        if name not in queues:
            continue
        settings = EndpointSettings.from_json(text)
        if settings.priorities == queues[name]:
            continue
        settings.priorities = queues[name]
        if settings.priorities:
            _divide(tables, number, cursor)
        else:
            _unite(tables, number, cursor)
        tables.save_settings(number, settings.to_json())


def _divide(tables: QueueTables, number: int, cursor: int) -> None:
    """A part for each priority, each done with what the whole was, and routes with a priority for all the rest."""
    whole = tables.parts(cursor)[WHOLE]
    routes = _Routes(tables)
    counts = {priority: [0, 0] for priority in PRIORITIES}
    moved: list[tuple[int, int]] = []
    for message in tables.messages(number):
        if whole.is_done(message.id):
            continue
        priority = message.priority
        if priority is None:
            priority = priority_of(message.front) if message.bare else DEFAULT
            moved.append((routes.with_priority(message.route, priority), message.id))
        counts[priority][0] += 1
        counts[priority][1] += message.size_bytes
    tables.move_messages(moved)
    tables.replace_cursor(cursor, {p: CursorPart(whole.floor, whole.ranges) for p in PRIORITIES}, counts)


def _unite(tables: QueueTables, number: int, cursor: int) -> None:
    """One part: done with what each part was done with of its own messages."""
    parts = tables.parts(cursor)
    floor = min(part.floor for part in parts.values())
    ranges: list[tuple[int, int]] = []
    count = [0, 0]
    done_from: int | None = None
    done_to = 0
    for message in tables.messages(number):
        if message.id <= floor:
            continue
        # A message of a route without priority was settled before the queue delivered by it.
        if message.priority is None or parts[message.priority].is_done(message.id):
            done_from = message.id if done_from is None else done_from
            done_to = message.id
            continue
        count[0] += 1
        count[1] += message.size_bytes
        if done_from is not None:
            ranges.append((done_from, done_to))
            done_from = None
    if done_from is not None:
        ranges.append((done_from, done_to))
    tables.replace_cursor(cursor, {WHOLE: CursorPart(floor, ranges)}, {WHOLE: count})


class _Routes:
    """Routes with the endpoints of another, and a priority."""

    def __init__(self, tables: QueueTables) -> None:
        self._tables = tables
        found = tables.routes()
        self._endpoints = {route.number: route.endpoints for route in found}
        self._numbers = {
            (route.endpoints, route.priority): route.number for route in found if route.priority is not None
        }

    def with_priority(self, route: int, priority: int) -> int:
        """The number of the one with the endpoints of ``route``; made if there is none."""
        endpoints = self._endpoints[route]
        number = self._numbers.get((endpoints, priority))
        if number is None:
            number = max(self._endpoints) + 1
            self._tables.add_route(RouteDefinition(number, endpoints, priority))
            self._endpoints[number] = endpoints
            self._numbers[endpoints, priority] = number
        return number


def header_priority(*values: Any) -> int:
    """Of a message, or of what is before its bare message: (content, where the bare message begins)."""
    content, bare = values
    return priority_of(content) if bare else DEFAULT


def by_priority(*values: Any) -> bool:
    """Whether an endpoint's settings, as JSON text, say so."""
    (settings,) = values
    return bool(json.loads(settings).get("priorities"))


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
