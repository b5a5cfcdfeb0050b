"""
What makes the tables of a Message VPN's file (``store.sqlite.schema``): numbered migrations.

To change a table: add a migration at the end with a name that says why, and the name to ``schema.KNOWN``; never touch
an old one; keep a file made by the version before under ``tests/store/files`` and let the test migrate it. A file that
knows migrations we do not know was written by a later version and is refused.
"""

from __future__ import annotations

from typing import Final

import sqlite_utils
from sqlite_utils.migrations import Migrations

MIGRATION_SET: Final = "rewind"

migrations = Migrations(MIGRATION_SET)


@migrations()
def m001_routes_cursors_checksums(db: sqlite_utils.Database) -> None:
    """The first schema."""
    for statement in (
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
        """
        create table endpoint (
            number integer primary key,
            cursor integer not null,
            name text not null unique,
            kind text not null,
            settings text not null,
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
        """
        create table cursor (
            number integer not null,
            part integer not null,
            floor integer not null,
            counted_id integer not null,
            messages integer not null default 0,
            size_bytes integer not null default 0,
            primary key (number, part)
        ) without rowid
        """,
        """
        create table cursor_range (
            number integer not null,
            part integer not null,
            first integer not null,
            last integer not null,
            primary key (number, part, first)
        ) without rowid
        """,
        """
        create table attempt (
            cursor integer not null,
            message integer not null,
            count integer not null,
            primary key (cursor, message)
        ) without rowid
        """,
        """
        create table reference (
            cursor integer not null,
            message integer not null,
            primary key (cursor, message)
        ) without rowid
        """,
        "create table garbage (cursor integer primary key, endpoint integer not null, up_to integer not null)",
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
def m002_replay_records(db: sqlite_utils.Database) -> None:
    """Replays of the past, and jobs that go on after a stop."""
    db.execute(
        """
        create table replay_record (
            number integer primary key,
            name text not null unique,
            state text not null,
            record text not null
        )
        """
    )


@migrations()
def m003_retention(db: sqlite_utils.Database) -> None:
    """What rules of retention have taken out of the log, between messages that stay."""
    db.execute(
        """
        create table retention (
            rule text primary key,
            below integer not null,
            whole_time integer not null
        ) without rowid
        """
    )
