"""
Moves of cursors, as statements: all parts of all cursors together, however many have moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.cursor_moves import GatheredMoves
from store.postgresql.statements import Statement

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
