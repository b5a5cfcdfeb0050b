"""
The port's ``Store`` in SQLite: one file in WAL mode for each Message VPN, in the data folder; and what a gateway reads
from it at a start.

``store.ports`` defines the port; ``store.sqlite.schema`` describes the file.
"""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import apsw

from store import upgrade
from store.ports import Durability, OnCommit, StoreOptions
from store.recovery import RecoveredStore, recovered
from store.sqlite import database, schema
from store.sqlite.cursors import SqliteShortTables
from store.sqlite.log_row import read_log
from store.sqlite.reader import SqliteReader
from store.sqlite.writer import SqliteWriter
from store.upgrade import Ahead


def message_file(folder: Path, vpn: str) -> Path:
    """The file of a Message VPN in a data folder."""
    return folder / f"{vpn}.db"


class SqliteStores:
    """The files of all Message VPNs in one data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, vpn: str, now_ms: int, options: StoreOptions) -> SqliteStore:
        """See ``store.ports.Stores.open``."""
        return SqliteStore(message_file(self._folder, vpn), now_ms, options)

    def remove(self, vpn: str) -> None:
        """See ``store.ports.Stores.remove``."""
        file = message_file(self._folder, vpn)
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{file}{suffix}").unlink()


class SqliteStore:
    """One opened file."""

    def __init__(self, path: Path, now_ms: int, options: StoreOptions) -> None:
        """
        Open a file. Create it if there is none; migrate it if an earlier version wrote it.

        Raises:
            StoreTooNew: It was written by a later version.
            StoreError: It cannot be opened or read, or is no database.
        """
        self._path = path
        self.place, self.engine = str(path), f"SQLite {apsw.sqlite_lib_version()}"
        self._options = options
        self._opened: apsw.Connection | None = database.open_file(
            path,
            now_ms,
            synchronous=options.synchronous,
            index=options.index,
            priorities=options.priorities,
        )
        with (
            database.closing_if_it_fails(self._opened),
            database.errors_told("cannot read", path, database.RESTORE),
        ):
            self.recovered = recover(path)
        self.reader = SqliteReader(path, options, self.recovered.largest_bytes, self.recovered.indexed)
        self._writer: SqliteWriter | None = None

    def start_writer(self, on_commit: OnCommit) -> SqliteWriter:
        """See ``store.ports.Store.start_writer``."""
        assert self._writer is None, "a file has one writer"
        with database.errors_told("cannot open", self._path):
            self._writer = SqliteWriter(
                self._path, on_commit, self._options, self.recovered, self.reader.grow_largest
            )
        self._close_opened()
        return self._writer

    def scrub(self, seconds: float) -> bool:
        """See ``store.ports.Store.scrub``."""
        assert self._writer is not None, "nothing was erased"
        return self._writer.scrub(seconds)

    def durability(self) -> Durability:
        """A file is on one disk."""
        return Durability.DISK

    def close(self) -> None:
        """Commit what was submitted, and end. Blocks until done."""
        if self._writer is not None:
            self._writer.close()
        self.reader.close()
        self._close_opened()

    def _close_opened(self) -> None:
        """Close the first connection: the writer's keeps the file open from now on, or nothing does any more."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def look_ahead(path: Path) -> Ahead:
    """
    What the next start would do to a file, which may be in use; nothing is changed. A start would refuse a file that
    cannot be read.
    """
    if not path.exists():
        return Ahead(str(path))
    try:
        with closing(database.connect_bystander(path)) as connection:
            connection.set_busy_timeout(database.BUSY_MS)
            connection.execute("begin")
            applied = database.applied_migrations(connection)
            tables = SqliteShortTables(connection)
            refuse = partial(database.check_version, path, applied)
            return upgrade.look_ahead(tables, str(path), applied, schema.MIGRATIONS, refuse)
    except apsw.Error as error:
        return Ahead(str(path), refusal=f"it cannot be read: {error}")


def recover(path: Path) -> RecoveredStore:
    """
    The state that a crash or a stop left behind in a file; see ``store.recovery``.

    Raises:
        apsw.Error: The file cannot be read.
    """
    with closing(database.connect_reader(path)) as connection:
        connection.execute("begin")
        log = read_log(connection)
        assert log is not None, "it was opened before"
        return recovered(SqliteShortTables(connection), log)
