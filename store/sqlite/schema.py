"""
The tables of a Message VPN's file, why they are shaped so, the settings of every connection, and the numbered
migrations that make the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import sqlite_utils
from sqlite_utils.migrations import Migrations

from gateway.core import model

PAGE_BYTES: Final = model.PAGE_BYTES
"""SQLite's default: larger pages read no faster and write more per small commit (measured: 8 KiB +-0, 16 KiB -10 %)."""

NEVER_RELEASED: Final = frozenset({"m001_messages_references_log", "m001_routes_and_cursors"})
"""First migrations of files that no release ever wrote: from before routes and cursors, and from before checksums."""

KNOWN: Final = ("m001_routes_cursors_checksums", "m002_replay_records", "m003_retention")
"""Names of the migrations of this version, in their order. A file that has seen them needs no ``sqlite_utils``, which
would take as long to import as all else of a start."""

APPLIED: Final = "select name from _sqlite_migrations where migration_set = 'rewind' order by rowid"
"""Names of the migrations that a file has seen; fails where it has seen none at all."""


_ROW: Final = f"(length(content) + octet_length(topic) + {model.ROW_BYTES})"

_LONGER: Final = f"({_ROW} - {model.LEAST_BYTES})"

_REST: Final = f"({_LONGER} % {model.OVERFLOW_BYTES})"

SIZE_ON_DISK: Final = f"""sum({model.ENTRY_BYTES} + case
    when {_ROW} <= {model.WHOLE_BYTES} then {PAGE_BYTES} / ({model.USABLE_BYTES} / {_ROW})
    when {_REST} <= {model.WHOLE_BYTES - model.LEAST_BYTES}
        then {_LONGER} / {model.OVERFLOW_BYTES} * {PAGE_BYTES}
            + {PAGE_BYTES} / ({model.USABLE_BYTES} / ({model.LEAST_BYTES} + {_REST}))
    else ({_LONGER} / {model.OVERFLOW_BYTES} + 1) * {PAGE_BYTES}
        + {PAGE_BYTES // (model.USABLE_BYTES // model.LEAST_BYTES)}
    end)"""
"""SQL that sums what messages take of the disk (``disk_usage.stored_bytes``); contents are not read for it."""

LAST_ID: Final = "select max(last_id, coalesce((select max(id) from message), 0)) as last_id from log"
"""SQL for the highest id ever given out: messages may be above what the log's row says."""


def unknown_migrations(applied: Iterable[str]) -> list[str]:
    """Those of the names that this version does not know."""
    return sorted(set(applied).difference(KNOWN))


class Connection(Protocol):
    """What both of Python's ways to SQLite have."""

    def execute(self, sql: str, values: Any = (), /) -> Any: ...

    def executemany(self, sql: str, values: Any, /) -> Any: ...


def prepare(connection: Connection, *, synchronous: str) -> None:
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
