"""
The tables of a Message VPN's file, as numbered migrations, and the settings of every connection.

To change a table: add a migration at the end with a name that says why, never touch an old one, keep a file made by
the version before under ``tests/store/files`` and let the test migrate it. A file that knows migrations we do not
know was written by a later version and is refused.

Shape, and why:

``message``     one row a message, by id. The id is message id, log offset and sequence number in one; times never
                fall along it. ``content`` is what was received, bit for bit; ``bare`` is where its bare message begins.
                ``held`` is null while the replay log holds the message; else it counts the references that alone still
                do (not logged by policy, or trimmed while on an endpoint), and the last one takes the row with it.
``reference``   (endpoint, message): what lies on an endpoint. Without rowid, so that an endpoint's references are one
                run of pages in id order: a window of a deep queue is one short read. ``priority`` is null but on
                endpoints that deliver by it; only theirs are in the index that their windows are read by.
``endpoint``    definitions, with depth and bytes kept up to date in the same transaction as the references, so that
                nothing has to be counted at start. An endpoint that is emptied goes on under a new number.
``garbage``     numbers of endpoints that are gone or were emptied: their references are collected in small batches.
``point``       named points of the log: where a replay from each one starts.
``indexed``     from which id on, and up to which, messages were indexed by the values of a property. A property that
                is no longer indexed keeps what is there; indexed once more, it gets a row, and a number, of its own.
``property_value``  those values. In segments of ids, so that a new row lands among the newest ones, in
                pages that are in memory, however large the index is, and so that trimming can drop whole segments.
``log``         one row: the log's generation, the highest id ever given out (an id is never given twice, even when its
                message is gone), the newest arrival time, from which time on nothing is missing, the largest content,
                the id up to which an archive holds it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import sqlite_utils
from sqlite_utils.migrations import Migrations

PAGE_BYTES: Final = 4096
"""SQLite's default: larger pages read no faster and write more per small commit (measured: 8 KiB +-0, 16 KiB -10 %)."""

MIGRATION_SET: Final = "rewind"

migrations = Migrations(MIGRATION_SET)


@migrations()
def m001_messages_references_log(db: sqlite_utils.Database) -> None:
    """The first schema."""
    for statement in (
        """
        create table message (
            id integer primary key,
            time integer not null,
            topic text not null,
            bare integer not null,
            held integer,
            content blob not null
        )
        """,
        """
        create table reference (
            endpoint integer not null,
            message integer not null,
            attempts integer not null default 0,
            primary key (endpoint, message)
        ) without rowid
        """,
        """
        create table endpoint (
            number integer primary key,
            name text not null unique,
            kind text not null,
            settings text not null,
            depth integer not null default 0,
            size_bytes integer not null default 0,
            replay text
        )
        """,
        """
        create table subscription (
            endpoint integer not null,
            pattern text not null,
            primary key (endpoint, pattern)
        ) without rowid
        """,
        "create table garbage (number integer primary key)",
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
            next_number integer not null
        )
        """,
        # Only rows the log does not hold are in it: empty, and free, for a VPN that logs everything.
        "create index message_held on message (id) where held is not null",
    ):
        db.execute(statement)


@migrations()
def m002_points_and_indexed_properties(db: sqlite_utils.Database) -> None:
    """Replays start at named points, and at messages that are found by a property."""
    for statement in (
        """
        create table point (
            name text primary key,
            position integer not null,
            time integer not null,
            made integer not null
        ) without rowid
        """,
        """
        create table indexed (
            number integer primary key,
            property text not null,
            first_id integer not null,
            end_id integer
        )
        """,
        """
        create table property_value (
            segment integer not null,
            number integer not null,
            value text not null,
            message integer not null,
            primary key (segment, number, value, message)
        ) without rowid
        """,
    ):
        db.execute(statement)


@migrations()
def m003_priorities(db: sqlite_utils.Database) -> None:
    """Queues that deliver by priority: the rows of all others cost nothing more."""
    db.execute("alter table reference add column priority integer")
    db.execute(
        "create index reference_priority on reference (endpoint, priority, message) where priority is not null"
    )


@migrations()
def m004_archived(db: sqlite_utils.Database) -> None:
    """How much of the log an archive holds: a log that keeps the rest has to know it after a restart."""
    db.execute("alter table log add column archived_id integer not null default 0")


def unknown_migrations(db: sqlite_utils.Database) -> list[str]:
    """Names of migrations the file has seen and this version does not know."""
    known = {m.name for m in migrations.pending(sqlite_utils.Database(memory=True))}
    return sorted(m.name for m in migrations.applied(db) if m.name not in known)


def prepare(connection: sqlite3.Connection, *, synchronous: str) -> None:
    """Settings of a writing connection."""
    for pragma in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = wal",
        # FULL: the WAL is synced before a commit returns, so what was accepted survives a power cut. NORMAL would lose
        # the last commits; it is there for those who replicate elsewhere.
        f"synchronous = {synchronous}",
        # Checkpoints are the checkpointer's: inside a commit they would stall every publisher for its length.
        "wal_autocheckpoint = 0",
        "cache_size = -65536",
        "temp_store = memory",
    ):
        connection.execute(f"pragma {pragma}")
