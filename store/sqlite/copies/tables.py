"""A file as its tables (``store.copies.tables``), for copies from and to other engines, or other folders."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from store.copies.log_row import LogRow
from store.copies.mark import CopyMark
from store.copies.tables import CHECKSUM, ENTRY, IN_SEGMENT, MESSAGE, Digest, IndexEntry, StoredMessage, Table
from store.errors import DamagedMessage, StoreError
from store.sqlite.check import check
from store.sqlite.copies.log_row import read_log, write_log
from store.sqlite.copies.mark import read_mark, write_mark
from store.sqlite.database import connect_migrated
from store.sqlite.reading.packed import CHECKED, sound_row

CHECKPOINT_PAGES: Final = 4_096
"""Pages in the write-ahead log after which it is carried over."""


class SqliteTables:
    """An opened file."""

    failures = (apsw.Error, OSError)

    def __init__(self, path: Path, *, is_target: bool = False) -> None:
        """
        Args:
            is_target: It is made if there is none.

        Raises:
            StoreError: There is none; it cannot be opened, or was written by a later version.
        """
        self._path = path
        if not is_target and not path.is_file():
            raise StoreError("cannot copy", path, "there is no such file", "Name a store of a gateway")
        try:
            # What is copied need not survive a power cut before it is marked as whole; then all of it is synced.
            self._connection = connect_migrated(path, synchronous="NORMAL")
            self._connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
        except (apsw.Error, sqlite3.Error) as error:
            raise StoreError("cannot open", path, error, "Look at the disk") from error
        self.messages = _Messages(self._connection)
        self.entries = _Entries(self._connection)

    @property
    def place(self) -> str:
        """The file's path."""
        return str(self._path.resolve())

    def mark(self) -> CopyMark | None:
        return read_mark(self._connection)

    def write_mark(self, mark: CopyMark | None, log: LogRow | None = None) -> None:
        with self._synced():
            if log is not None:
                write_log(self._connection, log)
            write_mark(self._connection, mark)

    def log(self) -> LogRow | None:
        return read_log(self._connection)

    def rows(self, table: Table) -> Iterator[tuple[Any, ...]]:
        found = self._connection.execute(
            f"select {', '.join(table.columns)} from {table.name} order by {', '.join(table.key)}"
        )
        return _arrays(table, found, lambda text: tuple(json.loads(text)))

    def replace(self, log: LogRow, tables: Sequence[tuple[Table, Iterable[tuple[Any, ...]]]]) -> None:
        with self._synced():
            write_log(self._connection, log)
            for table, rows in tables:
                self._connection.execute(f"delete from {table.name}")
                self._connection.executemany(
                    _insert(table.name, table.columns), _arrays(table, rows, json.dumps)
                )

    def check(self) -> list[str]:
        return check(self._path)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """A transaction that survives a power cut, and with it all that came before."""
        self._connection.execute("pragma synchronous = full").fetchall()
        with self._connection:
            yield
        self._connection.execute("pragma synchronous = normal").fetchall()


class _Messages:
    """See ``store.copies.tables.CopiedMessages``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def digest(self, first: int, stop: int) -> Digest:
        (found,) = self._connection.execute(
            f"select count(*), coalesce(sum({CHECKSUM}), 0), coalesce(sum(held + 1), 0) from message "
            "where id >= ? and id < ?",
            (first, stop),
        )
        return Digest(*found)

    def last_below(self, stop: int) -> int:
        ((last,),) = self._connection.execute(
            "select coalesce(max(id), 0) from message where id < ?", (stop,)
        )
        return int(last)

    def next_from(self, first: int) -> int | None:
        ((found,),) = self._connection.execute("select min(id) from message where id >= ?", (first,))
        return None if found is None else int(found)

    def rows(self, first: int, stop: int) -> Iterator[StoredMessage]:
        for checked in self._connection.execute(
            f"select {CHECKED} from message where id >= ? and id < ? order by id", (first, stop)
        ):
            row = sound_row(checked)
            if row is None:
                raise DamagedMessage(checked[0])
            yield (*row, checked[-1])

    def add(self, rows: Sequence[StoredMessage]) -> None:
        with self._connection:
            self._connection.executemany(_insert("message", MESSAGE), rows)

    def remove(self, first: int, stop: int) -> None:
        with self._connection:
            self._connection.execute("delete from message where id >= ? and id < ?", (first, stop))


class _Entries:
    """See ``store.copies.tables.CopiedEntries``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def segments(self) -> list[int]:
        found: list[int] = []
        segment = -1
        while True:
            ((segment,),) = self._connection.execute(
                "select min(segment) from property_value where segment > ?", (segment,)
            )
            if segment is None:
                return found
            found.append(segment)

    def digest(self, segment: int) -> Digest:
        (found,) = self._connection.execute(
            "select count(*), coalesce(sum(message & ?), 0), coalesce(sum(number + octet_length(value)), 0) "
            "from property_value where segment = ?",
            (IN_SEGMENT, segment),
        )
        return Digest(*found)

    def rows(self, segment: int) -> Iterator[IndexEntry]:
        return iter(
            self._connection.execute(
                f"select {', '.join(ENTRY)} from property_value where segment = ? order by 1, 2, 3, 4",
                (segment,),
            )
        )

    def replace(self, segment: int, entries: Iterable[IndexEntry]) -> None:
        with self._connection:
            self._connection.execute("delete from property_value where segment = ?", (segment,))
            self._connection.executemany(_insert("property_value", ENTRY), entries)


def _arrays(
    table: Table, rows: Iterable[tuple[Any, ...]], changed: Callable[[Any], Any]
) -> Iterator[tuple[Any, ...]]:
    """Rows with something made of their arrays."""
    if not table.arrays:
        return iter(rows)
    return (
        tuple(
            changed(value) if name in table.arrays else value
            for name, value in zip(table.columns, row, strict=True)
        )
        for row in rows
    )


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"insert into {table} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})"
