"""A Message VPN's file in SQLite, for tests: made, written without threads, and read into the form of the naive store.

What waits for collection counts as gone: nobody can see it any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from gateway.core.effects import Effect
from gateway.core.log.point import Point
from store.sqlite.database import connect_reader, connect_writer, open_file
from store.sqlite.transaction import Transaction
from tests.support.naive_store import NaiveStore, State, Stored

MADE_MS = 1_700_000_000_000
"""When the files of these tests were made."""


def empty_model() -> NaiveStore:
    """What such a file holds at first."""
    return NaiveStore(MADE_MS)


def state_of(path: Path) -> State:
    """All that can be seen of a file, with what waits for collection taken away."""
    connection = connect_reader(path)
    try:
        return _state(connection)
    finally:
        connection.close()


def _state(connection: sqlite3.Connection) -> State:
    garbage = {number for (number,) in connection.execute("select number from garbage")}
    messages = {row[0]: row for row in connection.execute("select * from message")}
    references = {}
    priorities = {}
    for endpoint, message, attempts, priority in connection.execute("select * from reference"):
        if endpoint not in garbage:
            references[endpoint, message] = attempts
            if priority is not None:
                priorities[endpoint, message] = priority
            continue
        row = messages[message]
        if row[4] is not None:
            messages[message] = (*row[:4], row[4] - 1, row[5])
    first, floor, last, time, size, largest, number, archived = connection.execute(
        "select first_id, floor_time, last_id, last_time, size_bytes, largest_bytes, next_number, archived_id from log"
    ).fetchone()
    return State(
        messages={i: row for i, row in messages.items() if row[4] is None or row[4] > 0},
        references=references,
        priorities=priorities,
        endpoints={
            row[0]: Stored(*row[1:])
            for row in connection.execute(
                "select number, name, kind, settings, replay, depth, size_bytes from endpoint"
            )
        },
        subscriptions=set(connection.execute("select endpoint, pattern from subscription")),
        points={
            row[0]: Point(*row) for row in connection.execute("select name, position, time, made from point")
        },
        first_id=first,
        floor_ms=floor,
        last_id=last,
        last_time_ms=time,
        logged_bytes=size,
        largest_bytes=largest,
        next_number=number,
        archived_id=archived,
    )


def new_file(path: Path) -> Path:
    """An empty file of a VPN, not synced: these tests pull no plugs."""
    open_file(path, MADE_MS, synchronous="OFF")
    return path


def writing_to(path: Path) -> sqlite3.Connection:
    return connect_writer(path, synchronous="OFF")


def commit(connection: sqlite3.Connection, effects: Iterable[Effect], *, has_held: bool = True) -> list[int]:
    """One transaction; the numbers whose references are to be collected."""
    garbage: list[int] = []
    transaction = Transaction(connection, garbage.append)
    transaction.has_held = has_held
    connection.execute("begin immediate")
    transaction.apply(effects)
    transaction.finish()
    connection.execute("commit")
    return garbage
