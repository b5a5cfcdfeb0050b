"""
The tables of a Message VPN's file, the migrations that make them, and the settings of every connection.

Shape, and why:

``message``     one row a message, by id. The id is message id, log offset and sequence number in one; times never
                fall along it. ``content`` is what was received, bit for bit; ``bare`` is where its bare message begins.
                ``route`` is the set of endpoints that it was put on, 0 where there was none. ``held`` is null while the
                replay log holds the message; else it counts the endpoints that alone still do (not logged by policy,
                or trimmed while one needed it), and the last one takes the row with it. ``checksum`` is of all the
                rest but ``held`` (``store.checksum``).
``message_route``  the messages of a route, in the order of their ids (the rowid ends every index): what windows of
                endpoints are read by.
``message_held``  what the log does not hold: empty, and free, for a Message VPN that logs everything.
``route``       sets of endpoints that messages name. Interned: publishing costs one row a message, whatever the number
                of its endpoints. One that no message names any more is dropped behind.
``endpoint``    definitions, each with the number of its cursor: an endpoint that is emptied gets another cursor.
``cursor``      what of its routes' messages an endpoint is done with: everything up to ``floor``, and what is in
                ``cursor_range``. In one part (-1), or in ten where an endpoint delivers by priority. ``messages`` and
                ``size_bytes`` say what there is up to ``counted_id``; a start counts what came after.
``attempt``     failed deliveries, where there were any.
``reference``   messages that an endpoint has though no route leads to it: copies, and what a replay was forced to put.
``delayed``     messages that wait on an endpoint for their time, by its cursor, in the order of their times: from the
                commit that accepts them to the one that has a reference lead to them, or cancels them.
                ``retry`` says whether a consumer gave it back, and whether what is behind it is to wait for it.
``delayed_retry``  those that a consumer gave back: while a replay is under way, they alone are released.
``delayed_message``  the same by message, for whoever trims the log.
``last_value``  of last-value queues: by the digest of a key, the message that is its newest value. It follows the log:
                up to the queue's cursor it is what the log's messages make of it. ``last_value_message`` has it in the
                order of the log, for readers and for whoever trims; ``last_value_expires`` those that are to go.
``dedup``       windows of endpoints that want no message twice: what publishers called messages, one row for each
                publication and endpoint, in the transaction of the publication. ``ids`` has them one behind the other
                (``amqp_ext.message.fields.split_ids``). Rows go when all of their ids have left the window.
``garbage``     cursors that were dropped while messages may be held for them: they are let go of in small pieces.
``point``       named points of the log: where a replay from each one starts.
``replay_record``  replays, those under way and those of the past, within a bound: what each was to do and how far it
                is, as JSON. Its name and state are columns of their own for whoever looks with SQL.
``retention``   by rule (its topics as JSON): below which id the log lacks messages of the rule's topics, though it has
                others, and from which time on it lacks none. One that the log's beginning has passed is dropped.
``indexed``     from which id on, and up to which, messages were indexed by the values of a property. A property that
                is no longer indexed keeps what is there; indexed once more, it gets a row, and a number, of its own.
``property_value``  those values. In segments of ids, so that a new row lands among the newest ones, in
                pages that are in memory, however large the index is, and so that trimming can drop whole segments.
``log``         one row: the log's generation, the highest id ever given out (an id is never given twice, even when its
                message is gone), the newest arrival time, from which time on nothing is missing, what the logged
                messages take of the disk, the largest content, the id up to which an archive holds it, and the one up
                to which every cursor counts what it has. Publishing alone does not change it: messages above its
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
"""First migrations of files that no release ever wrote: from before routes and cursors, and from before checksums."""

APPLIED: Final = "select name from _sqlite_migrations where migration_set = 'rewind' order by rowid"
"""Names of the migrations that a file has seen; fails where it has seen none at all."""


SIZE_ON_DISK: Final = shared.size_on_disk(f"(length(content) + octet_length(topic) + {model.ROW_BYTES})")
"""SQL that sums what messages take of the disk; contents are not read for it."""

LAST_ID: Final = "select max(last_id, coalesce((select max(id) from message), 0)) as last_id from log"
"""SQL for the highest id ever given out: messages may be above what the log's row says."""


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
Statements by the migration's name, in their order.

To change a table: add a migration at the end with a name that says why; never touch an old one; keep a file made by the
version before under ``tests/store/files`` and let the test migrate it. A file that knows migrations we do not know was
written by a later version and is refused.
"""


def migrations() -> Migrations:
    """What makes the tables of this version, or brings those of an earlier one to it."""
    # A file that has seen them all needs none of this, which takes as long to import as all else of a start.
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
        # the last commits; it is there for those who replicate elsewhere.
        f"synchronous = {synchronous}",
        # Checkpoints are the checkpointer's: inside a commit they would stall every publisher for its length.
        "wal_autocheckpoint = 0",
        # What a row leaves behind where it is moved, or changed, is zeroed, as far as that writes no page more: else an
        # erased content could lie there still (``store.sqlite.trimming``).
        "secure_delete = fast",
        "cache_size = -8192",
        "temp_store = memory",
    ):
        connection.execute(f"pragma {pragma}")
