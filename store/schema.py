"""
The tables that are the same in every engine, the disk space that messages take, and which migrations a store knows.

``store.sqlite.schema`` says what each table is for. The statements are PostgreSQL's; ``tables_in_sqlite`` says how
SQLite's differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from gateway.core import model
from store.errors import StoreTooNew

CHANGES_OFTEN: Final = "with (fillfactor = 50)"
"""Leaves room on each page for the next versions of its rows, so that an update writes no index."""

ENDPOINTS: Final = (
    f"""
    create table endpoint (
        number bigint primary key,
        cursor bigint not null,
        name text collate "C" not null unique,
        kind text collate "C" not null,
        settings text not null,
        replay text
    ) {CHANGES_OFTEN}
    """,
    """
    create table subscription (
        endpoint bigint not null,
        pattern text collate "C" not null,
        primary key (endpoint, pattern)
    )
    """,
)

CURSORS: Final = (
    f"""
    create table cursor (
        number bigint not null,
        part integer not null,
        floor bigint not null,
        counted_id bigint not null,
        messages bigint not null default 0,
        size_bytes bigint not null default 0,
        primary key (number, part)
    ) {CHANGES_OFTEN}
    """,
    f"""
    create table cursor_range (
        number bigint not null,
        part integer not null,
        first bigint not null,
        last bigint not null,
        primary key (number, part, first)
    ) {CHANGES_OFTEN}
    """,
    f"""
    create table attempt (
        cursor bigint not null,
        message bigint not null,
        count integer not null,
        primary key (cursor, message)
    ) {CHANGES_OFTEN}
    """,
    """
    create table reference (
        cursor bigint not null,
        message bigint not null,
        primary key (cursor, message)
    )
    """,
    "create table garbage (cursor bigint primary key, endpoint bigint not null, up_to bigint not null)",
)

POINTS: Final = """
    create table point (
        name text collate "C" primary key,
        position bigint not null,
        time bigint not null,
        made bigint not null
    )
"""

PROPERTY_VALUES: Final = """
    create table property_value (
        segment bigint not null,
        number bigint not null,
        value text collate "C" not null,
        message bigint not null,
        primary key (segment, number, value, message)
    )
"""

REPLAY_RECORDS: Final = f"""
    create table replay_record (
        number bigint primary key,
        name text collate "C" not null unique,
        state text collate "C" not null,
        record text not null
    ) {CHANGES_OFTEN}
"""
"""Replays that have ended, and jobs that continue after a stop."""

RETENTION: Final = f"""
    create table retention (
        rule text collate "C" primary key,
        below bigint not null,
        whole_time bigint not null
    ) {CHANGES_OFTEN}
"""
"""What retention rules have removed from the log, between messages that stay."""

DELAYED: Final = """
    create table delayed (
        cursor bigint not null,
        due bigint not null,
        message bigint not null,
        size_bytes bigint not null,
        primary key (cursor, due, message)
    )
"""
"""Delayed messages."""

RETRIES: Final = (
    "alter table delayed add column retry bigint not null default 0",
    "create index delayed_retry on delayed (cursor, due, message) where retry <> 0",
)
"""Marks the delayed messages that a consumer gave back."""

DEDUP: Final = """
    create table dedup (
        endpoint bigint not null,
        first bigint not null,
        time bigint not null,
        ids bytea not null,
        primary key (endpoint, first)
    )
"""
"""Publishers' ids of messages, for endpoints that reject duplicates: by the publication that they came with."""

NO_RETRY: Final = 0
RETRY: Final = 1
RETRY_IN_ORDER: Final = 2
"""Values of ``delayed.retry``: delayed by its publisher; given back by a consumer; given back by a consumer, and to be
delivered before later messages."""

LAST_VALUES: Final = (
    """
    create table last_value (
        cursor bigint not null,
        key bytea not null,
        message bigint not null,
        size_bytes bigint not null,
        expires bigint,
        primary key (cursor, key)
    )
    """,
)
"""For last-value queues: by the digest of a key, the message that is its newest value."""

LAST_VALUE_INDEXES: Final = (
    "create unique index last_value_message on last_value (cursor, message)",
    "create index last_value_expires on last_value (cursor, expires) where expires is not null",
)

ROWID: Final = "integer primary key"
"""SQLite uses such a key as its own row number."""


def tables_in_sqlite(*statements: str) -> tuple[str, ...]:
    """
    The same tables in SQLite: all numbers have one type, texts are compared by their bytes without a collation, and a
    table whose key is not a single number is stored in the key's tree.
    """
    made = [
        statement.replace("bigint", "integer")
        .replace("bytea", "blob")
        .replace(' collate "C"', "")
        .replace(CHANGES_OFTEN, "")
        .strip()
        for statement in statements
    ]
    return tuple(sql if ROWID in sql else f"{sql} without rowid" for sql in made)


def unknown_migrations(applied: Iterable[str], known: Collection[str]) -> list[str]:
    """The names that this version does not know."""
    return sorted(set(applied).difference(known))


def refuse_later(place: object, applied: Iterable[str], known: Collection[str]) -> None:
    """
    Raises:
        StoreTooNew: Some of the migrations that were applied are of a later version.
    """
    unknown = unknown_migrations(applied, known)
    if unknown:
        raise StoreTooNew(
            "cannot open",
            place,
            f"it has migration {', '.join(unknown)} of a later version",
            "Use that version",
        )


def size_on_disk(row_bytes: str) -> str:
    """
    SQL for the sum of the disk space that messages take (``model.stored_bytes``): in SQLite's file for every engine, so
    that quotas mean the same in each. Null for no messages.

    Args:
        row_bytes: SQL for the length of a message's content and topic, plus the rest of its row.
    """
    longer = f"({row_bytes} - {model.LEAST_BYTES})"
    rest = f"({longer} - {longer} / {model.OVERFLOW_BYTES} * {model.OVERFLOW_BYTES})"
    return f"""sum({model.ENTRY_BYTES} + case
        when {row_bytes} <= {model.WHOLE_BYTES} then {model.PAGE_BYTES} / ({model.USABLE_BYTES} / {row_bytes})
        when {rest} <= {model.WHOLE_BYTES - model.LEAST_BYTES}
            then {longer} / {model.OVERFLOW_BYTES} * {model.PAGE_BYTES}
                + {model.PAGE_BYTES} / ({model.USABLE_BYTES} / ({model.LEAST_BYTES} + {rest}))
        else ({longer} / {model.OVERFLOW_BYTES} + 1) * {model.PAGE_BYTES}
            + {model.PAGE_BYTES // (model.USABLE_BYTES // model.LEAST_BYTES)}
        end)"""
