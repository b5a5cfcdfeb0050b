"""
The spans of the property index (``store.property_index``) in the database: begun and ended when a store is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from store.postgresql.statements import Connection
from store.postgresql.text import read_text, stored_text
from store.property_index import IndexedSpan


def indexed_spans(connection: Connection) -> list[IndexedSpan]:
    """All there are, by their first ids."""
    rows = connection.execute(
        b"select number, property, first_id, end_id from indexed order by first_id, number"
    ).fetchall()
    return [IndexedSpan(number, read_text(name), first_id, end_id) for number, name, first_id, end_id in rows]


def update_spans(connection: Connection, names: Sequence[str]) -> None:
    """End the spans of properties not among ``names``, and begin those that are missing; in a transaction."""
    ((next_id,),) = connection.execute(b"select last_id + 1 from log").fetchall()
    going_on = {span.name: span.number for span in indexed_spans(connection) if span.end_id is None}
    for name, number in going_on.items():
        if name not in names:
            connection.execute(b"update indexed set end_id = %s where number = %s", (next_id, number))
    for name in names:
        if name not in going_on:
            connection.execute(
                b"insert into indexed (property, first_id) values (%s, %s)", (stored_text(name), next_id)
            )
