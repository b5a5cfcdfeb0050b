"""
Copies of a Message VPN's schema (``store.copies``): its mark as a copy, and its rows for another engine, and from
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, Final

import psycopg
from psycopg import sql

from gateway.core.model import CONTENT, HELD, ID, Row
from store.checksum import is_sound
from store.copies import (
    CHECKSUM,
    ENTRY,
    IN_SEGMENT,
    MESSAGE,
    CopyMark,
    Digest,
    IndexEntry,
    LogRow,
    StoredMessage,
    Table,
    read_mark,
    write_mark,
)
from store.errors import DamagedMessage, StoreError, StoreHeld
from store.postgresql import schema
from store.postgresql.check import check_vpn
from store.postgresql.cursors import PostgresShortTables
from store.postgresql.database import Connection, Database, read_text, schema_name, stored_text
from store.postgresql.packed import copied
from store.postgresql.partitions import attached_spans, make, missing_spans, partition_size
from store.postgresql.schema import migrate
from store.postgresql.takeover import WRITER, active_gateway, try_lock

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Content that is read at once; one message is always let through."""

TABLE_ROWS: Final = 2_000
"""Rows of a small table that are on their way at once."""

WAITING: Final = b"""
    select exists (select 1 from pg_stat_activity
        where datname = current_database() and starts_with(application_name, 'rewind ')
            and substr(application_name, 16) = substr(%s, 16))
"""
"""Whether a gateway has a session that waits for the lock, and would end ours. Its name is that of ours, but for the
eight digits that each gateway has of its own."""

SESSION_ENDS_SECONDS: Final = 2.0
"""How long a server may show a session whose client is gone."""

LOOK_SECONDS: Final = 0.05

LOG: Final = LogRow._fields

SOUND: Final = CHECKSUM.replace("%", "%%")

FIRST_ID: Final = "coalesce((select first_id from log), 0)"
"""Rows of ``message`` below it are not there."""


class PostgresTables:
    """An opened schema, held against gateways as long as the connection lasts."""

    failures = (psycopg.Error,)

    def __init__(self, database: Database, vpn: str, *, is_target: bool = False) -> None:
        """
        Args:
            is_target: It is made if there is none.

        Raises:
            StoreHeld: A gateway has it, or another copy.
            StoreError: There is none; it cannot be opened, or was written by a later version.
        """
        self._database = database
        self._vpn = vpn
        self.place = f"{database.place}, schema {schema_name(vpn)}"
        try:
            self._connection = database.connect(vpn, "copy")
        except (psycopg.Error, OSError) as error:
            raise StoreError("cannot open", self.place, error, "Look at the url and the password") from error
        try:
            self._epoch = self._held(is_target=is_target)
        except BaseException as error:
            self._connection.close()
            if isinstance(error, psycopg.Error):
                raise StoreError("cannot open", self.place, error, "Look at the database") from error
            raise
        self._short = PostgresShortTables(self._connection)
        self.messages = _Messages(self._connection)
        self.entries = _Entries(self._connection)

    def _is_waited_for(self) -> bool:
        """Whether a gateway has a session to take the store over; one that has ended is shown for a moment."""
        name = self._database.session_name(self._vpn, WRITER)
        until = monotonic() + SESSION_ENDS_SECONDS
        while True:
            ((waiting,),) = self._connection.execute(WAITING, (name,)).fetchall()
            if not waiting or monotonic() > until:
                return bool(waiting)
            sleep(LOOK_SECONDS)

    def _held(self, *, is_target: bool) -> int | None:
        """The epoch that it has from now on, so that no gateway that had it before is believed."""
        connection = self._connection
        if not try_lock(connection, self._vpn):
            raise StoreHeld("cannot copy", self.place, active_gateway(connection))
        if self._is_waited_for():
            raise StoreError(
                "cannot copy", self.place, "a gateway waits for it, and would take it", "Stop that gateway"
            )
        if is_target:
            made = sql.Identifier(schema_name(self._vpn))
            connection.execute(sql.SQL("create schema if not exists {}").format(made))
        ((is_there,),) = connection.execute(b"select to_regclass('log') is not null").fetchall()
        if not (is_there or is_target):
            raise StoreError(
                "cannot copy", self.place, "there is no such store", "Say --vpn as the gateway has it"
            )
        migrate(connection, self.place)
        rows = connection.execute(b"update log set epoch = epoch + 1 returning epoch").fetchall()
        return int(rows[0][0]) if rows else None

    def mark(self) -> CopyMark | None:
        return read_mark(self._short)

    def write_mark(self, mark: CopyMark | None, log: LogRow | None = None) -> None:
        with self._connection.transaction():
            self._check_epoch()
            if log is not None:
                self._write_log(log)
            write_mark(self._short, mark)

    def log(self) -> LogRow | None:
        rows = self._connection.execute(f"select {', '.join(LOG)} from log".encode()).fetchall()
        return LogRow(*rows[0]) if rows else None

    def rows(self, table: Table) -> Iterator[tuple[Any, ...]]:
        texts = [position for position, name in enumerate(table.columns) if name in table.texts]
        arrays = [position for position, name in enumerate(table.columns) if name in table.arrays]
        query = f"select {', '.join(table.columns)} from {table.name} order by {', '.join(table.key)}"
        with (
            self._connection.transaction(),
            self._connection.cursor(f"copy_{table.name}") as cursor,
        ):
            cursor.itersize = TABLE_ROWS
            for row in cursor.execute(query.encode()):
                found = list(row)
                for position in texts:
                    found[position] = read_text(found[position])
                for position in arrays:
                    found[position] = tuple(found[position])
                yield tuple(found)

    def replace(self, log: LogRow, tables: Sequence[tuple[Table, Iterable[tuple[Any, ...]]]]) -> None:
        with self._connection.transaction():
            self._check_epoch()
            self._write_log(log)
            for table, rows in tables:
                self._connection.execute(f"delete from {table.name}".encode())
                with self._copy_into(table.name, table.columns) as copy:
                    for row in rows:
                        copy.write_row(
                            [
                                stored_text(value)
                                if name in table.texts
                                else list(value)
                                if name in table.arrays
                                else value
                                for name, value in zip(table.columns, row, strict=True)
                            ]
                        )
            # Spans that are begun from now on have numbers above these.
            self._connection.execute(
                b"select setval(pg_get_serial_sequence('indexed', 'number'), "
                b"coalesce((select max(number) from indexed), 0) + 1, false)"
            )
        # What was copied at once the server knows nothing of yet, and would read in the wrong way.
        for name in ("message", "held_message", "property_value", *[table.name for table, _ in tables]):
            self._connection.execute(f"analyze {name}".encode())

    def _copy_into(self, table: str, columns: Sequence[str]) -> Any:
        return self._connection.cursor().copy(f"copy {table} ({', '.join(columns)}) from stdin".encode())

    def _write_log(self, log: LogRow) -> None:
        changes = ", ".join(f"{name} = %s" for name in LOG)
        if not self._connection.execute(f"update log set {changes}".encode(), log).rowcount:
            marks = ", ".join(["%s"] * len(LOG))
            self._connection.execute(f"insert into log ({', '.join(LOG)}) values ({marks})".encode(), log)

    def _check_epoch(self) -> None:
        """Inside a transaction: nobody took the store over since it was opened."""
        rows = self._connection.execute(b"select epoch from log for update").fetchall()
        if self._epoch is not None and rows != [(self._epoch,)]:
            raise StoreError(
                "cannot copy", self.place, "a gateway has taken it over", "Stop that one, and run it again"
            )

    def check(self) -> list[str]:
        return check_vpn(self._database, self._vpn)

    def close(self) -> None:
        self._connection.close()


class _Messages:
    """See ``store.copies.CopiedMessages``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._spans = attached_spans(connection)

    def _one(self, query: str, *values: int) -> tuple[Any, ...]:
        (row,) = self._connection.execute(query.encode(), values).fetchall()
        return tuple(row)

    def digest(self, first: int, stop: int) -> Digest:
        return Digest(
            *self._one(
                f"select count(*), coalesce(sum({SOUND}), 0)::bigint, coalesce(sum(rest), 0)::bigint from ("
                f"select checksum, 0 as rest from message where id >= %s and id < %s and id >= {FIRST_ID} "
                "union all select checksum, held + 1 from held_message where id >= %s and id < %s) as found",
                first,
                stop,
                first,
                stop,
            )
        )

    def last_below(self, stop: int) -> int:
        (last,) = self._one(
            "select greatest(0, "
            f"(select id from message where id < %s and id >= {FIRST_ID} order by id desc limit 1), "
            "(select max(id) from held_message where id < %s))",
            stop, stop,
        )  # fmt: skip
        return int(last)

    def next_from(self, first: int) -> int | None:
        (found,) = self._one(
            f"select least((select id from message where id >= %s and id >= {FIRST_ID} order by id limit 1), "
            "(select min(id) from held_message where id >= %s))",
            first, first,
        )  # fmt: skip
        return None if found is None else int(found)

    def rows(self, first: int, stop: int) -> Iterator[StoredMessage]:
        lengths = self._connection.execute(
            f"select id, octet_length(content) from message where id >= %s and id < %s and id >= {FIRST_ID} "
            "union all select id, octet_length(content) from held_message where id >= %s and id < %s "
            "order by 1".encode(),
            (first, stop, first, stop),
        ).fetchall()
        size = 0
        for message_id, length in lengths:
            size += length
            if size >= PAGE_BYTES:
                yield from self._page(first, message_id + 1)
                first, size = message_id + 1, 0
        yield from self._page(first, stop)

    def _page(self, first: int, stop: int) -> list[StoredMessage]:
        found = self._connection.execute(
            f"select {_columns('null::integer')} from message where id >= %s and id < %s and id >= {FIRST_ID} "
            f"union all select {_columns('held')} from held_message where id >= %s and id < %s order by 1".encode(),
            (first, stop, first, stop),
            binary=True,
        ).fetchall()
        rows: list[StoredMessage] = []
        for message_id, time, text, bare, route, held, content, checksum in found:
            topic = read_text(text)
            if not is_sound(message_id, time, topic, bare, route, content, checksum):
                raise DamagedMessage(message_id)
            rows.append((message_id, time, topic, bare, route, held, content, checksum))
        return rows

    def add(self, rows: Sequence[StoredMessage]) -> None:
        plain: list[Row] = [row[:7] for row in rows]
        logged = [row for row in plain if row[HELD] is None]
        held = [row for row in plain if row[HELD] is not None]
        if logged:
            begin = self._spans[0].first if self._spans else logged[0][ID]
            size = partition_size(logged[-1][ID] - begin)
            for span in missing_spans(self._spans, logged[0][ID], logged[-1][ID], size):
                make(self._connection, span)
                self._spans = attached_spans(self._connection)
        largest = max(len(row[CONTENT]) for row in plain)
        with self._unsynced():
            for table, columns, part in (
                ("message", schema.MESSAGE_COLUMNS, logged),
                ("held_message", schema.HELD_COLUMNS, held),
            ):
                if part:
                    statement = f"copy {table} ({columns}) from stdin (format binary)"
                    with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                        copy.write(copied(part, largest))

    def remove(self, first: int, stop: int) -> None:
        with self._unsynced():
            for table in ("message", "held_message"):
                self._connection.execute(
                    f"delete from {table} where id >= %s and id < %s".encode(), (first, stop)
                )

    @contextmanager
    def _unsynced(self) -> Iterator[None]:
        with self._connection.transaction():
            self._connection.execute(b"set local synchronous_commit = off")
            yield


class _Entries:
    """See ``store.copies.CopiedEntries``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def segments(self) -> list[int]:
        # Each is found behind the one before: there are many entries, and few segments.
        rows = self._connection.execute(
            b"with recursive found (segment) as (select min(segment) from property_value union all "
            b"select (select min(segment) from property_value where segment > found.segment) from found "
            b"where found.segment is not null) select segment from found where segment is not null"
        ).fetchall()
        return [segment for (segment,) in rows]

    def digest(self, segment: int) -> Digest:
        (found,) = self._connection.execute(
            b"select count(*), coalesce(sum(message & %s), 0)::bigint, "
            b"coalesce(sum(number + octet_length(replace(value, chr(1), ''))), 0)::bigint "
            b"from property_value where segment = %s",
            (IN_SEGMENT, segment),
        ).fetchall()
        return Digest(*found)

    def rows(self, segment: int) -> Iterator[IndexEntry]:
        found = self._connection.execute(
            f"select {', '.join(ENTRY)} from property_value where segment = %s order by 1, 2, 3, 4".encode(),
            (segment,),
        ).fetchall()
        return ((segment, number, read_text(value), message) for segment, number, value, message in found)

    def replace(self, segment: int, entries: Iterable[IndexEntry]) -> None:
        with self._connection.transaction():
            self._connection.execute(b"set local synchronous_commit = off")
            self._connection.execute(b"delete from property_value where segment = %s", (segment,))
            statement = f"copy property_value ({', '.join(ENTRY)}) from stdin"
            with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                for _, number, value, message in entries:
                    copy.write_row((segment, number, stored_text(value), message))


def _columns(held: str) -> str:
    return ", ".join(held if name == "held" else name for name in MESSAGE)
