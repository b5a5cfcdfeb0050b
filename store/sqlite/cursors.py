"""
Cursors in a Message VPN's file (``store.cursors``): their moves, what dropped ones held, and the ten parts of a
queue that delivers by priority.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import apsw

from gateway.core.model import RouteDefinition
from store.checksum import HEAD, HEAD_MODULUS
from store.cursors import CursorPart, GatheredMoves, QueuedMessage, runs_and_rest
from store.garbage import DroppedCursor
from store.sqlite.log_row import LogTail
from store.sqlite.schema import LAST_ID, Connection
from store.sqlite.statements import chunks, marks

MOVE = (
    "update cursor set floor = coalesce(?, floor), counted_id = coalesce(?, counted_id), "
    "messages = messages + ?, size_bytes = size_bytes + ? where number = ? and part = ?"
)


class CursorMoves(GatheredMoves):
    """
    What is to be written of cursors. ``write`` comes before anything that looks at cursors or at what is held.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__()
        self._connection = connection
        self.has_deleted = False
        """Messages went that the log does not hold, and that nobody needed any more."""

    def write(self, *, has_held: bool) -> None:
        """
        Write what was taken up. A cursor that is no more is passed over.

        Args:
            has_held: There may be messages that the log does not hold: what is done lets go of them.
        """
        if not self._moves:
            return
        connection, execute = self._connection, self._connection.execute
        for (number, part), moves in self._moves.items():
            execute(MOVE, (moves.floor, moves.counted_id, moves.messages, moves.size_bytes, number, part))
            if not connection.changes():
                continue
            if moves.ranges:
                self._write_ranges(number, part, moves.ranges)
            self._delete("attempt", number, moves.attempts)
            self._delete("reference", number, moves.references)
            if has_held and let_go_of(connection, moves.done):
                self.has_deleted = True
        self._moves = {}

    def _write_ranges(self, number: int, part: int, ranges: dict[int, int | None]) -> None:
        gone = [first for first, last in ranges.items() if last is None]
        for firsts in chunks(gone):
            self._connection.execute(
                f"delete from cursor_range where number = ? and part = ? and first in ({marks(len(firsts))})",
                (number, part, *firsts),
            )
        there = sorted((first, last) for first, last in ranges.items() if last is not None)
        for piece in chunks(there):
            values = ",".join(f"(?1,?2,?{3 + 2 * k},?{4 + 2 * k})" for k in range(len(piece)))
            self._connection.execute(
                f"insert or replace into cursor_range (number, part, first, last) values {values}",
                (number, part, *(bound for pair in piece for bound in pair)),
            )

    def _delete(self, table: str, number: int, ids: Sequence[int]) -> None:
        for piece in chunks(ids):
            self._connection.execute(
                f"delete from {table} where cursor = ? and message in ({marks(len(piece))})",
                (number, *piece),
            )


def let_go_of(connection: apsw.Connection, ids: Collection[int]) -> bool:
    """One endpoint less needs these messages; whether any went."""
    found, rest = runs_and_rest(ids)
    gone = [let_go(connection, "id between ? and ?", (first, last)) for first, last in found]
    gone += [let_go(connection, f"id in ({marks(len(piece))})", piece) for piece in chunks(rest)]
    return any(gone)


def let_go(connection: apsw.Connection, which: str, values: Sequence[int | str]) -> bool:
    """
    One endpoint less needs the messages for which ``which`` holds: those that the log does not hold go with the last.

    ``indexed by``: they may be few among many, and are not to be looked for among all messages.

    Returns:
        Whether any went: then the log's row is to be brought up to date (``store.sqlite.log_row``).
    """
    execute: Callable[..., object] = connection.execute
    execute(
        f"update message indexed by message_held set held = held - 1 where held is not null and {which}",
        values,
    )
    execute(f"delete from message indexed by message_held where held <= 0 and {which}", values)
    return connection.changes() > 0


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


MESSAGES_OF: Final = """
    select message.id, route.number, route.priority, length(content), bare, substr(content, 1, bare)
    from route join message on message.route = route.number and message.route <> 0
    where exists (select 1 from json_each(route.endpoints) where value = ?)
    order by message.id
"""

MOVE_PART: Final = f"""
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
        self._connection.executemany(MOVE_PART, moved)

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
