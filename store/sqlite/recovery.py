"""
What a gateway needs to know of a file to go on: read at start, from short rows, however large the file is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from gateway.core.effects import StoredRoute
from gateway.core.model import LogState, RouteDefinition
from store.ports import Recovered
from store.property_index import IndexedSpan
from store.recovery import StoredRows, recovered
from store.sqlite.cursors import Garbage, recover_garbage
from store.sqlite.database import connect_reader
from store.sqlite.log_row import read_tail
from store.sqlite.statements import indexed_spans


@dataclass(frozen=True, slots=True)
class RecoveredFile(Recovered):
    """The same with what the file's own reader and writer go on with."""

    garbage: list[Garbage] = field(default_factory=list)
    """Cursors that are still to be worked off."""
    largest_bytes: int = 0
    """The largest content ever stored, which bounds what a page of rows can weigh."""
    indexed: list[IndexedSpan] = field(default_factory=list)


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
    def rows(sql: str, *values: int) -> list[Any]:
        return connection.execute(sql, values).fetchall()

    ((generation, first, last, time, floor, size, largest, next_number, archived, counted_id),) = rows(
        "select generation, first_id, last_id, last_time, floor_time, size_bytes, largest_bytes, next_number, "
        "archived_id, counted_id from log"
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
    garbage = recover_garbage(connection)
    found = recovered(
        StoredRows(
            log,
            next_number,
            _routes(connection),
            rows("select number, cursor, name, kind, settings, replay from endpoint order by number"),
            rows("select number, part, floor, counted_id, messages, size_bytes from cursor"),
            rows("select number, part, first, last from cursor_range order by number, part, first"),
            # Lengths come from the rows' headers: no content is read.
            connection.execute(
                "select id, route, length(content) from message where id > ? and +route <> 0 order by id",
                (counted_id,),
            ),
            rows(
                "select reference.cursor, id, length(content), bare, substr(content, 1, bare), coalesce(count, 0) "
                "from reference join message on id = reference.message left join attempt "
                "on attempt.cursor = reference.cursor and attempt.message = reference.message order by 1, 2"
            ),
            rows("select endpoint, pattern from subscription order by endpoint, pattern"),
            rows("select name, position, time, made from point order by name"),
            [text for (text,) in rows("select record from replay_record order by number")],
            rows("select rule, below, whole_time from retention order by rule"),
            {dropped.cursor for dropped in garbage},
        )
    )
    return RecoveredFile(
        found.log,
        found.endpoints,
        found.routes,
        found.replays,
        found.next_number,
        found.points,
        found.records,
        found.retention,
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
