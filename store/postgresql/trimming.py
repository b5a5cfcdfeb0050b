"""
Messages that leave the log: what is still needed is held from then on. The others are not deleted one by one: the log
begins above them, and their partition is dropped once it is wholly below (``store.postgresql.partitions``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from gateway.core.effects import TrimLog
from store.postgresql import schema
from store.postgresql.statements import Connection
from store.property_index import SEGMENT_BITS

LEAVING: Final = (
    "message.id >= greatest(%s, (select first_id from log)) and message.id >= %s and message.id < %s"
)
"""Holds for logged messages of a span; what is known when it is planned tells which partitions it is about."""

SUM: Final = f"select {schema.SIZE_ON_DISK}, coalesce(max(time), 0) from message where {LEAVING}"

REFER: Final = """
    insert into reference (cursor, message) select * from unnest(%s::bigint[], %s::bigint[]) on conflict do nothing
"""

HOLD: Final = f"""
    with needed (id, held) as (
        select id, sum(endpoints) from (
            select message.id, endpoints
            from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) as run (route, first, last, endpoints)
            join message on message.route = run.route and message.route <> 0
                and message.id between run.first and run.last
            where {LEAVING}
            union all select * from unnest(%s::bigint[], %s::bigint[])
        ) as needing (id, endpoints) group by id
    )
    insert into held_message ({schema.HELD_COLUMNS})
    select {", ".join(f"message.{name}" if name != "held" else name for name in schema.HELD_COLUMNS.split(", "))}
    from needed join message on message.id = needed.id where {LEAVING}
"""

MOVE_UP: Final = """
    update log set first_id = greatest(first_id, %s), size_bytes = size_bytes - %s,
        floor_time = greatest(floor_time, %s)
"""


def trimmed(effect: TrimLog) -> Callable[[Connection], None]:
    """
    What carries it out, and fills in what it did. Small enough pieces are the caller's care: this visits every message.
    """

    def trim(connection: Connection) -> None:
        span = (effect.first, effect.first, effect.stop)
        ((effect.freed_bytes, effect.newest_ms),) = connection.execute(
            SUM.encode(), span, prepare=False
        ).fetchall()
        if leaves_held(effect):
            by_count = Counter(message for _, message in effect.references)
            if effect.references:
                connection.execute(
                    REFER.encode(),
                    (
                        [cursor for cursor, _ in effect.references],
                        [message for _, message in effect.references],
                    ),
                )
            runs = [run for run in effect.held if run.endpoints]
            connection.execute(
                HOLD.encode(),
                (
                    [run.route for run in runs],
                    [run.first for run in runs],
                    [run.last for run in runs],
                    [run.endpoints for run in runs],
                    *span,
                    list(by_count),
                    list(by_count.values()),
                    *span,
                ),
                prepare=False,
            )
        connection.execute(b"delete from property_value where segment < %s", (effect.stop >> SEGMENT_BITS,))
        floor_ms = effect.newest_ms + 1 if effect.newest_ms else 0
        connection.execute(MOVE_UP.encode(), (effect.stop, effect.freed_bytes, floor_ms))

    return trim


def leaves_held(effect: TrimLog) -> bool:
    """Whether something may be held by endpoints alone once it is carried out."""
    return bool(effect.references) or any(run.endpoints for run in effect.held)
