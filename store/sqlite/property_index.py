"""
The spans of the property index (``store.property_index``) in the file: begun and ended when it is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from store.property_index import IndexedSpan
from store.sqlite.schema import LAST_ID, Connection


def indexed_spans(connection: Connection) -> list[IndexedSpan]:
    """All there are, by their first ids."""
    rows = connection.execute(
        "select number, property, first_id, end_id from indexed order by first_id, number"
    )
    return [IndexedSpan(*row) for row in rows]


def update_spans(connection: Connection, names: Sequence[str]) -> None:
    """End the spans of properties not among ``names``, and begin those that are missing; in a transaction."""
    (next_id,) = connection.execute(f"select last_id + 1 from ({LAST_ID})").fetchone()
    going_on = {span.name: span.number for span in indexed_spans(connection) if span.end_id is None}
    for name, number in going_on.items():
        if name not in names:
            connection.execute("update indexed set end_id = ? where number = ?", (next_id, number))
    for name in names:
        if name not in going_on:
            connection.execute("insert into indexed (property, first_id) values (?, ?)", (name, next_id))
