"""
Statements for cursors that were dropped (``store.garbage``): what is held for them is in ``held_message`` alone.
"""

from __future__ import annotations

from typing import Any, Final

from store.garbage import DroppedCursor
from store.postgresql.statements import Connection

ROUTES_OF: Final = b"select number from route where %s = any(endpoints) and (%s = -1 or priority = %s)"


class Garbage(DroppedCursor[Connection]):
    """A cursor that was dropped."""

    _HELD = "select id from held_message where true"

    def __init__(self, cursor: int, endpoint: int, up_to: int) -> None:
        super().__init__(cursor, endpoint, up_to)
        self._routes: dict[int, list[int]] = {}
        """Of each part: routes that come later lead to messages that it is not about."""

    def _execute(self, connection: Connection, sql: str) -> list[Any]:
        done = connection.execute(sql.encode(), prepare=False)
        return done.fetchall() if done.description else []

    def _drop_rows(self, connection: Connection, table: str, column: str, key: str, most: int) -> int:
        of_cursor = f"from {table} where {column} = {self.cursor}"
        return connection.execute(
            f"delete {of_cursor} and ({key}) in (select {key} {of_cursor} limit {most})".encode()
        ).rowcount

    def _let_go_between(self, connection: Connection, part: int, floor: int, last: int) -> None:
        if last <= floor:
            return
        routes = self._routes.get(part)
        if routes is None:
            found = connection.execute(ROUTES_OF, (self.endpoint, part, part)).fetchall()
            routes = self._routes[part] = [number for (number,) in found]
        _let_go(
            connection,
            f"id > {floor} and id <= {last} and route = any(%s::bigint[]) and coalesce((select last "
            f"from cursor_range where number = {self.cursor} and part = {part} and first <= held_message.id "
            "order by first desc limit 1), 0) < held_message.id",
            routes,
        )

    def _let_go_of_referred(self, connection: Connection, first: int, stop: int) -> None:
        _let_go(connection, f"id in (select message {self._referred(first, stop)})")


def recover_garbage(connection: Connection) -> list[Garbage]:
    """What a start finds still to be worked off."""
    rows = connection.execute(b"select cursor, endpoint, up_to from garbage order by cursor").fetchall()
    return [Garbage(*row) for row in rows]


def _let_go(connection: Connection, which: str, *values: object) -> None:
    """One endpoint less needs the held messages for which ``which`` holds: those that nobody needs any more go."""
    connection.execute(
        f"""
        with released as (update held_message set held = held - 1 where held > 1 and {which})
        delete from held_message where held <= 1 and {which}
        """.encode(),
        (*values, *values) or None,
        prepare=False,
    )
