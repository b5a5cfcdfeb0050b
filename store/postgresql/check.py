"""
Whether a Message VPN's schema keeps its writer's promises: a check of everything, for tests and operators in doubt.

``store.promises`` has the promises. The schema is only read, and may be in use: all queries see one state of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import psycopg

from gateway.core.model import ID
from store.cursors import header_priority
from store.errors import StoreError
from store.postgresql import packed, schema
from store.postgresql.cursors import MESSAGES, PostgresShortTables
from store.postgresql.database import Database, ReadConnection, number
from store.postgresql.packed import Packed
from store.postgresql.schema import applied_migrations
from store.promises import DAMAGED, WRONG_PRIORITY, Promise, promises, version_problem

PAGE_ROWS: Final = 1_000
PAGE_BYTES: Final = 1 << 24
"""Content of messages that are compared with their checksums at a time, in bytes."""

SETTINGS: Final = "; ".join(
    (
        "begin isolation level repeatable read read only",
        "set local jit = off",
        "set local statement_timeout = 0",
        "set local idle_in_transaction_session_timeout = 0",
    )
)

PROMISES: Final = (
    *promises(PostgresShortTables),
    Promise(
        "message {} is in the log, but also stored as held by {} endpoints",
        "select id, held from held_message join message using (id) where id >= (select first_id from log)",
    ),
    Promise(
        "message {} is above the log's last id {}: its id could be given out again",
        f"select id, last_id from ({MESSAGES}) as message, log where id > last_id",
    ),
)

PRIORITIES: Final = (
    "select id, route, priority, bare, substring(content from 1 for bare) "
    f"from route join ({MESSAGES}) as message on message.route = route.number and message.route <> 0 "
    "where priority is not null"
)


def check_vpn(database: Database, vpn: str) -> list[str]:
    """
    What is wrong with a Message VPN in a database, a sentence each; empty if all is well. Reads everything: some
    seconds per gigabyte.

    Raises:
        StoreError: The database cannot be reached.
    """
    try:
        connection = database.connect(vpn, "check")
    except (psycopg.Error, OSError) as error:
        raise StoreError("cannot check", database.place, error, "Check the url and the password") from error
    try:
        with closing(ReadConnection(connection, SETTINGS)) as reading:
            return _check(reading, database.place_of(vpn))
    except psycopg.Error as error:
        return [f"it cannot be read: {error}"]


def _check(reading: ReadConnection, place: str) -> list[str]:
    connection = reading.connection
    applied = applied_migrations(connection)
    if not applied:
        return [f"there is no Message VPN in {place}"]
    found = version_problem(applied, schema.MIGRATIONS, "a gateway has to open it once")
    if found:
        return found
    one_log, *others = PROMISES
    found = one_log.told(connection.execute(one_log.query.encode()).fetchall())
    if found:  # every query for messages uses the log's row
        return found
    found = DAMAGED.told([(message_id,) for message_id in _damaged(reading)])
    for promise in others:
        found += promise.told(connection.execute(promise.query.encode()).fetchall())
    wrong = list(_wrong_priorities(connection))
    return found + Promise(WRONG_PRIORITY, "").told(wrong)


def _damaged(reading: ReadConnection) -> Iterator[int]:
    """The ids of messages that are not what was written."""
    after = 0
    # Each table has its own limit: with a limit on both together alone, the server reads all the rest for each page.
    rows = (
        f"(select {packed.LOGGED} from message where id >= (select first_id from log) and id > $1::bigint "
        f"order by id limit $2::bigint) union all (select {packed.HELD} from held_message where id > $1::bigint "
        "order by id limit $2::bigint) order by id limit $2::bigint"
    )
    query = packed.bounded_page(rows, f"{PAGE_BYTES}")
    while True:
        (answer,) = reading.ask(query, [after, PAGE_ROWS])
        page = Packed(answer)
        if not page.count:
            return
        sound = page.rows(PAGE_BYTES)
        if sound is None:
            for checked in reading.ask(f"select {packed.HELD} from ({rows}) as page", [after, page.count]):
                after = number(checked[ID])
                if packed.sound_row(checked) is None:
                    yield after
        else:
            after = sound[-1][ID]


def _wrong_priorities(connection: psycopg.Connection[Any]) -> Iterator[tuple[int, int, int, int]]:
    """(message, route, its priority, the header's priority) of messages for which these differ."""
    with connection.cursor("priorities") as cursor:
        cursor.itersize = PAGE_ROWS
        for message_id, route, priority, bare, front in cursor.execute(PRIORITIES.encode()):
            said = header_priority(front, bare)
            if said != priority:
                yield message_id, route, priority, said
