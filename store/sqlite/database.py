"""
Opening a Message VPN's file: creating it, migrating it, and connecting to it.

Two SQLite libraries in one process must never have the same file open at the same time: when one closes the file, the
process loses all its locks on it. So migration, which uses the standard library's SQLite, closes the file before APSW
opens it. Everything else uses APSW.
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
"""Prepared statements kept for each connection: every row count of the multi-row inserts, and the others."""

RESTORE: Final = "Restore it from a backup, or move it away to start with an empty store"
"""What to do about a file that cannot be read."""

BUSY_MS: Final = 5_000
"""How long a statement waits for a lock of another process: of a check, or a backup."""


def connect(path: Path, flags: int) -> apsw.Connection:
    """A connection without the settings of a reader or a writer."""
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
    Create the file, or migrate it to this version. Nothing in this process may have it open.

    Args:
        index: Properties by which messages are indexed from now on.
        priorities: By queue name, whether the queue delivers by priority from now on.

    Returns:
        A connection that writes. While it is open, new connections need not recover again what a crash left in the WAL;
        and if it is the last to be closed, it copies the WAL into the file.

    Raises:
        StoreTooNew: It was written by a later version.
        StoreError: It cannot be opened, is no database, is of a version that was never released, or is a copy that must
            not be opened, see ``store.copies``.
    """
    with errors_told("cannot open", path, RESTORE):
        connection = connect_migrated(path, synchronous=synchronous)
        with closing_if_it_fails(connection), connection:
            # The generation is random, so that a recreated log is never taken for the one before.
            connection.execute(
                "insert or ignore into log (only, generation, first_id, last_id, last_time, floor_time, "
                "size_bytes, largest_bytes, next_number) values (1, ?, 1, 0, ?, ?, 0, 0, 1)",
                (secrets.randbits(63), now_ms, now_ms),
            )
            _take_up_copy(connection, path, now_ms)
            tables = SqliteShortTables(connection)
            tables.update_spans(index)
            apply_priorities(tables, priorities)
    return connection


@contextmanager
def errors_told(
    operation: str, path: Path, hint: str = "Check the disk, and the file with `rewind store check`"
) -> Iterator[None]:
    """Turn errors of both SQLite libraries and of the operating system into a ``StoreError`` about this file."""
    try:
        yield
    except (apsw.Error, sqlite3.Error, OSError) as error:
        raise StoreError(operation, path, error, hint) from error


@contextmanager
def closing_if_it_fails(connection: apsw.Connection) -> Iterator[None]:
    """Close a connection if its caller will not get it."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def connect_migrated(path: Path, *, synchronous: str) -> apsw.Connection:
    """
    A connection that writes to a file with this version's tables. Creates or migrates the file if necessary.

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
    """Give a backup that was put in place, by whatever means, a log generation of its own."""
    tables = SqliteShortTables(connection)
    found = read_mark(tables)
    check_whole(path, found)
    log = read_log(connection)
    if found is not None and log is not None:
        write_log(connection, log.renewed(now_ms))
        write_mark(tables, None)


def applied_migrations(connection: apsw.Connection) -> list[str]:
    """Names of the migrations that were applied to a file, in their order."""
    if not connection.table_exists(None, "_sqlite_migrations"):
        return []
    return [str(name) for (name,) in connection.execute(schema.APPLIED)]


def _is_migrated(connection: apsw.Connection, path: Path) -> bool:
    with closing_if_it_fails(connection):
        applied = applied_migrations(connection)
        check_version(path, applied)
    return set(schema.MIGRATIONS) <= set(applied)


def _migrate(path: Path, *, synchronous: str) -> None:
    """Create or migrate the file with the standard library's SQLite."""
    # Imported here: a file is migrated once and opened often, and this import takes longer than the rest of a start.
    import sqlite_utils  # noqa: PLC0415

    # Accessible to the owner alone; SQLite gives the WAL and its index the mode of the file.
    with suppress(OSError):  # SQLite will report what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.prepare(connection, synchronous=synchronous)
        connection.isolation_level = "DEFERRED"
        schema.migrations().apply(sqlite_utils.Database(connection, execute_plugins=False))


def check_version(path: Path, applied: Sequence[str]) -> None:
    """
    Raises:
        StoreError: This version does not open a file with these migrations.
    """
    if schema.NEVER_RELEASED.intersection(applied):
        raise StoreError(
            "cannot open",
            path,
            "it was written by a version that was never released",
            "Move it away to start with an empty store",
        )
    refuse_later(path, applied, schema.MIGRATIONS)


def is_damage(error: apsw.Error) -> bool:
    """Whether the error is lasting: the file, or the disk under it, is at fault."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.IOError)


def connect_writer(path: Path, *, synchronous: str) -> apsw.Connection:
    """A connection that writes; there must be one at a time."""
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(BUSY_MS)
    schema.prepare(connection, synchronous=synchronous)
    return connection


def connect_bystander(path: Path) -> apsw.Connection:
    """
    A connection that cannot write, and leaves nothing behind: it creates no WAL next to the file, and no index of one.
    """
    wal, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if index.exists():
        how = "readonly_shm=1"  # of a gateway that runs, or was killed
    elif not wal.exists() or not wal.stat().st_size:
        how = "immutable=1"
    else:
        how = "mode=ro"  # reading a WAL without an index has to create one
    name = f"file:{quote(str(path.absolute()))}?{how}"
    return apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def connect_reader(path: Path) -> apsw.Connection:
    """A connection that cannot write. Readers do not block the writer, nor the writer them."""
    connection = connect(path, apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(BUSY_MS)
    connection.execute("pragma query_only = on")
    return connection
