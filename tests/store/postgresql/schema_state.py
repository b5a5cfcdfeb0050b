"""A Message VPN's schema in PostgreSQL, read into the form of the naive store."""

from __future__ import annotations

from typing import Any

from gateway.core.model import RouteDefinition
from store.postgresql.database import Connection, read_text
from tests.store.state import LogRow, Tables, state_from
from tests.support.naive_store import State

MESSAGES = """
    select id, time, topic, bare, route, null::integer, content from message
    where id >= (select first_id from log)
    union all select id, time, topic, bare, route, held, content from held_message order by id
"""


def state_of(connection: Connection) -> State:
    """All that can be seen of the schema in the connection's search path."""

    def rows(query: str) -> list[Any]:
        return connection.execute(query.encode()).fetchall()

    (log,) = rows(
        "select first_id, floor_time, last_id, last_time, size_bytes, largest_bytes, next_number, archived_id, "
        "counted_id from log"
    )
    return state_from(
        Tables(
            LogRow(*log),
            [(i, time, read_text(topic), *rest) for i, time, topic, *rest in rows(MESSAGES)],
            [
                RouteDefinition(number, tuple(endpoints), priority)
                for number, endpoints, priority in rows("select number, endpoints, priority from route")
            ],
            rows("select cursor, endpoint, up_to from garbage"),
            rows("select number, part, floor, counted_id, messages, size_bytes from cursor"),
            rows("select number, part, first, last from cursor_range order by number, part, first"),
            rows("select cursor, message from reference"),
            rows("select cursor, due, message, size_bytes from delayed"),
            rows("select cursor, message, count from attempt"),
            [
                (number, cursor, read_text(name), *rest)
                for number, cursor, name, *rest in rows(
                    "select number, cursor, name, kind, settings, replay from endpoint"
                )
            ],
            [
                (number, read_text(pattern))
                for number, pattern in rows("select endpoint, pattern from subscription")
            ],
            [
                (read_text(name), *rest)
                for name, *rest in rows("select name, position, time, made from point")
            ],
            [
                (number, read_text(name), *rest)
                for number, name, *rest in rows("select number, name, state, record from replay_record")
            ],
            rows("select rule, below, whole_time from retention"),
        )
    )
