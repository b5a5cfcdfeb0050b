"""
Queues that deliver by priority, as the configuration says: their cursors have ten parts, and their messages are on
routes that have one priority each.

Invariant: what an endpoint whose settings say ``priorities`` still has is on routes with the priority that the
messages' headers say, and its cursor has a part for each priority; every other endpoint's has one part for all. So a
queue that changes is brought in line before anybody reads the file: in one transaction, its settings with its cursor
and the routes of its messages.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from amqp_ext.message.priority import DEFAULT, HIGHEST, LOWEST, priority_of
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import WHOLE
from store.checksum import HEAD, HEAD_MODULUS
from store.sqlite.schema import LAST_ID, Connection

PRIORITIES: Final = range(LOWEST, HIGHEST + 1)

MESSAGES_OF: Final = """
    select message.id, route.number, route.priority, length(content), bare, substr(content, 1, bare)
    from route join message on message.route = route.number and message.route <> 0
    where exists (select 1 from json_each(route.endpoints) where value = ?)
    order by message.id
"""
"""What is there of what was put on an endpoint, whether it is done with it or not."""

MOVE: Final = f"""
    update message set route = ?1, checksum = (checksum & ~{HEAD})
        + ((checksum & {HEAD}) - route + ?1 + {HEAD_MODULUS} * abs(?1 - route)) % {HEAD_MODULUS}
    where id = ?2
"""
"""Puts a message on another route. Its checksum is changed by as much, rather than made anew: one that was wrong stays
so."""


class _Message(NamedTuple):
    id: int
    route: int
    priority: int | None
    """Of its route."""
    size_bytes: int
    bare: int
    front: bytes
    """What is before its bare message."""


class _Part:
    """What an endpoint is done with, by one part of its cursor."""

    def __init__(self, floor: int, ranges: list[tuple[int, int]]) -> None:
        self.floor = floor
        self.ranges = ranges
        self._firsts = [first for first, _ in ranges]

    def is_done(self, message_id: int) -> bool:
        """Whether the endpoint is done with it."""
        k = bisect_right(self._firsts, message_id)
        return message_id <= self.floor or (k > 0 and message_id <= self.ranges[k - 1][1])


def apply_priorities(connection: Connection, queues: Mapping[str, bool]) -> None:
    """
    Bring stored endpoints to what is declared, inside the caller's transaction. One that changes takes some seconds for
    each million messages on its routes.

    Args:
        queues: Whether each one delivers by priority; the others stay as they are.
    """
    found = connection.execute(
        "select number, cursor, name, settings from endpoint order by number"
    ).fetchall()
    for number, cursor, name, text in found:
        if name not in queues:
            continue
        settings = EndpointSettings.from_json(text)
        if settings.priorities == queues[name]:
            continue
        settings.priorities = queues[name]
        if settings.priorities:
            _divide(connection, number, cursor)
        else:
            _unite(connection, number, cursor)
        connection.execute("update endpoint set settings = ? where number = ?", (settings.to_json(), number))


def _divide(connection: Connection, number: int, cursor: int) -> None:
    """A part for each priority, each done with what the whole was, and routes with a priority for all the rest."""
    whole = _parts(connection, cursor)[WHOLE]
    routes = _Routes(connection)
    counts = {priority: [0, 0] for priority in PRIORITIES}
    moved: list[tuple[int, int]] = []
    for message in _messages(connection, number):
        if whole.is_done(message.id):
            continue
        priority = message.priority
        if priority is None:
            priority = priority_of(message.front) if message.bare else DEFAULT
            moved.append((routes.with_priority(message.route, priority), message.id))
        counts[priority][0] += 1
        counts[priority][1] += message.size_bytes
    connection.executemany(MOVE, moved)
    _write(connection, cursor, {p: _Part(whole.floor, whole.ranges) for p in PRIORITIES}, counts)


def _unite(connection: Connection, number: int, cursor: int) -> None:
    """One part: done with what each part was done with of its own messages."""
    parts = _parts(connection, cursor)
    floor = min(part.floor for part in parts.values())
    ranges: list[tuple[int, int]] = []
    count = [0, 0]
    done_from: int | None = None
    done_to = 0
    for message in _messages(connection, number):
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
    _write(connection, cursor, {WHOLE: _Part(floor, ranges)}, {WHOLE: count})


def _messages(connection: Connection, number: int) -> Iterator[_Message]:
    return (_Message(*row) for row in connection.execute(MESSAGES_OF, (number,)))


def _parts(connection: Connection, cursor: int) -> dict[int, _Part]:
    found = {}
    for part, floor in connection.execute(
        "select part, floor from cursor where number = ?", (cursor,)
    ).fetchall():
        ranges = connection.execute(
            "select first, last from cursor_range where number = ? and part = ? order by first",
            (cursor, part),
        ).fetchall()
        found[part] = _Part(floor, ranges)
    return found


def _write(
    connection: Connection, cursor: int, parts: Mapping[int, _Part], counts: Mapping[int, list[int]]
) -> None:
    """The cursor's rows made anew: all there is was counted."""
    connection.execute("delete from cursor where number = ?", (cursor,))
    connection.execute("delete from cursor_range where number = ?", (cursor,))
    (last_id,) = connection.execute(LAST_ID).fetchone()
    for key, part in parts.items():
        connection.execute(
            "insert into cursor (number, part, floor, counted_id, messages, size_bytes) values (?, ?, ?, ?, ?, ?)",
            (cursor, key, part.floor, last_id, *counts[key]),
        )
        connection.executemany(
            "insert into cursor_range values (?, ?, ?, ?)",
            ((cursor, key, first, last) for first, last in part.ranges),
        )


class _Routes:
    """Routes with the endpoints of another, and a priority."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        rows = connection.execute("select number, endpoints, priority from route").fetchall()
        self._endpoints: dict[int, str] = {number: endpoints for number, endpoints, _ in rows}
        self._numbers: dict[tuple[str, int], int] = {
            (endpoints, priority): number for number, endpoints, priority in rows if priority is not None
        }

    def with_priority(self, route: int, priority: int) -> int:
        """The number of the one with the endpoints of ``route``; made if there is none."""
        endpoints = self._endpoints[route]
        number = self._numbers.get((endpoints, priority))
        if number is None:
            number = max(self._endpoints) + 1
            self._connection.execute("insert into route values (?, ?, ?)", (number, priority, endpoints))
            self._endpoints[number] = endpoints
            self._numbers[endpoints, priority] = number
        return number


def header_priority(*values: Any) -> int:
    """SQL's ``header_priority(content, bare)``: of a message, or of what is before its bare message."""
    content, bare = values
    return priority_of(content) if bare else DEFAULT


def by_priority(*values: Any) -> bool:
    """SQL's ``by_priority(settings)``: whether an endpoint's settings say so."""
    (settings,) = values
    return bool(json.loads(settings).get("priorities"))
