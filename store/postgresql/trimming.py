"""
Messages that leave the log of a schema, and messages whose content is erased.

Trimming moves messages that are still needed to the held messages. It does not delete the others one by one: the log
begins above them, and a partition is dropped once it is completely below the log's beginning
(``store.postgresql.partitions``). Only what a retention rule removes between messages that stay is deleted.

Erasing replaces the content by a marker, in the same row. PostgreSQL writes a new version of a row that changes, and
keeps the old version until ``vacuum`` removes it. Archived write-ahead log and base backups still have the old version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.effects import EraseMessages, TrimLog, TrimTopics
from gateway.core.model import BARE, CONTENT, ID
from store.postgresql import schema
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import Connection
from store.postgresql.packed import checksums
from store.postgresql.partitions import Span
from store.property_index import SEGMENT_BITS
from store.tables import KEPT
from store.transaction import note_trimmed

LEAVING: Final = (
    "message.id >= greatest(?, (select first_id from log)) and message.id >= ? and message.id < ?"
)
"""Condition for logged messages of a span. Its plain bounds let the planner leave out other partitions."""

AMONG: Final = " and message.id = any(?::bigint[])"
"""Condition in addition: what a retention rule removes."""

SUM: Final = f"select {schema.SIZE_ON_DISK}, coalesce(max(time), 0) from message where {LEAVING}"

BY_TOPIC: Final = f"select topic, count(*), {schema.SIZE_ON_DISK} from message where {LEAVING}"

REFER: Final = """
    insert into reference (cursor, message) select * from unnest(?::bigint[], ?::bigint[]) on conflict do nothing
"""

HOLD: Final = f"""
    with needed (id, held) as (
        select id, sum(endpoints) from (
            select message.id, endpoints
            from unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[]) as run (route, first, last, endpoints)
            join message on message.route = run.route and message.route <> 0
                and message.id between run.first and run.last
            where {LEAVING}
            union all select * from unnest(?::bigint[], ?::bigint[])
            union all select message, 1 from ({KEPT}) as kept
        ) as needing (id, endpoints) group by id
    )
    insert into held_message ({schema.HELD_COLUMNS})
    select {", ".join(f"message.{name}" if name != "held" else name for name in schema.HELD_COLUMNS.split(", "))}
    from needed join message on message.id = needed.id where {LEAVING}
"""

DELETE: Final = f"delete from message where {LEAVING}{AMONG}"


def trimmed(effect: TrimLog) -> Callable[[Connection], None]:
    """
    A step that applies the effect, and fills in its results. The caller keeps the pieces small: it visits all messages.
    """

    def trim(connection: Connection) -> None:
        tables = PostgresShortTables(connection)
        span: tuple[Any, ...] = (effect.first, effect.first, effect.stop)
        among = ""
        if isinstance(effect, TrimTopics):
            span, among = (*span, list(effect.ids)), AMONG
        ((effect.freed_bytes, effect.newest_ms),) = tables.ask(SUM + among, *span)
        if effect.counts_topics:
            effect.freed = tables.ask(f"{BY_TOPIC}{among} group by topic", *span)
        if leaves_held(effect):
            if effect.references:
                tables.ask(REFER, *map(list, zip(*effect.references, strict=True)))
            by_count = Counter(message for _, message in effect.references)
            runs = [run for run in effect.held if run.endpoints]
            tables.ask(
                HOLD.replace(LEAVING, LEAVING + among),
                [run.route for run in runs],
                [run.first for run in runs],
                [run.last for run in runs],
                [run.endpoints for run in runs],
                *span,
                list(by_count),
                list(by_count.values()),
                effect.first,
                effect.stop,
                effect.first,
                effect.stop,
                *span,
            )
        if among:
            tables.ask(DELETE, *span)
        note_trimmed(tables, effect)

    return trim


def leaves_held(effect: TrimLog) -> bool:
    """Whether there may be held messages after it."""
    return effect.has_kept or bool(effect.references) or any(run.endpoints for run in effect.held)


LOGGED_BYTES: Final = f"""
    select {schema.SIZE_ON_DISK} from message
    where id = any(?) and id between ? and ? and id >= (select first_id from log)
"""

ERASE: Final = """
    update {table} set bare = made.bare, checksum = made.checksum, content = made.content
    from unnest(?::bigint[], ?::integer[], ?::bigint[], ?::bytea[]) as made (id, bare, checksum, content)
    where {table}.id = made.id and {table}.id between ? and ? returning {table}.id
"""
"""This also erases trimmed rows whose partition still exists."""

FORGET: Final = "delete from property_value where segment = any(?) and message = any(?)"

SHRINK: Final = "update log set size_bytes = size_bytes - ?, largest_bytes = greatest(largest_bytes, ?)"

TABLES: Final = ("held_message", "property_value", "dedup")
"""Tables that have contents, parts of contents, or ids in contents, in addition to the partitions."""


def erased(effect: EraseMessages) -> Callable[[Connection], None]:
    """A step that applies the effect, and fills in its results."""

    def erase(connection: Connection) -> None:
        tables = PostgresShortTables(connection)
        rows = sorted(effect.rows)
        ids = [row[ID] for row in rows]
        span = (ids[0], ids[-1])
        largest = max(len(row[CONTENT]) for row in rows)
        values = (ids, [row[BARE] for row in rows], checksums(rows, largest), [row[CONTENT] for row in rows])
        ((before,),) = tables.ask(LOGGED_BYTES, ids, *span)
        there: set[int] = set()
        for table in tables.message_tables:
            there.update(found for (found,) in tables.ask(ERASE.format(table=table), *values, *span))
        tables.ask(FORGET, sorted({i >> SEGMENT_BITS for i in ids}), ids)
        ((after,),) = tables.ask(LOGGED_BYTES, ids, *span)
        effect.freed_bytes = before - after
        effect.ids = sorted(there)
        tables.ask(SHRINK, effect.freed_bytes, largest)

    return erase


def vacuum(connection: Connection, spans: Sequence[Span]) -> None:
    """
    Remove old versions of changed rows, from these partitions and from the other tables with contents.

    Args:
        connection: In autocommit.

    Raises:
        psycopg.Error: A table cannot be vacuumed.
    """
    for name in (*[span.name for span in spans], *TABLES):
        connection.execute(f"vacuum {name}".encode())
