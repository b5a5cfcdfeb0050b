"""Cursors in a Message VPN's schema (``store.cursors``): their moves as statements, and what dropped ones held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from store.cursors import GatheredMoves
from store.garbage import DroppedCursor
from store.postgresql.statements import Connection, Statement

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

DROP_RELEASED: Final = "delete from held_message where id = any(%s::bigint[]) and held <= 0"


class CursorMoves(GatheredMoves):
    """
    What is to be written of cursors. ``written`` comes before anything that looks at cursors or at what is held.
    """

    def written(self, *, has_held: bool) -> list[Statement]:
        """
        Statements for what was taken up, which is forgotten. A cursor that is no more is passed over.

        Args:
            has_held: There may be messages that the log does not hold: what is done lets go of them.
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
