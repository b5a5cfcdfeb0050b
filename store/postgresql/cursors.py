"""
Cursors in a Message VPN's schema (``store.cursors``): their moves as statements, and the short tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, Final

from store.checksum import HEAD, HEAD_MODULUS
from store.cursors import GatheredMoves
from store.postgresql.database import Connection, Statement, read_text, stored_text
from store.postgresql.packed import HELD, LOGGED
from store.postgresql.schema import SIZE_ON_DISK
from store.tables import ShortTables

MOVE: Final = """
    update cursor set floor = coalesce(moved.floor, cursor.floor),
        counted_id = coalesce(moved.counted_id, cursor.counted_id), messages = cursor.messages + moved.messages,
        size_bytes = cursor.size_bytes + moved.size_bytes
    from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
        as moved (number, part, floor, counted_id, messages, size_bytes)
    where cursor.number = moved.number and cursor.part = moved.part
"""

JOIN_RANGES: Final = """
    delete from cursor_range using unnest(%s::bigint[], %s::bigint[], %s::bigint[]) as gone (number, part, first)
    where cursor_range.number = gone.number and cursor_range.part = gone.part and cursor_range.first = gone.first
"""

SAVE_RANGES: Final = """
    insert into cursor_range (number, part, first, last)
    select number, part, first, last
    from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) as done (number, part, first, last)
    where exists (select 1 from cursor where cursor.number = done.number and cursor.part = done.part)
    on conflict (number, part, first) do update set last = excluded.last
"""

LET_GO: Final = """
    update held_message set held = held - done.cursors
    from (
        select message, count(*) as cursors
        from unnest(%s::bigint[], %s::bigint[], %s::bigint[]) as done (number, part, message)
        where exists (select 1 from cursor where cursor.number = done.number and cursor.part = done.part)
        group by message
    ) as done
    where held_message.id = done.message
"""

IN_LOG: Final = "id >= coalesce((select first_id from log), 0)"
"""Condition for rows of ``message`` that a reader can see."""

MESSAGES: Final = f"select {LOGGED} from message where {IN_LOG} union all select {HELD} from held_message"
"""All messages that a reader can see."""

DROP_RELEASED: Final = "delete from held_message where id = any(%s::bigint[]) and held <= 0"


class CursorMoves(GatheredMoves):
    """
    The gathered moves of a transaction. Call ``written`` before anything that reads cursors or held messages.
    """

    def written(self, *, has_held: bool) -> list[Statement]:
        """
        Statements for the gathered moves, which are then forgotten. Moves of a cursor that does not exist are skipped.

        Args:
            has_held: There may be held messages: settled ones are released.
        """
        moves, self._moves = self._moves, {}
        if not moves:
            return []
        found = [
            Statement(
                MOVE,
                _columns(
                    [
                        (*key, part.floor, part.counted_id, part.messages, part.size_bytes)
                        for key, part in sorted(moves.items())
                    ]
                ),
            )
        ]
        gone, there, done = [], [], []
        for key, part in moves.items():
            for first, last in part.ranges.items():
                if last is None:
                    gone.append((*key, first))
                else:
                    there.append((*key, first, last))
            if has_held:
                done += [(*key, message) for message in part.done]
        if gone:
            found.append(Statement(JOIN_RANGES, _columns(gone)))
        if there:
            found.append(Statement(SAVE_RANGES, _columns(there)))
        for (number, _), part in moves.items():
            for table, ids in (("attempt", part.attempts), ("reference", part.references)):
                if ids:
                    sql = f"delete from {table} where cursor = %s and message = any(%s::bigint[])"
                    found.append(Statement(sql, (number, ids)))
        if done:
            found.append(Statement(LET_GO, _columns(done)))
            found.append(Statement(DROP_RELEASED, (sorted({message for _, _, message in done}),)))
        return found


def _columns(rows: Sequence[Sequence[int | None]]) -> list[list[int | None]]:
    return [list(column) for column in zip(*rows, strict=True)]


PAGE: Final = 2_000
"""Rows of a large result that are fetched at a time."""

MOVED: Final = f"""
    set route = moved.route, checksum = (checksum & ~{HEAD}::bigint)
        + mod((checksum & {HEAD}) - message.route + moved.route
            + {HEAD_MODULUS} * abs(moved.route - message.route), {HEAD_MODULUS})
    from unnest(%s::bigint[], %s::bigint[]) as moved (route, id) where message.id = moved.id
"""


class PostgresShortTables(ShortTables):
    """The short tables of a schema."""

    last_id = "select last_id from log"
    greatest = "greatest"
    messages = f"({MESSAGES}) as message"
    joined = (
        f"join lateral (select id, bare, content from message where {{0}} and {IN_LOG} "
        "union all select id, bare, content from held_message where {0}) as message on true"
    )
    message_tables = MappingProxyType({"message": IN_LOG, "held_message": "true"})
    leads_to = "? = any(endpoints)"
    held_table = "held_message"
    held_ids = "select id from held_message where true"
    unnamed_routes = """
        select number, not exists (select 1 from held_message where route = number and route <> 0)
            and not exists (select 1 from message where message.route = number and message.route <> 0
                and message.id >= (select first_id from log))
        from (select number from route where number > ? order by number limit ?) as looked_at order by number
    """
    swept_routes = 16
    newest_of_routes = """
        select number, priority, endpoints, greatest(
            (select id from message where message.route = route.number and message.route <> 0 and id >= {first}
                order by id desc limit 1),
            (select max(id) from held_message where held_message.route = route.number
                and held_message.route <> 0))
        from route order by number
    """
    value_bytes = "octet_length(replace(value, chr(1), ''))"
    with_messages = f"message as not materialized ({MESSAGES})"
    named = "select number, unnest(endpoints) from route"
    by_priority = "coalesce((settings::jsonb ->> 'priorities')::boolean, false)"
    replay_cursor = "(replay::jsonb ->> 'cursor')::bigint"
    size_on_disk = SIZE_ON_DISK
    header_priority = None

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, sql: str, *values: Any) -> list[Any]:
        """See ``ShortTables``."""
        done = self._connection.execute(places(sql), kept(values), prepare=False, binary=True)
        return list(map(read_row, done.fetchall())) if done.description else []

    def each(self, sql: str, *values: Any) -> Iterator[Any]:
        """See ``ShortTables``."""
        with self._connection.transaction(), self._connection.cursor("each", binary=True) as cursor:
            cursor.itersize = PAGE
            yield from map(read_row, cursor.execute(places(sql), kept(values)))

    def add(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        """See ``ShortTables``."""
        statement = f"copy {table} ({columns}) from stdin"
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row(kept(row))

    def numbers(self, stored: list[int]) -> tuple[int, ...]:
        """See ``ShortTables``."""
        return tuple(stored)

    def has(self, table: str) -> bool:
        """See ``ShortTables``."""
        ((is_there,),) = self.ask("select to_regclass(?) is not null", table)
        return bool(is_there)

    def move_messages(self, moved: Sequence[tuple[int, int]]) -> None:
        """See ``ShortTables``."""
        if not moved:
            return
        routes, ids = zip(*moved, strict=True)
        for table in ("message", "held_message as message"):
            self._connection.execute(f"update {table} {MOVED}".encode(), (list(routes), list(ids)))

    def let_go(self, which: str) -> None:
        """See ``ShortTables``."""
        self.ask(
            f"with released as (update held_message set held = held - 1 where held > 1 and {which}) "
            f"delete from held_message where held <= 1 and {which}"
        )


def places(sql: str) -> bytes:
    """A statement with psycopg's placeholders in place of ``?``."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def kept(values: Sequence[Any]) -> list[Any]:
    """Values as they are stored: texts escaped, and tuples of numbers as arrays."""
    return [
        stored_text(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value
        for value in values
    ]


def read_row(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row's values before they were stored."""
    return tuple(read_text(value) if isinstance(value, str) else value for value in row)
