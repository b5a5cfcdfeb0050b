"""
Cursors that were dropped: what is held for them is let go of, in small pieces behind, and their rows go.

A piece is a transaction. What it has let go of is below the cursor's floor from then on, or in one of its ranges, or
is no longer a reference of it: a crash between two pieces lets go of nothing twice.

Messages that leave the log meanwhile are not held for a dropped cursor: whoever trims knows nothing of it. So before
they do, what the cursor holds among them is let go of, and they are all put in a range (``leave_span``).
"""

from __future__ import annotations

import json
from typing import Any, Final

import apsw

from store.sqlite.cursor_moves import let_go
from store.sqlite.log_tail import LogTail

PIECE_ROWS: Final = 2_000
"""Rows looked at in one transaction: some milliseconds, so that no publisher waits longer for it."""

ROUTES_OF: Final = """
    select number from route
    where ?2 in (-1, priority) and exists (select 1 from json_each(endpoints) where value = ?1)
"""

NEEDED: Final = """
    route in (select value from json_each(?)) and coalesce((select last from cursor_range
        where number = ? and part = ? and first <= message.id order by first desc limit 1), 0) < message.id
"""
"""Holds for messages of routes that a part of a cursor is not done with, where they are above its floor."""


class Garbage:
    """A cursor that was dropped."""

    def __init__(self, cursor: int, endpoint: int, up_to: int) -> None:
        """
        Args:
            endpoint: Whose messages it was about.
            up_to: The endpoint needed messages up to this id by it.
        """
        self.cursor = cursor
        self.endpoint = endpoint
        self.up_to = up_to
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
        if has_held:
            for part, floor in self._parts(connection):
                if floor < self.up_to and not self._let_go(connection, part, floor):
                    return False
        if not self._drop_references(connection, has_held=has_held):
            return False
        for table, column, key in (
            ("attempt", "cursor", "message"),
            ("cursor_range", "number", "part, first"),
        ):
            connection.execute(
                f"delete from {table} where {column} = ?1 and ({key}) in "
                f"(select {key} from {table} where {column} = ?1 limit ?2)",
                (self.cursor, PIECE_ROWS),
            )
            if connection.changes() == PIECE_ROWS:
                return False
        connection.execute("delete from cursor where number = ?", (self.cursor,))
        connection.execute("delete from garbage where cursor = ?", (self.cursor,))
        return True

    def leave_span(self, connection: apsw.Connection, first: int, stop: int, *, has_held: bool) -> None:
        """Let go of what it has from ``first`` on, below ``stop``: what is logged of it is about to be trimmed."""
        last = min(stop - 1, self.up_to)
        for part, floor in self._parts(connection):
            if last <= max(first - 1, floor):
                continue
            if has_held:
                self._let_go_between(connection, part, max(first - 1, floor), last)
            self._add_range(connection, part, first, last)
        # References may be to messages above ``up_to`` as well.
        which = "message >= ? and message < ?"
        if has_held:
            let_go(
                connection,
                f"id in (select message from reference where cursor = ? and {which})",
                (self.cursor, first, stop),
            )
        connection.execute(f"delete from reference where cursor = ? and {which}", (self.cursor, first, stop))

    def _parts(self, connection: apsw.Connection) -> list[tuple[int, int]]:
        """(part, floor) of each."""
        rows: list[Any] = connection.execute(
            "select part, floor from cursor where number = ? order by part", (self.cursor,)
        ).fetchall()
        return rows

    def _let_go(self, connection: apsw.Connection, part: int, floor: int) -> bool:
        """Let go of some messages that are held for a part, and move its floor; whether it is through."""
        ((count, last),) = connection.execute(
            "select count(*), max(id) from (select id from message indexed by message_held "
            "where held is not null and id > ? and id <= ? order by id limit ?)",
            (floor, self.up_to, PIECE_ROWS),
        )
        if count:
            self._let_go_between(connection, part, floor, last)
        is_through: bool = count < PIECE_ROWS
        connection.execute(
            "update cursor set floor = ? where number = ? and part = ?",
            (self.up_to if is_through else last, self.cursor, part),
        )
        return is_through

    def _let_go_between(self, connection: apsw.Connection, part: int, floor: int, last: int) -> None:
        """Let go of what is held for a part above ``floor``, up to ``last``."""
        if last <= floor:
            return
        routes = self._routes.get(part)
        if routes is None:
            found = connection.execute(ROUTES_OF, (self.endpoint, part)).fetchall()
            routes = self._routes[part] = json.dumps([number for (number,) in found])
        # The condition is asked again after the count fell: it must not depend on it.
        let_go(connection, f"id > ? and id <= ? and {NEEDED}", (floor, last, routes, self.cursor, part))

    def _drop_references(self, connection: apsw.Connection, *, has_held: bool) -> bool:
        """Let go of some messages that it had by references; whether that was the last of them."""
        ((count, last),) = connection.execute(
            "select count(*), max(message) from "
            "(select message from reference where cursor = ? order by message limit ?)",
            (self.cursor, PIECE_ROWS),
        )
        if count:
            which = (self.cursor, last)
            if has_held:
                let_go(
                    connection,
                    "id in (select message from reference where cursor = ? and message <= ?)",
                    which,
                )
            connection.execute("delete from reference where cursor = ? and message <= ?", which)
        is_through: bool = count < PIECE_ROWS
        return is_through

    def _add_range(self, connection: apsw.Connection, part: int, first: int, last: int) -> None:
        """Put ids in a range, joined with those that they touch."""
        execute, key = connection.execute, (self.cursor, part)
        ((low, high),) = execute(
            "select min(first), max(last) from cursor_range where number = ?1 and part = ?2 "
            "and first <= ?4 + 1 and last >= ?3 - 1",
            (*key, first, last),
        )
        if low is not None:
            first, last = min(first, low), max(last, high)
            execute(
                "delete from cursor_range where number = ? and part = ? and first between ? and ?",
                (*key, first, last),
            )
        execute("insert into cursor_range values (?, ?, ?, ?)", (*key, first, last))


def recover_garbage(connection: apsw.Connection) -> list[Garbage]:
    """What a start finds still to be worked off."""
    rows = connection.execute("select cursor, endpoint, up_to from garbage order by cursor")
    return [Garbage(*row) for row in rows]
