"""
Cursors in a Message VPN's file (``store.cursors``): their moves, the release of held messages, and the short tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, Final

import apsw

from store.checksum import HEAD, HEAD_MODULUS
from store.cursors import GatheredMoves, runs_and_rest
from store.sqlite.schema import LAST_ID, SIZE_ON_DISK
from store.sqlite.statements import chunks, marks
from store.tables import ShortTables

MOVE = (
    "update cursor set floor = coalesce(?, floor), counted_id = coalesce(?, counted_id), "
    "messages = messages + ?, size_bytes = size_bytes + ? where number = ? and part = ?"
)


class CursorMoves(GatheredMoves):
    """
    The gathered moves of a transaction. Call ``write`` before anything that reads cursors or held messages.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__()
        self._connection = connection
        self.has_deleted = False
        """Held messages were deleted, because nobody needed them any more."""

    def write(self, *, has_held: bool) -> None:
        """
        Write the gathered moves. Moves of a cursor that does not exist any more are skipped.

        Args:
            has_held: There may be held messages: settled ones are released.
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
    """One endpoint less needs these messages. Returns whether any were deleted."""
    found, rest = runs_and_rest(ids)
    gone = [let_go(connection, "id between ? and ?", (first, last)) for first, last in found]
    gone += [let_go(connection, f"id in ({marks(len(piece))})", piece) for piece in chunks(rest)]
    return any(gone)


def let_go(connection: apsw.Connection, which: str, values: Sequence[int | str]) -> bool:
    """
    One endpoint less needs the held messages for which ``which`` is true. Those that no endpoint needs are deleted.

    ``indexed by``: held messages may be few among many, and must not be searched for among all messages.

    Returns:
        Whether any were deleted: then bring the log's row up to date (``store.sqlite.log_row``).
    """
    execute: Callable[..., object] = connection.execute
    execute(
        f"update message indexed by message_held set held = held - 1 where held is not null and {which}",
        values,
    )
    execute(f"delete from message indexed by message_held where held <= 0 and {which}", values)
    return connection.changes() > 0


MOVE_MESSAGE: Final = f"""
    update message set route = ?1, checksum = (checksum & ~{HEAD})
        + ((checksum & {HEAD}) - route + ?1 + {HEAD_MODULUS} * abs(?1 - route)) % {HEAD_MODULUS}
    where id = ?2
"""


class SqliteShortTables(ShortTables):
    """The short tables of a file."""

    last_id = LAST_ID
    greatest = "max"
    messages = "message"
    joined = "join message on {0}"
    message_tables = MappingProxyType({"message": "true"})
    leads_to = "exists (select 1 from json_each(endpoints) where value = ?)"
    held_table = "message"
    held_ids = "select id from message indexed by message_held where held is not null"
    unnamed_routes = """
        select number, not exists (
            select 1 from message where message.route = looked_at.number and message.route <> 0)
        from (select number from route where number > ? order by number limit ?) as looked_at order by number
    """
    swept_routes = 64
    newest_of_routes = """
        select number, priority, endpoints,
            (select max(id) from message where message.route = route.number and message.route <> 0)
        from route order by number
    """
    value_bytes = "octet_length(value)"
    with_messages = ""
    named = "select number, value from route, json_each(endpoints)"
    by_priority = "by_priority(settings)"
    replay_cursor = "json_extract(replay, '$.cursor')"
    size_on_disk = SIZE_ON_DISK
    header_priority = "header_priority(content, bare)"

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def ask(self, sql: str, *values: Any) -> list[Any]:
        """See ``ShortTables``."""
        return self._connection.execute(sql, kept(values)).fetchall()

    def each(self, sql: str, *values: Any) -> Iterator[Any]:
        """See ``ShortTables``."""
        return self._connection.execute(sql, kept(values))

    def add(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        """See ``ShortTables``."""
        places = marks(columns.count(",") + 1)
        self._connection.executemany(f"insert into {table} ({columns}) values ({places})", map(kept, rows))

    def numbers(self, stored: str) -> tuple[int, ...]:
        """See ``ShortTables``."""
        return tuple(json.loads(stored))

    def has(self, table: str) -> bool:
        """See ``ShortTables``."""
        return self._connection.table_exists(None, table)

    def move_messages(self, moved: Sequence[tuple[int, int]]) -> None:
        """See ``ShortTables``."""
        self._connection.executemany(MOVE_MESSAGE, moved)

    def let_go(self, which: str) -> None:
        """See ``ShortTables``; ``which`` is evaluated again after ``held`` was lowered: it must not depend on that."""
        let_go(self._connection, which, ())


def kept(values: Sequence[Any]) -> list[Any]:
    """Values as they are stored: tuples of numbers as JSON."""
    return [json.dumps(value) if isinstance(value, tuple) else value for value in values]
