"""
Statements for cursors that were dropped (``store.garbage``).
"""

from __future__ import annotations

import json
from typing import Any, Final

import apsw

from store.garbage import DroppedCursor
from store.sqlite.cursor_moves import let_go
from store.sqlite.log_tail import LogTail

ROUTES_OF: Final = """
    select number from route
    where ?2 in (-1, priority) and exists (select 1 from json_each(endpoints) where value = ?1)
"""

NEEDED: Final = """
    route in (select value from json_each(?)) and coalesce((select last from cursor_range
        where number = ? and part = ? and first <= message.id order by first desc limit 1), 0) < message.id
"""
"""Holds for messages of routes that a part of a cursor is not done with, where they are above its floor."""


class Garbage(DroppedCursor[apsw.Connection]):
    """A cursor that was dropped."""

    _HELD = "select id from message indexed by message_held where held is not null"

    def __init__(self, cursor: int, endpoint: int, up_to: int) -> None:
        super().__init__(cursor, endpoint, up_to)
        self._routes: dict[int, str] = {}
        """Of each part, as a JSON array: routes that come later lead to messages that it is not about."""

    def collect(self, connection: apsw.Connection, *, tail: LogTail, has_held: bool) -> bool:
        """
        Work off a piece, inside the caller's transaction.

        Args:
            tail: What was published and is not in the log's row: it is written there first.
            has_held: There may be messages that the log does not hold.

        Returns:
            Whether nothing is left of it.
        """
        tail.save(connection)
        return self.work_off(connection, has_held=has_held)

    def _execute(self, connection: apsw.Connection, sql: str) -> list[Any]:
        return connection.execute(sql).fetchall()

    def _drop_rows(self, connection: apsw.Connection, table: str, column: str, key: str, most: int) -> int:
        of_cursor = f"from {table} where {column} = {self.cursor}"
        self._execute(
            connection, f"delete {of_cursor} and ({key}) in (select {key} {of_cursor} limit {most})"
        )
        return connection.changes()

    def _let_go_between(self, connection: apsw.Connection, part: int, floor: int, last: int) -> None:
        if last <= floor:
            return
        routes = self._routes.get(part)
        if routes is None:
            found = connection.execute(ROUTES_OF, (self.endpoint, part)).fetchall()
            routes = self._routes[part] = json.dumps([number for (number,) in found])
        # The condition is asked again after the count fell: it must not depend on it.
        let_go(connection, f"id > ? and id <= ? and {NEEDED}", (floor, last, routes, self.cursor, part))

    def _let_go_of_referred(self, connection: apsw.Connection, first: int, stop: int) -> None:
        which = "select message from reference where cursor = ? and message >= ? and message < ?"
        let_go(connection, f"id in ({which})", (self.cursor, first, stop))


def recover_garbage(connection: apsw.Connection) -> list[Garbage]:
    """What a start finds still to be worked off."""
    rows = connection.execute("select cursor, endpoint, up_to from garbage order by cursor")
    return [Garbage(*row) for row in rows]
