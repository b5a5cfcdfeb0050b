"""
The tables of a Message VPN's schema in PostgreSQL, and the migrations that make them.

Shape, and why. Everything else is as in ``store.sqlite.schema``:

``message``     what the replay log holds, and nothing else: one row a message, by id, never changed. Partitioned by id,
                so that trimming drops whole partitions later, and leaves nothing to vacuum. What a retention rule
                removes between other messages is deleted; its space is vacuumed, or freed with the partition. Rows with
                ids below the log's ``first_id`` do not exist for readers, even if their partition does: every reader
                says ``id >= first_id`` in the same statement. Partitions are named by the ids that they hold
                (``store.postgresql.partitions``), and may differ in size.
``message_route_id_idx`` of each partition: the messages of a route, in the order of their ids.
``held_message``  held messages: not logged by policy, or trimmed while an endpoint needed them. Trimming moves a
                message here, with the number of endpoints that need it in ``held``; the last of them deletes the row.
``route``       ``endpoints`` as an array. A route that no message names any more is deleted in the background.
``property_value``  by segments of ids, and trimmed by segments.
``log``         one row, which every transaction changes before anything else. In addition to SQLite's columns:
                ``epoch`` rises whenever a gateway takes over the store. ``commit_no`` counts commits, so that a commit
                whose answer was lost can be looked up. ``active`` is the HOST:PORT of the active gateway for clients. A
                transaction of a deposed gateway, or a transaction that was committed already, would set ``commit_no``
                to null, which is not allowed (``FENCE``). ``told_id`` is ``last_id`` before the newest commit: that
                commit began when the one before was known to be durable, and no failover takes back what a standby has
                of the one before. So ``told_id`` bounds readers on a standby, which may show a commit before its
                gateway has reported it, or a commit that a failover undoes.
``migration``   names of the migrations that were applied, in their order.

All text is UTF-8 in the order of its bytes, and contains no U+0000, which PostgreSQL cannot store
(``store.postgresql.database``). Tables whose rows change often leave room on each page for the next versions of its
rows, so that an update writes no index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from gateway.core import model
from store import schema as shared

MESSAGE_COLUMNS: Final = "id, time, checksum, route, bare, topic, content"
"""Columns of ``message``, in the order of storage: columns of eight bytes first, so that none is padded."""

HELD_COLUMNS: Final = "id, time, checksum, route, bare, held, topic, content"
"""Columns of ``held_message``."""

FENCE: Final = (
    "update log set commit_no = case when epoch = %s and commit_no = %s then %s end, "
    "last_id = greatest(last_id, %s), last_time = greatest(last_time, %s), size_bytes = size_bytes + %s, "
    "largest_bytes = greatest(largest_bytes, %s), next_number = greatest(next_number, %s), "
    "archived_id = greatest(archived_id, %s), counted_id = greatest(counted_id, %s), told_id = last_id"
)
"""
The beginning of every transaction of a writer. Its values: the writer's epoch, the number of the last commit, the
number of this commit, and the new values of the log's row. If the epoch or the number of the last commit differs, it
fails (not-null).
"""

_ROW_BYTES: Final = (
    f"(octet_length(content) + octet_length(replace(topic, chr(1), '')) + {model.ROW_BYTES})::bigint"
)
"""An escaped character of a topic counts as one character."""

SIZE_ON_DISK: Final = f"coalesce({shared.size_on_disk(_ROW_BYTES)}, 0)::bigint"
"""SQL for the sum of the disk space that messages take. Contents are not read for it."""

TABLES: Final = (
    """
    create table message (
        id bigint not null,
        time bigint not null,
        checksum bigint not null,
        route bigint not null,
        bare integer not null,
        topic text collate "C" not null,
        content bytea not null,
        primary key (id)
    ) partition by range (id)
    """,
    "create index message_route_id_idx on message (route, id) where route <> 0",
    """
    create table held_message (
        id bigint primary key,
        time bigint not null,
        checksum bigint not null,
        route bigint not null,
        bare integer not null,
        held integer not null,
        topic text collate "C" not null,
        content bytea not null
    )
    """,
    "create index held_message_route_id_idx on held_message (route, id) where route <> 0",
    # Compression costs the primary more than it saves, and reading the front of a compressed content reads all of it.
    "alter table message alter column content set storage external",
    "alter table held_message alter column content set storage external",
    "create table route (number bigint primary key, priority integer, endpoints bigint[] not null)",
    *shared.ENDPOINTS,
    *shared.CURSORS,
    f"""
    create table log (
        one integer primary key default 1 check (one = 1),
        generation bigint not null,
        first_id bigint not null default 1,
        last_id bigint not null default 0,
        last_time bigint not null,
        floor_time bigint not null,
        size_bytes bigint not null default 0,
        largest_bytes bigint not null default 0,
        next_number bigint not null default 1,
        archived_id bigint not null default 0,
        counted_id bigint not null default 0,
        epoch bigint not null default 0,
        commit_no bigint not null default 0,
        told_id bigint not null default 0,
        active text
    ) {shared.CHANGES_OFTEN}
    """,
    shared.POINTS,
    """
    create table indexed (
        number bigint generated by default as identity primary key,
        property text collate "C" not null,
        first_id bigint not null,
        end_id bigint
    )
    """,
    shared.PROPERTY_VALUES,
)

MIGRATIONS: Final[Mapping[str, Sequence[str]]] = {
    "m001_routes_cursors_checksums": TABLES,
    "m002_replay_records": (shared.REPLAY_RECORDS,),
    "m003_retention": (shared.RETENTION,),
    "m004_delayed": (shared.DELAYED, "create index delayed_message_idx on delayed (message)"),
    "m005_retries": shared.RETRIES,
    "m006_last_values": (*shared.LAST_VALUES, *shared.LAST_VALUE_INDEXES),
    "m007_dedup": (shared.DEDUP,),
}
"""Statements by the migration's name, in the order of the migrations."""


def applied_migrations(connection: psycopg.Connection[Any]) -> list[str]:
    """
    Names of the migrations that were applied to the schema in the connection's search path, in their order.
    """
    (there,) = connection.execute("select to_regclass('migration') is not null").fetchone() or (False,)
    if not there:
        return []
    return [name for (name,) in connection.execute("select name from migration order by number")]


def migrate(connection: psycopg.Connection[Any], place: str) -> None:
    """
    Bring the schema in the connection's search path to this version, completely or not at all. No other session may do
    so at the same time.

    Raises:
        StoreTooNew: It was written by a later version.
        psycopg.Error: The migration failed.
    """
    with connection.transaction():
        applied = applied_migrations(connection)
        shared.refuse_later(place, applied, MIGRATIONS)
        if not applied:
            connection.execute(
                "create table migration (number integer generated always as identity primary key, "
                "name text not null unique, applied timestamptz not null default now())"
            )
        for name, statements in MIGRATIONS.items():
            if name in applied:
                continue
            for statement in statements:
                connection.execute(statement.encode())
            connection.execute("insert into migration (name) values (%s)", (name,))
