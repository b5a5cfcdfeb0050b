"""Opening: a Message VPN's file, made or migrated, and connections to it."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import sqlite_utils

from store.errors import StoreError, StoreTooNew
from store.sqlite import schema
from store.sqlite.priorities import apply_priorities
from store.sqlite.property_index import update_spans

NONE_DECLARED: Final[Mapping[str, bool]] = MappingProxyType({})
STATEMENT_CACHE: Final = 256
"""Prepared statements kept per connection: every row count of the multi-row inserts, and the rest."""


def open_file(
    path: Path,
    now_ms: int,
    *,
    synchronous: str,
    index: Sequence[str] = (),
    priorities: Mapping[str, bool] = NONE_DECLARED,
) -> None:
    """
    Make the file, or migrate it to what this version knows.

    Args:
        index: Properties that messages are indexed by from now on.
        priorities: Of queues, by name: whether they deliver by priority from now on.

    Raises:
        StoreTooNew: It was written by a later version.
        StoreError: It cannot be opened, or is no database.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            schema.prepare(connection, synchronous=synchronous)
            connection.isolation_level = "DEFERRED"
            db = sqlite_utils.Database(connection)
            unknown = schema.unknown_migrations(db)
            if unknown:
                raise StoreTooNew(
                    "cannot open",
                    path,
                    f"it knows {', '.join(unknown)}",
                    "It was written by a later version: use that",
                )
            schema.migrations.apply(db)
            with db.atomic():
                # The generation is random: a log made anew must never be taken for the one before.
                db.execute(
                    "insert or ignore into log (only, generation, first_id, last_id, last_time, floor_time, "
                    "size_bytes, largest_bytes, next_number) values (1, ?, 1, 0, ?, ?, 0, 0, 1)",
                    [secrets.randbits(63), now_ms, now_ms],
                )
                update_spans(connection, index)
                apply_priorities(connection, priorities)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(
            "cannot open", path, error, "Restore it from a backup, or move it away to start anew"
        ) from error


def connect_writer(path: Path, *, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=STATEMENT_CACHE
    )
    schema.prepare(connection, synchronous=synchronous)
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. It lives beside the writer's: readers never block it, nor it them."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("pragma query_only = on")
    return connection
