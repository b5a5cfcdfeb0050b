"""
What a gateway needs to know of a file to go on: read at start, from short rows, however large the file is.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from amqp_ext.message.priority import priorities_of
from gateway.core.effects import SaveEndpoint
from gateway.core.log.point import Point
from gateway.core.model import WHOLE, LogState, RouteDefinition
from gateway.core.recovered import StoredCursor, StoredEndpoint, StoredReference, StoredRoute
from store.ports import Recovered
from store.property_index import IndexedSpan
from store.sqlite.database import connect_reader
from store.sqlite.garbage import Garbage, recover_garbage
from store.sqlite.log_tail import read_tail
from store.sqlite.property_index import indexed_spans


@dataclass(frozen=True, slots=True)
class RecoveredFile(Recovered):
    """The same with what the file's own reader and writer go on with."""

    garbage: list[Garbage] = field(default_factory=list)
    """Cursors that are still to be worked off."""
    largest_bytes: int = 0
    """The largest content ever stored, which bounds what a page of rows can weigh."""
    indexed: list[IndexedSpan] = field(default_factory=list)


class _Part(NamedTuple):
    """One part of a cursor as it was saved."""

    cursor: StoredCursor
    counted_id: int


def recover(path: Path) -> RecoveredFile:
    """
    Read the state a crash or a stop left behind. Nothing is repaired: every transaction leaves a whole state.

    Raises:
        apsw.Error: The file cannot be read.
    """
    connection = connect_reader(path)
    try:
        connection.execute("begin")
        return _read(connection)
    finally:
        connection.close()


def _read(connection: apsw.Connection) -> RecoveredFile:
    ((generation, first, last, time, floor, size, largest, next_number, archived, counted_id),) = (
        connection.execute(
            "select generation, first_id, last_id, last_time, floor_time, size_bytes, largest_bytes, next_number, "
            "archived_id, counted_id from log"
        )
    )
    tail = read_tail(connection)
    log = LogState(
        generation=generation,
        first_id=first,
        next_id=max(last, tail.last_id) + 1,
        last_time_ms=max(time, tail.last_time),
        floor_ms=floor,
        size_bytes=size + tail.logged_bytes,
        archived_id=archived,
    )
    routes = _routes(connection)
    cursors = _cursors(connection)
    garbage = recover_garbage(connection)
    endpoints = {
        number: StoredEndpoint(SaveEndpoint(number, cursor, name, kind, settings, replay), {})
        for number, cursor, name, kind, settings, replay in connection.execute(
            "select number, cursor, name, kind, settings, replay from endpoint order by number"
        )
    }
    by_cursor = {found.definition.cursor: found for found in endpoints.values()}
    _count_what_came_after(connection, counted_id, routes, endpoints, cursors)
    for number, found in by_cursor.items():
        found.parts = {part: saved.cursor for part, saved in cursors.pop(number, {}).items()}
    for found_garbage in garbage:
        cursors.pop(found_garbage.cursor, None)
    _read_references(connection, by_cursor)
    for endpoint, pattern in connection.execute(
        "select endpoint, pattern from subscription order by endpoint, pattern"
    ):
        endpoints[endpoint].subscriptions.append(pattern)
    points = [
        Point(*row)
        for row in connection.execute("select name, position, time, made from point order by name")
    ]
    return RecoveredFile(
        log,
        list(endpoints.values()),
        routes,
        {number: parts[WHOLE].cursor for number, parts in sorted(cursors.items()) if WHOLE in parts},
        next_number,
        points,
        garbage,
        max(largest, tail.largest_bytes),
        indexed_spans(connection),
    )


def _routes(connection: apsw.Connection) -> list[StoredRoute]:
    return [
        StoredRoute(RouteDefinition(number, tuple(json.loads(endpoints)), priority), newest_id or 0)
        for number, priority, endpoints, newest_id in connection.execute(
            "select number, priority, endpoints, "
            "(select max(id) from message where message.route = route.number and message.route <> 0) "
            "from route order by number"
        )
    ]


def _cursors(connection: apsw.Connection) -> dict[int, dict[int, _Part]]:
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, part, first, last in connection.execute(
        "select number, part, first, last from cursor_range order by number, part, first"
    ):
        ranges.setdefault((number, part), []).append((first, last))
    found: dict[int, dict[int, _Part]] = {}
    for number, part, floor, counted_id, messages, size_bytes in connection.execute(
        "select number, part, floor, counted_id, messages, size_bytes from cursor"
    ):
        cursor = StoredCursor(floor, ranges.get((number, part), []), messages, size_bytes)
        found.setdefault(number, {})[part] = _Part(cursor, counted_id)
    return found


def _count_what_came_after(
    connection: apsw.Connection,
    counted_id: int,
    routes: Sequence[StoredRoute],
    endpoints: Mapping[int, StoredEndpoint],
    cursors: dict[int, dict[int, _Part]],
) -> None:
    """Bring what cursors count up to the newest message: lengths come from the rows' headers, no content is read."""
    came: dict[int, tuple[list[int], list[int]]] = {}
    for message_id, route, length in connection.execute(
        "select id, route, length(content) from message where id > ? and +route <> 0 order by id",
        (counted_id,),
    ):
        ids, lengths = came.setdefault(route, ([], []))
        ids.append(message_id)
        lengths.append(length)
    for definition, _ in routes:
        if definition.number not in came:
            continue
        ids, lengths = came[definition.number]
        totals = list(accumulate(lengths, initial=0))
        for number in definition.endpoints:
            endpoint = endpoints.get(number)
            parts = {} if endpoint is None else cursors.get(endpoint.definition.cursor, {})
            key = WHOLE if WHOLE in parts else definition.priority
            if key is None or key not in parts:
                continue
            saved, its_counted_id = parts[key]
            known = bisect_right(ids, its_counted_id)
            counted = saved._replace(
                later_messages=saved.later_messages + len(ids) - known,
                later_bytes=saved.later_bytes + totals[-1] - totals[known],
            )
            parts[key] = _Part(counted, its_counted_id)


def _read_references(connection: apsw.Connection, by_cursor: Mapping[int, StoredEndpoint]) -> None:
    rows: list[Any] = connection.execute(
        "select reference.cursor, id, length(content), bare, substr(content, 1, bare), coalesce(count, 0) "
        "from reference join message on id = reference.message left join attempt "
        "on attempt.cursor = reference.cursor and attempt.message = reference.message order by 1, 2"
    ).fetchall()
    priorities = priorities_of([row[4] for row in rows], [row[3] for row in rows])
    for (cursor, message_id, size_bytes, _, _, attempts), priority in zip(rows, priorities, strict=True):
        if cursor in by_cursor:
            by_cursor[cursor].references.append(StoredReference(message_id, size_bytes, priority, attempts))
