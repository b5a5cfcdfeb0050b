"""
Messages that leave the log: what is still needed is held from then on. The others are not deleted one by one: the log
begins above them, and their partition is dropped once it is wholly below (``store.postgresql.partitions``). Only what a
retention rule takes out between messages that stay is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from gateway.core.effects import TrimLog, TrimTopics
from store.postgresql import schema
from store.postgresql.statements import Connection
from store.postgresql.text import read_text, stored_text
from store.property_index import SEGMENT_BITS

LEAVING: Final = (
    "message.id >= greatest(%s, (select first_id from log)) and message.id >= %s and message.id < %s"
)
"""Holds for logged messages of a span; what is known when it is planned tells which partitions it is about."""

AMONG: Final = " and message.id = any(%s::bigint[])"
"""Beside it: what a retention rule takes out."""

SUM: Final = f"select {schema.SIZE_ON_DISK}, coalesce(max(time), 0) from message where {LEAVING}"

BY_TOPIC: Final = f"select topic, count(*), {schema.SIZE_ON_DISK} from message where {LEAVING}"

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

DELETE: Final = f"delete from message where {LEAVING}{AMONG}"

MARK: Final = """
    insert into retention (rule, below, whole_time) values (%s, %s, %s) on conflict (rule) do update set
        below = greatest(retention.below, excluded.below),
        whole_time = greatest(retention.whole_time, excluded.whole_time)
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
        span: tuple[Any, ...] = (effect.first, effect.first, effect.stop)
        among = ""
        if isinstance(effect, TrimTopics):
            span, among = (*span, list(effect.ids)), AMONG

        def ask(query: str, *values: Any) -> list[Any]:
            return connection.execute(query.encode(), values, prepare=False).fetchall()

        ((effect.freed_bytes, effect.newest_ms),) = ask(SUM + among, *span)
        if effect.counts_topics:
            found = ask(f"{BY_TOPIC}{among} group by topic", *span)
            effect.freed = [(read_text(topic), messages, size) for topic, messages, size in found]
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
                HOLD.replace(LEAVING, LEAVING + among).encode(),
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
        whole_ms = effect.newest_ms + 1 if effect.newest_ms else 0
        if isinstance(effect, TrimTopics):
            connection.execute(DELETE.encode(), span, prepare=False)
            connection.execute(MOVE_UP.encode(), (0, effect.freed_bytes, 0))
            if effect.newest_ms:
                connection.execute(MARK.encode(), (stored_text(effect.rule), effect.stop, whole_ms))
            return
        connection.execute(b"delete from property_value where segment < %s", (effect.stop >> SEGMENT_BITS,))
        # What rules took out below where the log begins now is missing for whoever asks for that time.
        passed = ask("delete from retention where below <= %s returning whole_time", effect.stop)
        floor_ms = max([whole_ms, *[passed_ms for (passed_ms,) in passed]])
        connection.execute(MOVE_UP.encode(), (effect.stop, effect.freed_bytes, floor_ms))

    return trim


def leaves_held(effect: TrimLog) -> bool:
    """Whether something may be held by endpoints alone once it is carried out."""
    return bool(effect.references) or any(run.endpoints for run in effect.held)
