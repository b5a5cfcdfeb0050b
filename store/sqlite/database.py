"""
Opening: the data folder's lock, and a Message VPN's file, made or migrated.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import sqlite_utils

from store.errors import StoreError, StoreLocked, StoreTooNew
from store.sqlite import schema
from store.sqlite.priorities import arrange_priorities
from store.sqlite.property_index import arrange

LOCK_FILE: Final = "rewind.lock"
NONE_DECLARED: Final[Mapping[str, bool]] = MappingProxyType({})
STATEMENT_CACHE: Final = 256
"""Prepared statements kept per connection: every row count of the multi-row inserts, and the rest."""


class DataFolder:
    """A data folder held by one gateway; the lock goes with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            StoreLocked: Another gateway holds the folder.
            StoreError: The folder cannot be made or written.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(
                "cannot use the data folder", path, error, "Give a folder this user may write, with --data"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise StoreLocked(
                "cannot use the data folder",
                path,
                f"another gateway uses it (process {holder or 'unknown'})",
                "Stop that one, or give another folder with --data",
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def file_of(self, vpn: str) -> Path:
        return self.path / f"{vpn}.db"

    def release(self) -> None:
        os.close(self._lock)


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
        index: Properties that messages are filed under from now on.
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
                arrange(connection, index)
                arrange_priorities(connection, priorities)
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
