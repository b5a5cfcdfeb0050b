"""
The tables of a Message VPN's file, the migrations that make them, and the settings of every connection.

Shape, and why:

``message``     one row a message, by id. The id is message id, log offset and sequence number in one; times never fall
                along the ids. ``content`` is what was received, bit for bit; ``bare`` is the offset of its bare
                message. ``route`` is the set of endpoints that it was put on, 0 if none. ``held`` is null while the
                replay log holds the message. After that (or if it was never logged, by policy) it counts the endpoints
                that need the message; the last of them deletes the row. ``checksum`` covers all other columns but
                ``held`` (``store.checksum``).
``message_route``  the messages of a route, in the order of their ids (the rowid ends every index): endpoints read their
                windows by it.
``message_held``  held messages: empty, and free, for a Message VPN that logs everything.
``route``       sets of endpoints that messages name. Interned: publishing costs one row a message, whatever the number
                of its endpoints. A route that no message names any more is deleted in the background.
``endpoint``    definitions, each with the number of its cursor: an endpoint that is purged gets another cursor.
``cursor``      what an endpoint has settled of its routes' messages: everything up to ``floor``, and the ranges in
                ``cursor_range``. It has one part (-1), or ten if the endpoint delivers by priority. ``messages`` and
                ``size_bytes`` count the backlog up to ``counted_id``; a start adds what came after.
``attempt``     failed deliveries, for messages that had any.
``reference``   messages that an endpoint has though no route leads to it: copies, and the remains of replays.
``delayed``     delayed messages of an endpoint, by its cursor, in the order of their due times: from the commit that
                accepts them to the commit that replaces them by references, or cancels them. ``retry`` says whether a
                consumer gave the message back, and whether later messages have to wait for it.
``delayed_retry``  delayed messages that a consumer gave back: during a replay, they alone are released.
``delayed_message``  the same by message, for trimming.
``last_value``  for last-value queues: by the digest of a key, the message that is its newest value. It follows the log:
                it reflects the messages up to the queue's cursor. ``last_value_message`` has it in the order of the
                log, for readers and for trimming; ``last_value_expires`` has the values that expire.
``dedup``       deduplication windows of endpoints: the publishers' ids of messages, one row for each publication and
                endpoint, written in the publication's transaction. ``ids`` is the ids, concatenated
                (``amqp_ext.message.fields.split_ids``). A row is deleted when all of its ids have left the window.
``garbage``     cursors that were dropped while messages may be held for them: those are released in small pieces.
``point``       named points of the log: where a replay from each of them starts.
``replay_record``  replays in progress, and past replays within a bound: what each was to do and how far it is, as JSON.
                Name and state are columns of their own, for people who look with SQL.
``retention``   by rule (its topics as JSON): the id below which the log lacks messages of the rule's topics, though it
                has others, and the time from which on it lacks none. A row that the log's beginning has passed is
                deleted.
``indexed``     from which id on, and up to which, messages were indexed by the values of a property. If a property is
                no longer indexed, its entries stay; if it is indexed again, it gets a new row, and a new number.
``property_value``  those values, in segments of ids: so a new row goes to pages with the newest ones, which are in
                memory however large the index is, and trimming can delete whole segments.
``log``         one row: the log's generation, the highest id ever given out (an id is never given twice, even when its
                message is gone), the newest arrival time, the time from which on nothing is missing, the disk space of
                the logged messages, the largest content, the id up to which an archive has the log, and the id up to
                which all cursors have counted their backlogs. Publishing alone does not change it: messages above its
                ``last_id`` are given out, and count towards times and sizes, as well (``store.sqlite.log_row``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gateway.core import model
from store import schema as shared

if TYPE_CHECKING:
    import sqlite3

    import apsw
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

PAGE_BYTES: Final = model.PAGE_BYTES
"""SQLite's default: larger pages read no faster and write more per small commit (measured: 8 KiB +-0, 16 KiB -10 %)."""

NEVER_RELEASED: Final = frozenset({"m001_messages_references_log", "m001_routes_and_cursors"})
"""First migrations that no release ever applied: from before routes and cursors, and from before checksums."""

APPLIED: Final = "select name from _sqlite_migrations where migration_set = 'rewind' order by rowid"
"""Names of the migrations that were applied to a file; fails if none was."""


SIZE_ON_DISK: Final = shared.size_on_disk(f"(length(content) + octet_length(topic) + {model.ROW_BYTES})")
"""SQL for the sum of the disk space that messages take. Contents are not read for it."""

LAST_ID: Final = "select max(last_id, coalesce((select max(id) from message), 0)) as last_id from log"
"""SQL for the highest id ever given out: messages may be above the log row's ``last_id``."""


MIGRATION_SET: Final = "rewind"

MIGRATIONS: Final[Mapping[str, Sequence[str]]] = {
    # The first schema.
    "m001_routes_cursors_checksums": (
        """
        create table message (
            id integer primary key,
            time integer not null,
            topic text not null,
            bare integer not null,
            route integer not null default 0,
            held integer,
            checksum integer not null,
            content blob not null
        )
        """,
        "create index message_route on message (route) where route <> 0",
        "create index message_held on message (id) where held is not null",
        "create table route (number integer primary key, priority integer, endpoints text not null)",
        *shared.tables_in_sqlite(*shared.ENDPOINTS, *shared.CURSORS),
        """
        create table log (
            only integer primary key check (only = 1),
            generation integer not null,
            first_id integer not null,
            last_id integer not null,
            last_time integer not null,
            floor_time integer not null,
            size_bytes integer not null,
            largest_bytes integer not null,
            next_number integer not null,
            archived_id integer not null default 0,
            counted_id integer not null default 0
        )
        """,
        *shared.tables_in_sqlite(shared.POINTS),
        """
        create table indexed (
            number integer primary key,
            property text not null,
            first_id integer not null,
            end_id integer
        )
        """,
        *shared.tables_in_sqlite(shared.PROPERTY_VALUES),
    ),
    "m002_replay_records": shared.tables_in_sqlite(shared.REPLAY_RECORDS),
    "m003_retention": shared.tables_in_sqlite(shared.RETENTION),
    "m004_delayed": (
        *shared.tables_in_sqlite(shared.DELAYED),
        "create index delayed_message on delayed (message)",
    ),
    "m005_retries": shared.RETRIES,
    "m006_last_values": (*shared.tables_in_sqlite(*shared.LAST_VALUES), *shared.LAST_VALUE_INDEXES),
    "m007_dedup": shared.tables_in_sqlite(shared.DEDUP),
}
"""
Statements by the migration's name, in the order of the migrations.

To change a table, add a migration at the end, with a name that says why. Never change an old one. Keep a file made by
the version before under ``tests/store/files`` and let the test migrate it. A file with migrations that this version
does not know was written by a later version, and is refused.
"""


def migrations() -> Migrations:
    """The migrations that create the tables of this version, or bring an earlier version's tables to it."""
    # Only for a file that lacks migrations: this import takes as long as all the rest of a start.
    from sqlite_utils.migrations import Migrations  # noqa: PLC0415

    found = Migrations(MIGRATION_SET)

    def add(name: str, statements: Sequence[str]) -> None:
        @found(name=name)
        def apply(db: Database) -> None:
            for statement in statements:
                db.execute(statement)

    for name, statements in MIGRATIONS.items():
        add(name, statements)
    return found


def prepare(connection: apsw.Connection | sqlite3.Connection, *, synchronous: str) -> None:
    """Settings of a writing connection."""
    for pragma in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = wal",
        # FULL: the WAL is synced before a commit returns, so what was accepted survives a power cut. NORMAL would lose
        # the newest commits; it is for users who replicate by other means.
        f"synchronous = {synchronous}",
        # The checkpointer makes checkpoints: inside a commit, they would stall every publisher.
        "wal_autocheckpoint = 0",
        # SQLite zeroes the old bytes of rows that move or change, if that writes no additional page: otherwise erased
        # content could still be stored there (``store.sqlite.trimming``).
        "secure_delete = fast",
        "cache_size = -8192",
        "temp_store = memory",
    ):
        connection.execute(f"pragma {pragma}")
