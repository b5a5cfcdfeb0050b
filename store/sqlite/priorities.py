"""
The tables of a file, as a queue that begins, or ceases, to deliver by priority changes them
(``store.queue_priorities``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.core.model import RouteDefinition
from store.checksum import HEAD, HEAD_MODULUS
from store.queue_priorities import CursorPart, QueuedMessage
from store.sqlite.schema import LAST_ID, Connection

MESSAGES_OF: Final = """
    select message.id, route.number, route.priority, length(content), bare, substr(content, 1, bare)
    from route join message on message.route = route.number and message.route <> 0
    where exists (select 1 from json_each(route.endpoints) where value = ?)
    order by message.id
"""

MOVE: Final = f"""
    update message set route = ?1, checksum = (checksum & ~{HEAD})
        + ((checksum & {HEAD}) - route + ?1 + {HEAD_MODULUS} * abs(?1 - route)) % {HEAD_MODULUS}
    where id = ?2
"""


class SqliteQueueTables:
    """See ``QueueTables``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def endpoints(self) -> Sequence[tuple[int, int, str, str]]:
        found: list[Any] = self._connection.execute(
            "select number, cursor, name, settings from endpoint order by number"
        ).fetchall()
        return found

    def messages(self, endpoint: int) -> Iterator[QueuedMessage]:
        return (QueuedMessage(*row) for row in self._connection.execute(MESSAGES_OF, (endpoint,)))

    def parts(self, cursor: int) -> dict[int, CursorPart]:
        found = {}
        for part, floor in self._connection.execute(
            "select part, floor from cursor where number = ?", (cursor,)
        ).fetchall():
            ranges = self._connection.execute(
                "select first, last from cursor_range where number = ? and part = ? order by first",
                (cursor, part),
            ).fetchall()
            found[part] = CursorPart(floor, ranges)
        return found

    def routes(self) -> Sequence[RouteDefinition]:
        rows = self._connection.execute("select number, endpoints, priority from route").fetchall()
        return [
            RouteDefinition(number, tuple(json.loads(endpoints)), priority)
            for number, endpoints, priority in rows
        ]

    def add_route(self, route: RouteDefinition) -> None:
        self._connection.execute(
            "insert into route values (?, ?, ?)", (route.number, route.priority, json.dumps(route.endpoints))
        )

    def move_messages(self, moved: Sequence[tuple[int, int]]) -> None:
        self._connection.executemany(MOVE, moved)

    def replace_cursor(
        self, cursor: int, parts: Mapping[int, CursorPart], counts: Mapping[int, Sequence[int]]
    ) -> None:
        connection = self._connection
        connection.execute("delete from cursor where number = ?", (cursor,))
        connection.execute("delete from cursor_range where number = ?", (cursor,))
        (last_id,) = connection.execute(LAST_ID).fetchone()
        for key, part in parts.items():
            connection.execute(
                "insert into cursor (number, part, floor, counted_id, messages, size_bytes) "
                "values (?, ?, ?, ?, ?, ?)",
                (cursor, key, part.floor, last_id, *counts[key]),
            )
            connection.executemany(
                "insert into cursor_range values (?, ?, ?, ?)",
                ((cursor, key, first, last) for first, last in part.ranges),
            )

    def save_settings(self, endpoint: int, settings: str) -> None:
        self._connection.execute("update endpoint set settings = ? where number = ?", (settings, endpoint))
