"""
The tables of a schema, as a queue that begins, or ceases, to deliver by priority changes them
(``store.cursors``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gateway.core.model import RouteDefinition
from store.checksum import HEAD, HEAD_MODULUS
from store.cursors import CursorPart, QueuedMessage
from store.postgresql.database import read_text
from store.postgresql.statements import Connection
from store.postgresql.transaction import add_route

PAGE: Final = 1_000
"""Messages fetched at once."""

_MESSAGE: Final = (
    "message.id, route.number, route.priority, octet_length(content), bare, "
    "substring(content from 1 for bare)"
)

MESSAGES_OF: Final = f"""
    select * from (
        select {_MESSAGE} from route join message on message.route = route.number and message.route <> 0
        where %s = any(route.endpoints) and message.id >= (select first_id from log)
        union all
        select {_MESSAGE} from route join held_message as message
            on message.route = route.number and message.route <> 0
        where %s = any(route.endpoints)
    ) as queued order by 1
"""

MOVED: Final = f"""
    set route = moved.route, checksum = (checksum & ~{HEAD}::bigint)
        + mod((checksum & {HEAD}) - message.route + moved.route
            + {HEAD_MODULUS} * abs(moved.route - message.route), {HEAD_MODULUS})
    from unnest(%s::bigint[], %s::bigint[]) as moved (route, id) where message.id = moved.id
"""


class PostgresQueueTables:
    """See ``QueueTables``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def endpoints(self) -> Sequence[tuple[int, int, str, str]]:
        rows = self._connection.execute(
            b"select number, cursor, name, settings from endpoint order by number"
        ).fetchall()
        return [(number, cursor, read_text(name), settings) for number, cursor, name, settings in rows]

    def messages(self, endpoint: int) -> Iterator[QueuedMessage]:
        with self._connection.cursor("queued", binary=True) as cursor:
            cursor.itersize = PAGE
            for row in cursor.execute(MESSAGES_OF.encode(), (endpoint, endpoint)):
                yield QueuedMessage(*row)

    def parts(self, cursor: int) -> dict[int, CursorPart]:
        floors = self._connection.execute(
            b"select part, floor from cursor where number = %s", (cursor,)
        ).fetchall()
        ranges = self._connection.execute(
            b"select part, first, last from cursor_range where number = %s order by first", (cursor,)
        ).fetchall()
        return {
            part: CursorPart(floor, [(first, last) for its_part, first, last in ranges if its_part == part])
            for part, floor in floors
        }

    def routes(self) -> Sequence[RouteDefinition]:
        rows = self._connection.execute(b"select number, endpoints, priority from route").fetchall()
        return [RouteDefinition(number, tuple(endpoints), priority) for number, endpoints, priority in rows]

    def add_route(self, route: RouteDefinition) -> None:
        sql, values, _ = add_route(route)
        self._connection.execute(sql.encode(), values)

    def move_messages(self, moved: Sequence[tuple[int, int]]) -> None:
        if not moved:
            return
        routes, ids = zip(*moved, strict=True)
        for table in ("message", "held_message as message"):
            self._connection.execute(f"update {table} {MOVED}".encode(), (list(routes), list(ids)))

    def replace_cursor(
        self, cursor: int, parts: Mapping[int, CursorPart], counts: Mapping[int, Sequence[int]]
    ) -> None:
        execute = self._connection.execute
        execute(b"delete from cursor where number = %s", (cursor,))
        execute(b"delete from cursor_range where number = %s", (cursor,))
        for key, part in parts.items():
            execute(
                b"insert into cursor (number, part, floor, counted_id, messages, size_bytes) "
                b"select %s, %s, %s, last_id, %s, %s from log",
                (cursor, key, part.floor, *counts[key]),
            )
            execute(
                b"insert into cursor_range (number, part, first, last) "
                b"select %s, %s, * from unnest(%s::bigint[], %s::bigint[])",
                (cursor, key, [first for first, _ in part.ranges], [last for _, last in part.ranges]),
            )

    def save_settings(self, endpoint: int, settings: str) -> None:
        self._connection.execute(b"update endpoint set settings = %s where number = %s", (settings, endpoint))
