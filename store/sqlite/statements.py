"""
Few large statements for many values, and the short tables that are written by them: routes, and the spans of the
property index (``store.property_index``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import apsw

from gateway.core.model import RouteDefinition
from store.garbage import RouteSweep
from store.property_index import IndexedSpan
from store.sqlite.schema import LAST_ID, Connection

T = TypeVar("T")

LARGEST_INSERT: Final = 256
"""Rows of one insert: beyond this a statement gains nothing (measured from 50 to 1,000)."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut into pieces whose lengths are powers of two, at most LARGEST_INSERT."""
    start, left, size = 0, len(items), LARGEST_INSERT
    while left:
        while size > left:
            size >>= 1
        yield items[start : start + size]
        start += size
        left -= size


@cache
def marks(count: int) -> str:
    """Places for so many values."""
    return ",".join("?" * count)


SWEEP_ROUTES: Final = 64
"""Routes that one sweep looks at: an index lookup each."""

UNNAMED: Final = """
    select number, not exists (
        select 1 from message where message.route = looked_at.number and message.route <> 0)
    from (select number from route where number > ? order by number limit ?) as looked_at order by number
"""


def add_route(connection: apsw.Connection, route: RouteDefinition) -> None:
    """Write a route that may not be there."""
    connection.execute(
        "insert or ignore into route (number, priority, endpoints) values (?, ?, ?)",
        (route.number, route.priority, json.dumps(route.endpoints)),
    )


class Routes(RouteSweep):
    """The routes in the file."""

    def sweep(self, connection: apsw.Connection) -> None:
        """Look at some routes, and drop those that no message names. Nobody else writes meanwhile."""
        rows: list[Any] = connection.execute(UNNAMED, (self.begin_look(), SWEEP_ROUTES)).fetchall()
        unnamed = self.looked_at(rows, SWEEP_ROUTES)
        if unnamed:
            connection.execute(f"delete from route where number in ({marks(len(unnamed))})", unnamed)


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
