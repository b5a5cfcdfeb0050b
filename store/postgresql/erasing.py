"""
Messages whose content is erased: the marker takes its place, in the same row.

PostgreSQL writes a row that changes anew, and leaves the old one where it was until that is vacuumed: ``vacuum`` does
so for the tables that had some. What is archived of its write-ahead log has the old row still; so has a base backup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.effects import EraseMessages
from gateway.core.model import BARE, CONTENT, ID
from store.postgresql import schema
from store.postgresql.copy_rows import checksums
from store.postgresql.partitions import Span
from store.postgresql.statements import Connection
from store.property_index import SEGMENT_BITS

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
