"""
What a gateway needs to know of a schema to go on: read at start, from short rows, however much is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from gateway.core.effects import StoredRoute
from gateway.core.model import LogState, RouteDefinition
from store.ports import Recovered
from store.postgresql.cursors import Garbage, recover_garbage
from store.postgresql.database import read_text
from store.postgresql.statements import Connection
from store.postgresql.transaction import indexed_spans
from store.property_index import IndexedSpan
from store.recovery import StoredRows, recovered

ROUTES: Final = """
    select number, priority, endpoints, greatest(
        coalesce((select id from message where message.route = route.number and message.route <> 0 and id >= %s
            order by id desc limit 1), 0),
        coalesce((select max(id) from held_message where held_message.route = route.number
            and held_message.route <> 0), 0))
    from route order by number
"""

NEWCOMERS: Final = """
    select id, route, octet_length(content) from message where id > %s and id >= %s and route <> 0
    union all select id, route, octet_length(content) from held_message where id > %s and route <> 0
    order by id
"""

REFERENCES: Final = """
    select reference.cursor, found.id, octet_length(content), bare, substring(content from 1 for bare),
        coalesce(count, 0)
    from reference join (
        select id, bare, content from message where id >= %s
        union all select id, bare, content from held_message
    ) as found on found.id = reference.message
    left join attempt on attempt.cursor = reference.cursor and attempt.message = reference.message
    order by 1, 2
"""


@dataclass(frozen=True, slots=True)
class RecoveredSchema(Recovered):
    """The same with what the schema's own reader and writer go on with."""

    garbage: list[Garbage] = field(default_factory=list)
    """Cursors that are still to be worked off."""
    largest_bytes: int = 0
    """The largest content ever stored, which bounds what a page of rows can weigh."""
    indexed: list[IndexedSpan] = field(default_factory=list)
    has_held: bool = False
    """There are messages that the log does not hold."""


def recover(connection: Connection) -> RecoveredSchema:
    """
    Read the state a crash or a stop left behind, as one snapshot. Nothing is repaired: every transaction leaves a whole
    state.

    Raises:
        psycopg.Error: It cannot be read.
    """
    with connection.transaction():
        connection.execute(b"set transaction isolation level repeatable read, read only")
        return _read(connection)


def _read(connection: Connection) -> RecoveredSchema:
    def rows(sql: str, *values: int) -> list[Any]:
        return connection.execute(sql.encode(), values, prepare=False, binary=True).fetchall()

    ((generation, first, last, time, floor, size, largest, next_number, archived, counted_id),) = rows(
        "select generation, first_id, last_id, last_time, floor_time, size_bytes, largest_bytes, next_number, "
        "archived_id, counted_id from log"
    )
    log = LogState(
        generation=generation,
        first_id=first,
        next_id=last + 1,
        last_time_ms=time,
        floor_ms=floor,
        size_bytes=size,
        archived_id=archived,
    )
    garbage = recover_garbage(connection)
    found = recovered(
        StoredRows(
            log,
            next_number,
            [
                StoredRoute(RouteDefinition(number, tuple(endpoints), priority), newest_id)
                for number, priority, endpoints, newest_id in rows(ROUTES, first)
            ],
            [
                (number, cursor, read_text(name), kind, settings, replay)
                for number, cursor, name, kind, settings, replay in rows(
                    "select number, cursor, name, kind, settings, replay from endpoint order by number"
                )
            ],
            rows("select number, part, floor, counted_id, messages, size_bytes from cursor"),
            rows("select number, part, first, last from cursor_range order by number, part, first"),
            rows(NEWCOMERS, counted_id, first, counted_id),
            rows(REFERENCES, first),
            [
                (endpoint, read_text(pattern))
                for endpoint, pattern in rows(
                    "select endpoint, pattern from subscription order by endpoint, pattern"
                )
            ],
            [
                (read_text(name), position, time, made)
                for name, position, time, made in rows(
                    "select name, position, time, made from point order by name"
                )
            ],
            [text for (text,) in rows("select record from replay_record order by number")],
            [
                (read_text(rule), below, whole_ms)
                for rule, below, whole_ms in rows(
                    "select rule, below, whole_time from retention order by rule"
                )
            ],
            {dropped.cursor for dropped in garbage},
        )
    )
    ((has_held,),) = rows("select exists (select 1 from held_message)")
    return RecoveredSchema(
        found.log,
        found.endpoints,
        found.routes,
        found.replays,
        found.next_number,
        found.points,
        found.records,
        found.retention,
        garbage,
        largest,
        indexed_spans(connection),
        has_held,
    )
