"""
Messages that leave the log of a schema, and messages whose content is erased.

Trimming moves what is still needed to the held messages. It does not delete the others one by one: the log begins above
them, and their partition is dropped once it is wholly below (``store.postgresql.partitions``). Only what a retention
rule takes out between messages that stay is deleted.

Erasing puts a marker in the place of the content, in the same row. PostgreSQL writes a row that changes anew, and
leaves the old one where it was until ``vacuum`` has been there. Its archived write-ahead log, and base backups, have
the old row still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.effects import EraseMessages, TrimLog, TrimTopics
from gateway.core.model import BARE, CONTENT, ID
from store.postgresql import schema
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import Connection, read_text
from store.postgresql.packed import checksums
from store.postgresql.partitions import Span
from store.property_index import SEGMENT_BITS
from store.transaction import note_trimmed

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
            union all select message, 1 from delayed where message >= %s and message < %s
        ) as needing (id, endpoints) group by id
    )
    insert into held_message ({schema.HELD_COLUMNS})
    select {", ".join(f"message.{name}" if name != "held" else name for name in schema.HELD_COLUMNS.split(", "))}
    from needed join message on message.id = needed.id where {LEAVING}
"""

DELETE: Final = f"delete from message where {LEAVING}{AMONG}"


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
                    effect.first,
                    effect.stop,
                    *span,
                ),
                prepare=False,
            )
        if among:
            connection.execute(DELETE.encode(), span, prepare=False)
        note_trimmed(PostgresShortTables(connection), effect)

    return trim


def leaves_held(effect: TrimLog) -> bool:
    """Whether something may be held by endpoints alone once it is carried out."""
    return effect.has_delayed or bool(effect.references) or any(run.endpoints for run in effect.held)


LOGGED_BYTES: Final = f"""
    select {schema.SIZE_ON_DISK} from message
    where id = any(%s) and id between %s and %s and id >= (select first_id from log)
"""

ERASE: Final = """
    update {table} set bare = made.bare, checksum = made.checksum, content = made.content
    from unnest(%s::bigint[], %s::integer[], %s::bigint[], %s::bytea[]) as made (id, bare, checksum, content)
    where {table}.id = made.id and {table}.id between %s and %s returning {table}.id
"""
"""Rows that were trimmed, and whose partition is still there, among them."""

FORGET: Final = b"delete from property_value where segment = any(%s) and message = any(%s)"

SHRINK: Final = b"""
    update log set size_bytes = size_bytes - %s, largest_bytes = greatest(largest_bytes, %s)
"""

TABLES: Final = ("held_message", "property_value")
"""What holds contents, or parts of them, beside the partitions."""


def erased(effect: EraseMessages) -> Callable[[Connection], None]:
    """What carries it out, and fills in what it did."""

    def erase(connection: Connection) -> None:
        rows = sorted(effect.rows)
        ids = [row[ID] for row in rows]
        span = (ids[0], ids[-1])
        largest = max(len(row[CONTENT]) for row in rows)
        values = (ids, [row[BARE] for row in rows], checksums(rows, largest), [row[CONTENT] for row in rows])
        before = _ask(connection, LOGGED_BYTES, ids, *span)
        there: set[int] = set()
        for table in ("message", "held_message"):
            found = connection.execute(
                ERASE.format(table=table).encode(), (*values, *span), prepare=False
            ).fetchall()
            there.update(message_id for (message_id,) in found)
        connection.execute(FORGET, (sorted({i >> SEGMENT_BITS for i in ids}), ids))
        effect.freed_bytes = before - _ask(connection, LOGGED_BYTES, ids, *span)
        effect.ids = sorted(there)
        connection.execute(SHRINK, (effect.freed_bytes, largest))

    return erase


def _ask(connection: Connection, sql: str, *values: Any) -> int:
    ((found,),) = connection.execute(sql.encode(), values, prepare=False).fetchall()
    return int(found)


def vacuum(connection: Connection, spans: Sequence[Span]) -> None:
    """
    Have nothing be left of rows that changed, in these partitions and beside them.

    Args:
        connection: One that commits by itself.

    Raises:
        psycopg.Error: It cannot be done.
    """
    for name in (*[span.name for span in spans], *TABLES):
        connection.execute(f"vacuum {name}".encode())
