"""
Opening: a Message VPN's file, made or migrated, and connections to it.

Two copies of SQLite in one process must never have one file open at once: closing a file gives up all of a process's
locks on it. So what migrates a file, through the standard library's SQLite, closes it before APSW's opens it; all
else is APSW's.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import apsw

from store.copies import check_whole, read_mark, write_mark
from store.cursors import apply_priorities
from store.data_folder import FILE_MODE
from store.errors import StoreError
from store.schema import refuse_later
from store.sqlite import schema
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.log_row import read_log, write_log

NONE_DECLARED: Final[Mapping[str, bool]] = MappingProxyType({})
STATEMENT_CACHE: Final = 256
"""Prepared statements kept per connection: every row count of the multi-row inserts, and the rest."""

BUSY_MS: Final = 5_000
"""What a statement waits for a lock of another process: a check, a backup."""


def connect(path: Path, flags: int) -> apsw.Connection:
    """A connection; the settings of one that reads or writes are still to be made."""
    return apsw.Connection(str(path.absolute()), flags=flags, statementcachesize=STATEMENT_CACHE)


def open_file(
    path: Path,
    now_ms: int,
    *,
    synchronous: str,
    index: Sequence[str] = (),
    priorities: Mapping[str, bool] = NONE_DECLARED,
) -> apsw.Connection:
    """
    Make the file, or migrate it to what this version knows. Nothing may have it open here.

    Args:
        index: Properties that messages are indexed by from now on.
        priorities: Of queues, by name: whether they deliver by priority from now on.

    Returns:
        A connection that writes. While it is open, others that come need not read through what a crash left in the
        WAL once more; and if it is the last one to be closed, it carries all that into the file.

    Raises:
        StoreTooNew: It was written by a later version.
        StoreError: It cannot be opened, is no database, is of a version that was never released, or is a copy that is
            no store, see ``store.copies``.
    """
    try:
        connection = connect_migrated(path, synchronous=synchronous)
        with closing_if_it_fails(connection), connection:
            # The generation is random: a log made anew must never be taken for the one before.
            connection.execute(
                "insert or ignore into log (only, generation, first_id, last_id, last_time, floor_time, "
                "size_bytes, largest_bytes, next_number) values (1, ?, 1, 0, ?, ?, 0, 0, 1)",
                (secrets.randbits(63), now_ms, now_ms),
            )
            _take_up_copy(connection, path, now_ms)
            tables = SqliteShortTables(connection)
            tables.update_spans(index)
            apply_priorities(tables, priorities)
    except (apsw.Error, sqlite3.Error) as error:
        raise StoreError(
            "cannot open", path, error, "Restore it from a backup, or move it away to start anew"
        ) from error
    return connection


@contextmanager
def closing_if_it_fails(connection: apsw.Connection) -> Iterator[None]:
    """Close a connection that its caller will never have."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def connect_migrated(path: Path, *, synchronous: str) -> apsw.Connection:
    """
    A connection that writes to a file of the tables that this version knows; it is made, or migrated, if it is not one.

    Raises:
        StoreError, apsw.Error, sqlite3.Error: See ``open_file``.
    """
    connection = connect_writer(path, synchronous=synchronous) if path.exists() else None
    if connection is None or not _is_migrated(connection, path):
        if connection is not None:
            connection.close()
        _migrate(path, synchronous=synchronous)
        connection = connect_writer(path, synchronous=synchronous)
    return connection


def _take_up_copy(connection: apsw.Connection, path: Path, now_ms: int) -> None:
    """A backup that was put in place, by whatever means, is a log of its own from now on."""
    tables = SqliteShortTables(connection)
    found = read_mark(tables)
    check_whole(path, found)
    log = read_log(connection)
    if found is not None and log is not None:
        write_log(connection, log.renewed(now_ms))
        write_mark(tables, None)


def applied_migrations(connection: apsw.Connection) -> list[str]:
    """Names of the migrations that a file has seen, in their order."""
    if not connection.table_exists(None, "_sqlite_migrations"):
        return []
    return [str(name) for (name,) in connection.execute(schema.APPLIED)]


def _is_migrated(connection: apsw.Connection, path: Path) -> bool:
    try:
        applied = applied_migrations(connection)
        check_version(path, applied)
    except BaseException:
        connection.close()
        raise
    return set(schema.MIGRATIONS) <= set(applied)


def _migrate(path: Path, *, synchronous: str) -> None:
    """By the standard library's SQLite."""
    # Files are migrated once, and started with every time: what this imports takes longer than all else of a start.
    import sqlite_utils  # noqa: PLC0415

    # Its user's alone; the WAL and what goes with it get the mode of the file.
    with suppress(OSError):  # SQLite says what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.prepare(connection, synchronous=synchronous)
        connection.isolation_level = "DEFERRED"
        schema.migrations().apply(sqlite_utils.Database(connection, execute_plugins=False))


def check_version(path: Path, applied: Sequence[str]) -> None:
    """
    Raises:
        StoreError: This version does not open what has seen these migrations.
    """
    if schema.NEVER_RELEASED.intersection(applied):
        raise StoreError(
            "cannot open",
            path,
            "it was written by a version that was never released",
            "Move it away to start anew",
        )
    refuse_later(path, applied, schema.MIGRATIONS)


def is_damage(error: apsw.Error) -> bool:
    """Whether the file, or the disk under it, is at fault, and not the moment."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.IOError)


def engine() -> str:
    """The engine that keeps the data, with its version, as a person is told."""
    return f"SQLite {apsw.sqlite_lib_version()}"


def connect_writer(path: Path, *, synchronous: str) -> apsw.Connection:
    """A connection that writes; no two at once."""
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(BUSY_MS)
    schema.prepare(connection, synchronous=synchronous)
    return connection


def connect_bystander(path: Path) -> apsw.Connection:
    """
    A connection that cannot write, and leaves nothing behind: no WAL, and no index of one, is made beside the file.
    """
    wal, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if index.exists():
        how = "readonly_shm=1"  # a gateway's, that runs or was killed
    elif not wal.exists() or not wal.stat().st_size:
        how = "immutable=1"
    else:
        how = "mode=ro"  # whoever reads a WAL without an index has to make one
    name = f"file:{quote(str(path.absolute()))}?{how}"
    return apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def connect_reader(path: Path) -> apsw.Connection:
    """A connection that cannot write. It lives beside the writer's: readers never block it, nor it them."""
    connection = connect(path, apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(BUSY_MS)
    connection.execute("pragma query_only = on")
    return connection
