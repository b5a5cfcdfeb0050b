"""A Message VPN's file in SQLite, for tests: made, written without threads, and read into the form of the naive store.

What a dropped cursor left counts as worked off: nobody can see it any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from gateway.core.effects import Effect, SaveEndpoint
from gateway.core.log.point import Point
from gateway.core.model import CONTENT, HELD, ID, ROUTE, UNROUTED, WHOLE, RouteDefinition, Row
from store.sqlite.database import connect_reader, connect_writer, open_file
from store.sqlite.garbage import recover_garbage
from store.sqlite.log_tail import read_tail
from store.sqlite.packed import MESSAGE
from store.sqlite.recovery import recover
from store.sqlite.transaction import Transaction
from tests.support.naive_store import NaiveStore, State, StoredPart

COLUMNS = ", ".join(MESSAGE)
"""Those of a ``Row``."""

MADE_MS = 1_700_000_000_000
"""When the files of these tests were made."""


def empty_model() -> NaiveStore:
    """What such a file holds at first."""
    return NaiveStore(MADE_MS)


def state_of(path: Path) -> State:
    """All that can be seen of a file, with what dropped cursors left taken away."""
    with closing(connect_reader(path)) as connection:
        connection.execute("begin")
        return _state(connection)


def _state(connection: apsw.Connection) -> State:
    def rows(query: str) -> list[Any]:
        return connection.execute(query).fetchall()

    garbage = {cursor: (endpoint, up_to) for cursor, endpoint, up_to in rows("select * from garbage")}
    routes = {
        number: RouteDefinition(number, tuple(json.loads(endpoints)), priority)
        for number, endpoints, priority in rows("select number, endpoints, priority from route")
    }
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, part, first, last in rows("select * from cursor_range order by number, part, first"):
        ranges.setdefault((number, part), []).append((first, last))
    cursors = {
        (number, part): StoredPart(floor, tuple(ranges.get((number, part), ())), *counted)
        for number, part, floor, *counted in rows(
            "select number, part, floor, counted_id, messages, size_bytes from cursor"
        )
    }
    references = rows("select cursor, message from reference")
    messages: dict[int, Row] = {row[ID]: row for row in rows(f"select {COLUMNS} from message")}
    for i, row in messages.items():
        if row[HELD] is not None:
            dropped = sum(_needs(cursors, c, routes[row[ROUTE]], e, u, i) for c, (e, u) in garbage.items()
                          if row[ROUTE] != UNROUTED)  # fmt: skip
            dropped += sum(cursor in garbage for cursor, message in references if message == i)
            messages[i] = (*row[:HELD], row[HELD] - dropped, row[CONTENT])
    messages = {i: row for i, row in messages.items() if row[HELD] is None or row[HELD] > 0}
    named = {row[ROUTE] for row in messages.values()} - {UNROUTED}
    ((first, floor, last, time, size, largest, number, archived, counted),) = rows(
        "select first_id, floor_time, last_id, last_time, size_bytes, largest_bytes, next_number, archived_id, "
        "counted_id from log"
    )
    tail = read_tail(connection)
    return State(
        messages=messages,
        routes={number: routes[number] for number in named},
        cursors={key: part for key, part in cursors.items() if key[0] not in garbage},
        references={(cursor, message) for cursor, message in references if cursor not in garbage},
        attempts={
            (cursor, message): count
            for cursor, message, count in rows("select * from attempt")
            if cursor not in garbage
        },
        endpoints={
            row[0]: SaveEndpoint(*row)
            for row in rows("select number, cursor, name, kind, settings, replay from endpoint")
        },
        subscriptions=set(rows("select endpoint, pattern from subscription")),
        points={row[0]: Point(*row) for row in rows("select name, position, time, made from point")},
        first_id=first,
        floor_ms=floor,
        last_id=max(last, tail.last_id),
        last_time_ms=max(time, tail.last_time),
        logged_bytes=size + tail.logged_bytes,
        largest_bytes=max(largest, tail.largest_bytes),
        next_number=number,
        archived_id=archived,
        counted_id=counted,
    )


def _needs(
    cursors: dict[tuple[int, int], StoredPart],
    cursor: int,
    route: RouteDefinition,
    endpoint: int,
    up_to: int,
    message_id: int,
) -> bool:
    """Whether a message is held for a dropped cursor."""
    if endpoint not in route.endpoints or message_id > up_to:
        return False
    part = cursors.get((cursor, WHOLE)) or cursors.get(
        (cursor, -2 if route.priority is None else route.priority)
    )
    return (
        part is not None
        and message_id > part.floor
        and not any(first <= message_id <= last for first, last in part.ranges)
    )


def new_file(path: Path) -> Path:
    """An empty file of a VPN, not synced: these tests pull no plugs."""
    open_file(path, MADE_MS, synchronous="OFF").close()
    return path


def writing_to(path: Path) -> apsw.Connection:
    return connect_writer(path, synchronous="OFF")


def commit(connection: apsw.Connection, effects: Iterable[Effect], *, has_held: bool = True) -> None:
    """One transaction."""
    transaction = Transaction(
        connection, tail=read_tail(connection), garbage=recover_garbage(connection), has_held=has_held
    )
    connection.execute("begin immediate")
    transaction.apply(effects)
    transaction.finish()
    connection.execute("commit")


def collect_garbage(path: Path, *, pieces: int | None = None) -> bool:
    """Work off what dropped cursors left, in so many pieces at most; whether nothing is left."""
    with closing(writing_to(path)) as connection:
        left = recover_garbage(connection)
        while left and pieces != 0:
            connection.execute("begin immediate")
            if left[0].collect(connection, tail=read_tail(connection), has_held=True):
                left.pop(0)
            connection.execute("commit")
            pieces = None if pieces is None else pieces - 1
    return not left


def execute(path: Path, *statements: str) -> None:
    """Statements of an operator, or of something that does damage."""
    with closing(writing_to(path)) as connection:
        for statement in statements:
            connection.execute(statement)


def query(path: Path, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
    """All rows of a query."""
    with closing(connect_reader(path)) as connection:
        return connection.execute(sql, values).fetchall()


def next_id(path: Path) -> int:
    """The id that a gateway that starts would give out."""
    return recover(path).log.next_id
