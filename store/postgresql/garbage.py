"""
Cursors that were dropped: what is held for them is let go of, in small pieces behind, and their rows go.

A piece is a transaction. What it has let go of is below the cursor's floor from then on, or in one of its ranges, or
is no longer a reference of it: a crash between two pieces lets go of nothing twice.

Messages that leave the log meanwhile are not held for a dropped cursor: whoever trims knows nothing of it. So before
they do, what the cursor holds among them is let go of, and they are all put in a range (``leave_span``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from store.postgresql.statements import Connection

PIECE_ROWS: Final = 2_000
"""Rows looked at in one transaction: some milliseconds, so that no publisher waits longer for it."""

ROUTES_OF: Final = b"select number from route where %s = any(endpoints) and (%s = -1 or priority = %s)"

NEEDED: Final = """
    route = any(%s::bigint[]) and coalesce((select last from cursor_range where number = %s and part = %s
        and first <= held_message.id order by first desc limit 1), 0) < held_message.id
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
        self._routes: dict[int, list[int]] = {}
        """Of each part: routes that come later lead to messages that it is not about."""

    def collect(self, connection: Connection, *, has_held: bool) -> bool:
        """
        Work off a piece, inside the caller's transaction.

        Args:
            has_held: There may be messages that the log does not hold.

        Returns:
            Whether nothing is left of it.
        """
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
            sql = (
                f"delete from {table} where {column} = %s and ({key}) in "
                f"(select {key} from {table} where {column} = %s limit {PIECE_ROWS})"
            )
            if connection.execute(sql.encode(), (self.cursor, self.cursor)).rowcount == PIECE_ROWS:
                return False
        connection.execute(b"delete from cursor where number = %s", (self.cursor,))
        connection.execute(b"delete from garbage where cursor = %s", (self.cursor,))
        return True

    def leave_span(self, connection: Connection, first: int, stop: int, *, has_held: bool) -> None:
        """Let go of what it has from ``first`` on, below ``stop``: what is logged of it is about to be trimmed."""
        last = min(stop - 1, self.up_to)
        for part, floor in self._parts(connection):
            if last <= max(first - 1, floor):
                continue
            if has_held:
                self._let_go_between(connection, part, max(first - 1, floor), last)
            self._add_range(connection, part, first, last)
        # References may be to messages above ``up_to`` as well.
        which = "message >= %s and message < %s"
        values = (self.cursor, first, stop)
        if has_held:
            _let_go(
                connection, f"id in (select message from reference where cursor = %s and {which})", values
            )
        connection.execute(f"delete from reference where cursor = %s and {which}".encode(), values)

    def _parts(self, connection: Connection) -> list[tuple[int, int]]:
        """(part, floor) of each."""
        return connection.execute(
            b"select part, floor from cursor where number = %s order by part", (self.cursor,)
        ).fetchall()

    def _let_go(self, connection: Connection, part: int, floor: int) -> bool:
        """Let go of some messages that are held for a part, and move its floor; whether it is through."""
        ((count, last),) = connection.execute(
            b"select count(*), max(id) from (select id from held_message where id > %s and id <= %s "
            b"order by id limit %s) as piece",
            (floor, self.up_to, PIECE_ROWS),
        ).fetchall()
        if count:
            self._let_go_between(connection, part, floor, last)
        is_through: bool = count < PIECE_ROWS
        connection.execute(
            b"update cursor set floor = %s where number = %s and part = %s",
            (self.up_to if is_through else last, self.cursor, part),
        )
        return is_through

    def _let_go_between(self, connection: Connection, part: int, floor: int, last: int) -> None:
        """Let go of what is held for a part above ``floor``, up to ``last``."""
        if last <= floor:
            return
        routes = self._routes.get(part)
        if routes is None:
            found = connection.execute(ROUTES_OF, (self.endpoint, part, part)).fetchall()
            routes = self._routes[part] = [number for (number,) in found]
        _let_go(connection, f"id > %s and id <= %s and {NEEDED}", (floor, last, routes, self.cursor, part))

    def _drop_references(self, connection: Connection, *, has_held: bool) -> bool:
        """Let go of some messages that it had by references; whether that was the last of them."""
        ((count, last),) = connection.execute(
            b"select count(*), max(message) from "
            b"(select message from reference where cursor = %s order by message limit %s) as piece",
            (self.cursor, PIECE_ROWS),
        ).fetchall()
        if count:
            values = (self.cursor, last)
            which = "select message from reference where cursor = %s and message <= %s"
            if has_held:
                _let_go(connection, f"id in ({which})", values)
            connection.execute(b"delete from reference where cursor = %s and message <= %s", values)
        is_through: bool = count < PIECE_ROWS
        return is_through

    def _add_range(self, connection: Connection, part: int, first: int, last: int) -> None:
        """Put ids in a range, joined with those that they touch."""
        ((low, high),) = connection.execute(
            b"with joined as (delete from cursor_range where number = %s and part = %s and first <= %s + 1 "
            b"and last >= %s - 1 returning first, last) select min(first), max(last) from joined",
            (self.cursor, part, last, first),
        ).fetchall()
        if low is not None:
            first, last = min(first, low), max(last, high)
        connection.execute(
            b"insert into cursor_range (number, part, first, last) values (%s, %s, %s, %s)",
            (self.cursor, part, first, last),
        )


def recover_garbage(connection: Connection) -> list[Garbage]:
    """What a start finds still to be worked off."""
    rows = connection.execute(b"select cursor, endpoint, up_to from garbage order by cursor").fetchall()
    return [Garbage(*row) for row in rows]


def _let_go(connection: Connection, which: str, values: Sequence[Any]) -> None:
    """One endpoint less needs the held messages for which ``which`` holds: those that nobody needs any more go."""
    connection.execute(
        f"""
        with released as (update held_message set held = held - 1 where held > 1 and {which} returning id)
        delete from held_message where held <= 1 and {which}
        """.encode(),
        (*values, *values),
        prepare=False,
    )
