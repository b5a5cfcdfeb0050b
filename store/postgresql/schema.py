"""
The tables of a Message VPN's schema in PostgreSQL, and the migrations that make them.

Shape, and why. What is not said here is as in ``store.sqlite.schema``:

``message``     what the replay log holds, and that alone: one row a message, by id, never changed. Partitioned by id,
                so that trimming drops whole partitions behind, and leaves nothing to be vacuumed; what a retention rule
                takes out between others is deleted, and its place is vacuumed, or goes with the partition. Rows with
                ids below the log's ``first_id`` are not there for any reader, even where their partition still is:
                whoever reads says ``id >= first_id`` in the same statement. Partitions are named by the ids that they
                hold (``store.postgresql.partitions``); they need not be of one size.
``message_route_id_idx`` of each partition: the messages of a route, in the order of their ids.
``held_message``  what endpoints alone hold: not logged by policy, or trimmed while one needed it. Trimming puts it
                here, with the count of those that need it in ``held``; the last of them takes the row with it.
``route``       ``endpoints`` as an array. One that no message names any more is dropped behind.
``property_value``  by segments of ids, and trimmed by segments.
``log``         one row, which every transaction changes, first of all that it does. Beside what SQLite's says:
                ``epoch`` rises whenever a gateway takes the store over, ``commit_no`` counts commits, so that one
                whose answer was lost is looked up; ``active`` is the HOST:PORT that the active gateway's clients use. A
                transaction of a gateway that was deposed, or one that was done already, would make ``commit_no`` null,
                which it must not be (``FENCE``). ``told_id`` is what ``last_id`` was before the newest commit: that
                one was begun when the one before it was known to be as durable as any, and nobody takes back what a
                standby has of it. So it bounds who reads on a standby, which may show a commit before its gateway has
                told of it, or one that a failover undoes.
``migration``   names of the migrations that were applied, in their order.

All text is UTF-8 in the order of its bytes, and holds no U+0000, which PostgreSQL cannot store
(``store.postgresql.database``). Rows that change often have room on their page for their next version, so that no index
is written with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from gateway.core import model
from store import schema as shared

MESSAGE_COLUMNS: Final = "id, time, checksum, route, bare, topic, content"
"""Of ``message``, as they lie in its rows: those of eight bytes first, so that none is padded."""

HELD_COLUMNS: Final = "id, time, checksum, route, bare, held, topic, content"
"""Of ``held_message``."""

FENCE: Final = (
    "update log set commit_no = case when epoch = %s and commit_no = %s then %s end, "
    "last_id = greatest(last_id, %s), last_time = greatest(last_time, %s), size_bytes = size_bytes + %s, "
    "largest_bytes = greatest(largest_bytes, %s), next_number = greatest(next_number, %s), "
    "archived_id = greatest(archived_id, %s), counted_id = greatest(counted_id, %s), told_id = last_id"
)
"""
What every transaction of a writer begins with. Its values: the writer's epoch, the last commit's number, this one's,
and then what the log's row says from now on. Where the epoch or the number is another, it fails (not-null).
"""

_ROW_BYTES: Final = (
    f"(octet_length(content) + octet_length(replace(topic, chr(1), '')) + {model.ROW_BYTES})::bigint"
)
"""An escaped character of a topic counts as the one it is."""

SIZE_ON_DISK: Final = f"coalesce({shared.size_on_disk(_ROW_BYTES)}, 0)::bigint"
"""SQL that sums what messages take of the disk; contents are not read for it."""

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
    # Compressing costs the primary more than it saves, and cutting a front off what is compressed reads all of it.
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
"""Their statements, by name, in their order."""


def applied_migrations(connection: psycopg.Connection[Any]) -> list[str]:
    """
    Names of the migrations that the schema in the connection's search path has seen, in their order.
    """
    (there,) = connection.execute("select to_regclass('migration') is not null").fetchone() or (False,)
    if not there:
        return []
    return [name for (name,) in connection.execute("select name from migration order by number")]


def migrate(connection: psycopg.Connection[Any], place: str) -> None:
    """
    Bring the schema in the connection's search path to what this version knows: all of it, or nothing. Nobody else does
    so meanwhile.

    Raises:
        StoreTooNew: It was written by a later version.
        psycopg.Error: It cannot be done.
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
